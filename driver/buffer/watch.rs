// SPDX-License-Identifier: GPL-2.0
//! Has registered memory gone away?
//!
//! An MMU notifier is called when page tables change, but its events do not say whether a page goes
//! away. An unmapping says so, and the buffer is revoked in the callback. A clearing may:
//! madvise(), hole punching and truncation clear, and so do KSM, the split of a huge page, and
//! migration that will fail because the page is pinned. Everything else (protection, soft-dirty)
//! changes nothing.
//!
//! So a clearing only makes the range *suspect*. When the change is over, a worker, the
//! [`Lookout`], looks at what the page table holds: the pinned page is still there, or the buffer
//! is revoked. The worker waits for nobody: where it finds a lock taken, which user space can hold
//! for as long as it likes, it tries again later. One check, of a part of one registration, is one
//! turn in the worker's queue, so that no context keeps another waiting.

use super::{Backing, Buffer, State};
use crate::{
    logic::span::Span,
    sys::{
        mm::{
            presence::Finding,
            watch::{Interval, Watch, Watcher},
        },
        task::{coverage::Covered, wait::WaitQueue, work},
    },
};
use kernel::{
    impl_has_delayed_work, impl_has_work,
    list::{impl_list_arc_safe, impl_list_item, AtomicTracker, List, ListArc, TryNewListArc},
    mm::Mm,
    new_delayed_work, new_spinlock,
    prelude::*,
    sync::{atomic::Relaxed, Arc, ArcBorrow, SetOnce, SpinLock},
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};

/// Pages checked in one turn.
const AT_ONCE: u64 = 1024;
/// Milliseconds to wait before looking again where a lock was taken: at first, and at most.
const SOON_MS: u32 = 1;
const LATER_MS: u32 = 16;

impl Watcher for Buffer {
    fn interval(&self) -> &Interval<Self> {
        &self.interval
    }

    fn going(this: ArcBorrow<'_, Self>, range: Span) {
        if this.span().overlaps(range) {
            let this: Arc<Self> = this.into();
            Self::revoke(&this, this.lock());
        }
    }

    fn cleared(this: ArcBorrow<'_, Self>, range: Span, may_sleep: bool) {
        if let Some(part) = this.span().intersection(range) {
            if !this.note(part) {
                return;
            }
            let this: Arc<Self> = this.into();
            this.queue_check();
            // After the range was noted: a QUERY from now on waits for the worker.
            this.bump_generations(may_sleep);
        }
    }

    /// Called after an unmapping. A buffer that was watched before it began was revoked; one that
    /// was not may have pinned pages that were still there.
    fn gone(this: ArcBorrow<'_, Self>, range: Span) {
        if let Some(part) = this.span().intersection(range) {
            if this.note(part) {
                let this: Arc<Self> = this.into();
                this.queue_check();
            }
        }
    }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Buffer {
        tracked_by tracker: AtomicTracker;
    }
}

impl_list_item! {
    impl ListItem<0> for Buffer {
        using ListLinks { self.links };
    }
}

/// The buffers that the worker has to check.
struct ToCheck {
    now: List<Buffer>,
    /// Buffers of which a lock was taken.
    later: List<Buffer>,
    /// How long `later` has to wait next.
    pause_ms: u32,
}

/// The watch over what a context registers, and the worker that checks it.
#[pin_data]
pub(crate) struct Lookout {
    watch: SetOnce<Arc<Watch<Buffer>>>,
    #[pin]
    to_check: SpinLock<ToCheck>,
    /// Woken when the worker has found something out.
    #[pin]
    pub(super) changed: WaitQueue,
    #[pin]
    work: DelayedWork<Self>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Lookout { self.work }
}

/// The result of a turn.
enum Check {
    /// The memory is there, or gone, or of no interest any more.
    Decided,
    /// There is more to check.
    More,
    /// A lock is taken.
    Busy,
}

