// SPDX-License-Identifier: GPL-2.0
//! A block of 2 MiB of managed memory: the page tables that lead to it, its addresses on the bus,
//! and what the device has of it.
//!
//! A block's addresses on the bus belong to it as long as it lives, and page N of the block is
//! always at page N of them. So nothing is looked for when a page is entered or taken away, and
//! leaves are large in the tables of both the device and the IOMMU.

use super::{pieces::Piece, Managed};
use crate::{
    address_space::IovaRange,
    failure::Failure,
    gpu::mmu::leaves::{Lower, Supply, Upper},
    logic::{
        block::{LentPages, Pages, Run},
        place::Placement,
        pte::{Access, Memory, LARGE},
        request::Target,
        span::Span,
        PAGE_SIZE,
    },
    sys::{iommu::Lender, task::wait::WaitQueue},
};
use core::pin::Pin;
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex, SpinLock, UniqueArc,
    },
};

/// State that whoever serves faults of the block changes, one at a time.
pub(super) struct Service {
    /// The block was given up: it is not in the list, and the device has nothing of it.
    pub(super) dead: bool,
    /// The addresses on the bus, until then.
    range: Option<IovaRange>,
}

/// Pages that the device has.
pub(super) struct Lent {
    pub(super) pages: LentPages,
    /// Pages of these that are in VRAM: the IOMMU has nothing to do with them.
    private: Pages,
    /// The table for single pages, once there was one.
    pub(super) lower: Option<Lower>,
}

/// The pages of the block with the addresses `block` that overlap `span`.
pub(super) fn pages_in(block: Span, span: Span) -> Pages {
    match span.intersection(block) {
        Some(part) => {
            let index = |addr: u64| (addr.saturating_sub(block.start()) / PAGE_SIZE) as usize;
            Pages::range(index(part.start()), index(part.last()))
        }
        None => Pages::NONE,
    }
}

/// The pages of the block with the addresses `block` that are managed, and that no mapping of the
/// context has. If the block's service is locked, whoever changes that afterwards takes the pages
/// back.
pub(super) fn lendable(managed: &Managed, block: Span) -> Pages {
    let mut pages = Pages::NONE;
    let mut rest = Some(block);
    while let Some(range) = rest.and_then(|span| managed.first_range(span)) {
        pages = pages.or(pages_in(block, range));
        rest = block.behind(range);
    }
    if let Some(reserved) = managed.space.reserved(block) {
        pages = pages.but(pages_in(block, reserved));
    }
    rest = Some(block);
    while let Some(mapped) = rest.and_then(|span| managed.space.first_mapped(span)) {
        pages = pages.but(pages_in(block, mapped));
        rest = block.behind(mapped);
    }
    pages
}

#[pin_data]
pub(super) struct Block {
    span: Span,
    /// The first address on the bus.
    bus: u64,
    upper: Upper,
    pub(super) lender: Lender,
    #[pin]
    pub(super) service: Mutex<Service>,
    /// The lock that the notifier takes.
    #[pin]
    pub(super) lent: SpinLock<Lent>,
    /// Signalled when a run has left.
    #[pin]
    left: WaitQueue,
    /// The block belongs to a window: it and its tables stay until that is released.
    kept: Atomic<bool>,
    served: Atomic<u64>,
}

/// Everything that a block in the list needs.
pub(super) type Node = RBTreeNodeReservation<u64, Arc<Block>>;

/// A block that has addresses on the bus, but is nowhere yet: what can be made before a fault.
pub(super) struct Spare {
    block: Pin<UniqueArc<Block>>,
    node: Node,
}

