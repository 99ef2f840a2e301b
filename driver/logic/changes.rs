// SPDX-License-Identifier: GPL-2.0
//! Counts the changes of a process's memory.
//!
//! A device that is lent pages without pins goes by a page table that was read. Between reading and
//! using it, the memory may have changed. So each change is counted, where it is and when it begins
//! and ends, separately for *granules* of 64 KiB: [`Changes::begin`] tells whether none is under
//! way at an address, and [`Changes::current`] whether one has begun since.
//!
//! The order of the counts is what makes that true, whatever the threads do: tests/loom tries all
//! of their orders.

use super::{block::Pages, pte::LARGE, span::Span, PAGE_SIZE};
use core::ops::{Deref, RangeInclusive};

/// Granules of a block of 2 MiB.
pub const GRANULES: usize = u32::BITS as usize;
/// Bytes of a granule.
const GRANULE: u64 = LARGE / GRANULES as u64;
/// Pages of a granule.
pub const GRANULE_PAGES: usize = (GRANULE / PAGE_SIZE) as usize;

/// A number that threads change at the same time.
pub trait Word: Default {
    /// Reads it, before anything that is read or written afterwards.
    fn load(&self) -> u32;
    /// Adds 1 before anything that is done afterwards, and after what was done before. Returns what
    /// it was.
    fn increment(&self) -> u32;
    /// Subtracts 1 in the same way.
    fn decrement(&self) -> u32;
    /// Reads how many changes have begun in each of `granules`, in the order of [`Self::load`].
    fn load_begun(granules: &[Counter<Self>; GRANULES], begun: &mut [u32; GRANULES]) {
        for (begun, counter) in begun.iter_mut().zip(granules) {
            *begun = counter.begun.load();
        }
    }
}

/// Changes of a part of the address space.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counter<W> {
    /// Changes that have begun, ever.
    begun: W,
    /// Changes that are under way.
    under_way: W,
}

/// Changes of a block of 2 MiB, and of all that share its place.
#[derive(Debug, Default)]
pub struct Counters<W> {
    /// Changes of any granule: mostly nothing changes in a block, and then no granule is looked at.
    all: Counter<W>,
    granules: [Counter<W>; GRANULES],
}

/// The changes of an address space. Blocks share `B`, a slice, by the lowest bits of their numbers.
#[derive(Debug)]
pub struct Changes<W, B> {
    blocks: B,
    /// Changes of more blocks than there are places.
    wide: Counter<W>,
}

/// A moment at which no change was under way in some granules of a block.
#[derive(Debug, Default)]
pub struct Moment {
    /// The place of the block.
    block: usize,
    begun_in_block: u32,
    begun: [u32; GRANULES],
    /// The granules, as bits.
    quiet: u32,
    wide: u32,
}

/// The granules of a block in which no change has begun since a [`Moment`], as long as the caller
/// has a lock that a change takes after it has begun.
#[derive(Debug)]
pub struct Current(u32);

impl Current {
    /// Returns whether all of `pages` are in these granules.
    pub fn has_all(&self, pages: Pages) -> bool {
        self.0 == u32::MAX || pages.but(Pages::parts(self.0)).is_empty()
    }

    /// Returns the pages of `pages` that are in these granules.
    pub fn among(&self, pages: Pages) -> Pages {
        if self.0 == u32::MAX {
            return pages;
        }
        pages.and(Pages::parts(self.0))
    }

    /// Returns whether page `index` of the block is in one of these granules.
    pub const fn has(&self, index: usize) -> bool {
        has(self.0, index / GRANULE_PAGES)
    }
}

/// Returns whether a bit is set.
const fn has(bits: u32, index: usize) -> bool {
    bits.wrapping_shr(index as u32) & 1 != 0
}

/// Returns the granule of `addr` in its block.
const fn granule_of(addr: u64) -> usize {
    (addr % LARGE / GRANULE) as usize
}

