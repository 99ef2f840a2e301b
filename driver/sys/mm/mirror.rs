// SPDX-License-Identifier: GPL-2.0
//! Following the memory of a process: before a range of it changes, whatever a device has of it is
//! taken away.
//!
//! A device that is lent pages without pins goes by a page table that it has read. Between reading
//! and using it, the memory may have changed. So each change is counted, where it is and when it
//! begins and ends: [`Changes::begin`] waits until none is under way at an address, and
//! [`Changes::current`] tells whether one has begun since.
//!
//! The kernel's interval notifiers have a sequence number for this, and a wait for it that nothing
//! ends (`mmu_notifier.rs`). Here the ends of changes are counted too, separately for *granules* of
//! 64 KiB; a wait can be killed; and ending it waits for callbacks that run, but for no change.

use super::mmu_notifier::{Change, Event, Notified, Notifier};
use crate::{
    logic::{block::Pages, pte::LARGE, span::Span, PAGE_SIZE},
    sys::{helpers, task::wait::WaitQueue},
};
use core::ops::Deref;
use kernel::{
    mm::Mm,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        Arc,
    },
};

/// Bytes of a granule, and the granules of a block of 2 MiB.
const GRANULE: u64 = LARGE / PER_BLOCK as u64;
const PER_BLOCK: usize = 32;
/// Counters of changes: a multiple of `PER_BLOCK`. Granules share them, by their numbers.
const COUNTERS: u64 = 1024;
/// Pages of a granule.
pub(crate) const GRANULE_PAGES: usize = (GRANULE / PAGE_SIZE) as usize;
/// Blocks without two granules that share a counter.
const BLOCKS: u64 = COUNTERS / PER_BLOCK as u64;

/// Changes of a part of the address space.
#[repr(C)]
struct Counter {
    /// Changes that have begun, ever.
    begun: Atomic<u32>,
    /// Changes that are under way.
    under_way: Atomic<u32>,
}

impl Counter {
    const fn new() -> Self {
        Self {
            begun: Atomic::new(0),
            under_way: Atomic::new(0),
        }
    }
}

/// The changes of an address space.
#[pin_data]
pub(crate) struct Changes {
    granules: KVVec<Counter>,
    /// Counts for `PER_BLOCK` granules together: mostly nothing changes in a block, and then no
    /// granule is looked at.
    blocks: [Counter; BLOCKS as usize],
    /// Changes of more granules than there are counters.
    wide: Counter,
    /// Signalled when a change ends.
    #[pin]
    ended: WaitQueue,
}

/// A moment at which no change was under way in some granules of a block.
#[derive(Default)]
pub(crate) struct Moment {
    /// The counter of the block.
    block: usize,
    begun_in_block: u32,
    begun: [u32; PER_BLOCK],
    /// The granules, as bits.
    quiet: u32,
    wide: u32,
}

/// The granules of a block in which no change has begun since a [`Moment`], as long as the caller
/// has the lock that [`Follower::changes`] takes.
pub(crate) struct Current(u32);

impl Current {
    /// Whether all of `pages` are in these granules.
    pub(crate) fn has_all(&self, pages: Pages) -> bool {
        self.0 == u32::MAX || pages.but(self.pages()).is_empty()
    }

    /// Returns the pages of `pages` that are in these granules.
    pub(crate) fn among(&self, pages: Pages) -> Pages {
        if self.0 == u32::MAX {
            return pages;
        }
        pages.and(self.pages())
    }

    /// Whether page `index` of the block is in one of these granules.
    pub(crate) fn has(&self, index: usize) -> bool {
        has(self.0, index / GRANULE_PAGES)
    }

    /// The pages of these granules.
    fn pages(&self) -> Pages {
        Pages::parts(self.0)
    }
}

/// Whether a bit is set.
fn has(bits: u32, index: usize) -> bool {
    bits.wrapping_shr(index as u32) & 1 != 0
}

