// SPDX-License-Identifier: GPL-2.0
//! The history of blocks, as far as it is remembered: for a number of them, by the lowest bits of
//! their numbers. It outlives the [`Block`](super::block::Block), which goes when the device has
//! nothing of it. It is used without a lock, and only ever a hint.
//!
//! When memory moves, what is noted here is also counted for its range, and traced.

use super::{page_of, range::Count, Managed};
use crate::{
    gpu::vram::moving::Outcome,
    logic::{
        pte::LARGE,
        residence::{History, Rule},
        span::Span,
        PAGE_SIZE,
    },
    sys::mm::migrate::HomeFault,
    trace,
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};

/// Blocks that are remembered: 2 GiB of neighbours.
const REMEMBERED: u64 = 1024;

/// The history of a block.
pub(super) struct Past {
    /// The number of the block and one; 0: none.
    number: Atomic<u64>,
    /// How often it went home because the CPU touched it: a [`History`].
    touched: Atomic<u64>,
    /// How often it was another device that touched it: a [`History`].
    taken: Atomic<u64>,
    /// How often it was evicted: a [`History`].
    evicted: Atomic<u64>,
    /// How often nothing of it could move, though it was to: a [`History`].
    stuck: Atomic<u64>,
    /// Whether pages have moved to the device since it was last counted that some went home.
    is_there: Atomic<u32>,
    /// Counts of evictions, in the same way.
    can_be_evicted: Atomic<u32>,
    /// The rule by which pages are on the host, and that by which they are on the device.
    host: Atomic<u32>,
    device: Atomic<u32>,
}

impl Past {
    fn forget(&self, number: u64) {
        self.touched.store(0, Relaxed);
        self.taken.store(0, Relaxed);
        self.evicted.store(0, Relaxed);
        self.stuck.store(0, Relaxed);
        self.is_there.store(0, Relaxed);
        self.can_be_evicted.store(0, Relaxed);
        self.host.store(Rule::None as u32, Relaxed);
        self.device.store(Rule::None as u32, Relaxed);
        self.number.store(number, Relaxed);
    }

    pub(super) fn touched(&self) -> History {
        History::from_bits(self.touched.load(Relaxed))
    }

    pub(super) fn taken(&self) -> History {
        History::from_bits(self.taken.load(Relaxed))
    }

    pub(super) fn evicted(&self) -> History {
        History::from_bits(self.evicted.load(Relaxed))
    }

    /// Notes that pages went home because the CPU touched one, or another device did (`by_device`),
    /// when `now` faults were served. A CPU that goes through the block counts once. Returns
    /// whether the block begins to thrash by that.
    pub(super) fn note_touched(&self, now: u64, by_device: bool) -> bool {
        self.host.store(Rule::Home as u32, Relaxed);
        if self.is_there.xchg(0, Full) == 0 {
            return false;
        }
        if by_device {
            self.taken.store(self.taken().again(now).bits(), Relaxed);
        }
        let before = self.touched();
        let after = before.again(now);
        self.touched.store(after.bits(), Relaxed);
        after.is_too_often(now) && !before.is_too_often(now)
    }

    /// Notes that pages were evicted, when `now` faults were served. Pages that follow each other
    /// count once.
    pub(super) fn note_evicted(&self, now: u64) {
        self.host.store(Rule::Evicted as u32, Relaxed);
        if self.can_be_evicted.xchg(0, Full) != 0 {
            self.evicted
                .store(self.evicted().again(now).bits(), Relaxed);
        }
    }

    /// Notes that nothing could move, when `now` faults were served.
    pub(super) fn note_stuck(&self, now: u64) {
        let stuck = History::from_bits(self.stuck.load(Relaxed));
        self.stuck.store(stuck.again(now).bits(), Relaxed);
        self.stays(Rule::Fixed);
    }

    /// Whether nothing could move again and again, so that it is not tried any more.
    pub(super) fn is_stuck(&self, now: u64) -> bool {
        History::from_bits(self.stuck.load(Relaxed)).is_too_often(now)
    }

    /// The rule by which pages are on the host, as a `PINMAP_RULE_` value.
    pub(super) fn on_host(&self) -> u32 {
        self.host.load(Relaxed)
    }

    /// The rule by which pages are on the device, as a `PINMAP_RULE_` value.
    pub(super) fn on_device(&self) -> u32 {
        self.device.load(Relaxed)
    }

    /// Notes by which rule pages are on the host.
    pub(super) fn stays(&self, rule: Rule) {
        self.host.store(rule as u32, Relaxed);
    }

    /// Notes that pages have moved to the device, and by which rule.
    pub(super) fn moves(&self, rule: Rule) {
        self.is_there.store(1, Relaxed);
        self.can_be_evicted.store(1, Relaxed);
        self.device.store(rule as u32, Relaxed);
    }
}

/// The history of the blocks of a context.
pub(super) struct Pasts(KVVec<Past>);

