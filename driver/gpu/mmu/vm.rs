// SPDX-License-Identifier: GPL-2.0
//! A context's address space in the device: its page tables, which lie in VRAM, and the VMID that
//! it has at times.
//!
//! `tables.rs` has the tables themselves.

use super::{
    pager::Paging,
    tables::{absent, Spare, Stock, Tables},
};
use crate::{
    address_space::AddressSpace,
    failure::Failure,
    gpu::{vram::Share, Gpu},
    logic::{
        pte::{self, Access, Leaves, Memory, Step, ROOT_LEVEL},
        span::Span,
        trouble::Trouble,
        PAGE_SIZE,
    },
    mmu::{Mmu, Removal},
    sys::{mm::reclaim, pci::runtime::Runtime, task, task::account::Account},
    uapi::{self, pinmap_gpu_walk},
};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::{Atomic, Relaxed},
        lock::{mutex::MutexBackend, Guard},
        Arc, Mutex, SpinLock,
    },
};

/// A context's address space.
#[pin_data]
pub(crate) struct Vm {
    pub(super) gpu: Arc<Gpu>,
    pub(super) share: Arc<Share>,
    /// Pays for the tables.
    pub(super) account: Arc<Account>,
    /// Offset of the root table.
    pub(super) root: u64,
    /// Nothing allocates under this lock: a task that waits for it may be reclaiming memory.
    #[pin]
    pub(super) tables: Mutex<Tables>,
    /// The VMID under which the device may have something cached. The scheduler sets it before a
    /// queue is bound, and takes it after the device has forgotten all of the address space.
    #[pin]
    vmid: Mutex<Option<u32>>,
    /// Held while something is prepared for the next fault: whoever wants it given up waits for it.
    #[pin]
    preparing: Mutex<()>,
    /// Whether the root has no entry but those that were made.
    begun: Atomic<bool>,
    /// Returns what serves faults of the context's queues.
    #[pin]
    pub(super) paging: SpinLock<Paging>,
    /// The faults that stopped queues of the context.
    #[pin]
    pub(in crate::gpu) trouble: SpinLock<Trouble>,
    /// Time before which no queue of the context is given a slot.
    pub(in crate::gpu) held_until: Atomic<u64>,
    /// Number of threads that use the program's address space for the context.
    pub(in crate::gpu) serving: Atomic<u32>,
    /// Names the context for the scheduler.
    pub(in crate::gpu) number: u64,
    /// When a queue of the context was last put into a slot, or the context came, in the
    /// scheduler's order.
    pub(in crate::gpu) served: Atomic<u64>,
    /// Whether the next queue is to be one that only waited when it was last in a slot.
    pub(in crate::gpu) waiters_first: Atomic<bool>,
}