/// Reads how many changes have begun in some granules, before anything that is read afterwards.
/// Calls a helper once, and not for each.
fn read_begun(granules: &[Counter; PER_BLOCK], begun: &mut [u32; PER_BLOCK]) {
    const _: () = assert!(PER_BLOCK == helpers::PINMAP_GRANULES as usize);
    const _: () = assert!(size_of::<Counter>() == 2 * size_of::<u32>());
    // SAFETY: There are so many counters, each a pair of words that are only accessed atomically,
    // and so many places.
    unsafe { helpers::pinmap_read_pairs(granules.as_ptr().cast(), begun.as_mut_ptr()) };
}

impl Changes {
    fn new() -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let mut granules = KVVec::with_capacity(COUNTERS as usize, GFP_KERNEL_ACCOUNT)?;
            for _ in 0..COUNTERS {
                granules.push(Counter::new(), GFP_KERNEL_ACCOUNT)?;
            }
            Ok(try_pin_init!(Self {
                granules,
                blocks: [const { Counter::new() }; BLOCKS as usize],
                wide: Counter::new(),
                ended <- WaitQueue::new(),
            }? Error))
        })
    }

    /// The counters of a block's granules.
    fn of_block(&self, block: usize) -> Option<&[Counter; PER_BLOCK]> {
        let first = block.checked_mul(PER_BLOCK)?;
        self.granules.get(first..)?.first_chunk()
    }

    /// Waits until no change is under way in the granule of `addr`. Makes `moment` that at which it
    /// is true, with all granules of its block of which it is. `EINTR`: a fatal signal came.
    pub(crate) fn begin(&self, addr: u64, moment: &mut Moment) -> Result {
        let block = (addr / LARGE % BLOCKS) as usize;
        let target = (addr % LARGE / GRANULE) as usize;
        let all = self.blocks.get(block).ok_or(EINVAL)?;
        let granules = self.of_block(block).ok_or(EINVAL)?;
        let own = granules.get(target).ok_or(EINVAL)?;
        loop {
            moment.block = block;
            moment.begun_in_block = all.begun.load(Acquire);
            moment.quiet = 0;
            moment.wide = self.wide.begun.load(Acquire);
            // Read before it is known that none is under way: see `start`.
            read_begun(granules, &mut moment.begun);
            if all.under_way.load(Acquire) == 0 {
                moment.quiet = u32::MAX;
            } else {
                for (index, counter) in (0..PER_BLOCK).zip(granules) {
                    if counter.under_way.load(Acquire) == 0 {
                        moment.quiet |= 1_u32.wrapping_shl(index as u32);
                    }
                }
            }
            if self.wide.under_way.load(Acquire) == 0 && has(moment.quiet, target) {
                return Ok(());
            }
            self.ended.wait_killable(|| {
                own.under_way.load(Acquire) == 0 && self.wide.under_way.load(Acquire) == 0
            })?;
        }
    }

    /// Returns the granules of `moment` in which no change has begun since. The caller has the lock
    /// that [`Follower::changes`] takes.
    pub(crate) fn current(&self, moment: &Moment) -> Current {
        let mut quiet = moment.quiet;
        if self.wide.begun.load(Acquire) != moment.wide {
            quiet = 0;
        }
        let all = self.blocks.get(moment.block);
        let is_same = all.is_some_and(|all| all.begun.load(Acquire) == moment.begun_in_block);
        if !is_same {
            let counters = self.of_block(moment.block).into_iter().flatten();
            for (index, (counter, begun)) in counters.zip(moment.begun).enumerate() {
                if counter.begun.load(Acquire) != begun {
                    quiet &= !1_u32.wrapping_shl(index as u32);
                }
            }
        }
        const _: () = assert!(PER_BLOCK == u32::BITS as usize);
        Current(quiet)
    }

    /// Calls `visit` with the counters of `range`.
    fn each(&self, range: Span, mut visit: impl FnMut(&Counter)) {
        let (first, last) = (range.start() / GRANULE, range.last() / GRANULE);
        if last.saturating_sub(first) >= COUNTERS {
            visit(&self.wide);
            return;
        }
        for number in first..=last {
            if let Some(counter) = self.granules.get((number % COUNTERS) as usize) {
                visit(counter);
            }
        }
    }

    /// Calls `visit` with the counters of the blocks of `range`, if it is not a wide one.
    fn each_block(&self, range: Span, mut visit: impl FnMut(&Counter)) {
        let (first, last) = (range.start() / GRANULE, range.last() / GRANULE);
        if last.saturating_sub(first) >= COUNTERS {
            return;
        }
        for number in range.start() / LARGE..=range.last() / LARGE {
            if let Some(counter) = self.blocks.get((number % BLOCKS) as usize) {
                visit(counter);
            }
        }
    }

    /// Notes that a change begins. It is under way before it has begun: so whoever reads the second
    /// first and finds none under way either knows of the change, or finds out at the end. It is
    /// under way in its blocks first, and has begun there last: whoever reads that it has begun in
    /// a granule finds it under way in the block, and whoever reads that it has begun in the block
    /// finds that it has begun in all granules.
    fn start(&self, range: Span) {
        self.each_block(range, |counter| {
            counter.under_way.fetch_add(1, Full);
        });
        self.each(range, |counter| {
            counter.under_way.fetch_add(1, Full);
            counter.begun.fetch_add(1, Full);
        });
        self.each_block(range, |counter| {
            counter.begun.fetch_add(1, Full);
        });
    }

    /// Notes that a change has ended.
    fn end(&self, range: Span) {
        self.each_block(range, |counter| {
            counter.under_way.fetch_sub(1, Full);
        });
        let mut is_last = false;
        self.each(range, |counter| {
            is_last |= counter.under_way.fetch_sub(1, Full) == 1;
        });
        if is_last {
            self.ended.wake_up();
        }
    }
}

