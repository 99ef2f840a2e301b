// SPDX-License-Identifier: GPL-2.0
//! A context's address space in the device: its page tables, which lie in VRAM, and the VMID that
//! it has at times.
//!
//! Entering a mapping has two steps. First all tables that it takes are prepared, as a [`Stock`]:
//! allocated, charged and zeroed. Then they are stored to, under the tables' lock, where nothing
//! allocates: a task that reclaims memory may wait for that lock. Removing clears entries and takes
//! out tables that became empty; they are freed when the device has forgotten them (see
//! [`Removal`]).
//!
//! The driver relies on nothing that it reads in the tables: it counts their entries.

use super::pager::Paging;
use crate::{
    address_space::AddressSpace,
    failure::Failure,
    gpu::{vram::Share, Gpu},
    logic::{
        pte::{self, Access, Leaves, Memory, Step, LARGE, ROOT_LEVEL},
        span::Span,
        trouble::Trouble,
        PAGE_SIZE,
    },
    mmu::{Mmu, Removal, Table},
    sys::{
        mm::reclaim,
        task,
        task::account::{Account, Charge},
    },
    uapi::{self, pinmap_gpu_walk},
};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{
        atomic::Atomic,
        lock::{mutex::MutexBackend, Guard},
        Arc, Mutex, SpinLock,
    },
};

/// Names the table of `level` that has the entry for `va`.
fn key(level: u32, va: u64) -> u64 {
    let number = va.wrapping_shr(pte::shift(level.wrapping_add(1)));
    u64::from(level).wrapping_shl(60) | number
}

/// A table that is not in use, and all that it takes to use it.
struct Spare {
    table: Table,
    node: RBTreeNodeReservation<u64, Table>,
    /// The entry that leads to it from the table above.
    entry: u64,
}

impl Spare {
    /// Prepares a table, which is zeroed. `charge` pays for it.
    fn new(gpu: &Gpu, share: &Share, charge: Option<Charge>) -> Result<Self, Failure> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let offset = share.take_table()?;
        let Some(entry) = gpu.hardware.format().table(offset) else {
            share.give_table(offset);
            return Err(ENODEV.into());
        };
        gpu.hardware.zero(offset, PAGE_SIZE);
        let table = Table {
            offset,
            used: 0,
            _charge: charge,
        };
        Ok(Self { table, node, entry })
    }
}

/// Tables that are prepared. Dropping it frees those that were not needed.
pub(super) struct Stock<'a> {
    gpu: &'a Gpu,
    share: &'a Share,
    /// Mostly one is enough, which needs no list.
    one: Option<Spare>,
    more: KVVec<Spare>,
}

impl<'a> Stock<'a> {
    pub(super) fn new(gpu: &'a Gpu, share: &'a Share) -> Self {
        Self {
            gpu,
            share,
            one: None,
            more: KVVec::new(),
        }
    }

    /// The number of tables that are prepared.
    pub(super) fn len(&self) -> usize {
        let one = usize::from(self.one.is_some());
        self.more.len().saturating_add(one)
    }

    fn pop(&mut self) -> Option<Spare> {
        self.more.pop().or_else(|| self.one.take())
    }

    /// Prepares tables until there are `count`. `account` pays for them, if there is one. Called
    /// without the tables' lock. A fatal signal stops it.
    pub(super) fn fill(
        &mut self,
        account: Option<&Arc<Account>>,
        count: usize,
    ) -> Result<(), Failure> {
        let result = self.try_fill(account, count);
        // Also those that were made before a failure, which may do.
        self.gpu.hardware.order();
        result
    }

    fn try_fill(&mut self, account: Option<&Arc<Account>>, count: usize) -> Result<(), Failure> {
        // All at once, so that PREFLIGHT can tell the same numbers.
        let more = count.saturating_sub(self.len());
        let charges = account.map(|account| Charge::new(account, more as u64));
        let mut charges = charges.transpose()?;
        for _ in 0..more {
            let charge = charges.as_mut().and_then(Charge::take_page);
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
            if self.one.is_some() {
                self.more.reserve(1, GFP_KERNEL_ACCOUNT)?;
            }
            let spare = Spare::new(self.gpu, self.share, charge)?;
            if self.one.is_none() {
                self.one = Some(spare);
            } else if let Err(spare) = self.more.push_within_capacity(spare) {
                self.share.give_table(spare.0.table.offset);
                return Err(ENOMEM.into());
            }
            task::cond_resched();
        }
        Ok(())
    }
}

impl Drop for Stock<'_> {
    fn drop(&mut self) {
        for spare in Iterator::chain(self.one.iter(), self.more.iter()) {
            self.share.give_table(spare.table.offset);
        }
    }
}

