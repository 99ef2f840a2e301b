// SPDX-License-Identifier: GPL-2.0
//! Counts the page tables that an IOMMU keeps after unmapping.
//!
//! Unmapping a range frees the tables that the range fills completely. The tables at its ends stay
//! as long as the whole page table does. A table is a page of entries of 8 bytes, as with Intel,
//! AMD, Arm and most others.

use super::{span::Span, PAGE_SHIFT};

/// Binary logarithm of the number of entries of a table.
const ENTRIES_SHIFT: u32 = PAGE_SHIFT - 3;
/// Binary logarithm of the bytes that a lowest table covers: 2 MiB with pages of 4 KiB.
const LEAF_SHIFT: u32 = PAGE_SHIFT + ENTRIES_SHIFT;
/// Binary logarithm of the bytes that the table above it covers, a *region*: 1 GiB.
const REGION_SHIFT: u32 = LEAF_SHIFT + ENTRIES_SHIFT;
/// Tables above the lowest one, where addresses have 57 bits, without the root, which is always
/// there: 3.
const UPPER: u64 = (57 - REGION_SHIFT).div_ceil(ENTRIES_SHIFT) as u64;

/// The lowest tables of a region that are kept, one bit each.
pub type Region = [u64; 1 << (ENTRIES_SHIFT - 6)];
/// A region without tables.
pub const NONE: Region = [0; 1 << (ENTRIES_SHIFT - 6)];

/// One end of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    address: u64,
    /// Whether the lowest table stays too, and not only those above it.
    leaf: bool,
}

impl End {
    /// Returns the number of the region of this end.
    const fn region(self) -> u64 {
        self.address >> REGION_SHIFT
    }

    fn bit(self) -> (usize, u64) {
        let number = (self.address >> LEAF_SHIFT) % (1 << ENTRIES_SHIFT);
        ((number / 64) as usize, 1 << (number % 64))
    }

    /// Returns the number of tables that this end adds. `tables` are those of its region; if it has
    /// none, the nearest regions that have some are `below` and `above`.
    fn cost(self, tables: Option<&Region>, below: Option<u64>, above: Option<u64>) -> u64 {
        let (word, bit) = self.bit();
        let leaf = self.leaf && tables.is_none_or(|it| it.get(word).is_none_or(|it| it & bit == 0));
        let upper = if tables.is_some() {
            0
        } else {
            let missing = |other| missing(self.region(), other);
            below
                .map_or(UPPER, missing)
                .min(above.map_or(UPPER, missing))
        };
        upper.saturating_add(u64::from(leaf))
    }

    /// Records the tables of this end in its region.
    fn note(self, tables: &mut Region) {
        let (word, bit) = self.bit();
        if let Some(tables) = tables.get_mut(word).filter(|_| self.leaf) {
            *tables |= bit;
        }
    }
}

/// Returns the number of tables on the way to region `wanted` that are not on the way to `other`.
fn missing(wanted: u64, other: u64) -> u64 {
    let differ = u64::BITS.saturating_sub((wanted ^ other).leading_zeros());
    u64::from(differ.div_ceil(ENTRIES_SHIFT)).min(UPPER)
}

/// Returns the addresses of the lowest table of `address`.
fn block(address: u64) -> Option<Span> {
    let first = address >> LEAF_SHIFT << LEAF_SHIFT;
    Span::from_bounds(first, first | ((1 << LEAF_SHIFT) - 1))
}

/// Returns the addresses of the lowest table that `span` leaves, if it leaves just one: a mapping
/// within them adds no table then.
fn lowest_table(span: Span) -> Option<Span> {
    block(span.start()).filter(|block| block.covers(span) && *block != span)
}

