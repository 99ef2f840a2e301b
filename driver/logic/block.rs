// SPDX-License-Identifier: GPL-2.0
//! The pages of a block of 2 MiB that a device was lent, and the runs in which they were mapped.
//!
//! A page that is lent is *present*: the device has an entry for it. To take it away, its entry is
//! cleared; it is then *leaving*, until the device has forgotten it and the IOMMU has unmapped it.
//! An IOMMU unmaps only what one call has mapped, a *run*, and so the pages of a run come and go
//! together.

/// Number of pages in a block.
pub const PAGES: usize = 512;

const WORDS: usize = PAGES / 64;

/// The bit of an entry that says that there is a page: see [`Pages::marked`].
pub const MARK: u64 = 1 << 63;

/// Entries that are looked at together: if none is marked, none of them is looked at by itself.
const LOOK: usize = 16;

/// A set of pages of a block.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Pages([u64; WORDS]);

/// Without a call of `memcmp()`, which takes longer.
impl PartialEq for Pages {
    fn eq(&self, other: &Self) -> bool {
        let both = self.0.iter().zip(&other.0);
        both.fold(0, |any, (a, b)| any | (a ^ b)) == 0
    }
}

impl Pages {
    /// The empty set.
    pub const NONE: Self = Self([0; WORDS]);
    /// All pages.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// Returns the pages from `first` to `last`, both inclusive.
    pub fn range(first: usize, last: usize) -> Self {
        let mut this = Self::NONE;
        this.add(first, last);
        this
    }

    /// Adds the pages from `first` to `last`, both inclusive.
    fn add(&mut self, first: usize, last: usize) {
        let last = last.min(PAGES - 1);
        if first > last {
            return;
        }
        let (from, to) = (first / 64, last / 64);
        let head = u64::MAX.wrapping_shl((first % 64) as u32);
        let tail = u64::MAX.wrapping_shr(63_u32.wrapping_sub((last % 64) as u32));
        match self.0.get_mut(from..=to) {
            Some([word]) => *word |= head & tail,
            Some([begin, between @ .., end]) => {
                *begin |= head;
                between.fill(u64::MAX);
                *end |= tail;
            }
            _ => {}
        }
    }

    /// Returns the pages whose `entries`, one of each page, are marked and pass `test`.
    pub fn marked(entries: &[usize], test: impl Fn(u64) -> bool) -> Self {
        // The first entry ends up in the lowest bit.
        let push = |bits: u64, &entry: &usize| {
            let is_in = test(entry as u64);
            bits.wrapping_shr(1) | if is_in { entry as u64 & MARK } else { 0 }
        };
        let mut this = Self::NONE;
        for (word, entries) in this.0.iter_mut().zip(entries.chunks_exact(64)) {
            // Most are empty where a program has few pages.
            *word = entries.chunks_exact(LOOK).fold(0, |bits: u64, some| {
                let any = some.iter().fold(0, |any, &entry| any | entry as u64);
                if any & MARK == 0 {
                    bits.wrapping_shr(LOOK as u32)
                } else {
                    some.iter().fold(bits, push)
                }
            });
        }
        this
    }

    /// Returns the pages of the 32 equal parts of a block that `parts` names, as bits.
    pub fn parts(parts: u32) -> Self {
        const EACH: u32 = PAGES as u32 / u32::BITS;
        const PER_WORD: u32 = u64::BITS / EACH;
        const PART: u64 = u64::MAX >> (u64::BITS - EACH);
        if parts == u32::MAX {
            return Self::ALL;
        }
        let mut this = Self::NONE;
        let mut rest = parts;
        for word in &mut this.0 {
            for part in 0..PER_WORD {
                if rest & 1 != 0 {
                    *word |= PART.wrapping_shl(part.wrapping_mul(EACH));
                }
                rest = rest.wrapping_shr(1);
            }
        }
        this
    }

    /// Returns whether the page is in the set.
    pub fn has(&self, page: usize) -> bool {
        let word = self.0.get(page / 64).copied().unwrap_or(0);
        word.wrapping_shr((page % 64) as u32) & 1 != 0
    }

