// SPDX-License-Identifier: GPL-2.0
//! Planning where memory is to be that the device has touched, and how much of it moves, or is
//! faulted in, at once: nothing is done here.
//!
//! What moves at once is what is faulted in at once (`logic/fault_around.rs`), and a page of 2 MiB
//! as a whole. Memory that stays on the host, by whichever rule of `logic/residence.rs`, is entered
//! there.

use super::{
    block::{lendable, pages_in},
    fault::Fault,
    past::Past,
    Managed, Managing, READAHEADS,
};
use crate::{
    gpu::{vram::peers::Holder, Gpu},
    logic::{
        block::{Pages, PAGES},
        fault_around::{self, Readahead},
        pte::LARGE,
        residence::{self, Facts, Place, Rule},
        span::Span,
        PAGE_SIZE,
    },
    sys::mm::{
        areas::Areas,
        hmm::{Leaf, Snapshot},
    },
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Pages of a block that stay on the host, as one of them does.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) pages: Pages,
    /// A write is to be decided anew.
    pub(super) read_only: bool,
}

impl From<Pages> for Extent {
    fn from(pages: Pages) -> Self {
        Self {
            pages,
            read_only: false,
        }
    }
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
    alike: Extent,
    pub(super) readahead: usize,
    pub(super) now: u64,
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
        let alike = pages_in(fault.block, all);
        let free = lendable(managed, fault.block).and(alike);
        let readahead = managed.readahead(fault);
        let gpu = managed.vm.gpu();
        let part = part_to_move(gpu, fault, snapshot, holder, free, readahead);
        let can_move = area.is_some() && !gpu.limits().integrated;
        let (place, rule) = residence::decide(Facts {
            advice,
            write: fault.write,
            atomic: fault.atomic,
            touched: past.touched(),
            taken: past.taken(),
            evicted: past.evicted(),
            can_move: can_move && (fault.atomic || !past.is_stuck(now)),
            room: managed.budget.room(managing.mm()),
            needed: part.pages(),
            now,
        });
        Some(Self {
            place,
            rule,
            part,
            alike: Extent {
                pages: alike,
                read_only: !fault.write && advice.is_read_mostly(),
            },
            readahead,
            now,
        })
    }

    /// Leaves the memory on the host, by `rule`. Returns what of the block stays there with it.
    pub(super) fn stays(&self, managed: &Managed, past: &Past, rule: Rule) -> Extent {
        past.stays(rule);
        if rule == Rule::Thrashing {
            if let Some(range) = managed.range_at(self.part.start()) {
                range.tell_thrashing(self.part.start());
            }
        }
        self.alike
    }
}

impl Managed {
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
    Span::new(fault.page().start(), bytes).unwrap_or(fault.block)
}