/// Returns the ends of `span`. The second is `None` if both are in the same lowest table.
fn ends(span: Span) -> (End, Option<End>) {
    let end = |address| End {
        address,
        leaf: block(address).is_none_or(|block| !span.covers(block)),
    };
    let (first, last) = (span.start(), span.last());
    let other = (first >> LEAF_SHIFT != last >> LEAF_SHIFT).then(|| end(last));
    (end(first), other)
}

/// Storage for the regions that have tables, by their numbers.
pub trait Regions {
    /// Why there is no room.
    type Error;
    /// Returns the tables of `region`; if it has none, the nearest regions below and above it that
    /// have some.
    fn near(&self, region: u64) -> (Option<&Region>, Option<u64>, Option<u64>);
    /// Returns the tables of `region`, also if it has none yet.
    fn entry(&mut self, region: u64) -> Result<&mut Region, Self::Error>;
}

/// The tables that a page table keeps.
#[derive(Debug)]
pub struct Tables<R> {
    regions: R,
    count: u64,
    /// Addresses of a lowest table that was counted: a mapping within costs nothing.
    counted: Option<Span>,
}

/// The tables that are kept because of a mapping, and were not before.
#[derive(Clone, Copy, Debug)]
pub struct More {
    span: Span,
    first: (End, u64),
    other: Option<(End, u64)>,
}

impl More {
    /// Returns how many there are.
    pub fn count(&self) -> u64 {
        let far = self.other.map_or(0, |(_, cost)| cost);
        self.first.1.saturating_add(far)
    }
}

impl<R: Regions> Tables<R> {
    /// Counts for an empty page table: `regions` has none.
    pub const fn new(regions: R) -> Self {
        Self {
            regions,
            count: 0,
            counted: None,
        }
    }

    /// Returns the number of tables.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether a mapping at `span` costs nothing, as far as is known without a search.
    pub fn has(&self, span: Span) -> bool {
        self.counted.is_some_and(|counted| counted.covers(span))
    }

    /// Returns how many new tables stay because of `end`, if something in region `also` is mapped
    /// too.
    fn cost(&self, end: End, also: Option<u64>) -> u64 {
        let (tables, below, above) = self.regions.near(end.region());
        end.cost(tables, below.max(also), above)
    }

    /// Returns what a mapping at `span` adds.
    pub fn more(&self, span: Span) -> More {
        let (first, other) = ends(span);
        let also = Some(first.region());
        More {
            span,
            first: (first, self.cost(first, None)),
            other: other.map(|end| (end, self.cost(end, also))),
        }
    }

    /// Counts what a mapping adds.
    pub fn add(&mut self, more: More) -> Result<(), R::Error> {
        self.add_end(more.first)?;
        match more.other {
            Some(other) => self.add_end(other)?,
            None => self.counted = lowest_table(more.span),
        }
        Ok(())
    }

    /// Counts what was mapped at `span` unforeseen, also if there is no room.
    pub fn note(&mut self, span: Span) {
        let (first, other) = ends(span);
        for end in [Some(first), other].into_iter().flatten() {
            let cost = self.cost(end, None);
            if self.add_end((end, cost)).is_err() {
                self.count = self.count.saturating_add(cost);
            }
        }
    }

