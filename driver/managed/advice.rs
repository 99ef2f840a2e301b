// SPDX-License-Identifier: GPL-2.0
//! Advice that a program gives for its memory.
//!
//! Advice is kept by *linear addresses*: where memory was when it was first touched, which the
//! kernel knows of each area, and which mremap() does not change. Memory that is at its linear
//! address is *at home*; other memory, which mremap() has moved, is *away*. Two lists tell the two
//! apart, since other memory may be at the old addresses by now.
//!
//! A notifier tells that addresses leave the address space, but not whether the memory is freed or
//! moved. So the advice of memory at home goes to the list of memory that is away, where it is
//! found if the memory was moved. What was freed is found out when the list has grown: only areas
//! that are away can have entries there.

use super::{range::Range, Managed};
use crate::{
    logic::{
        advised::{Advised, Entry, MORE},
        residence::Advice,
        span::Span,
    },
    sys::{
        mm::areas::{Area, Areas},
        task::sort,
    },
};
use kernel::{
    mm::Mm,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Release},
        lock::{spinlock::SpinLockBackend, Guard},
        SpinLock,
    },
};

/// Entries that each list has room for at first, and those of memory that is away before it is
/// found out which of them are needed.
const FEW: usize = 16;

/// Entries that a context may have. The time in which a notifier changes the lists grows with it.
const MOST: usize = 1 << 16;

type List = Advised<KVVec<Entry>>;

struct Lists {
    home: List,
    away: List,
    /// Entries of `away` from which on it is looked which of them are needed.
    many: usize,
}

/// All that a program advises.
#[pin_data]
pub(super) struct AdviceBook {
    /// Whether anything was ever advised.
    is_used: Atomic<bool>,
    #[pin]
    lists: SpinLock<Lists>,
}

fn places(count: usize) -> Result<KVVec<Entry>> {
    Ok(KVVec::from_elem(Entry::UNUSED, count, GFP_KERNEL_ACCOUNT)?)
}

impl AdviceBook {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let lists = Lists {
                home: Advised::new(places(FEW)?),
                away: Advised::new(places(FEW)?),
                many: FEW,
            };
            Ok(try_pin_init!(Self {
                is_used: Atomic::new(false),
                lists <- new_spinlock!(lists, "pinmap_advice"),
            }? Error))
        })
    }

    /// Whether nothing is advised.
    fn is_empty(&self) -> bool {
        if !self.is_used.load(Acquire) {
            return true;
        }
        let lists = self.lists.lock();
        lists.home.entries().is_empty() && lists.away.entries().is_empty()
    }

    /// Returns what is advised for `addr` of `area`, and around it all addresses of the area for
    /// which that is true.
    pub(super) fn at(&self, area: Area<'_>, addr: u64, all: Span) -> (Advice, Span) {
        let linear = area.linear(addr);
        let lists = self.lists.lock();
        let list = if linear == addr {
            &lists.home
        } else {
            &lists.away
        };
        let (advice, around) = list.at(linear);
        drop(lists);
        let before = linear.saturating_sub(around.start());
        let start = addr.saturating_sub(before);
        let last = if around.last() == u64::MAX {
            u64::MAX
        } else {
            addr.saturating_add(around.last().saturating_sub(linear))
        };
        let around = Span::from_bounds(start, last).and_then(|around| around.intersection(all));
        (advice, around.unwrap_or(all))
    }

    /// Takes the lock, with room for a change in both lists.
    fn lock_roomy(&self) -> Result<Guard<'_, Lists, SpinLockBackend>> {
        loop {
            let lists = self.lists.lock();
            // What leaves one list goes to the other.
            let used = |list: &List| list.entries().len();
            let both = used(&lists.home).saturating_add(used(&lists.away));
            let needed = both.saturating_add(2 * MORE);
            if !lists.home.is_full() && lists.away.room() >= needed {
                return Ok(lists);
            }
            let is_home = lists.home.is_full();
            drop(lists);
            if both >= MOST {
                return Err(ENOSPC);
            }
            let more = places(needed.saturating_mul(2))?;
            let mut lists = self.lists.lock();
            let list = if is_home {
                &mut lists.home
            } else {
                &mut lists.away
            };
            let left = list.grow(more);
            drop(lists);
            drop(left);
        }
    }

    /// Notes that `span` leaves the address space: it is unmapped, or moved. From any context that
    /// may take a spinlock.
    pub(super) fn leaves(&self, span: Span) {
        let mut lists = self.lists.lock();
        let Lists { home, away, .. } = &mut *lists;
        // It may be told more than once that the same memory leaves.
        away.take_from(home, span);
    }

    fn set(&self, mm: &Mm, span: Span, advice: Advice) -> Result {
        let areas = Areas::lock(mm)?;
        let mut lists = self.lock_roomy()?;
        self.is_used.store(true, Release);
        lists.home.set(span, advice);
        let is_any = lists.away.entries().len();
        drop(lists);
        let mut result = Ok(());
        areas.each_moved(span, |part, linear| {
            let there = Span::new(linear, part.length()).map_err(|_| EINVAL);
            let set = there.and_then(|there| {
                self.lock_roomy()?.away.set(there, advice);
                Ok(())
            });
            result = result.and(set);
        });
        if is_any != 0 {
            self.forget_freed(&areas);
        }
        result
    }

    /// Drops the entries of memory that is away no more, if there are many of them.
    fn forget_freed(&self, areas: &Areas<'_>) {
        let lists = self.lists.lock();
        if lists.away.entries().len() < lists.many {
            return;
        }
        drop(lists);
        let mut moved = KVec::new();
        let mut is_complete = true;
        let Some(all) = Span::from_bounds(0, u64::MAX) else {
            return;
        };
        areas.each_moved(all, |part, linear| {
            let there = Span::new(linear, part.length());
            let there = there.map(|there| [there.start(), there.last()]);
            is_complete &= there.is_ok_and(|there| moved.push(there, GFP_KERNEL).is_ok());
        });
        if !is_complete {
            return;
        }
        let moved = disjoint(&mut moved);
        let mut lists = self.lists.lock();
        lists.away.retain(|entry| {
            let next = moved.partition_point(|&[_, last]| last < entry.span.start());
            moved
                .get(next)
                .is_some_and(|&[start, _]| start <= entry.span.last())
        });
        lists.many = lists.away.entries().len().saturating_mul(2).max(FEW);
    }
}

