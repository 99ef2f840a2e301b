// SPDX-License-Identifier: GPL-2.0
//! Ranges of addresses, inclusive at both ends.

use super::{is_page_aligned, Refusal, PAGE_SHIFT};

/// A non-empty range of addresses, named by its first and its last byte.
///
/// # Invariants
///
/// `start <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u64,
    last: u64,
}

impl Span {
    /// Makes a span of `length` bytes from `start`.
    ///
    /// Returns [`Refusal::Overflow`] if they leave the 64-bit range, and [`Refusal::Invalid`] if
    /// there are none.
    pub const fn new(start: u64, length: u64) -> Result<Self, Refusal> {
        let Some(minus_one) = length.checked_sub(1) else {
            return Err(Refusal::Invalid);
        };
        match start.checked_add(minus_one) {
            // INVARIANT: `last` is `start` plus something.
            Some(last) => Ok(Self { start, last }),
            None => Err(Refusal::Overflow),
        }
    }

    /// Makes the span of `size` bytes, a power of two, that begins at a multiple of `size` and has
    /// `address` in it.
    pub const fn aligned(address: u64, size: u64) -> Self {
        let below = size.wrapping_sub(1);
        // INVARIANT: all bits that `start` has are in `last`, too.
        Self {
            start: address & !below,
            last: address | below,
        }
    }

    /// Makes a span from `start` to `last`, both inclusive; `None` if that is empty.
    pub const fn from_bounds(start: u64, last: u64) -> Option<Self> {
        if start <= last {
            // INVARIANT: just checked.
            Some(Self { start, last })
        } else {
            None
        }
    }

    /// Returns the first address.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the last address, inclusive.
    pub const fn last(self) -> u64 {
        self.last
    }

    /// Returns the number of bytes. 2^64 bytes are reported as 2^64 - 1.
    pub const fn length(self) -> u64 {
        self.last.wrapping_sub(self.start).saturating_add(1)
    }

    /// Returns how many pages the span touches.
    pub const fn pages(self) -> u64 {
        let pages = (self.last >> PAGE_SHIFT).wrapping_sub(self.start >> PAGE_SHIFT);
        pages.wrapping_add(1)
    }

    /// Returns whether the span consists of whole pages.
    pub const fn is_whole_pages(self) -> bool {
        is_page_aligned(self.start) && is_page_aligned(self.last.wrapping_add(1))
    }

    /// Returns whether `address` lies in the span.
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address <= self.last
    }

    /// Returns whether all of `other` lies in the span.
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.last <= self.last
    }

    /// Returns whether the spans have an address in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Returns the addresses that both spans have.
    pub const fn intersection(self, other: Self) -> Option<Self> {
        let start = if self.start > other.start {
            self.start
        } else {
            other.start
        };
        let last = if self.last < other.last {
            self.last
        } else {
            other.last
        };
        Self::from_bounds(start, last)
    }

    /// Returns the part of the span that lies below `other`.
    pub const fn before(self, other: Self) -> Option<Self> {
        match other.start.checked_sub(1) {
            Some(below) if below < self.last => Self::from_bounds(self.start, below),
            Some(_) => Some(self),
            None => None,
        }
    }

    /// Returns the part of the span that lies above `other`.
    pub const fn behind(self, other: Self) -> Option<Self> {
        match other.last.checked_add(1) {
            Some(above) if above > self.start => Self::from_bounds(above, self.last),
            Some(_) => Some(self),
            None => None,
        }
    }

    /// Returns the smallest span that covers both.
    pub const fn union(self, other: Self) -> Self {
        // INVARIANT: the smaller start is not above the larger last.
        Self {
            start: if self.start < other.start {
                self.start
            } else {
                other.start
            },
            last: if self.last > other.last {
                self.last
            } else {
                other.last
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_new() {
        let table = [
            (0, 0, Err(Refusal::Invalid)),
            (u64::MAX, 0, Err(Refusal::Invalid)),
            (0, 1, Ok((0, 0))),
            (0, u64::MAX, Ok((0, u64::MAX - 1))),
            (1, u64::MAX, Ok((1, u64::MAX))),
            (2, u64::MAX, Err(Refusal::Overflow)),
            (u64::MAX, 1, Ok((u64::MAX, u64::MAX))),
            (u64::MAX, 2, Err(Refusal::Overflow)),
            (1 << 63, 1 << 63, Ok((1 << 63, u64::MAX))),
        ];
        for (start, length, want) in table {
            assert_eq!(
                Span::new(start, length).map(|s| (s.start(), s.last())),
                want,
                "{start:#x} {length:#x}"
            );
        }
    }

    #[test]
    fn nothing_is_before_the_first_address_or_behind_the_last() {
        let all = Span::from_bounds(0, u64::MAX).unwrap();
        assert_eq!((all.before(all), all.behind(all)), (None, None));
    }

    #[test]
    fn whole_address_space_has_a_length() {
        let all = Span::from_bounds(0, u64::MAX).unwrap();
        assert_eq!(all.length(), u64::MAX);
        assert_eq!(all.pages(), 1 << 52);
        assert!(all.is_whole_pages());
    }
}
