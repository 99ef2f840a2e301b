// SPDX-License-Identifier: GPL-2.0
//! Measures how scattered memory is: the number of runs, and the share that huge pages of the IOMMU
//! could map.

use super::{runs::Run, PAGE_SHIFT};

/// Pages in a huge page: 512 of 4 KiB.
const HUGE: u64 = 1 << (PAGE_SHIFT - 3);

/// Contiguity of a list of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contiguity {
    /// Number of pages.
    pub pages: u64,
    /// Number of physically contiguous runs.
    pub runs: u64,
    /// Pages in aligned blocks of a huge page that lie in one run.
    pub huge: u64,
}

impl Contiguity {
    /// Adds `run`.
    pub const fn add(self, run: Run) -> Self {
        self.add_block(run.pfn(), run.pages())
    }

    /// Adds one run of `pages` pages from frame number `first` on.
    pub const fn add_block(self, first: u64, pages: u64) -> Self {
        let end = first.saturating_add(pages);
        // Before the first boundary and behind the last one there are no whole blocks.
        let from = first.saturating_add(HUGE - 1) / HUGE;
        let blocks = (end / HUGE).saturating_sub(from);
        Self {
            pages: self.pages.saturating_add(pages),
            runs: self.runs.saturating_add(1),
            huge: self.huge.saturating_add(blocks.saturating_mul(HUGE)),
        }
    }

    /// Returns the share of pages in huge blocks, in per cent, rounded down.
    pub const fn huge_percent(self) -> u32 {
        match self.huge.saturating_mul(100).checked_div(self.pages) {
            Some(percent) if percent < 100 => percent as u32,
            Some(_) => 100,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edges() {
        let table = [
            // first, pages, huge
            (0, 1, 0),
            (0, 511, 0),
            (0, 512, 512),
            (0, 513, 512),
            (1, 512, 0),
            (1, 1023, 512),
            (511, 513, 512),
            (511, 512, 0),
            (512, 1536, 1536),
            (u64::MAX, 1, 0),
            (u64::MAX - 1, u64::MAX, 0),
        ];
        for (first, pages, huge) in table {
            let contiguity = Contiguity::default().add_block(first, pages);
            assert_eq!(
                (contiguity.pages, contiguity.runs, contiguity.huge),
                (pages, 1, huge),
                "{first} {pages}"
            );
        }
        assert_eq!(Contiguity::default().huge_percent(), 0);
    }

    #[test]
    fn shares() {
        let contiguity = Contiguity::default().add_block(512, 512).add_block(7, 1);
        assert_eq!((contiguity.runs, contiguity.huge_percent()), (2, 99));
        assert_eq!(contiguity.add_block(9, 512).huge_percent(), 49);
        assert_eq!(Contiguity::default().add_block(0, 1024).huge_percent(), 100);
        let all = Contiguity::default().add_block(0, u64::MAX);
        assert_eq!(all.huge_percent(), 1, "saturated, and no panic");
    }

    proptest! {
        /// The result equals that of counting page by page.
        #[test]
        fn blocks_are_counted(first in 0u64..2000, pages in 1u64..3000) {
            let block = |page: u64| page / HUGE;
            let whole = |block: u64| first <= block * HUGE && (block + 1) * HUGE <= first + pages;
            let huge = (first..first + pages).filter(|&page| whole(block(page))).count() as u64;
            let contiguity = Contiguity::default().add(Run::new(first, pages).unwrap());
            prop_assert_eq!(contiguity, Contiguity { pages, runs: 1, huge });
        }
    }
}