/// Counts the tables for `leaves` that are missing. `is_there` tells which exist, by key.
///
/// `EINTR`: a fatal signal came.
fn absent(leaves: Leaves, is_there: impl Fn(u64) -> bool) -> Result<usize> {
    // The last table of each level that was looked at; those above it were looked at as well.
    let mut looked = [u64::MAX; ROOT_LEVEL as usize];
    let mut count = 0_usize;
    for leaf in leaves {
        if task::fatal_signal_pending() {
            return Err(EINTR);
        }
        let levels = (0..ROOT_LEVEL).zip(&mut looked);
        for (level, last) in levels.skip(leaf.level() as usize) {
            let name = key(level, leaf.va);
            if *last == name || is_there(name) {
                break;
            }
            *last = name;
            count = count.saturating_add(1);
        }
        task::cond_resched();
    }
    Ok(count)
}

/// Tables that were taken out of the tree, and that the device may still walk.
pub(super) type Removed = RBTree<u64, Table>;

/// The tables of an address space. Dropping them frees them. Nothing is mapped then, or the
/// mappings would keep the address space, so the device has forgotten all of them.
pub(super) struct Tables {
    share: Arc<Share>,
    /// Offset of the root table.
    root: u64,
    /// The root is charged as all of them are.
    _charge: Charge,
    below: RBTree<u64, Table>,
    /// A table that is prepared for managed memory, and charged to nobody.
    spare: Option<Spare>,
    /// The device does not use the tables any more, and they were freed.
    pub(super) dead: bool,
}

impl Tables {
    /// Offset of the table of `level` that has the entry for `va`.
    pub(super) fn find(&self, level: u32, va: u64) -> Option<u64> {
        if level == ROOT_LEVEL {
            return Some(self.root);
        }
        self.below.get(&key(level, va)).map(|table| table.offset)
    }

    /// Like [`find`](Self::find), and makes the table if it is missing, of those in `stock`.
    /// `None`: there are not enough.
    pub(super) fn make(&mut self, stock: &mut Stock<'_>, level: u32, va: u64) -> Option<u64> {
        if let Some(offset) = self.find(level, va) {
            return Some(offset);
        }
        let above = level.saturating_add(1);
        let parent = self.make(stock, above, va)?;
        let spare = stock.pop()?;
        Some(self.link(stock.gpu, parent, spare, level, va))
    }

    /// Makes `spare` the table of `level` for `va`, which is missing. `parent` is the table above.
    /// Returns its offset.
    fn link(&mut self, gpu: &Gpu, parent: u64, spare: Spare, level: u32, va: u64) -> u64 {
        let Spare { table, node, entry } = spare;
        let above = level.saturating_add(1);
        let offset = table.offset;
        let at = parent.saturating_add(pte::slot(above, va));
        gpu.hardware.store(at, entry);
        self.below.insert(node.into_node(key(level, va), table));
        self.count(above, va);
        offset
    }

    /// Counts one more user of the table of `level` for `va`, if it is there. Returns its offset.
    #[cfg_attr(not(pinmap_mirror), allow(dead_code, reason = "for managed memory"))]
    pub(super) fn keep(&mut self, level: u32, va: u64) -> Option<u64> {
        let table = self.below.get_mut(&key(level, va))?;
        table.used = table.used.saturating_add(1);
        Some(table.offset)
    }

    /// Makes the spare table, if there is one, that of `level` for `va`, which is missing, with one
    /// user. `parent` is the table above. Returns its offset.
    #[cfg_attr(not(pinmap_mirror), allow(dead_code, reason = "for managed memory"))]
    pub(super) fn keep_spare(
        &mut self,
        gpu: &Gpu,
        parent: u64,
        level: u32,
        va: u64,
    ) -> Option<u64> {
        let mut spare = self.spare.take()?;
        spare.table.used = 1;
        Some(self.link(gpu, parent, spare, level, va))
    }

    /// Frees the spare table. Returns whether there was one.
    fn free_spare(&mut self) -> bool {
        let Some(spare) = self.spare.take() else {
            return false;
        };
        self.share.give_table(spare.table.offset);
        true
    }

    /// Counts one more valid entry of a table, or user of it.
    pub(super) fn count(&mut self, level: u32, va: u64) {
        if let Some(table) = self.below.get_mut(&key(level, va)) {
            table.used = table.used.saturating_add(1);
        }
    }