/// Sorts spans, given as first and last address, and makes one of those that overlap.
fn disjoint(spans: &mut [[u64; 2]]) -> &[[u64; 2]] {
    sort::by_first(spans);
    let mut kept = 0_usize;
    for index in 0..spans.len() {
        let Some(&[start, end]) = spans.get(index) else {
            break;
        };
        let before = kept.checked_sub(1).and_then(|last| spans.get_mut(last));
        match before.filter(|before| before[1] >= start) {
            Some(before) => before[1] = before[1].max(end),
            None => {
                if let Some(place) = spans.get_mut(kept) {
                    *place = [start, end];
                }
                kept = kept.saturating_add(1);
            }
        }
    }
    spans.get(..kept).unwrap_or_default()
}

impl Managed {
    /// Whether all memory of the range of `addr` stays on the host, since nothing else is advised.
    pub(super) fn is_for_host(&self, addr: u64) -> bool {
        let range = self.range_at(addr);
        range.is_some_and(|range| self.is_all_for_host(&range))
    }

    /// Whether all memory of `range` stays on the host, since nothing else is advised.
    pub(super) fn is_all_for_host(&self, range: &Range) -> bool {
        range.advice == Advice::HOST && self.advice.is_empty()
    }

    /// Advises for `range` of `mm`, the current task's memory. `ENOENT`: not all of it is managed.
    pub(crate) fn advise(&self, mm: &Mm, range: Span, advice: Advice) -> Result {
        self.check_managed(range)?;
        self.advice.set(mm, range, advice)
    }

    /// Returns the advice for `addr`, in `area` with the addresses `all`, or else what was said
    /// when the range was managed; and around it all addresses for which that is true.
    pub(super) fn advice_at(&self, area: Area<'_>, addr: u64, all: Span) -> (Advice, Span) {
        let (advice, around) = self.advice.at(area, addr, all);
        match self.ranges.lock().around(addr, around) {
            Some((range, around)) => {
                if advice == Advice::NONE {
                    (range.advice, around)
                } else {
                    (advice, around)
                }
            }
            None => (advice, around),
        }
    }
}
