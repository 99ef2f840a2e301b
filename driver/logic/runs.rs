// SPDX-License-Identifier: GPL-2.0
//! Physically contiguous runs of pages, packed into one word each.

use super::PAGE_SHIFT;

/// Bits of a [`Run`] that hold its number of pages, less one.
const COUNT_BITS: u32 = 31 - PAGE_SHIFT;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Pages that fit in one run: 2 GiB. The bytes of a run fit the 32-bit length of a
/// scatterlist entry, and cutting there keeps 1 GiB pages whole.
pub const MAX_PAGES: u64 = 1 << COUNT_BITS;
/// Page frame numbers below this can be packed: 57 bits of physical address, or more.
pub const PFN_LIMIT: u64 = 1 << (u64::BITS - COUNT_BITS);

/// A run of `pages` page frames from `pfn` on, packed into one word of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Run(u64);

impl Run {
    /// Makes a run; `None` unless `pages` is from 1 to [`MAX_PAGES`] and the frames lie below
    /// [`PFN_LIMIT`].
    pub const fn new(pfn: u64, pages: u64) -> Option<Self> {
        if pages == 0 || pages > MAX_PAGES || pfn > PFN_LIMIT.saturating_sub(pages) {
            return None;
        }
        Some(Self((pfn << COUNT_BITS) | pages.wrapping_sub(1)))
    }

    /// Returns the first page frame number.
    pub const fn pfn(self) -> u64 {
        self.0 >> COUNT_BITS
    }

    /// Returns the number of pages.
    pub const fn pages(self) -> u64 {
        (self.0 & COUNT_MASK).wrapping_add(1)
    }

    /// Joins two runs, if `next` begins where this one ends and the result is not too long.
    pub const fn join(self, next: Self) -> Option<Self> {
        if self.pfn().wrapping_add(self.pages()) == next.pfn() {
            Self::new(self.pfn(), self.pages().wrapping_add(next.pages()))
        } else {
            None
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
            (0, 0, false),
            (0, 1, true),
            (0, MAX_PAGES, true),
            (0, MAX_PAGES + 1, false),
            (PFN_LIMIT - 1, 1, true),
            (PFN_LIMIT - 1, 2, false),
            (PFN_LIMIT, 1, false),
            (u64::MAX, 1, false),
            (1, u64::MAX, false),
        ];
        for (pfn, pages, valid) in table {
            let run = Run::new(pfn, pages);
            assert_eq!(run.is_some(), valid, "{pfn:#x} {pages:#x}");
            if let Some(run) = run {
                assert_eq!((run.pfn(), run.pages()), (pfn, pages));
            }
        }
    }

    #[test]
    fn a_full_run_is_cut() {
        let half = MAX_PAGES / 2;
        let run = |pfn, pages| Run::new(pfn, pages).unwrap();
        assert_eq!(run(0, half).join(run(half, half)), Run::new(0, MAX_PAGES));
        assert_eq!(run(0, MAX_PAGES).join(run(MAX_PAGES, 1)), None);
        assert_eq!(run(0, 1).join(run(2, 1)), None);
        assert_eq!(run(1, 1).join(run(0, 1)), None);
        assert_eq!(
            run(PFN_LIMIT - 2, 1).join(run(PFN_LIMIT - 1, 1)),
            Run::new(PFN_LIMIT - 2, 2)
        );
    }

    fn pack(pieces: &[Run]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for &piece in pieces {
            match runs.last().and_then(|last| last.join(piece)) {
                Some(joined) => *runs.last_mut().unwrap() = joined,
                None => runs.push(piece),
            }
        }
        runs
    }

    fn frames(runs: &[Run]) -> Vec<u64> {
        runs.iter()
            .flat_map(|run| run.pfn()..run.pfn() + run.pages())
            .collect()
    }

    proptest! {
        /// Steps of 1 make neighbours common.
        #[test]
        fn packing_keeps_every_frame_in_order(
            pieces in proptest::collection::vec((0u64..50, 1u64..4), 0..60)
        ) {
            let run = |(pfn, pages)| Run::new(pfn, pages).unwrap();
            let pieces: Vec<Run> = pieces.into_iter().map(run).collect();
            let runs = pack(&pieces);
            prop_assert_eq!(frames(&runs), frames(&pieces));
            for pair in runs.windows(2) {
                prop_assert!(pair[0].pfn() + pair[0].pages() != pair[1].pfn(), "runs are maximal");
            }
        }
    }
}