    /// Clears the entry of `level` for `va`, and takes out the tables that have no other entry.
    fn clear(&mut self, gpu: &Gpu, level: u32, va: u64, removed: &mut Removed) {
        let mut level = level;
        while let Some(offset) = self.find(level, va) {
            gpu.hardware
                .store(offset.saturating_add(pte::slot(level, va)), 0);
            let name = key(level, va);
            if let Some(table) = self.below.get_mut(&name) {
                table.used = table.used.saturating_sub(1);
            }
            if !self.take_if_empty(name, removed) {
                return;
            }
            level = level.saturating_add(1);
        }
    }

    fn take_if_empty(&mut self, name: u64, removed: &mut Removed) -> bool {
        if self.below.get(&name).is_none_or(|table| table.used != 0) {
            return false;
        }
        if let Some(node) = self.below.remove_node(&name) {
            removed.insert(node);
        }
        true
    }

    /// Lets go of a table that the caller has counted itself in, and takes out the tables that have
    /// no other entry.
    #[cfg_attr(not(pinmap_mirror), allow(dead_code, reason = "for managed memory"))]
    pub(super) fn let_go(&mut self, gpu: &Gpu, level: u32, va: u64, removed: &mut Removed) {
        let name = key(level, va);
        if let Some(table) = self.below.get_mut(&name) {
            table.used = table.used.saturating_sub(1);
        }
        if self.take_if_empty(name, removed) {
            self.clear(gpu, level.saturating_add(1), va, removed);
        }
    }

    /// Clears everything in `span`, all of which was entered, by leaves that do not reach beyond
    /// it.
    fn clear_all(&mut self, gpu: &Gpu, span: Span, removed: &mut Removed) {
        let mut at = Some(span.start());
        while let Some(va) = at.filter(|&va| va <= span.last()) {
            // Where there is a table for small leaves, there is no large one.
            let (level, bytes) = match self.find(0, va) {
                Some(_) => (0, PAGE_SIZE),
                None => (1, LARGE),
            };
            self.clear(gpu, level, va, removed);
            at = va.checked_add(bytes);
            task::cond_resched();
        }
    }

    /// Frees all tables.
    fn free(&mut self) {
        if !self.dead {
            self.dead = true;
            self.free_spare();
            self.share.give_table(self.root);
            for table in self.below.values() {
                self.share.give_table(table.offset);
            }
            self.below = RBTree::new();
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.free();
    }
}

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
    /// Makes an empty address space, for whose tables `account` pays.
    pub(in crate::gpu) fn new(gpu: &Arc<Gpu>, account: &Arc<Account>) -> Result<Arc<Self>> {
        let charge = Charge::new(account, 1).map_err(|_| ENOMEM)?;
        let share = Arc::new(Share::new(gpu, account)?, GFP_KERNEL_ACCOUNT)?;
        let root = share.take_table()?;
        gpu.hardware.zero(root, PAGE_SIZE);
        gpu.hardware.order();
        let tables = Tables {
            share: share.clone(),
            root,
            _charge: charge,
            below: RBTree::new(),
            spare: None,
            dead: false,
        };
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

    /// The addresses for programs, with `bus` behind them, and those that are the driver's.
    pub(in crate::gpu) fn spaces(
        this: &Arc<Self>,
        bus: &Arc<AddressSpace>,
    ) -> Result<(Arc<AddressSpace>, Arc<AddressSpace>)> {
        let all = this.gpu.hardware.limits().addresses;
        let middle = all.start().saturating_add(all.length() / 2);
        let low = Span::from_bounds(all.start(), middle.saturating_sub(1)).ok_or(ENODEV)?;
        let high = Span::from_bounds(middle, all.last()).ok_or(ENODEV)?;
        Ok((
            AddressSpace::with_mmu(this.clone(), low, bus.clone())?,
            AddressSpace::with_mmu(this.clone(), high, bus.clone())?,
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
    #[cfg_attr(not(pinmap_mirror), allow(dead_code, reason = "for managed memory"))]
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
    #[cfg_attr(not(pinmap_mirror), allow(dead_code, reason = "for managed memory"))]
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
        let mut missing = absent(leaves(), |name| tables.below.get(&name).is_some())?;
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
            missing = absent(leaves(), |name| tables.below.get(&name).is_some())?;
        }
        if tables.dead {
            return Err(ENODEV.into());
        }
        gpu.enter_use();
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
        // The entries are there before any doorbell that is rung because of them.
        gpu.hardware.order();
        Ok(())
    }

    fn tables_due(&self, span: Span) -> Result<u64> {
        // Bus addresses are congruent, as far as leaves depend on it.
        let leaves = Leaves::new(span, Memory::Host(span.start()));
        let tables = self.tables.lock();
        Ok(absent(leaves, |name| tables.below.get(&name).is_some())? as u64)
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
        gpu.leave_use();
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
