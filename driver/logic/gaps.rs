// SPDX-License-Identifier: GPL-2.0
//! An index of free ranges by size class, for placement in logarithmic time.
//!
//! A gap is a free range of the greatest length: its neighbours are taken. Gaps are sorted by
//! class, which is the binary logarithm of their length, and within a class by address. So a range
//! that surely holds what is wanted is found with one search for each class, however many mappings
//! there are.
//!
//! Taking a span shortens a gap or splits it in two; freeing a span joins it with its neighbours.
//! Each of the two adds at most one gap more than it removes, so the memory for that gap is
//! allocated before a span is taken, and freeing never fails.

use super::{span::Span, PAGE_SIZE};

/// Number of classes, for lengths of 64 bits.
pub const CLASSES: usize = u64::BITS as usize;

/// Returns the class of a gap.
pub const fn class(gap: Span) -> u32 {
    match gap.length().checked_ilog2() {
        Some(class) => class,
        None => 0,
    }
}

/// Addresses that can be given out: all but reserved ones, and but the page at address 0, which is
/// given only on demand.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    usable: Option<Span>,
    /// Reserved spans, sorted and disjoint.
    reserved: &'a [Span],
}

/// Storage for taken spans and the gaps between them.
pub trait FreeSpace {
    /// Returns the highest taken span that lies wholly below `address`.
    fn below(&self, address: u64) -> Option<Span>;
    /// Returns the lowest taken span that does not lie wholly below `address`.
    fn above(&self, address: u64) -> Option<Span>;
    /// Adds a gap.
    fn put(&mut self, gap: Span);
    /// Removes a gap that was added before.
    fn remove(&mut self, gap: Span);
}

impl<'a> Bounds<'a> {
    /// Makes the addresses of `aperture` without those of `reserved`.
    pub fn new(aperture: Span, reserved: &'a [Span]) -> Self {
        let lowest = aperture.start().max(PAGE_SIZE);
        Self {
            usable: Span::from_bounds(lowest, aperture.last()),
            reserved,
        }
    }

    /// Calls `visit` for each gap of an empty address space. There is at most one gap more than
    /// reserved spans.
    pub fn each(self, mut visit: impl FnMut(Span)) {
        let Some(usable) = self.usable else {
            return;
        };
        let mut from = Some(usable.start());
        for reserved in self.reserved {
            let last = reserved.start().checked_sub(1);
            let gap = from
                .zip(last)
                .and_then(|(from, last)| Span::from_bounds(from, last.min(usable.last())));
            if let Some(gap) = gap {
                visit(gap);
            }
            let behind = reserved.last().checked_add(1);
            from = from.zip(behind).map(|(from, behind)| from.max(behind));
        }
        if let Some(gap) = from.and_then(|from| Span::from_bounds(from, usable.last())) {
            visit(gap);
        }
    }

    /// Returns the free range around `part`, up to its neighbours; `None` if `part` is not free.
    fn around(self, part: Span, book: &impl FreeSpace) -> Option<Span> {
        let usable = self.usable?;
        let index = self
            .reserved
            .partition_point(|reserved| reserved.last() < part.start());
        let reserved_below = index
            .checked_sub(1)
            .and_then(|index| self.reserved.get(index));
        let mut start = usable.start();
        let below = [book.below(part.start()), reserved_below.copied()];
        for below in below.into_iter().flatten() {
            start = start.max(below.last().checked_add(1)?);
        }
        let mut last = usable.last();
        let above = [book.above(part.start()), self.reserved.get(index).copied()];
        for above in above.into_iter().flatten() {
            last = last.min(above.start().checked_sub(1)?);
        }
        Span::from_bounds(start, last)
    }

    /// Updates the gaps before `span`, which is free, is taken. Adds at most one gap more than it
    /// removes.
    pub fn take(self, book: &mut impl FreeSpace, span: Span) {
        let Some((part, gap)) = self.part(book, span) else {
            return;
        };
        book.remove(gap);
        for side in [gap.before(part), gap.behind(part)].into_iter().flatten() {
            book.put(side);
        }
    }

    /// Updates the gaps after `span` was freed. Adds at most one gap more than it removes.
    pub fn free(self, book: &mut impl FreeSpace, span: Span) {
        let Some((part, gap)) = self.part(book, span) else {
            return;
        };
        for side in [gap.before(part), gap.behind(part)].into_iter().flatten() {
            book.remove(side);
        }
        book.put(gap);
    }

    /// Returns the part of `span` that can be in a gap, and the gap that contains it.
    fn part(self, book: &impl FreeSpace, span: Span) -> Option<(Span, Span)> {
        let part = self.usable?.intersection(span)?;
        Some((part, self.around(part, book)?))
    }
}

#[cfg(test)]
pub(crate) mod model {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Storage as the driver keeps it.
    #[derive(Default)]
    pub(crate) struct Model {
        taken: BTreeMap<u64, Span>,
        gaps: BTreeSet<(u32, u64, u64)>,
    }

    impl FreeSpace for Model {
        fn below(&self, address: u64) -> Option<Span> {
            self.taken
                .range(..address)
                .next_back()
                .map(|(_, &span)| span)
        }

        fn above(&self, address: u64) -> Option<Span> {
            self.taken.range(address..).next().map(|(_, &span)| span)
        }

        fn put(&mut self, gap: Span) {
            assert!(self.gaps.insert((class(gap), gap.start(), gap.last())));
        }

