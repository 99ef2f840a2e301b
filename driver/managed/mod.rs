// SPDX-License-Identifier: GPL-2.0
//! Managed memory: memory of a program that a paged device reaches with no registration.
//!
//! A context *manages* ranges of the program's addresses. When a queue touches a page there that
//! the device does not have, the fault is *served*, in six steps (`serve.rs`, `lend.rs`): the page
//! is faulted in as if the program had touched it, mapped in the IOMMU, and entered in the
//! context's page table of the device. Nothing is pinned. So the device must lose a page before the
//! page may change: an MMU notifier takes it away, and waits until the device has forgotten it
//! (`notify.rs`).
//!
//! The unit of all this is a [`Block`] of 2 MiB, made at the first fault in it (`block.rs`). What
//! the device has of a block is a cache: it can be taken away at any time, and is, when page tables
//! or addresses on the bus run out.
//!
//! *The promise.* A page is mapped in the IOMMU only while it is referenced, or while the notifier
//! would take it away first. Therefore the order: hold the pages that were found, with the lock
//! that the notifier takes, if nothing has changed since they were looked up; map them in the IOMMU
//! without the lock, since that allocates; then, with the lock, look again whether anything has
//! changed, mark pages as modified, and enter them; then let go of them. The notifier goes the
//! other way: entries, confirmation by the device, IOMMU.
//!
//! *Precedence.* Addresses that are taken in the context's address space, by registrations and
//! allocations, are not lent. Whoever maps something takes the addresses first and then has the
//! blocks give way.
//!
//! Locks, outermost first: `service` of a block; `tables` and the bus's `taken`. The lists of
//! ranges and of blocks are spinlocks, held for a look-up. `lent` of a block is the lock that
//! the notifier takes; only stores to page tables and `iommu_unmap()` are made under it. Nothing
//! that depends on user space is done under any lock: pages are faulted in before `service` is
//! taken.

use crate::{
    address_space::AddressSpace,
    failure::Failure,
    gpu::{mmu::vm::Vm, vram::budget::Budget},
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    mmu::DmaControl,
    stats::Stats,
    sys::{
        mm::{hmm::Snapshot, mirror::Mirror},
        task,
        task::account::Account,
    },
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{Entry, RBTree, RBTreeNodeReservation},
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLock,
    },
};

mod advice;
mod ahead;
mod block;
mod fault;
mod lend;
mod notify;
mod past;
mod pieces;
mod placement;
mod plan;
mod prefetch;
pub(crate) mod range;
mod residency;
mod serve;
pub(crate) mod window;

pub(crate) use crate::gpu::vram::mover::MoverUse;
use advice::AdviceBook;
use block::{Block, Node, Spare};
use past::Pasts;
use range::{Range, Ranges};

/// Blocks that are made before those of which the device has nothing are looked for.
const FEW_BLOCKS: usize = 64;
/// Blocks that are taken away at once when something has run out.
const EVICTED: usize = 8;
/// Number of blocks whose last readahead is remembered.
const READAHEADS: u64 = 64;

/// The blocks of a context, by their numbers.
struct Blocks {
    by_number: RBTree<u64, Arc<Block>>,
    count: usize,
    /// Number of blocks from which on empty ones are given up.
    many: usize,
    /// A block prepared while the device is busy, for the next fault in a new one.
    spare: Option<Spare>,
    /// The context has ended, and no block can be made.
    ended: bool,
}

/// Memory that a context manages, and what the device was given of it.
#[pin_data]
pub(crate) struct Managed {
    vm: Arc<Vm>,
    stats: Arc<Stats>,
    /// The addresses of the program's mappings.
    space: Arc<AddressSpace>,
    bus: Arc<AddressSpace>,
    #[pin]
    ranges: SpinLock<Ranges>,
    #[pin]
    blocks: SpinLock<Blocks>,
    /// Counts faults, to find the block that was served longest ago.
    served: Atomic<u64>,
    #[pin]
    advice: AdviceBook,
    pasts: Pasts,
    budget: Budget,
    /// The readaheads of the last faults, by the lowest bits of their blocks' numbers.
    readaheads: [Atomic<u64>; READAHEADS as usize],
    /// How devices go through blocks that move, by the lowest bits of the next ones' numbers.
    courses: [Atomic<u64>; READAHEADS as usize],
    /// Room that is kept for the next page table that is read.
    #[pin]
    snapshot: SpinLock<Option<Snapshot>>,
}

/// Managed memory of a context, which follows the program's memory.
pub(crate) type Managing = Mirror<Managed>;

