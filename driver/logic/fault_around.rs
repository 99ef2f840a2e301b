// SPDX-License-Identifier: GPL-2.0
//! Fault-around: how many pages are faulted in with one that a device has touched and that the
//! program has not.
//!
//! The window is sized as that of a file's readahead. A first fault has one of [`FIRST`] pages. A
//! fault right behind what the last one brought has twice its window, up to a whole block; no
//! window goes beyond the end of its block. Any other fault begins anew. So memory that a device
//! goes through costs few faults, and where a device touches a page here and there, little is
//! allocated that is never used.
//!
//! `docs/speed.md` has what a page costs with windows of 1 to 512 pages.

use super::block::PAGES;

/// Pages in the window of a first fault, with its own: 64 KiB.
pub const FIRST: usize = 16;

/// The window of the last fault in a block, packed into a word, so that it can be kept where
/// several processors read and write it without a lock.
///
/// The number of a block has up to 44 bits (an address of 64 bits has 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u64);

const BITS: u32 = 10;
const MASK: u64 = (1 << BITS) - 1;

impl Window {
    /// No fault was served yet.
    pub const NONE: Self = Self(0);

    /// Returns the window of a fault in block `number` that had room for `pages`, and brought those
    /// up to page `end`, exclusive.
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

/// Returns how many pages the window of a fault on page `index` of block `number` has, its own
/// included; it may reach beyond the block. `here` and `before` are the last windows of the block
/// and of the one before it.
pub fn pages(number: u64, index: usize, here: Window, before: Window) -> usize {
    let mut pages = FIRST;
    for window in [here, before] {
        if window.ends_at(number, index) {
            pages = pages.max(window.pages().saturating_mul(2));
        }
    }
    pages.min(PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goes through memory from page 0 of block `first` on; returns what the faults brought.
    fn walk(first: u64, blocks: usize) -> Vec<usize> {
        let (mut brought, mut last) = (Vec::new(), Window::NONE);
        let mut at = 0;
        while at < blocks * PAGES {
            let (number, index) = (first + (at / PAGES) as u64, at % PAGES);
            let window = pages(number, index, last, last);
            let count = window.min(PAGES - index);
            last = Window::new(number, index + count, window);
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
        let last = Window::new(5, 64, 64);
        assert_eq!(pages(5, 64, last, Window::NONE), 128);
        assert_eq!(pages(5, 65, last, Window::NONE), FIRST);
        assert_eq!(pages(6, 64, last, last), FIRST);
        assert_eq!(pages(6, 0, Window::NONE, last), FIRST);
        assert_eq!(pages(0, 0, Window::NONE, Window::NONE), FIRST);
        assert_eq!(pages(1, 0, Window::NONE, Window::NONE), FIRST);
    }

    proptest! {
        #[test]
        fn a_window_is_what_was_packed(
            number in 0u64..1 << 43, end in 1..=PAGES, count in 1..=PAGES, other in 0..PAGES,
        ) {
            let window = Window::from_bits(Window::new(number, end, count).bits());
            prop_assert_eq!(window.pages(), count);
            prop_assert!(window.ends_at(number, end));
            prop_assert_eq!(window.ends_at(number, other), other == end);
            prop_assert_eq!(window.ends_at(number + 1, 0), end == PAGES);
        }

        #[test]
        fn windows_are_bounded(number: u64, index: usize, here: u64, before: u64) {
            let (here, before) = (Window::from_bits(here), Window::from_bits(before));
            let pages = pages(number, index, here, before);
            prop_assert!((FIRST..=PAGES).contains(&pages));
        }
    }
}