        fn remove(&mut self, gap: Span) {
            assert!(self.gaps.remove(&(class(gap), gap.start(), gap.last())));
        }
    }

    impl Model {
        pub(crate) fn new(bounds: Bounds<'_>) -> Self {
            let mut this = Self::default();
            bounds.each(|gap| this.put(gap));
            this
        }

        pub(crate) fn take(&mut self, bounds: Bounds<'_>, span: Span) {
            bounds.take(self, span);
            self.taken.insert(span.last(), span);
        }

        pub(crate) fn free(&mut self, bounds: Bounds<'_>, span: Span) {
            assert!(self.taken.remove(&span.last()).is_some());
            bounds.free(self, span);
        }

        pub(crate) fn gap(&self, class: u32, from: u64) -> Option<Span> {
            let (found, start, last) = *self.gaps.range((class, from, 0)..).next()?;
            (found == class).then(|| Span::from_bounds(start, last).unwrap())
        }

        pub(crate) fn all(&self) -> Vec<Span> {
            let mut all: Vec<_> = self
                .gaps
                .iter()
                .map(|&(_, s, l)| Span::from_bounds(s, l).unwrap())
                .collect();
            all.sort_by_key(|gap| gap.start());
            all
        }

        pub(crate) fn is_free(&self, span: Span) -> bool {
            !self
                .above(span.start())
                .is_some_and(|way| way.overlaps(span))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{model::Model, *};
    use proptest::prelude::*;

    fn span(start: u64, last: u64) -> Span {
        Span::from_bounds(start, last).unwrap()
    }

    #[test]
    fn classes_are_logarithms() {
        for (length, want) in [(1, 0), (0x1000, 12), (0x1fff, 12), (0x2000, 13)] {
            assert_eq!(class(Span::new(0, length).unwrap()), want);
        }
        assert_eq!(class(span(0, u64::MAX)), CLASSES as u32 - 1);
    }

    #[test]
    fn reserved_ranges_and_page_zero_are_no_gaps() {
        let all = |aperture, reserved: &[Span]| Model::new(Bounds::new(aperture, reserved)).all();
        assert_eq!(all(span(0, 0xffff), &[]), [span(0x1000, 0xffff)]);
        assert_eq!(all(span(0, 0xfff), &[]), []);
        assert_eq!(
            all(span(0, 0xffff), &[span(0, 0x1fff), span(0x4000, 0x4fff)]),
            [span(0x2000, 0x3fff), span(0x5000, 0xffff)]
        );
        assert_eq!(
            all(span(0x3000, 0xffff), &[span(0x8000, u64::MAX)]),
            [span(0x3000, 0x7fff)]
        );
        assert_eq!(
            all(span(0x3000, 0xffff), &[span(0x1000, 0x1fff)]),
            [span(0x3000, 0xffff)]
        );
    }

    #[test]
    fn page_zero_can_be_taken() {
        let bounds = Bounds::new(span(0, 0xffff), &[]);
        let mut model = Model::new(bounds);
        model.take(bounds, span(0, 0xfff));
        assert_eq!(model.all(), [span(0x1000, 0xffff)]);
        model.free(bounds, span(0, 0xfff));
        model.take(bounds, span(0, 0x1fff));
        assert_eq!(model.all(), [span(0x2000, 0xffff)]);
        model.free(bounds, span(0, 0x1fff));
        assert_eq!(model.all(), [span(0x1000, 0xffff)]);
    }

    proptest! {
        /// Whatever is taken and freed in any order, the gaps cover all that is free and are as
        /// long as possible, and there are never more than the driver has nodes for. The last
        /// address of all is included.
        #[test]
        fn gaps_are_what_is_not_taken(
            top: bool,
            steps in proptest::collection::vec((0u64..64, 1u64..9, any::<bool>()), 0..80),
        ) {
            let base = if top { u64::MAX - 0x3_ffff } else { 0 };
            let at = |start, last| span(base + start, base + last);
            let reserved = [at(0x7000, 0x8fff), at(0x2_0000, 0x2_0fff)];
            let whole = at(0, 0x3_ffff);
            let bounds = Bounds::new(whole, &reserved);
            let mut model = Model::new(bounds);
            let initial = model.all().len();
            let mut taken: Vec<Span> = Vec::new();
            for (page, pages, free) in steps {
                if free && !taken.is_empty() {
                    let gone = taken.swap_remove(page as usize % taken.len());
                    model.free(bounds, gone);
                } else if let Ok(wanted) = Span::new(base + page * PAGE_SIZE, pages * PAGE_SIZE) {
                    let is_usable = !reserved.iter().any(|r| r.overlaps(wanted));
                    if whole.covers(wanted) && model.is_free(wanted) && is_usable {
                        model.take(bounds, wanted);
                        taken.push(wanted);
                    }
                }
                let gaps = model.all();
                prop_assert!(gaps.len() <= initial + taken.len());
                for page in u64::from(!top)..64 {
                    let page = Span::new(base + page * PAGE_SIZE, PAGE_SIZE).unwrap();
                    let used = taken.iter().chain(&reserved).any(|used| used.overlaps(page));
                    prop_assert_eq!(gaps.iter().any(|gap| gap.covers(page)), !used);
                }
                for pair in gaps.windows(2) {
                    prop_assert!(pair[0].last() + 1 < pair[1].start(), "neighbours are one");
                }
            }
        }
    }
}