impl Vm {
    /// Makes an empty address space, for whose tables `account` pays, but for the root: `open()`
    /// could not tell which limit was in the way. The share of VRAM limits the number of roots.
    pub(in crate::gpu) fn new(gpu: &Arc<Gpu>, account: &Arc<Account>) -> Result<Arc<Self>> {
        let share = Arc::new(Share::new(gpu, account)?, GFP_KERNEL_ACCOUNT)?;
        let root = share.take_table()?;
        let tables = Tables::new(share.clone(), root);
        // After all contexts that there are.
        let joined = gpu.order.lock().advance();
        let this = Arc::pin_init(
            pin_init!(Self {
                gpu: gpu.clone(),
                share,
                account: account.clone(),
                root,
                number: joined,
                tables <- new_mutex!(tables, "pinmap_tables"),
                vmid <- new_mutex!(None, "pinmap_vmid"),
                begun: Atomic::new(false),
                preparing <- new_mutex!((), "pinmap_preparing"),
                paging <- new_spinlock!(Paging::Nothing, "pinmap_pager"),
                trouble <- new_spinlock!(Trouble::new(), "pinmap_trouble"),
                held_until: Atomic::new(0),
                serving: Atomic::new(0),
                served: Atomic::new(joined),
                waiters_first: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        reclaim::may_wait(|| {
            drop(this.tables.lock());
            drop(this.vmid.lock());
            drop(this.gpu.invalidates.lock());
        });
        Ok(this)
    }

    /// Empties the root, the first time. It is used only after that: the device is awake.
    pub(crate) fn begin(&self) {
        let _tables = self.tables.lock();
        if !self.begun.load(Relaxed) {
            self.gpu.hardware.zero(self.root, PAGE_SIZE);
            self.gpu.hardware.order();
            self.begun.store(true, Relaxed);
        }
    }

    /// The addresses for programs, with `bus` behind them, and those that are the driver's: the
    /// upper half. Where programs have addresses there (arm64 gives them 48 bits), the driver has a
    /// TiB in the middle, where neither programs nor libraries nor heaps are.
    pub(in crate::gpu) fn spaces(
        this: &Arc<Self>,
        bus: &Arc<AddressSpace>,
    ) -> Result<(Arc<AddressSpace>, Arc<AddressSpace>)> {
        let all = this.gpu.hardware.limits().addresses;
        let middle = all.start().saturating_add(all.length() / 2);
        let (programs, drivers, reserved) = if task::default_user_last() < middle {
            let last = middle.saturating_sub(1);
            let low = Span::from_bounds(all.start(), last).ok_or(ENODEV)?;
            let high = Span::from_bounds(middle, all.last()).ok_or(ENODEV)?;
            (low, high, None)
        } else {
            let part = Span::new(middle, 1 << 40).map_err(|_| ENODEV)?;
            (all, part, Some(part))
        };
        Ok((
            AddressSpace::with_mmu(this.clone(), programs, reserved, bus.clone())?,
            AddressSpace::with_mmu(this.clone(), drivers, None, bus.clone())?,
        ))
    }

    /// The root table.
    pub(in crate::gpu) fn root(&self) -> Memory {
        Memory::Vram(self.root)
    }

    pub(in crate::gpu) fn vmid(&self) -> Option<u32> {
        *self.vmid.lock()
    }

    /// Sets the VMID. Called by the scheduler.
    pub(in crate::gpu) fn set_vmid(&self, vmid: Option<u32>) {
        *self.vmid.lock() = vmid;
    }

    /// Pays for the tables, and has the program's address space.
    pub(in crate::gpu) fn account(&self) -> &Account {
        &self.account
    }

    /// Prepares a table for managed memory, unless there is a spare one. Sleeps. What fails is left
    /// out.
    pub(crate) fn prepare_table(&self) {
        let lacks = |tables: &Tables| tables.spare.is_none() && !tables.dead;
        if !lacks(&self.tables.lock()) {
            return;
        }
        let Ok(spare) = Spare::new(&self.gpu, &self.share, None) else {
            return;
        };
        let mut tables = self.tables.lock();
        if lacks(&tables) {
            // What it has of zeros arrives before an entry that leads to it.
            self.gpu.hardware.order();
            tables.spare = Some(spare);
            return;
        }
        drop(tables);
        self.share.give_table(spare.table.offset);
    }

    /// Has nobody else prepare anything for the next fault. The caller must not wait for what a
    /// thread does that frees a spare table.
    pub(crate) fn preparing(&self) -> Guard<'_, (), MutexBackend> {
        self.preparing.lock()
    }

    /// Frees the spare table for managed memory, also one that is just being made. Returns whether
    /// there was one.
    pub(crate) fn free_spare_table(&self) -> bool {
        drop(self.preparing.lock());
        self.tables.lock().free_spare()
    }

    /// Frees the tables: the device does not use the address space any more, and has forgotten it.
    /// Nothing can be entered from now on.
    pub(in crate::gpu) fn retire(&self) {
        self.tables.lock().free();
    }

    /// Answers GPU_WALK: where `args.addr` leads, by what VRAM says.
    pub(crate) fn walk(&self, args: &mut pinmap_gpu_walk) -> Result {
        let gpu = &*self.gpu;
        if !gpu.limits.addresses.contains(args.addr) {
            return Err(EINVAL);
        }
        let format = gpu.hardware.format();
        let tables = self.tables.lock();
        gpu.check_here()?;
        if tables.dead {
            return Err(ENODEV);
        }
        let mut table = self.root;
        for (levels, level) in (1..).zip((0..=ROOT_LEVEL).rev()) {
            let at = table.saturating_add(pte::slot(level, args.addr));
            match format.read(gpu.hardware.load(at), level, args.addr) {
                Step::Absent => return Err(ENOENT),
                Step::Table(next) => table = next,
                Step::Leaf {
                    memory,
                    bytes,
                    read,
                    write,
                    fetch,
                    snoop,
                } => {
                    let is_host = matches!(memory, Memory::Host(_));
                    let flags = [
                        (read, uapi::PINMAP_WALK_READ),
                        (write, uapi::PINMAP_WALK_WRITE),
                        (fetch, uapi::PINMAP_WALK_FETCH),
                        (is_host, uapi::PINMAP_WALK_HOST),
                        (snoop, uapi::PINMAP_WALK_SNOOP),
                    ];
                    let set = flags.iter().filter(|(is_set, _)| *is_set);
                    args.out_flags = set.fold(0, |all, (_, flag)| all | flag);
                    args.out_levels = levels;
                    args.out_target = memory.address();
                    args.out_leaf_length = bytes;
                    return Ok(());
                }
            }
        }
        Err(ENOENT)
    }
}

impl Mmu for Vm {
    fn enter(&self, span: Span, memory: Memory, access: Access) -> Result<(), Failure> {
        let gpu = &*self.gpu;
        // The call may be one of another device: memory can be given to all of a process.
        let _awake = Runtime::wake(&*gpu.runtime)?;
        // Platforms where the device does not snoop are refused.
        let (format, snoop) = (gpu.hardware.format(), true);
        let leaves = || Leaves::new(span, memory);
        for leaf in leaves() {
            format.leaf(leaf, access, snoop).ok_or(EINVAL)?;
            task::cond_resched();
        }
        // What is mapped has precedence over what is managed.
        if let Some(pager) = self.pager() {
            pager.give_way(span)?;
        }
        // Everything that can fail comes first, without the lock.
        let mut stock = Stock::new(gpu, &self.share);
        let mut tables = self.tables.lock();
        let mut missing = tables.absent(leaves())?;
        let mut is_again = false;
        while missing > stock.len() && !tables.dead {
            drop(tables);
            if stock.len() != 0 && !is_again {
                // Other tables may have been removed since. This is the most that it can ever take.
                missing = absent(leaves(), |_| false)?;
            }
            is_again = match stock.fill(Some(&self.account), missing) {
                // What is mapped has precedence over what is managed.
                Err(failure) if failure.errno == ENOSPC && self.free_spare_table() => true,
                filled => filled.map(|()| false)?,
            };
            tables = self.tables.lock();
            missing = tables.absent(leaves())?;
        }
        if tables.dead {
            return Err(ENODEV.into());
        }
        for leaf in leaves() {
            let (level, va) = (leaf.level(), leaf.va);
            let entry = format.leaf(leaf, access, snoop);
            if let (Some(entry), Some(table)) = (entry, tables.make(&mut stock, level, va)) {
                let at = table.saturating_add(pte::slot(level, va));
                gpu.hardware.store(at, entry);
                tables.count(level, va);
            }
            task::cond_resched();
        }
        for va in pte::giants(span) {
            let part = memory.plus(va.saturating_sub(span.start()));
            if let Some(entry) = part.and_then(|part| format.giant(part, access, snoop)) {
                tables.fold(gpu, va, entry);
            }
        }
        // The entries are there before any doorbell that is rung because of them.
        gpu.hardware.order();
        Ok(())
    }

    fn tables_due(&self, span: Span) -> Result<u64> {
        // Bus addresses are congruent, as far as leaves depend on it.
        let leaves = Leaves::new(span, Memory::Host(span.start()));
        Ok(self.tables.lock().absent(leaves)? as u64)
    }

    fn check_tables(&self, count: u64) -> Result {
        match self.share.check_tables(count) {
            Err(_) if self.free_spare_table() => self.share.check_tables(count),
            checked => checked,
        }
    }

    fn remove(&self, span: Span) -> Result<Removal> {
        let gpu = &*self.gpu;
        let mut removal = Removal {
            command: None,
            tables: RBTree::new(),
        };
        let mut tables = self.tables.lock();
        if !tables.dead {
            tables.clear_all(gpu, span, &mut removal.tables);
        }
        drop(tables);
        gpu.hardware.order();
        // Without a VMID the device has nothing cached, and nothing runs that could cache it.
        if let Some(vmid) = self.vmid() {
            removal.command = gpu.begin_invalidate(vmid, span)?;
        }
        Ok(removal)
    }

    fn finish(&self, removal: Removal) -> Result {
        if let Some(command) = removal.command {
            self.gpu.await_invalidate(command)?;
        }
        for table in removal.tables.values() {
            self.share.give_table(table.offset);
        }
        Ok(())
    }
}
