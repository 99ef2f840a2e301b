// SPDX-License-Identifier: GPL-2.0
//! Fault-around: how many pages are faulted in with one that a device has touched and that the
//! program has not; and how many huge pages move to the device with one that it has touched.
//!
//! The readahead is sized as that of a file. A first fault has one of [`FIRST`] pages. A fault
//! right behind what the last one brought has twice its readahead, up to a whole block; no
//! readahead goes beyond the end of its block. Any other fault begins anew. So memory that a device
//! goes through costs few faults, and where a device touches a page here and there, little is
//! allocated that is never used.
//!
//! Huge pages that move are treated the same way: the first moves alone, and if the device then
//! comes to the one behind what has moved, twice as many move with that, up to [`MOST`].
//!
//! `docs/speed.md` has what a page costs with readaheads of 1 to 512 pages.

use super::block::PAGES;

/// Pages in the readahead of a first fault, with its own: 64 KiB.
pub const FIRST: usize = 16;

/// The readahead of the last fault in a block, packed into a word, so that it can be kept where
/// several processors read and write it without a lock.
///
/// The number of a block has up to 44 bits (an address of 64 bits has 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readahead(u64);

const BITS: u32 = 10;
const MASK: u64 = (1 << BITS) - 1;

impl Readahead {
    /// No fault was served yet.
    #[cfg(test)]
    const NONE: Self = Self(0);

    /// Returns the readahead of a fault in block `number` that had room for `pages`, and brought
    /// those up to page `end`, exclusive.
    pub fn new(number: u64, end: usize, pages: usize) -> Self {
        let low = ((end.min(PAGES) as u64) << BITS) | pages.min(PAGES) as u64;
        Self(number.wrapping_shl(2 * BITS) | low)
    }

    /// Unpacks a word.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    fn pages(self) -> usize {
        (self.0 & MASK) as usize
    }

    /// Whether page `index` of block `number` comes right behind.
    fn ends_at(self, number: u64, index: usize) -> bool {
        let end = (self.0.wrapping_shr(BITS) & MASK) as usize;
        let last = self.0.wrapping_shr(2 * BITS);
        let is_in = last == number && end == index;
        let is_before = last.checked_add(1) == Some(number) && end == PAGES && index == 0;
        self.pages() != 0 && (is_in || is_before)
    }
}

/// Returns how many pages the readahead of a fault on page `index` of block `number` has, its own
/// included; it may reach beyond the block. `here` and `before` are the last readaheads of the
/// block and of the one before it.
pub fn pages(number: u64, index: usize, here: Readahead, before: Readahead) -> usize {
    let mut pages = FIRST;
    for readahead in [here, before] {
        if readahead.ends_at(number, index) {
            pages = pages.max(readahead.pages().saturating_mul(2));
        }
    }
    pages.min(PAGES)
}

/// Blocks that move with one that was touched, at most.
pub const MOST: u64 = 7;

/// How a device went through blocks that moved: the block behind them, and how many they were,
/// packed into a word as a [`Readahead`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course(u64);

impl Course {
    /// No block has moved yet.
    #[cfg(test)]
    const NONE: Self = Self(0);

    /// Returns the course of a device that has touched block `number`, with which `more` have
    /// moved.
    pub fn new(number: u64, more: u64) -> Self {
        let blocks = more.saturating_add(1).min(MASK);
        let next = number.saturating_add(blocks);
        Self(next.wrapping_shl(BITS) | blocks)
    }

    /// Unpacks a word.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the number of the block behind those that have moved.
    pub const fn next(self) -> u64 {
        self.0.wrapping_shr(BITS)
    }

    fn blocks(self) -> u64 {
        self.0 & MASK
    }
}

/// Returns how many blocks move with block `number`, which a device has touched. `last`: how it
/// went through those before.
pub fn blocks(number: u64, last: Course) -> u64 {
    if last.next() != number || last.blocks() == 0 {
        return 0;
    }
    // Twice as many, with the block itself.
    let more = last.blocks().saturating_mul(2).saturating_sub(1);
    more.min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goes through memory from page 0 of block `first` on; returns what the faults brought.
    fn walk(first: u64, blocks: usize) -> Vec<usize> {
        let (mut brought, mut last) = (Vec::new(), Readahead::NONE);
        let mut at = 0;
        while at < blocks * PAGES {
            let (number, index) = (first + (at / PAGES) as u64, at % PAGES);
            let readahead = pages(number, index, last, last);
            let count = readahead.min(PAGES - index);
            last = Readahead::new(number, index + count, readahead);
            brought.push(count);
            at += count;
        }
        brought
    }

    #[test]
    fn who_goes_through_memory_has_few_faults() {
        assert_eq!(walk(7, 3), [16, 32, 64, 128, 256, 16, 512, 512]);
    }

    #[test]
    fn who_jumps_begins_anew() {
        let last = Readahead::new(5, 64, 64);
        assert_eq!(pages(5, 64, last, Readahead::NONE), 128);
        assert_eq!(pages(5, 65, last, Readahead::NONE), FIRST);
        assert_eq!(pages(6, 64, last, last), FIRST);
        assert_eq!(pages(6, 0, Readahead::NONE, last), FIRST);
        assert_eq!(pages(0, 0, Readahead::NONE, Readahead::NONE), FIRST);
        assert_eq!(pages(1, 0, Readahead::NONE, Readahead::NONE), FIRST);
    }

    #[test]
    fn who_goes_through_huge_pages_has_more_of_them_each_time() {
        let (mut last, mut at, mut moved) = (Course::NONE, 5, Vec::new());
        for _ in 0..6 {
            let more = blocks(at, last);
            moved.push(more + 1);
            last = Course::new(at, more);
            at += more + 1;
        }
        assert_eq!(moved, [1, 2, 4, 8, 8, 8]);
        // Fewer could move than were to.
        assert_eq!(blocks(41, Course::new(40, 0)), 1);
        assert_eq!(blocks(42, Course::new(40, 0)), 0);
        assert_eq!(blocks(40, Course::new(40, 0)), 0);
        assert_eq!(blocks(0, Course::NONE), 0);
    }

    proptest! {
        #[test]
        fn a_course_is_what_was_packed(number in 0u64..1 << 43, more in 0..=MOST, other: u64) {
            let course = Course::from_bits(Course::new(number, more).bits());
            prop_assert_eq!(course.next(), number + more + 1);
            prop_assert_eq!(course.blocks(), more + 1);
            prop_assert!(blocks(number + more + 1, course) <= MOST);
            prop_assert_eq!(blocks(number, course), 0);
            prop_assert!(blocks(other, Course::from_bits(other)) <= MOST);
        }

        #[test]
        fn a_readahead_is_what_was_packed(
            number in 0u64..1 << 43, end in 1..=PAGES, count in 1..=PAGES, other in 0..PAGES,
        ) {
            let readahead = Readahead::from_bits(Readahead::new(number, end, count).bits());
            prop_assert_eq!(readahead.pages(), count);
            prop_assert!(readahead.ends_at(number, end));
            prop_assert_eq!(readahead.ends_at(number, other), other == end);
            prop_assert_eq!(readahead.ends_at(number + 1, 0), end == PAGES);
        }

        #[test]
        fn readaheads_are_bounded(number: u64, index: usize, here: u64, before: u64) {
            let (here, before) = (Readahead::from_bits(here), Readahead::from_bits(before));
            let pages = pages(number, index, here, before);
            prop_assert!((FIRST..=PAGES).contains(&pages));
        }
    }
}
