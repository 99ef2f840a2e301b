// SPDX-License-Identifier: GPL-2.0
//! When registered memory goes away.
//!
//! The events of the MMU notifier do not say whether a page goes away. An unmapping does, and is
//! answered at once. A clearing may: madvise(), hole punching and truncation clear, and so do KSM, the
//! split of a huge page, and migration that will fail because the page is pinned. So clearings are
//! only noted; a worker waits for the change to end and looks at what the page table holds then.
//! Everything else (protection, soft-dirty) changes nothing.

use crate::{
    buffer::{Backing, Buffer, State},
    logic::span::Span,
    sys::{
        notifier::{Interval, Notice, Watcher},
        work,
    },
};
use kernel::{
    impl_has_work,
    sync::{Arc, ArcBorrow},
    workqueue::WorkItem,
};

impl Watcher for Buffer {
    fn interval(&self) -> &Interval<Self> {
        &self.interval
    }

    fn notice(this: ArcBorrow<'_, Self>, notice: Notice, range: Span, may_sleep: bool) -> bool {
        let Some(part) = this.span().intersection(range) else {
            return true;
        };
        let this: Arc<Self> = this.into();
        match notice {
            Notice::Clear => {
                let mut doubt = this.doubt.lock();
                *doubt = Some(doubt.map_or(part, |noted| noted.union(part)));
                drop(doubt);
                this.look_later();
                // Whoever asks from now on waits for the answer.
                return this.suspect(may_sleep);
            }
            Notice::Gone => {
                let Some(inner) = this.lock(may_sleep) else {
                    return false;
                };
                Self::revoke(&this, inner, may_sleep);
            }
        }
        true
    }
}

impl_has_work! {
    impl HasWork<Self> for Buffer { self.work }
}

impl WorkItem for Buffer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.state() == State::Live {
            this.resolve_doubt();
        }
        if this.state() == State::Stale {
            this.reap();
        }
    }
}

impl Buffer {
    /// Has the worker run soon.
    pub(super) fn look_later(self: &Arc<Self>) {
        // If it is queued already it will see the same.
        let _ = work::queue().enqueue(self.clone());
    }

    /// Revokes if a page that was noted is not there any more.
    fn resolve_doubt(self: &Arc<Self>) {
        let Some(range) = self.doubt.lock().take() else {
            return;
        };
        self.interval.wait();
        let still_there = {
            let backing = self.backing.lock();
            let (mm, start) = (self.account.mm(), self.span().start());
            let wanted = || self.state() == State::Live;
            backing
                .as_ref()
                .and_then(Backing::pinned)
                .is_none_or(|runs| runs.are_still_at(mm, start, range, wanted))
        };
        if still_there {
            return;
        }
        if let Some(inner) = self.lock(true) {
            Self::revoke(self, inner, true);
        }
    }
}