    /// Adds or removes a page.
    pub fn set(&mut self, page: usize, is_in: bool) {
        if let Some(word) = self.0.get_mut(page / 64) {
            let bit = 1_u64.wrapping_shl((page % 64) as u32);
            *word = if is_in { *word | bit } else { *word & !bit };
        }
    }

    /// Returns whether there is no page in the set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |any, word| any | word) == 0
    }

    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        // To count the bits of a word takes a while without an instruction for it.
        let ones = self.0.iter().map(|&word| match word {
            0 => 0,
            u64::MAX => 64,
            word => word.count_ones() as usize,
        });
        ones.fold(0, usize::saturating_add)
    }

    /// Returns the pages that are in both sets.
    pub fn and(self, other: Self) -> Self {
        self.with(other, |a, b| a & b)
    }

    /// Returns the pages that are in one of the sets.
    pub fn or(self, other: Self) -> Self {
        self.with(other, |a, b| a | b)
    }

    /// Returns the pages that are not in `other`.
    pub fn but(self, other: Self) -> Self {
        self.with(other, |a, b| a & !b)
    }

    fn with(mut self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word = combine(*word, other);
        }
        self
    }

    /// Returns the first page from `page` on that is in the set.
    pub fn next(&self, page: usize) -> Option<usize> {
        let mut at = page;
        while at < PAGES {
            let word = self.0.get(at / 64)?.wrapping_shr((at % 64) as u32);
            if word != 0 {
                return Some(at.saturating_add(word.trailing_zeros() as usize));
            }
            at = (at | 63).saturating_add(1);
        }
        None
    }

    /// Returns the pages of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let page = self.next(from)?;
            from = page.saturating_add(1);
            Some(page)
        })
    }
}

/// A run: its first page, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First page.
    pub first: usize,
    /// Number of pages.
    pub count: usize,
}

impl Run {
    /// Returns the last page.
    pub const fn last(self) -> usize {
        self.first.saturating_add(self.count.saturating_sub(1))
    }

    /// Returns the pages.
    pub fn pages(self) -> Pages {
        Pages::range(self.first, self.last())
    }
}

/// Pages of a block that a device was lent.
#[derive(Clone, Debug, Default)]
pub struct LentPages {
    present: Pages,
    /// Present pages that the device may write to.
    writable: Pages,
    leaving: Pages,
    /// First pages of the runs in which present and leaving pages were mapped.
    starts: Pages,
    /// Whether all pages are present as one entry.
    large: bool,
}

impl LentPages {
    /// Returns the pages that the device has.
    pub fn present(&self) -> Pages {
        self.present
    }

    /// Returns the pages that the device has and may write to.
    pub fn writable(&self) -> Pages {
        self.writable
    }

    /// Returns whether the device has the page.
    pub fn has(&self, page: usize) -> bool {
        self.present.has(page)
    }

    /// Returns whether the device has the page and may write to it.
    pub fn may_write(&self, page: usize) -> bool {
        self.writable.has(page)
    }

    /// Returns the pages of the runs that are leaving and that `pages` touch.
    pub fn leaving(&self, pages: Pages) -> Pages {
        if self.leaving.is_empty() {
            return Pages::NONE;
        }
        self.touched(pages, self.leaving)
    }

    /// Returns whether the device has all pages, as one entry.
    #[cfg(test)]
    fn is_large(&self) -> bool {
        self.large
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty() && self.leaving.is_empty()
    }

    /// Enters a run of pages that are free: they are mapped, and present.
    pub fn enter(&mut self, run: Run, writable: bool) {
        self.present.add(run.first, run.last());
        if writable {
            self.writable.add(run.first, run.last());
        }
        self.starts.set(run.first, true);
    }

    /// Enters all pages as one run, with one entry.
    pub fn enter_large(&mut self, writable: bool) {
        self.present = Pages::ALL;
        if writable {
            self.writable = Pages::ALL;
        }
        self.starts.set(0, true);
        self.large = true;
    }