impl Pasts {
    pub(super) fn new() -> Result<Self> {
        let mut pasts = KVVec::with_capacity(REMEMBERED as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..REMEMBERED {
            let past = Past {
                number: Atomic::new(0),
                touched: Atomic::new(0),
                taken: Atomic::new(0),
                evicted: Atomic::new(0),
                stuck: Atomic::new(0),
                is_there: Atomic::new(0),
                can_be_evicted: Atomic::new(0),
                host: Atomic::new(Rule::None as u32),
                device: Atomic::new(Rule::None as u32),
            };
            pasts.push(past, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self(pasts))
    }

    /// Returns what is remembered of block `number`. From any context.
    pub(super) fn get(&self, number: u64) -> Option<&Past> {
        let past = self.find(number);
        if past.is_none() {
            let place = self.0.get((number % REMEMBERED) as usize);
            if let Some(other) = place {
                other.forget(number.saturating_add(1));
            }
            return place;
        }
        past
    }

    /// Forgets blocks of which all addresses are in `span`, which leaves the address space: what
    /// comes there next has no past. From any context.
    pub(super) fn leaves(&self, span: Span) {
        let first = span.start().div_ceil(LARGE);
        let end = span
            .last()
            .checked_add(1)
            .map_or(u64::MAX, |end| end / LARGE);
        let forget = |past: &Past| {
            let number = past.number.load(Relaxed);
            if (first..end).contains(&number.saturating_sub(1)) && number != 0 {
                past.forget(0);
            }
        };
        if end.saturating_sub(first) < REMEMBERED {
            for number in first..end {
                if let Some(past) = self.find(number) {
                    forget(past);
                }
            }
        } else {
            self.0.iter().for_each(forget);
        }
    }

    /// Returns what is remembered of block `number`, if something is.
    pub(super) fn find(&self, number: u64) -> Option<&Past> {
        let past = self.0.get((number % REMEMBERED) as usize)?;
        (past.number.load(Relaxed) == number.saturating_add(1)).then_some(past)
    }
}

impl Managed {
    /// Notes that the block of `addr` is on the host, since all of its range is to be.
    pub(super) fn note_advised(&self, addr: u64) {
        if let Some(past) = self.pasts.get(addr / LARGE) {
            past.stays(Rule::Advised);
        }
    }

    /// Counts pages of `part` that moved to the device because it touched them.
    pub(super) fn note_moved_in(&self, past: &Past, part: Span, outcome: Outcome, rule: Rule) {
        let is_refault = past.evicted().is_some();
        past.moves(rule);
        self.add_to_ranges(Count::InTouched, part, outcome.moved);
        self.add_to_ranges(Count::FromPeers, part, outcome.from_peer);
        if is_refault {
            self.add_to_ranges(Count::Refaults, part, outcome.moved);
        }
        self.trace_move(part, outcome.moved, false, trace::Cause::Touched, rule);
    }

    /// Counts `pages` of `span` in the ranges that have them. Which pages they are is known only if
    /// they are all: otherwise those of the first range count first. From any context.
    pub(super) fn add_to_ranges(&self, count: Count, span: Span, pages: u64) {
        let mut left = pages;
        let mut addr = span.start();
        while left != 0 && addr <= span.last() {
            let Some(range) = self.range_at(addr) else {
                return;
            };
            let last = range.span().last().min(span.last());
            let there = Span::from_bounds(addr, last).map_or(0, Span::pages);
            range.add(count, there.min(left));
            left = left.saturating_sub(there);
            addr = last.saturating_add(1);
        }
    }

    /// Records that `pages` of `part` have moved.
    pub(super) fn trace_move(
        &self,
        part: Span,
        pages: u64,
        home: bool,
        cause: trace::Cause,
        rule: Rule,
    ) {
        trace::migrate(&self.stats, || trace::Migration {
            addr: part.start(),
            bytes: pages.saturating_mul(PAGE_SIZE),
            home,
            cause,
            rule: rule as u32,
        });
    }

    /// Counts pages that came home for a CPU fault. With a spinlock held.
    pub(super) fn note_came_home(&self, fault: &HomeFault<'_>, pages: u64, ns: u64) {
        let addr = fault.addr();
        let Some(range) = self.range_at(addr) else {
            return;
        };
        range.add(Count::HostFaults, 1);
        range.add(Count::HostNs, ns);
        if pages == 0 {
            return;
        }
        range.add(Count::HomeTouched, pages);
        if let Some(past) = self.pasts.get(addr / LARGE) {
            if past.note_touched(self.served_so_far(), fault.is_by_device()) {
                range.add(Count::Thrashing, 1);
            }
        }
        self.trace_move(
            page_of(addr),
            pages,
            true,
            trace::Cause::Touched,
            Rule::Home,
        );
    }

    /// Counts `pages` of `part`, in one block, that another device took directly: because it has
    /// `touched` them, or its program has moved them. With a spinlock held.
    pub(super) fn note_taken(&self, part: Span, pages: u64, touched: bool) {
        let managed = self.first_range(part);
        let Some(part) = managed.and_then(|managed| managed.intersection(part)) else {
            return;
        };
        self.add_to_ranges(Count::ToPeers, part, pages);
        let range = self.range_at(part.start());
        let past = self.pasts.get(part.start() / LARGE);
        if let (Some(range), Some(past)) = (range, past) {
            if past.note_touched(self.served_so_far(), touched) {
                range.add(Count::Thrashing, 1);
            }
        }
    }

    /// Counts `pages` of `span`, in one block, that were evicted. With a spinlock held.
    pub(super) fn note_evicted(&self, span: Span, pages: u64) {
        self.add_to_ranges(Count::HomeEvicted, span, pages);
        if let Some(past) = self.pasts.find(span.start() / LARGE) {
            past.note_evicted(self.served_so_far());
        }
        self.trace_move(span, pages, true, trace::Cause::Evicted, Rule::Evicted);
    }
}
