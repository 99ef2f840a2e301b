// SPDX-License-Identifier: GPL-2.0
//! Deciding where memory is to be that the device has touched, and moving it there.
//!
//! What moves at once is what is faulted in at once (`logic/fault_around.rs`), and a page of 2 MiB
//! as a whole. Memory that stays on the host, by whichever rule of `logic/residence.rs`, is entered
//! there. What is tried in vain is not tried again before the device has touched it once more, and
//! what was tried in vain again and again, as memory of a program that forks all the time, is not
//! tried for as long as memory that thrashes.

use super::{
    ahead, page_of,
    past::Past,
    range::Count,
    serve::{lendable, Fault},
    Managed, Managing, READAHEADS,
};
use crate::{
    gpu::{
        mmu::pager::Taker,
        vram::{
            moving::{Line, Outcome},
            peers::Holder,
        },
        Gpu,
    },
    logic::{
        block::{Pages, PAGES},
        fault_around::{self, Readahead},
        pte::LARGE,
        residence::{self, Facts, Place, Rule},
        span::Span,
        PAGE_SIZE,
    },
    sys::mm::{
        hmm::{Leaf, Snapshot},
        migrate::{Areas, HomeFault},
    },
    trace,
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Where memory is that the device has touched.
pub(super) enum Placed {
    /// Some of it has moved: the page table has changed.
    Moved,
    /// The memory stays on the host.
    Stays(Extent),
    /// Nothing moved that was to: somebody has it pinned, or uses it at this moment.
    Busy(Extent),
}

/// Pages of a block that stay on the host, as one of them does.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) pages: Pages,
    /// A write is to be decided anew.
    pub(super) read_only: bool,
}

impl Extent {
    /// Nothing but page `index`.
    pub(super) fn page(index: usize) -> Self {
        Self {
            pages: Pages::range(index, index),
            read_only: false,
        }
    }

    /// No page.
    pub(super) const NONE: Self = Self {
        pages: Pages::NONE,
        read_only: false,
    };

    /// All pages.
    pub(super) const ALL: Self = Self {
        pages: Pages::ALL,
        read_only: false,
    };
}

/// The bits of a frame number that are 0 for the first of 2 MiB.
const IN_HUGE: u64 = PAGES as u64 - 1;

/// Whether the page table has a block as 2 MiB that are contiguous, and begin on a boundary.
fn is_huge(snapshot: &Snapshot) -> bool {
    if snapshot.is_one() {
        return true;
    }
    let Leaf::Page { pfn: first, .. } = snapshot.leaf(0) else {
        return false;
    };
    let is_next = |index: usize| snapshot.pfn(index) == Some(first.saturating_add(index as u64));
    first & IN_HUGE == 0 && (1..PAGES).all(is_next)
}

/// Decides where the memory of `fault` is to be, of which the page table has `snapshot`, and moves
/// it, unless all memory of its range [stays on the host](Managed::is_all_for_host). `EINTR`: a
/// fatal signal came.
pub(super) fn place(managing: &Managing, fault: Fault, snapshot: &Snapshot) -> Result<Placed> {
    let managed: &Managed = managing;
    let gpu = managed.vm.gpu();
    let page = Extent::page(fault.index);
    let Some(past) = managed.pasts.get(fault.addr / LARGE) else {
        return Ok(Placed::Stays(page));
    };
    let areas = Areas::lock(managing.mm())?;
    let holder = holder(gpu, &areas, fault, snapshot)?;
    let Some(plan) = Plan::new(managing, &areas, fault, snapshot, holder.as_ref(), past) else {
        return Ok(Placed::Stays(page));
    };
    drop(areas);
    if plan.place == Place::Host {
        return Ok(plan.stays(managed, past, plan.rule));
    }
    let mut reserved = gpu.reserve(&managed.budget, plan.part.pages(), u64::MAX)?;
    if reserved.is_empty() {
        return Ok(plan.stays(managed, past, Rule::NoRoom));
    }
    let areas = Areas::lock(managing.mm())?;
    let Some((now_there, Some(area))) = areas.at(fault.addr) else {
        return Ok(Placed::Moved);
    };
    if !now_there.covers(plan.part) {
        return Ok(Placed::Moved);
    }
    // The process may have forked meanwhile.
    let holder = match holder {
        Some(_) => self::holder(gpu, &areas, fault, snapshot)?,
        None => None,
    };
    let mut line = Line::new()?;
    let peer = holder.as_ref().map(|holder| holder.source(Taker::Device));
    let outcome = match gpu.begin_in(area, plan.part, &mut reserved, peer) {
        Ok(moving) if plan.part == fault.block => {
            ahead::move_ahead(managing, &areas, fault, moving, &mut line)
        }
        Ok(moving) => moving.finish(),
        Err(error) => Err(error),
    };
    // A copy that failed leaves the pages where they are.
    let outcome = outcome.unwrap_or_default();
    drop(line);
    drop(areas);
    if outcome.moved == 0 {
        // What is swapped out, or on a device that is out of reach, can move when it was faulted
        // in.
        if snapshot.leaf(fault.index) != Leaf::Absent {
            past.note_stuck(plan.now);
        }
        return Ok(Placed::Busy(Extent {
            pages: super::block::pages_in(fault.block, plan.part),
            read_only: false,
        }));
    }
    let more = plan.part.pages().saturating_sub(1) as u32;
    managed.note_readahead(fault, more, plan.readahead);
    managed.note_moved_in(past, plan.part, outcome, plan.rule);
    Ok(Placed::Moved)
}