    /// Returns the runs that `pages` touch, of those in `of`.
    fn touched(&self, pages: Pages, of: Pages) -> Pages {
        let mut all = Pages::NONE;
        let mut from = 0;
        while let Some(page) = pages.and(of).next(from) {
            let run = self.run_around(page, of);
            all = all.or(run.pages());
            from = run.last().saturating_add(1);
        }
        all
    }

    /// Returns the run in which a page was mapped.
    fn run_around(&self, page: usize, of: Pages) -> Run {
        let mut first = page;
        while first > 0 && !self.starts.has(first) {
            first = first.saturating_sub(1);
        }
        let mut end = page.saturating_add(1);
        while end < PAGES && of.has(end) && !self.starts.has(end) {
            end = end.saturating_add(1);
        }
        Run {
            first,
            count: end.saturating_sub(first),
        }
    }

    /// Makes all present runs that `pages` touch leave. Returns their pages, whose entries are to
    /// be cleared, and whether they are one entry.
    pub fn leave(&mut self, pages: Pages) -> (Pages, bool) {
        let taken = self.touched(pages, self.present);
        let large = self.large && !taken.is_empty();
        self.present = self.present.but(taken);
        self.writable = self.writable.but(taken);
        self.leaving = self.leaving.or(taken);
        self.large &= taken.is_empty();
        (taken, large)
    }