impl Lookout {
    /// Makes a lookout that watches nothing yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let to_check = ToCheck {
            now: List::new(),
            later: List::new(),
            pause_ms: SOON_MS,
        };
        Arc::pin_init(
            pin_init!(Self {
                watch: SetOnce::new(),
                to_check <- new_spinlock!(to_check, "pinmap_to_check"),
                changed <- WaitQueue::new(),
                work <- new_delayed_work!("pinmap_lookout"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Watches the addresses of `buffer` in `mm`, the current task's address space.
    pub(super) fn watch(&self, buffer: &Arc<Buffer>, mm: &Mm) -> Result {
        let watch = match self.watch.as_ref() {
            Some(watch) => watch,
            None => {
                // If another task was quicker, its watch stays.
                self.watch.populate(Watch::new(mm)?);
                self.watch.as_ref().ok_or(EINVAL)?
            }
        };
        Interval::insert(buffer, watch, buffer.span())
    }

    /// Queues `buffer` for the worker. From any context.
    fn queue(self: &Arc<Self>, buffer: Arc<Buffer>) {
        let mut to_check = self.to_check.lock();
        // If it is in a list already, that is enough.
        if let Ok(item) = ListArc::try_from_arc(buffer) {
            to_check.now.push_back(item);
        }
        drop(to_check);
        // If the worker is queued already, it will see it.
        let _ = work::watching().enqueue(self.clone());
    }

    /// Stops the worker for good. All buffers have ended.
    pub(crate) fn stop(this: &Arc<Self>) {
        work::cancel_delayed(this);
        loop {
            let mut to_check = this.to_check.lock();
            let left = to_check
                .now
                .pop_front()
                .or_else(|| to_check.later.pop_front());
            drop(to_check);
            if left.is_none() {
                return;
            }
        }
    }

    /// Queues `buffer` again if the check was not decisive, and the worker, if any buffer is left.
    fn go_on(self: &Arc<Self>, buffer: Option<Arc<Buffer>>, check: Check) {
        let mut to_check = self.to_check.lock();
        if matches!(check, Check::Decided) {
            to_check.pause_ms = SOON_MS;
        } else if let Some(Ok(item)) = buffer.map(ListArc::try_from_arc) {
            match check {
                Check::Busy => to_check.later.push_back(item),
                _ => to_check.now.push_back(item),
            }
        }
        let mut pause = 0;
        let ToCheck {
            now,
            later,
            pause_ms,
        } = &mut *to_check;
        if now.is_empty() {
            if later.is_empty() {
                return;
            }
            now.push_all_back(later);
            pause = *pause_ms;
            *pause_ms = pause.saturating_mul(2).min(LATER_MS);
        }
        drop(to_check);
        let pause = msecs_to_jiffies(pause);
        let _ = work::watching().enqueue_delayed(self.clone(), pause);
    }
}

impl WorkItem for Lookout {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        let next = this.to_check.lock().now.pop_front();
        // From here on the buffer can be put into the list again.
        let next = next.map(ListArc::into_arc);
        let check = next.as_ref().map_or(Check::Decided, Buffer::check);
        this.changed.wake_up();
        this.go_on(next, check);
    }
}

impl_has_work! {
    impl HasWork<Self> for Buffer { self.work }
}

impl WorkItem for Buffer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        if this.state() == State::Stale {
            // `end` reports a failure.
            let _ = this.reap();
        }
    }
}

impl Buffer {
    /// Queues the buffer for the worker.
    pub(super) fn queue_check(self: &Arc<Self>) {
        if let Some(lookout) = &self.lookout {
            lookout.queue(self.clone());
        }
    }

    /// Notes that `part` has changed. Returns whether a check is wanted.
    fn note(&self, part: Span) -> bool {
        self.life.told.store(true, Relaxed);
        self.suspect.lock().note(part)
    }

    /// Looks whether the suspect pages are still there, and revokes the buffer if one is not.
    fn check(self: &Arc<Self>) -> Check {
        // `go_live` queues the buffer again.
        if self.state() != State::Live {
            return Check::Decided;
        }
        let Some(range) = self.suspect.lock().begin() else {
            return Check::Decided;
        };
        let finding = self.check_pages(range);
        if matches!(finding, Finding::Gone) {
            Self::revoke(self, self.lock());
        }
        let (rest, check) = match finding {
            Finding::Here(Some(rest)) => (Some(rest), Check::More),
            Finding::Busy(rest) => (Some(rest), Check::Busy),
            Finding::Here(None) | Finding::Gone => (None, Check::Decided),
        };
        let mut suspect = self.suspect.lock();
        suspect.end(rest);
        match check {
            Check::Decided if suspect.is_open() => Check::More,
            check => check,
        }
    }

    fn check_pages(&self, range: Span) -> Finding {
        // Calls that map the pages, or let go of them, may hold the lock for long.
        let Some(holding) = self.backing.try_lock() else {
            return Finding::Busy(range);
        };
        let pinned = holding.memory.as_ref().and_then(Backing::pinned);
        let pinned = pinned.cloned();
        drop(holding);
        let Some(pinned) = pinned else {
            return Finding::Here(None);
        };
        let (mm, start) = (self.account.mm(), self.span().start());
        let wanted = || !self.suspect.lock().is_closed();
        pinned.find(mm, start, range, AT_ONCE, wanted)
    }
}