impl<W: Word, B: Deref<Target = [Counters<W>]>> Changes<W, B> {
    /// Counts from now on, in `blocks`, in which nothing was counted yet.
    pub fn new(blocks: B) -> Self {
        Self {
            blocks,
            wide: Counter::default(),
        }
    }

    /// Returns the place of block `number`.
    fn place(&self, number: u64) -> usize {
        number.checked_rem(self.blocks.len() as u64).unwrap_or(0) as usize
    }

    /// Makes `moment` this moment, with all granules of the block of `addr` in which no change is
    /// under way. Returns whether that of `addr` is one of them.
    pub fn begin(&self, addr: u64, moment: &mut Moment) -> bool {
        moment.block = self.place(addr / LARGE);
        moment.quiet = 0;
        let Some(block) = self.blocks.get(moment.block) else {
            return false;
        };
        moment.begun_in_block = block.all.begun.load();
        moment.wide = self.wide.begun.load();
        // Read before it is known that none is under way: see `start`.
        W::load_begun(&block.granules, &mut moment.begun);
        if block.all.under_way.load() == 0 {
            moment.quiet = u32::MAX;
        } else {
            for (index, counter) in block.granules.iter().enumerate() {
                if counter.under_way.load() == 0 {
                    moment.quiet |= 1_u32.wrapping_shl(index as u32);
                }
            }
        }
        self.wide.under_way.load() == 0 && has(moment.quiet, granule_of(addr))
    }

    /// Returns whether no change is under way in the granule of `addr`.
    pub fn is_quiet(&self, addr: u64) -> bool {
        let block = self.blocks.get(self.place(addr / LARGE));
        let granule = block.and_then(|block| block.granules.get(granule_of(addr)));
        self.wide.under_way.load() == 0
            && granule.is_some_and(|granule| granule.under_way.load() == 0)
    }

    /// Returns the granules of `moment` in which no change has begun since. The caller has a lock
    /// that a change takes after [`start`](Self::start).
    pub fn current(&self, moment: &Moment) -> Current {
        let mut quiet = moment.quiet;
        if self.wide.begun.load() != moment.wide {
            quiet = 0;
        }
        let block = self.blocks.get(moment.block);
        match block {
            Some(block) if block.all.begun.load() == moment.begun_in_block => {}
            _ => {
                let counters = block.map_or(&[][..], |block| &block.granules);
                for (index, (counter, begun)) in counters.iter().zip(moment.begun).enumerate() {
                    if counter.begun.load() != begun {
                        quiet &= !1_u32.wrapping_shl(index as u32);
                    }
                }
            }
        }
        Current(quiet)
    }

    /// Calls `visit` for each block of `range`, with the granules of it that are in `range`.
    /// Returns whether there are places for all of them; if not, it is called for none.
    fn each(
        &self,
        range: Span,
        mut visit: impl FnMut(&Counters<W>, RangeInclusive<usize>),
    ) -> bool {
        let (first, last) = (range.start() / GRANULE, range.last() / GRANULE);
        let places = (self.blocks.len() as u64).saturating_mul(GRANULES as u64);
        if last.saturating_sub(first) >= places {
            return false;
        }
        for number in range.start() / LARGE..=range.last() / LARGE {
            let block = Span::aligned(number.saturating_mul(LARGE), LARGE);
            let part = range.intersection(block).unwrap_or(block);
            if let Some(block) = self.blocks.get(self.place(number)) {
                visit(block, granule_of(part.start())..=granule_of(part.last()));
            }
        }
        true
    }

    /// Notes that a change of `range` begins. It is under way before it has begun: so whoever reads
    /// the second first and finds none under way either knows of the change, or finds out at the
    /// end. It is under way in its block first, and has begun there last: whoever reads that it has
    /// begun in a granule finds it under way in the block, and whoever reads that it has begun in
    /// the block finds that it has begun in all granules.
    pub fn start(&self, range: Span) {
        let is_counted = self.each(range, |block, granules| {
            block.all.under_way.increment();
            for counter in block.granules.get(granules).unwrap_or_default() {
                counter.under_way.increment();
                counter.begun.increment();
            }
            block.all.begun.increment();
        });
        if !is_counted {
            self.wide.under_way.increment();
            self.wide.begun.increment();
        }
    }