    /// Returns a run that is leaving and that `pages` touch, once: the caller unmaps it.
    pub fn take_left(&mut self, pages: Pages) -> Option<Run> {
        let page = pages.and(self.leaving).next(0)?;
        let run = self.run_around(page, self.leaving);
        self.leaving = self.leaving.but(run.pages());
        self.starts.set(run.first, false);
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges() {
        assert_eq!(Pages::range(0, PAGES - 1), Pages::ALL);
        assert_eq!(Pages::range(3, 2), Pages::NONE);
        assert_eq!(Pages::range(64, 63), Pages::NONE);
        assert_eq!(Pages::range(PAGES, PAGES), Pages::NONE);
        assert_eq!(Pages::range(usize::MAX, usize::MAX), Pages::NONE);
        assert_eq!(Pages::range(130, 60), Pages::NONE);
        assert_eq!(Pages::range(0, usize::MAX), Pages::ALL);
        let pages = Pages::range(60, 130);
        assert_eq!(pages.count(), 71);
        assert!(!pages.has(59) && pages.has(60) && pages.has(130) && !pages.has(131));
        assert_eq!(pages.next(0), Some(60));
        assert_eq!(pages.next(131), None);
        assert_eq!(Pages::range(511, 511).next(0), Some(511));
    }

    #[test]
    fn parts() {
        assert_eq!(Pages::parts(0), Pages::NONE);
        assert_eq!(Pages::parts(u32::MAX), Pages::ALL);
        for part in 0..32 {
            let expected = Pages::range(part * PAGES / 32, (part + 1) * PAGES / 32 - 1);
            assert_eq!(Pages::parts(1 << part), expected);
        }
    }

    #[test]
    fn a_large_entry_leaves_as_a_whole() {
        let mut block = LentPages::default();
        block.enter_large(true);
        assert!(block.is_large());
        let (taken, large) = block.leave(Pages::range(7, 7));
        assert_eq!((taken, large), (Pages::ALL, true));
        assert!(!block.is_large() && block.present().is_empty());
        let run = block.take_left(Pages::range(9, 9));
        assert_eq!(
            run,
            Some(Run {
                first: 0,
                count: PAGES
            })
        );
        assert!(block.is_empty());
    }

    #[test]
    fn neighbouring_runs_are_not_one() {
        let mut block = LentPages::default();
        block.enter(Run { first: 0, count: 4 }, true);
        block.enter(Run { first: 4, count: 4 }, false);
        assert_eq!(block.leave(Pages::range(4, 4)).0, Pages::range(4, 7));
        assert_eq!(block.present(), Pages::range(0, 3));
        assert_eq!(block.leave(Pages::range(3, 3)).0, Pages::range(0, 3));
        let all = Pages::ALL;
        assert_eq!(block.take_left(all), Some(Run { first: 0, count: 4 }));
        assert_eq!(block.take_left(all), Some(Run { first: 4, count: 4 }));
        assert_eq!(block.take_left(all), None);
    }

    proptest! {
        #[test]
        fn a_range_has_its_pages(first in 0usize..PAGES + 70, last in 0usize..PAGES + 70) {
            let pages = Pages::range(first, last);
            for page in 0..PAGES {
                prop_assert_eq!(pages.has(page), first <= page && page <= last);
            }
        }

        #[test]
        fn marked_entries_are_found(
            marks in prop::collection::vec((0usize..PAGES, any::<bool>()), 0..40),
            is_huge: bool,
        ) {
            let mut entries = vec![if is_huge { MARK as usize } else { 1 }; PAGES];
            for &(page, mark) in &marks {
                entries[page] = page | if mark { MARK as usize } else { 0 };
            }
            let all = Pages::marked(&entries, |_| true);
            let odd = Pages::marked(&entries, |entry| entry & 1 != 0);
            for (page, &entry) in entries.iter().enumerate() {
                let is_marked = entry as u64 & MARK != 0;
                prop_assert_eq!(all.has(page), is_marked);
                prop_assert_eq!(odd.has(page), is_marked && entry & 1 != 0);
            }
        }

        /// Pages that were entered are unmapped once, in the runs in which they were mapped. Until
        /// then the device may write to those that were entered so.
        #[test]
        fn runs_come_and_go(
            steps in prop::collection::vec((0usize..PAGES, 1usize..40, 0u8..3), 1..80),
        ) {
            let mut block = LentPages::default();
            let mut runs: Vec<(Run, bool)> = Vec::new(); // and whether it leaves
            for (first, count, what) in steps {
                let run = Run { first, count: count.min(PAGES - first) };
                let touches = |other: Run| {
                    other.first <= run.last() && run.first <= other.last()
                };
                match what {
                    0 => {
                        if runs.iter().all(|(other, _)| !touches(*other)) {
                            block.enter(run, first % 2 == 0);
                            runs.push((run, false));
                        }
                    }
                    1 => {
                        let (taken, _) = block.leave(run.pages());
                        let mut expected = Pages::NONE;
                        for (other, leaves) in &mut runs {
                            if touches(*other) && !*leaves {
                                *leaves = true;
                                expected = expected.or(other.pages());
                            }
                        }
                        prop_assert_eq!(taken, expected);
                    }
                    _ => {
                        while let Some(left) = block.take_left(run.pages()) {
                            let at = runs.iter().position(|entry| *entry == (left, true));
                            prop_assert!(at.is_some(), "{:?}", left);
                            runs.remove(at.unwrap());
                        }
                        let left = runs.iter().filter(|(_, leaves)| *leaves);
                        prop_assert!(left.clone().all(|(other, _)| !touches(*other)));
                    }
                }
                let pages = |is_among: &dyn Fn(Run, bool) -> bool| {
                    let runs = runs.iter().filter(|(run, leaves)| is_among(*run, *leaves));
                    runs.fold(Pages::NONE, |all, (run, _)| all.or(run.pages()))
                };
                let present = pages(&|_, leaves| !leaves);
                let writable = pages(&|run, leaves| !leaves && run.first % 2 == 0);
                prop_assert_eq!((block.present(), block.writable()), (present, writable));
                let leaving = pages(&|run, leaves| leaves && touches(run));
                prop_assert_eq!(block.leaving(run.pages()), leaving);
                let alike = |page| block.has(page) && block.may_write(page) == writable.has(page);
                prop_assert!(present.iter().all(alike));
                prop_assert_eq!(block.is_empty(), runs.is_empty());
            }
        }

        #[test]
        fn nothing_panics(first: usize, last: usize, page: usize) {
            let mut pages = Pages::range(first, last);
            pages.set(page, true);
            let _ = (pages.has(page), pages.next(page), pages.count());
            let mut block = LentPages::default();
            let _ = (block.leave(pages), block.take_left(pages));
        }
    }
}