/// Whoever has something of the memory.
pub(crate) trait Follower: Send + Sync {
    /// Takes `range` away: it is about to change, whatever the change is. When this returns,
    /// nothing is reached there by what was known of it. Takes the lock under which
    /// [`Changes::current`] is asked, and must neither allocate nor wait for long. Must not sleep
    /// unless `may_sleep`.
    fn changes(&self, range: Span, may_sleep: bool);

    /// Tells that `range` leaves the address space: its memory is freed, or moved elsewhere. Called
    /// before [`changes`](Self::changes), under the same conditions; must not sleep.
    fn leaves(&self, range: Span);
}

/// An address space that is followed.
pub(crate) type Mirror<T> = Notifier<Following<T>>;

/// A follower of an address space, and the changes that it makes.
#[pin_data]
pub(crate) struct Following<T: Follower> {
    #[pin]
    changes: Changes,
    #[pin]
    follower: T,
}

impl<T: Follower> Mirror<T> {
    /// Has `follower` follow `mm`, which must be the current task's (`EPERM`). Takes the mmap lock.
    pub(crate) fn new(mm: &Mm, follower: impl PinInit<T, Error>) -> Result<Arc<Self>> {
        Self::register(
            mm,
            try_pin_init!(Following {
                changes <- Changes::new(),
                follower <- follower,
            }? Error),
        )
    }
}

impl<T: Follower> Following<T> {
    /// The changes of the address space.
    pub(crate) fn all_changes(&self) -> &Changes {
        &self.changes
    }
}

impl<T: Follower> Notified for Following<T> {
    fn begins(&self, change: &Change<'_>) {
        self.changes.start(change.span);
        if change.event() == Event::Gone {
            self.follower.leaves(change.span);
        }
        self.follower.changes(change.span, change.may_sleep());
    }

    fn ends(&self, change: &Change<'_>) {
        self.changes.end(change.span);
    }

    fn exits(&self, all: Span) {
        self.changes.start(all);
        self.follower.changes(all, true);
        self.changes.end(all);
    }
}

impl<T: Follower> Deref for Following<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.follower
    }
}