impl Managed {
    /// Prepares to manage memory for the context of `vm`, whose addresses are `space`. Called by
    /// the task whose memory it is.
    pub(crate) fn begin(
        vm: &Arc<Vm>,
        space: &Arc<AddressSpace>,
        account: &Account,
        stats: &Arc<Stats>,
    ) -> Result<(Arc<Managing>, MoverUse)> {
        let bus = space.device_mmu().ok_or(EINVAL)?.bus.clone();
        let mover = MoverUse::begin(vm.gpu(), &bus)?;
        let blocks = Blocks {
            by_number: RBTree::new(),
            count: 0,
            many: FEW_BLOCKS,
            spare: None,
            ended: false,
        };
        let managed = try_pin_init!(Self {
            vm: vm.clone(),
            stats: stats.clone(),
            space: space.clone(),
            bus,
            ranges <- new_spinlock!(Ranges::new(), "pinmap_ranges"),
            blocks <- new_spinlock!(blocks, "pinmap_blocks"),
            served: Atomic::new(0),
            advice <- AdviceBook::new(),
            pasts: Pasts::new()?,
            budget: Budget::new(vm.gpu(), account.uid(), account.mm()),
            readaheads: core::array::from_fn(|_| Atomic::new(0)),
            courses: core::array::from_fn(|_| Atomic::new(0)),
            snapshot <- new_spinlock!(None, "pinmap_snapshot"),
        }? Error);
        Ok((Mirror::new(account.mm(), managed)?, mover))
    }

    /// Returns room for the page table of a block.
    fn snapshot(&self) -> Result<Snapshot> {
        let kept = self.snapshot.lock().take();
        kept.map_or_else(Snapshot::new, Ok)
    }

    fn keep_snapshot(&self, snapshot: Snapshot) {
        let other = self.snapshot.lock().replace(snapshot);
        drop(other);
    }

