// SPDX-License-Identifier: GPL-2.0
//! Following the memory of a process: before a range of it changes, whatever a device has of it is
//! taken away, and the change is counted (`logic/changes.rs`).
//!
//! The kernel's interval notifiers have a sequence number for this, and a wait for it that nothing
//! ends (`mmu_notifier.rs`). Here the ends of changes are counted too, separately for granules of
//! 64 KiB; a wait can be killed; and ending it waits for callbacks that run, but for no change.

use super::mmu_notifier::{Change, Event, Notified, Notifier};
use crate::{
    logic::{
        changes::{self, Counter, Moment, Word, GRANULES},
        span::Span,
    },
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

/// Blocks without two granules that share a counter.
const BLOCKS: usize = 32;

/// A number that is changed with full order. [`Atomic`] is not made by `Default`.
#[repr(transparent)]
pub(crate) struct Number(Atomic<u32>);

impl Default for Number {
    fn default() -> Self {
        Self(Atomic::new(0))
    }
}

impl Word for Number {
    fn load(&self) -> u32 {
        self.0.load(Acquire)
    }

    fn increment(&self) -> u32 {
        self.0.fetch_add(1, Full)
    }

    fn decrement(&self) -> u32 {
        self.0.fetch_sub(1, Full)
    }

    /// Calls a helper once, and not for each.
    fn load_begun(granules: &[Counter<Self>; GRANULES], begun: &mut [u32; GRANULES]) {
        const _: () = assert!(GRANULES == helpers::PINMAP_GRANULES as usize);
        const _: () = assert!(size_of::<Counter<Number>>() == 2 * size_of::<u32>());
        // SAFETY: There are so many counters, each a pair of words that are only accessed
        // atomically, and so many places.
        unsafe { helpers::pinmap_read_pairs(granules.as_ptr().cast(), begun.as_mut_ptr()) };
    }
}

/// The changes of an address space.
pub(crate) type Changes = changes::Changes<Number, KVVec<changes::Counters<Number>>>;

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
    changes: Changes,
    /// Signalled when a change ends.
    #[pin]
    ended: WaitQueue,
    #[pin]
    follower: T,
}

impl<T: Follower> Mirror<T> {
    /// Has `follower` follow `mm`, which must be the current task's (`EPERM`). Takes the mmap lock.
    pub(crate) fn new(mm: &Mm, follower: impl PinInit<T, Error>) -> Result<Arc<Self>> {
        let mut blocks = KVVec::with_capacity(BLOCKS, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..BLOCKS {
            blocks.push(changes::Counters::default(), GFP_KERNEL_ACCOUNT)?;
        }
        Self::register(
            mm,
            try_pin_init!(Following {
                changes: Changes::new(blocks),
                ended <- WaitQueue::new(),
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

    /// Waits until no change is under way in the granule of `addr`. Makes `moment` that at which it
    /// is true, with all granules of its block of which it is. `EINTR`: a fatal signal came.
    pub(crate) fn wait_for_quiet(&self, addr: u64, moment: &mut Moment) -> Result {
        while !self.changes.begin(addr, moment) {
            self.ended.wait_killable(|| self.changes.is_quiet(addr))?;
        }
        Ok(())
    }

    fn end(&self, range: Span) {
        if self.changes.end(range) {
            self.ended.wake_up();
        }
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
        self.end(change.span);
    }

    fn exits(&self, all: Span) {
        self.changes.start(all);
        self.follower.changes(all, true);
        self.end(all);
    }
}

impl<T: Follower> Deref for Following<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.follower
    }
}
