// SPDX-License-Identifier: GPL-2.0
//! A managed range: its addresses, and what has happened to it.

use super::block_of;
use crate::{
    event::{EventId, EventQueue, EventSlot},
    failure::Failure,
    logic::{pte::LARGE, request::managed::ManagePlan, residence::Advice, span::Span, PAGE_SIZE},
    uapi::{self, pinmap_event, pinmap_statistics},
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLock,
    },
};

/// Counters of a range.
#[derive(Clone, Copy)]
pub(super) enum Count {
    /// Faults of the device that were served.
    DeviceFaults,
    /// Faults of the CPU on pages that were on the device.
    HostFaults,
    /// Pages that moved to the device because it touched them.
    InTouched,
    /// Pages that the program moved to the device.
    InPrefetched,
    /// Pages that came home because the CPU touched them.
    HomeTouched,
    /// Pages that the program moved home.
    HomePrefetched,
    /// Pages that had to make room.
    HomeEvicted,
    /// Pages of `InTouched` whose block was evicted before.
    Refaults,
    /// Times that a block began to thrash.
    Thrashing,
    /// Nanoseconds that the service of faults of the device took.
    DeviceNs,
    /// Nanoseconds that faults of the CPU took.
    HostNs,
    /// Pages of `InTouched` and `InPrefetched` that came from another device directly.
    FromPeers,
    /// Pages that other devices took directly.
    ToPeers,
}

impl Count {
    const NUMBER: usize = Self::ToPeers as usize + 1;
}

/// The event that a range may send once.
enum Notice {
    /// There is none: the range is not known to the program yet, or is not any more.
    None,
    Ready(EventSlot),
    Sent(EventId),
}

/// The managed ranges of a context, by their last addresses. Those of each kind are disjoint; a
/// window may lie in other ranges.
pub(super) struct Ranges {
    windows: RBTree<u64, Arc<Range>>,
    others: RBTree<u64, Arc<Range>>,
}

/// The first of `ranges` that overlaps `span`.
fn first_in(ranges: &RBTree<u64, Arc<Range>>, span: Span) -> Option<&Arc<Range>> {
    let cursor = ranges.cursor_lower_bound(&span.start())?;
    let &last = cursor.current().0;
    ranges.get(&last).filter(|range| range.span.overlaps(span))
}

impl Ranges {
    pub(super) fn new() -> Self {
        Self {
            windows: RBTree::new(),
            others: RBTree::new(),
        }
    }

    fn alike(&mut self, range: &Range) -> &mut RBTree<u64, Arc<Range>> {
        if range.is_window {
            &mut self.windows
        } else {
            &mut self.others
        }
    }

    /// Adds `range`, unless there is one like it in the way, which is returned.
    pub(super) fn add(
        &mut self,
        node: RBTreeNodeReservation<u64, Arc<Range>>,
        range: &Arc<Range>,
    ) -> Option<Arc<Range>> {
        let alike = self.alike(range);
        if let Some(other) = first_in(alike, range.span) {
            return Some(other.clone());
        }
        alike.insert(node.into_node(range.span.last(), range.clone()));
        None
    }

    /// Takes `range` out, if it was added.
    pub(super) fn remove(&mut self, range: &Arc<Range>) -> Option<RBTreeNode<u64, Arc<Range>>> {
        let alike = self.alike(range);
        let last = range.span.last();
        let is_there = alike.get(&last).is_some_and(|it| Arc::ptr_eq(it, range));
        is_there.then(|| alike.remove_node(&last)).flatten()
    }

    /// The addresses of the range that has the first managed address in `span`.
    pub(super) fn first(&self, span: Span) -> Option<Span> {
        let begin = |range: &Arc<Range>| range.span.start().max(span.start());
        let window = first_in(&self.windows, span);
        let other = first_in(&self.others, span);
        let first = match (window, other) {
            (Some(window), Some(other)) if begin(window) < begin(other) => window,
            (window, other) => other.or(window)?,
        };
        Some(first.span)
    }

    /// The range that `addr` is in: the window, if it is in one.
    pub(super) fn at(&self, addr: u64) -> Option<Arc<Range>> {
        let at = Span::from_bounds(addr, addr)?;
        let range = first_in(&self.windows, at).or_else(|| first_in(&self.others, at));
        range.cloned()
    }

    /// Like [`at`](Self::at); and the addresses around `addr`, within `span`, for which that is the
    /// range. `span` is in one block, of which a window has all or nothing.
    pub(super) fn around(&self, addr: u64, span: Span) -> Option<(Arc<Range>, Span)> {
        let range = self.at(addr)?;
        let around = range.span.intersection(span)?;
        Some((range, around))
    }
}

#[pin_data]
pub(crate) struct Range {
    span: Span,
    /// Advice that holds where the program has given none.
    pub(super) advice: Advice,
    is_window: bool,
    counts: [Atomic<u64>; Count::NUMBER],
    handle: Atomic<u64>,
    events: Arc<EventQueue>,
    #[pin]
    notice: SpinLock<Notice>,
    #[pin]
    refused: SpinLock<Refused>,
}