/// The peer that has the page of `fault`, of which the page table has `snapshot`.
pub(super) fn holder(
    gpu: &Gpu,
    areas: &Areas<'_>,
    fault: Fault,
    snapshot: &Snapshot,
) -> Result<Option<Holder>> {
    match snapshot.leaf(fault.index) {
        Leaf::Absent => gpu.holder(areas, fault.block, || {
            Pages::range(fault.index, fault.index)
        }),
        _ => Ok(None),
    }
}

/// A decision about the memory around a fault.
pub(super) struct Plan {
    pub(super) place: Place,
    pub(super) rule: Rule,
    /// Addresses that move, if any do.
    pub(super) part: Span,
    /// The pages of the block to which the same applies.
    alike: Pages,
    read_only: bool,
    readahead: usize,
    now: u64,
}

impl Plan {
    /// Decides about the memory of `fault`, of which the page table has `snapshot` and `holder` may
    /// have some. `None`: nothing is mapped there.
    pub(super) fn new(
        managing: &Managing,
        areas: &Areas<'_>,
        fault: Fault,
        snapshot: &Snapshot,
        holder: Option<&Holder>,
        past: &Past,
    ) -> Option<Self> {
        let managed: &Managed = managing;
        let (all, area) = areas.at(fault.addr)?;
        let all = all.intersection(fault.block).unwrap_or(fault.block);
        let (advice, all) = match area {
            Some(area) => managed.advice_at(area, fault.addr, all),
            None => (residence::Advice::NONE, all),
        };
        let now = managed.served_so_far();
        let alike = super::block::pages_in(fault.block, all);
        let free = lendable(managed, fault.block).and(alike);
        let readahead = managed.readahead(fault);
        let part = part_to_move(managed.vm.gpu(), fault, snapshot, holder, free, readahead);
        let (place, rule) = residence::decide(Facts {
            advice,
            write: fault.write,
            atomic: fault.atomic,
            touched: past.touched(),
            taken: past.taken(),
            evicted: past.evicted(),
            can_move: area.is_some() && (fault.atomic || !past.is_stuck(now)),
            room: managed.budget.room(managing.mm()),
            needed: part.pages(),
            now,
        });
        Some(Self {
            place,
            rule,
            part,
            alike,
            read_only: !fault.write && advice.is_read_mostly(),
            readahead,
            now,
        })
    }

    /// The memory stays on the host, by `rule`.
    fn stays(&self, managed: &Managed, past: &Past, rule: Rule) -> Placed {
        past.stays(rule);
        if rule == Rule::Thrashing {
            if let Some(range) = managed.range_at(self.part.start()) {
                range.tell_thrashing(self.part.start());
            }
        }
        Placed::Stays(Extent {
            pages: self.alike,
            read_only: self.read_only,
        })
    }
}

impl Managed {
    /// Notes that the block of `addr` is on the host, since all of its range is to be.
    pub(super) fn note_advised(&self, addr: u64) {
        if let Some(past) = self.pasts.get(addr / LARGE) {
            past.stays(Rule::Advised);
        }
    }

    /// Where the last readahead of a block is kept. Blocks share these places: it is only a hint.
    fn readahead_of(&self, number: u64) -> Option<&Atomic<u64>> {
        self.readaheads.get((number % READAHEADS) as usize)
    }

    /// Returns how many pages may be faulted in for `fault`, its own included.
    pub(super) fn readahead(&self, fault: Fault) -> usize {
        let number = fault.addr / LARGE;
        let load = |number| {
            let word = self
                .readahead_of(number)
                .map_or(0, |word| word.load(Relaxed));
            Readahead::from_bits(word)
        };
        let before = load(number.wrapping_sub(1));
        fault_around::pages(number, fault.index, load(number), before)
    }

    /// Notes that for `fault`, with a readahead of `readahead` pages, `more` were faulted in behind
    /// its own.
    pub(super) fn note_readahead(&self, fault: Fault, more: u32, readahead: usize) {
        let number = fault.addr / LARGE;
        let end = fault.index.saturating_add(more as usize).saturating_add(1);
        if let Some(word) = self.readahead_of(number) {
            word.store(Readahead::new(number, end, readahead).bits(), Relaxed);
        }
    }
}

/// The addresses that move with those of `fault`: the readahead behind it, as far as `free` and not
/// in VRAM as far as is known, or the whole block if it is one page.
fn part_to_move(
    gpu: &Gpu,
    fault: Fault,
    snapshot: &Snapshot,
    holder: Option<&Holder>,
    free: Pages,
    readahead: usize,
) -> Span {
    if free == Pages::ALL && is_huge(holder.map_or(snapshot, |holder| &holder.snapshot)) {
        return fault.block;
    }
    let behind = (fault.index..PAGES).take(readahead).skip(1);
    let is_private = |index| gpu.offset_of(snapshot.pfn(index)?).map(|_| ());
    let more = behind.take_while(|&index| free.has(index) && is_private(index).is_none());
    let more = more.count() as u64;
    let bytes = more.saturating_add(1).saturating_mul(PAGE_SIZE);
    Span::new(fault.addr & !(PAGE_SIZE - 1), bytes).unwrap_or(fault.block)
}

impl Managed {
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