    /// Notes that a change of `range` has ended. Returns whether it was the last one anywhere, and
    /// so somebody may wait no more.
    pub fn end(&self, range: Span) -> bool {
        let mut is_last = false;
        let is_counted = self.each(range, |block, granules| {
            block.all.under_way.decrement();
            for counter in block.granules.get(granules).unwrap_or_default() {
                is_last |= counter.under_way.decrement() == 1;
            }
        });
        if !is_counted {
            is_last |= self.wide.under_way.decrement() == 1;
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::block::PAGES;
    use proptest::prelude::*;
    use std::cell::Cell;

    impl Word for Cell<u32> {
        fn load(&self) -> u32 {
            self.get()
        }

        fn increment(&self) -> u32 {
            self.replace(self.get().wrapping_add(1))
        }

        fn decrement(&self) -> u32 {
            self.replace(self.get().wrapping_sub(1))
        }
    }

    const PLACES: usize = 4;

    fn changes() -> Changes<Cell<u32>, Vec<Counters<Cell<u32>>>> {
        Changes::new((0..PLACES).map(|_| Counters::default()).collect())
    }

    /// Whether two addresses share a counter, if `range` is one that has some.
    fn meets(range: Span, page: u64) -> bool {
        let places = PLACES as u64 * LARGE;
        let (first, last) = (range.start() / GRANULE, range.last() / GRANULE);
        let is_wide = last - first >= (PLACES * GRANULES) as u64;
        is_wide
            || (first..=last).any(|it| it * GRANULE % places == page / GRANULE * GRANULE % places)
    }

    proptest! {
        /// A page is current exactly if no change that meets it was under way or has begun since.
        #[test]
        fn a_page_is_current_until_it_changes(
            before in prop::collection::vec((0u64..300, 0u64..200), 0..4),
            ended in 0usize..4,
            after in prop::collection::vec((0u64..300, 0u64..200), 0..4),
            addr in 0u64..10 * LARGE,
        ) {
            let span = |&(first, more): &(u64, u64)| {
                Span::new(first * GRANULE, (more + 1) * GRANULE).unwrap()
            };
            let changes = changes();
            let before: Vec<Span> = before.iter().map(span).collect();
            before.iter().for_each(|&range| changes.start(range));
            let ended = ended.min(before.len());
            for &range in &before[..ended] {
                changes.end(range);
            }
            let mut moment = Moment::default();
            let under_way = &before[ended..];
            let is_quiet = !under_way.iter().any(|&range| meets(range, addr));
            prop_assert_eq!(changes.begin(addr, &mut moment), is_quiet);
            prop_assert_eq!(changes.is_quiet(addr), is_quiet);
            let after: Vec<Span> = after.iter().map(span).collect();
            for &range in &after {
                changes.start(range);
                changes.end(range);
            }
            let current = changes.current(&moment);
            if is_quiet {
                for index in 0..PAGES {
                    let page = addr / LARGE * LARGE + index as u64 * PAGE_SIZE;
                    let met = |&range: &Span| meets(range, page);
                    let expected = !under_way.iter().any(met) && !after.iter().any(met);
                    prop_assert_eq!(current.has(index), expected);
                    let one = Pages::range(index, index);
                    prop_assert_eq!(current.has_all(one), expected);
                    prop_assert_eq!(!current.among(one).is_empty(), expected);
                }
            }
        }

        #[test]
        fn nothing_panics(start: u64, last: u64, addr: u64) {
            let (some, none) = (changes(), Changes::<Cell<u32>, &[_]>::new(&[]));
            let mut moment = Moment::default();
            if let Some(range) = Span::from_bounds(start, last) {
                some.start(range);
                none.start(range);
                let _ = (some.begin(addr, &mut moment), none.begin(addr, &mut moment));
                let _ = (some.current(&moment), none.current(&moment));
                let _ = (some.end(range), none.end(range));
            }
        }
    }
}