    /// The share of VRAM that the context may have.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    fn dma_control(&self) -> &Arc<dyn DmaControl> {
        self.space.dma_control()
    }

    /// The range that can be managed: the addresses of programs that the device translates.
    pub(crate) fn bounds(space: &AddressSpace) -> Option<Span> {
        let user = Span::from_bounds(0, task::user_last())?;
        user.intersection(space.aperture())
    }

    /// Manages `range`, which is within the bounds. `EEXIST`: a part of it is managed already, in
    /// the same way.
    pub(crate) fn add(&self, range: &Arc<Range>) -> Result<(), Failure> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let in_the_way = self.ranges.lock().add(node, range);
        match in_the_way {
            Some(other) => Err(other.in_the_way()),
            None => Ok(()),
        }
    }

    /// Ends the management of `range`, as far as it had begun. When this returns, no access of the
    /// device to it is under way. `EIO`: the device did not confirm that, and is cut off.
    pub(crate) fn remove(&self, range: &Arc<Range>) -> Result {
        let node = self.ranges.lock().remove(range);
        drop(node);
        self.drop_spares();
        let is_window = range.is_window();
        if is_window {
            self.each_block(range.span(), Block::keep_no_more);
        }
        let range = range.span();
        let mut result = Ok(());
        self.each_block(range, |block| {
            let is_managed = self.first_range(block.span()).is_some();
            result = result.and(self.take_back(block, range, is_window || !is_managed));
            task::cond_resched();
        });
        result
    }

    /// Ends everything: the queues of the context are gone, and its page tables go next.
    fn give_up_all(&self) {
        let mut blocks = self.blocks.lock();
        blocks.ended = true;
        drop(blocks);
        self.drop_spares();
        if let Some(all) = Span::from_bounds(0, u64::MAX) {
            self.each_block(all, |block| {
                block.keep_no_more();
                // A device that does not confirm is cut off.
                let _ = self.take_back(block, all, true);
                task::cond_resched();
            });
        }
    }

    /// The addresses of the managed range that has the first managed address in `span`.
    fn first_range(&self, span: Span) -> Option<Span> {
        self.ranges.lock().first(span)
    }

    /// The managed range that `addr` is in: the window, if it is in one.
    fn range_at(&self, addr: u64) -> Option<Arc<Range>> {
        self.ranges.lock().at(addr)
    }

    /// Calls `visit` for each block that overlaps `span`, without a lock. From any context, if
    /// `visit` may be called there.
    fn each_block(&self, span: Span, mut visit: impl FnMut(&Block)) {
        let mut from = span.start() / LARGE;
        loop {
            let blocks = self.blocks.lock();
            let cursor = blocks.by_number.cursor_lower_bound(&from);
            let found = cursor.map(|cursor| {
                let (&number, block) = cursor.current();
                (number, block.clone())
            });
            drop(blocks);
            let Some((number, block)) = found else {
                return;
            };
            if number > span.last() / LARGE {
                return;
            }
            visit(&block);
            from = number.saturating_add(1);
        }
    }

    /// Finds the block of `addr`, if there is one.
    fn find_block(&self, addr: u64) -> Option<Arc<Block>> {
        self.blocks.lock().by_number.get(&(addr / LARGE)).cloned()
    }

    /// Finds the block of `addr`, or makes it. Sleeps.
    fn block_at(&self, addr: u64) -> Result<Arc<Block>, Failure> {
        let number = addr / LARGE;
        let mut blocks = self.blocks.lock();
        if blocks.ended {
            return Err(ENODEV.into());
        }
        if let Some(block) = blocks.by_number.get(&number) {
            return Ok(block.clone());
        }
        let is_many = blocks.count >= blocks.many;
        let spare = blocks.spare.take();
        drop(blocks);
        if is_many {
            self.give_up_empty();
        }
        let spare = spare.map_or_else(|| Spare::new(self), Ok)?;
        let (node, block) = spare.settle(self, number.saturating_mul(LARGE), None)?;
        match self.insert(node, &block) {
            None => Ok(block),
            // Somebody else was quicker.
            Some(other) => other.ok_or_else(|| ENODEV.into()),
        }
    }

    /// Makes what the next fault in a new block will take. What fails is left out. Sleeps.
    fn prepare(&self) {
        let preparing = self.vm.preparing();
        let lacks = |blocks: &Blocks| blocks.spare.is_none() && !blocks.ended;
        if lacks(&self.blocks.lock()) {
            if let Ok(spare) = Spare::new(self) {
                let mut blocks = self.blocks.lock();
                let unwanted = if lacks(&blocks) {
                    blocks.spare.replace(spare)
                } else {
                    Some(spare)
                };
                drop(blocks);
                drop(unwanted);
            }
        }
        self.vm.prepare_table();
        drop(preparing);
        // Whoever removes the last range may have looked before.
        let all = Span::from_bounds(0, u64::MAX);
        if all.is_some_and(|all| self.first_range(all).is_none()) {
            self.drop_spares();
        }
    }

    /// Drops what was made for the next fault, or is just being made.
    fn drop_spares(&self) {
        drop(self.vm.preparing());
        let spare = self.blocks.lock().spare.take();
        drop(spare);
        self.vm.free_spare_table();
    }

    /// Puts a new block in the list. If there is another one, or no block can be made any more,
    /// gives it up, and returns the other one.
    fn insert(&self, node: Node, block: &Arc<Block>) -> Option<Option<Arc<Block>>> {
        let number = block.span().start() / LARGE;
        let mut blocks = self.blocks.lock();
        let all = &mut *blocks;
        let other = match all.by_number.entry(number) {
            Entry::Occupied(other) => Some(other.get().clone()),
            Entry::Vacant(place) if !all.ended => {
                place.insert(block.clone(), node);
                all.count = all.count.saturating_add(1);
                return None;
            }
            Entry::Vacant(_) => None,
        };
        drop(blocks);
        let _ = block.dissolve(self);
        Some(other)
    }

    /// Takes what overlaps `span` of a block away from the device, and gives the block up if
    /// `wholly`, unless it belongs to a window, or the device has been given something beside
    /// `span` meanwhile. Sleeps, and waits for the device.
    fn take_back(&self, block: &Block, span: Span, wholly: bool) -> Result {
        let mut service = block.service.lock();
        if service.dead {
            return Ok(());
        }
        let result = block.take_back(self, span);
        if !wholly || block.is_kept() || !block.is_empty() {
            return result;
        }
        let result = result.and(block.give_up(self, &mut service));
        drop(service);
        self.drop_block(block);
        result
    }

    /// Drops a block that is dead from the list.
    fn drop_block(&self, block: &Block) {
        let mut blocks = self.blocks.lock();
        let number = block.span().start() / LARGE;
        let is_this = |other: &Arc<Block>| core::ptr::eq(&**other, block);
        let node = if blocks.by_number.get(&number).is_some_and(is_this) {
            blocks.count = blocks.count.saturating_sub(1);
            blocks.by_number.remove_node(&number)
        } else {
            None
        };
        drop(blocks);
        drop(node);
    }

    /// Gives up the blocks of which the device has nothing.
    fn give_up_empty(&self) {
        if let Some(all) = Span::from_bounds(0, u64::MAX) {
            self.each_block(all, |block| {
                if block.is_empty() && !block.is_kept() {
                    // It is known to the device only by tables without entries.
                    let _ = self.take_back(block, all, true);
                }
                task::cond_resched();
            });
        }
        let mut blocks = self.blocks.lock();
        blocks.many = blocks.count.saturating_mul(2).max(FEW_BLOCKS);
    }

    /// Gives up some blocks, because page tables or addresses on the bus have run out: those that
    /// were served longest ago. Returns whether there were any.
    fn make_room(&self) -> bool {
        // What is only prepared comes first.
        if self.vm.free_spare_table() {
            return true;
        }
        let mut any = false;
        for _ in 0..EVICTED {
            let mut oldest: Option<(u64, Arc<Block>)> = None;
            let blocks = self.blocks.lock();
            for block in blocks.by_number.values().filter(|it| !it.is_kept()) {
                let served = if block.is_empty() { 0 } else { block.served() };
                if oldest.as_ref().is_none_or(|(least, _)| served < *least) {
                    oldest = Some((served, block.clone()));
                }
            }
            drop(blocks);
            let Some((_, block)) = oldest else {
                break;
            };
            let _ = self.take_back(&block, block.span(), true);
            any = true;
        }
        any
    }

    /// The number of the next fault.
    fn next_served(&self) -> u64 {
        self.served.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// How many faults were served.
    fn served_so_far(&self) -> u64 {
        self.served.load(Relaxed)
    }
}

fn page_of(addr: u64) -> Span {
    Span::aligned(addr, PAGE_SIZE)
}

/// Returns the block of `addr`: what a huge page has.
fn block_of(addr: u64) -> Span {
    Span::aligned(addr, LARGE)
}