    fn add_end(&mut self, (end, cost): (End, u64)) -> Result<(), R::Error> {
        if cost != 0 {
            end.note(self.regions.entry(end.region())?);
            self.count = self.count.saturating_add(cost);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::convert::Infallible;

    impl Regions for BTreeMap<u64, Region> {
        type Error = Infallible;

        fn near(&self, region: u64) -> (Option<&Region>, Option<u64>, Option<u64>) {
            let below = self.range(..region).next_back().map(|(&it, _)| it);
            let above = self.range(region..).next().map(|(&it, _)| it);
            (self.get(&region), below, above)
        }

        fn entry(&mut self, region: u64) -> Result<&mut Region, Infallible> {
            Ok(BTreeMap::entry(self, region).or_default())
        }
    }

    const BLOCK: u64 = 1 << LEAF_SHIFT;
    const REGION: u64 = 1 << REGION_SHIFT;

    fn of(start: u64, length: u64) -> (End, Option<End>) {
        ends(Span::new(start, length).unwrap())
    }

    #[test]
    fn a_block_that_is_filled_leaves_no_lowest_table() {
        assert!(!of(BLOCK, BLOCK).0.leaf && of(BLOCK, BLOCK).1.is_none());
        assert!(of(BLOCK, BLOCK - 1).0.leaf);
        assert!(of(BLOCK + 1, BLOCK - 1).0.leaf);
        let (first, last) = of(BLOCK - 0x1000, BLOCK + 0x2000);
        assert!(first.leaf && last.unwrap().leaf);
        let (first, last) = of(0, 2 * BLOCK);
        assert!(!first.leaf && !last.unwrap().leaf);
        assert!(!of(u64::MAX - BLOCK + 1, BLOCK).0.leaf);
    }

    #[test]
    fn tables_above_are_shared_with_neighbours() {
        let end = of(5 * REGION, 0x1000).0;
        assert_eq!(end.cost(None, None, None), 4);
        assert_eq!(end.cost(None, Some(4), None), 2);
        assert_eq!(end.cost(None, None, Some(511)), 2);
        assert_eq!(end.cost(None, None, Some(512)), 3);
        assert_eq!(end.cost(None, Some(4), Some(512)), 2);
        assert_eq!(end.cost(Some(&[0; 8]), None, None), 1);
        let mut tables = [0; 8];
        end.note(&mut tables);
        assert_eq!(end.cost(Some(&tables), None, None), 0);
        assert_eq!(of(BLOCK, BLOCK).0.cost(Some(&[0; 8]), None, None), 0);
        let (end, _) = of(BLOCK, BLOCK);
        end.note(&mut tables);
        assert_eq!(tables.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    }

    /// Regions beside each other, far apart, and where tables of three levels begin.
    fn regions() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..4, 510u64..514, 1u64 << 17..(1 << 17) + 2]
    }

    proptest! {
        /// The counts equal those of a set of all tables that were ever at an end.
        #[test]
        fn all_are_counted_once(
            spans in proptest::collection::vec(
                (0u64..64, regions(), 1u64..2000, any::<bool>()),
                1..40,
            )
        ) {
            let mut tables = Tables::new(BTreeMap::new());
            let mut sets = vec![BTreeSet::new(); 4];
            for (page, region, pages, is_foreseen) in spans {
                let span = Span::new(region * REGION + page * 0x10_1000, pages * 0x1000).unwrap();
                let (first, other) = ends(span);
                for end in [Some(first), other].into_iter().flatten() {
                    if end.leaf {
                        sets[0].insert(end.address >> LEAF_SHIFT);
                    }
                    for (level, set) in (0..).zip(&mut sets).skip(1) {
                        set.insert(end.address >> (LEAF_SHIFT + level * ENTRIES_SHIFT));
                    }
                }
                let (more, before) = (tables.more(span), tables.count());
                prop_assert!(!tables.has(span) || more.count() == 0);
                if is_foreseen {
                    tables.add(more).unwrap();
                } else {
                    tables.note(span);
                }
                prop_assert_eq!(tables.count(), before + more.count());
                let all: usize = sets.iter().map(BTreeSet::len).sum();
                prop_assert_eq!(tables.count(), all as u64);
            }
        }

        #[test]
        fn nothing_panics(
            start: u64,
            last: u64,
            below: Option<u64>,
            above: Option<u64>,
            tables: Option<Region>,
        ) {
            if let Some(span) = Span::from_bounds(start, last) {
                let (first, other) = ends(span);
                for end in [Some(first), other].into_iter().flatten() {
                    prop_assert!(end.cost(tables.as_ref(), below, above) <= 1 + UPPER);
                    end.note(&mut tables.unwrap_or_default());
                }
            }
        }
    }
}