/// Faults of the device that were not served.
#[derive(Clone, Copy, Default)]
pub(crate) struct Refused {
    pub(crate) count: u64,
    /// The last one: its address, its `PINMAP_ACCESS_`, and its `PINMAP_FAULT_` value.
    pub(crate) addr: u64,
    pub(crate) access: u32,
    pub(crate) reason: u32,
}

impl Range {
    /// Makes a range of which nothing has happened, as `plan` says.
    pub(crate) fn new(plan: &ManagePlan, events: &Arc<EventQueue>) -> Result<Arc<Self>> {
        let ManagePlan {
            range: span,
            advice,
            is_window,
        } = *plan;
        let notice = Notice::Ready(events.reserve()?);
        let events = events.clone();
        Arc::pin_init(
            pin_init!(Self {
                span,
                advice,
                is_window,
                counts: core::array::from_fn(|_| Atomic::new(0)),
                handle: Atomic::new(0),
                events,
                notice <- new_spinlock!(notice, "pinmap_notice"),
                refused <- new_spinlock!(Refused::default(), "pinmap_refused"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Whether it has its addresses to itself, and all its tables.
    pub(crate) fn is_window(&self) -> bool {
        self.is_window
    }

    /// Refuses what would overlap the range.
    pub(crate) fn in_the_way(&self) -> Failure {
        let reason = if self.is_window {
            uapi::PINMAP_FAIL_WINDOW
        } else {
            uapi::PINMAP_FAIL_OVERLAP
        };
        Failure::at(EEXIST, reason, self.span.start())
    }

    /// Notes a fault of the device that was not served.
    pub(super) fn note_refused(&self, addr: u64, access: u32, reason: u32) {
        let mut refused = self.refused.lock();
        *refused = Refused {
            count: refused.count.saturating_add(1),
            addr,
            access,
            reason,
        };
    }

    /// The faults of the device that were not served.
    pub(crate) fn refused(&self) -> Refused {
        *self.refused.lock()
    }

    /// Sets the handle by which the program knows the range.
    pub(crate) fn set_handle(&self, handle: u64) {
        self.handle.store(handle, Relaxed);
    }

    /// Counts something. From any context.
    pub(super) fn add(&self, count: Count, number: u64) {
        if let Some(counter) = self.counts.get(count as usize) {
            counter.fetch_add(number, Relaxed);
        }
    }

    fn get(&self, count: Count) -> u64 {
        let counter = self.counts.get(count as usize);
        counter.map_or(0, |counter| counter.load(Relaxed))
    }

    /// Fills in the answer of STATISTICS.
    pub(crate) fn describe(&self, answer: &mut pinmap_statistics) {
        let bytes = |count| self.get(count).saturating_mul(PAGE_SIZE);
        answer.out_device_faults = self.get(Count::DeviceFaults);
        answer.out_host_faults = self.get(Count::HostFaults);
        answer.out_in_touched = bytes(Count::InTouched);
        answer.out_in_prefetched = bytes(Count::InPrefetched);
        answer.out_home_touched = bytes(Count::HomeTouched);
        answer.out_home_prefetched = bytes(Count::HomePrefetched);
        answer.out_home_evicted = bytes(Count::HomeEvicted);
        answer.out_refaults = bytes(Count::Refaults);
        answer.out_thrashing = self.get(Count::Thrashing);
        answer.out_device_ns = self.get(Count::DeviceNs);
        answer.out_host_ns = self.get(Count::HostNs);
        answer.out_from_peers = bytes(Count::FromPeers);
        answer.out_to_peers = bytes(Count::ToPeers);
        let refused = self.refused();
        answer.out_refused = refused.count;
        answer.out_last_addr = refused.addr;
        answer.out_last_access = refused.access;
        answer.out_last_reason = refused.reason;
    }

    /// Tells the program, the first time, that the block of `addr` stays on the host because it
    /// thrashes.
    pub(super) fn tell_thrashing(&self, addr: u64) {
        let mut notice = self.notice.lock();
        match core::mem::replace(&mut *notice, Notice::None) {
            Notice::Ready(slot) => {
                let event = pinmap_event {
                    type_: uapi::PINMAP_EVENT_THRASHING,
                    handle: self.handle.load(Relaxed),
                    addr: block_of(addr).start(),
                    length: LARGE,
                    ..pinmap_event::default()
                };
                *notice = Notice::Sent(self.events.push(slot, event));
            }
            other => *notice = other,
        }
    }

    /// Sends no event any more, and takes back one that was not read.
    pub(crate) fn end_notice(&self) {
        let notice = core::mem::replace(&mut *self.notice.lock(), Notice::None);
        match notice {
            Notice::Ready(slot) => self.events.return_slot(slot),
            Notice::Sent(id) => self.events.withdraw(id),
            Notice::None => {}
        }
    }
}