impl Spare {
    /// Makes a block that is nowhere. Sleeps.
    pub(super) fn new(managed: &Managed) -> Result<Self, Failure> {
        // Congruent to all blocks, so that large leaves are large in both tables.
        let packed = Target {
            placement: Placement::Packed(0),
            address_bits: u64::BITS,
        };
        let range = IovaRange::take(&managed.bus, LARGE, packed)?;
        let lender = Lender::new(managed.bus.domain(), range.span())?;
        let (span, bus) = (range.span(), range.span().start());
        let service = Service {
            dead: false,
            range: Some(range),
        };
        let lent = Lent {
            pages: LentPages::default(),
            private: Pages::NONE,
            lower: None,
        };
        let block = UniqueArc::pin_init(
            pin_init!(Block {
                span,
                bus,
                upper: Upper::NOWHERE,
                lender,
                service <- new_mutex!(service, "pinmap_service"),
                lent <- new_spinlock!(lent, "pinmap_lent"),
                left <- WaitQueue::new(),
                kept: Atomic::new(false),
                served: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        Ok(Self { block, node })
    }

    /// Makes the spare the block of the 2 MiB at `va`, of which the device has nothing. With a
    /// `supply` it is one of a window, with all its tables. Sleeps.
    pub(super) fn settle(
        self,
        managed: &Managed,
        va: u64,
        supply: Option<&mut Supply<'_>>,
    ) -> Result<(Node, Arc<Block>), Failure> {
        let Self { mut block, node } = self;
        let fields = block.as_mut().project();
        *fields.span = Span::new(va, LARGE).map_err(|_| EINVAL)?;
        *fields.served.get_mut() = managed.next_served();
        match supply {
            None => *fields.upper = managed.vm.keep_upper(va)?,
            Some(supply) => {
                let (upper, lower) = managed.vm.keep_both(supply, va)?;
                *fields.upper = upper;
                *fields.kept.get_mut() = true;
                block.lent.lock().lower = Some(lower);
            }
        }
        Ok((node, block.into()))
    }
}

impl Block {
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// The address of page `index`, and the one on the bus.
    pub(super) fn page(&self, index: usize) -> (u64, u64) {
        let offset = (index as u64).saturating_mul(PAGE_SIZE);
        (
            self.span.start().saturating_add(offset),
            self.bus.saturating_add(offset),
        )
    }

    /// The page at the address `bus` on the bus.
    pub(super) fn index_on_bus(&self, bus: u64) -> usize {
        (bus.saturating_sub(self.bus) / PAGE_SIZE) as usize
    }

    pub(super) fn bus_span(&self, run: Run) -> Option<Span> {
        let (_, bus) = self.page(run.first);
        Span::new(bus, (run.count as u64).saturating_mul(PAGE_SIZE)).ok()
    }

    pub(super) fn pages_in(&self, span: Span) -> Pages {
        pages_in(self.span, span)
    }

    /// Notes that a fault in the block was served.
    pub(super) fn note_served(&self, number: u64) {
        self.served.store(number, Relaxed);
    }

    /// The number of the last fault that was served here.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Relaxed)
    }

    /// Whether the block belongs to a window.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.load(Relaxed)
    }

    /// Ends that the block belongs to a window.
    pub(super) fn keep_no_more(&self) {
        self.kept.store(false, Relaxed);
    }

    /// Whether the device has nothing of the block.
    pub(super) fn is_empty(&self) -> bool {
        self.lent.lock().pages.is_empty()
    }

    /// Waits until page `index` is not being taken away. `EINTR`: a fatal signal came.
    pub(super) fn wait_until_left(&self, index: usize) -> Result {
        let page = Pages::range(index, index);
        self.left
            .wait_killable(|| self.lent.lock().pages.leaving(page).is_empty())
    }

    /// Begins to take `pages` away: clears their entries. Returns the addresses that the device has
    /// to forget before [`unmap`](Self::unmap); they may be more than were asked for, and include
    /// what somebody else is taking away. From any context.
    pub(super) fn clear(&self, managed: &Managed, pages: Pages) -> Option<Span> {
        let mut lent = self.lent.lock();
        let (cleared, large) = lent.pages.leave(pages);
        if large {
            managed
                .vm
                .clear_large(self.upper, lent.lower, self.span.start());
        } else if let Some(lower) = lent.lower {
            for index in cleared.iter() {
                managed.vm.clear_small(lower, self.page(index).0);
            }
        }
        let left = lent.pages.leaving(pages);
        drop(lent);
        let first = left.next(0)?;
        let last = left.iter().last()?;
        let end = self.page(last).0.saturating_add(PAGE_SIZE - 1);
        Span::from_bounds(self.page(first).0, end)
    }

    /// Unmaps the runs of `pages` that were cleared, and flushes. When this returns `Ok`, the
    /// device cannot reach them. From any context.
    pub(super) fn unmap(&self, pages: Pages) -> Result {
        // Under the lock, so that whoever takes the same pages away waits until they are unmapped.
        let mut lent = self.lent.lock();
        let runs = core::iter::from_fn(|| loop {
            let run = lent.pages.take_left(pages)?;
            if !lent.private.has(run.first) {
                return Some(run);
            }
            lent.private = lent.private.but(run.pages());
        });
        let runs = runs.filter_map(|run| self.bus_span(run));
        let result = self.lender.unmap(runs);
        drop(lent);
        self.left.wake_up();
        result
    }

    /// Takes what overlaps `span` away from the device. Called by whoever has `service`. `EIO`: the
    /// device did not confirm, and is cut off. Sleeps, and waits for the device.
    pub(super) fn take_back(&self, managed: &Managed, span: Span) -> Result {
        let pages = self.pages_in(span);
        let Some(cleared) = self.clear(managed, pages) else {
            return Ok(());
        };
        let forgotten = managed.vm.forget(cleared);
        if forgotten.is_err() {
            managed.vm.gpu().note_hasty();
        }
        let unmapped = self.unmap(pages);
        let result = forgotten.and(unmapped);
        if result.is_err() {
            managed.dma_control().clone().block_dma();
            return Err(EIO);
        }
        Ok(())
    }

    /// Makes the block have a table for single pages. Called by whoever has `service`; the device
    /// has nothing of the block as one entry.
    pub(super) fn make_lower(&self, managed: &Managed) -> Result<(), Failure> {
        if self.lent.lock().lower.is_none() {
            let lower = managed.vm.keep_lower(self.upper, self.span.start())?;
            self.lent.lock().lower = Some(lower);
        }
        Ok(())
    }

    /// Gives the table for single pages back: another mapping has all addresses of the block.
    pub(super) fn give_lower(&self, managed: &Managed) -> Result {
        let lower = self.lent.lock().lower.take();
        managed.vm.give_tables(self.span.start(), lower, false)
    }

    /// Enters a piece, with `lent` locked: it is mapped in the IOMMU, or in VRAM. `large`: it is
    /// all of the block, as one entry.
    pub(super) fn enter(&self, managed: &Managed, lent: &mut Lent, piece: Piece, large: bool) {
        let Piece {
            run,
            write,
            private,
            ..
        } = piece;
        if private.is_some() {
            lent.private = lent.private.or(run.pages());
        }
        let memory = |index: usize| match private {
            Some(offset) => {
                let pages = index.saturating_sub(run.first) as u64;
                Memory::Vram(offset.saturating_add(pages.saturating_mul(PAGE_SIZE)))
            }
            None => Memory::Host(self.page(index).1),
        };
        // On the host the CPU could come between the parts of an atomic access.
        let access = match (write, private) {
            (true, Some(_)) => Access::Atomic,
            (true, None) => Access::Write,
            (false, _) => Access::Read,
        };
        if large {
            lent.pages.enter_large(write);
            let (va, _) = self.page(0);
            managed.vm.store_large(self.upper, va, memory(0), access);
            return;
        }
        lent.pages.enter(run, write);
        if let Some(lower) = lent.lower {
            for index in run.first..=run.last() {
                let (va, _) = self.page(index);
                managed.vm.store_small(lower, va, memory(index), access);
            }
        }
    }

    /// Gives the block up: the device has nothing of it. Waits for the device.
    pub(super) fn give_up(&self, managed: &Managed, service: &mut Service) -> Result {
        service.dead = true;
        let lower = self.lent.lock().lower.take();
        // What was cleared hastily leads nowhere as long as the addresses on the bus are ours.
        managed.vm.gpu().settle();
        let result = managed.vm.give_tables(self.span.start(), lower, true);
        drop(service.range.take());
        result
    }

    /// Gives up a block that is in no list.
    pub(super) fn dissolve(&self, managed: &Managed) -> Result {
        self.give_up(managed, &mut self.service.lock())
    }
}
