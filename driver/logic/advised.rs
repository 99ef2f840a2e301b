// SPDX-License-Identifier: GPL-2.0
//! Advice for addresses: a list of disjoint spans, in order. Neighbours that are
//! advised alike are one.
//!
//! The list lives in memory that its owner provides, since it is changed where nothing can be
//! allocated.

use super::{residence::Advice, span::Span};
use core::ops::{DerefMut, Range};

/// A span, and what is advised for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The addresses.
    pub span: Span,
    /// The advice; never none.
    pub advice: Advice,
}

impl Entry {
    /// The filler of places that are not used.
    pub const UNUSED: Self = Self {
        span: match Span::from_bounds(0, 0) {
            Some(span) => span,
            None => unreachable!(),
        },
        advice: Advice::NONE,
    };
}

/// Places that a change needs at most beyond those that are used.
pub const MORE: usize = 2;

/// A list, in the places `S`.
#[derive(Debug)]
pub struct Advised<S> {
    places: S,
    used: usize,
}

impl<S: DerefMut<Target = [Entry]>> Advised<S> {
    /// Makes an empty list.
    pub const fn new(places: S) -> Self {
        Self { places, used: 0 }
    }

    /// Returns the entries, in order.
    pub fn entries(&self) -> &[Entry] {
        self.places.get(..self.used).unwrap_or_default()
    }

    /// Returns whether a change may need more places than there are.
    pub fn is_full(&self) -> bool {
        self.places.len().saturating_sub(self.used) < MORE
    }

    /// Returns how many places there are.
    pub fn room(&self) -> usize {
        self.places.len()
    }

    /// Moves the list to `places`, if there are more of them. Returns those that are left over.
    pub fn grow(&mut self, mut places: S) -> S {
        if let Some(to) = places.get_mut(..self.used) {
            to.copy_from_slice(self.entries());
            core::mem::swap(&mut self.places, &mut places);
        }
        places
    }

    /// Returns the index of the first entry that ends at `addr` or behind.
    fn first(&self, addr: u64) -> usize {
        self.entries()
            .partition_point(|entry| entry.span.last() < addr)
    }

    /// Returns what is advised for `addr`, and around it all addresses for which that is true.
    pub fn at(&self, addr: u64) -> (Advice, Span) {
        let index = self.first(addr);
        let next = self.entries().get(index);
        if let Some(entry) = next.filter(|entry| entry.span.contains(addr)) {
            return (entry.advice, entry.span);
        }
        let before = index
            .checked_sub(1)
            .and_then(|index| self.entries().get(index));
        let start = before.map_or(0, |entry| entry.span.last().saturating_add(1));
        let last = next.map_or(u64::MAX, |entry| entry.span.start().saturating_sub(1));
        let gap = Span::from_bounds(start, last);
        (Advice::NONE, gap.unwrap_or(Entry::UNUSED.span))
    }

    /// Returns the indices of the entries that overlap `span`.
    fn within(&self, span: Span) -> Range<usize> {
        let first = self.first(span.start());
        let is_in = |entry: &Entry| entry.span.start() <= span.last();
        first..self.entries().partition_point(is_in).max(first)
    }

    /// Returns the parts of `span` that something is advised for, in order.
    fn parts(&self, span: Span) -> impl Iterator<Item = Entry> + '_ {
        let entries = self.entries().get(self.within(span)).unwrap_or_default();
        entries.iter().filter_map(move |entry| {
            Some(Entry {
                span: entry.span.intersection(span)?,
                advice: entry.advice,
            })
        })
    }

    /// Puts `count` entries `new` in the place of everything in `span`: parts of it, in order. What
    /// there is no place for is dropped, from the end. Moves what is behind `span` once.
    fn splice(&mut self, span: Span, count: usize, new: impl Iterator<Item = Entry>) {
        let range = self.within(span);
        let mut ends = [None; 2];
        let outer = self.entries().get(range.clone()).unwrap_or_default();
        if let (Some(&first), Some(&last)) = (outer.first(), outer.last()) {
            let before = first.span.before(span);
            let behind = last.span.behind(span);
            let rest = |(span, entry): (Option<Span>, Entry)| {
                let advice = entry.advice;
                span.map(|span| Entry { span, advice })
            };
            ends = [(before, first), (behind, last)].map(rest);
        }
        let [before, behind] = ends;
        let left = self.used.saturating_sub(range.end);
        let room = self.places.len();
        let room = room.saturating_sub(range.start.saturating_add(left));
        let fixed = usize::from(before.is_some()).saturating_add(usize::from(behind.is_some()));
        let middle = count.saturating_add(fixed).min(room);
        let target = range.start.saturating_add(middle);
        if range.end <= self.used && target.saturating_add(left) <= self.places.len() {
            self.places.copy_within(range.end..self.used, target);
        }
        let mut put = range.start;
        let new = new.take(count);
        for entry in before.into_iter().chain(new).chain(behind) {
            if put == target {
                break;
            }
            if let Some(place) = self.places.get_mut(put) {
                *place = entry;
            }
            put = put.saturating_add(1);
        }
        self.used = target.saturating_add(left);
        self.join(target.saturating_sub(usize::from(behind.is_some())));
        self.join(range.start.saturating_add(usize::from(before.is_some())));
    }

    /// Makes the entry at `index` and the one before it one, if they can be.
    fn join(&mut self, index: usize) {
        let before = index.checked_sub(1);
        let (Some(before), Some(&next)) = (before, self.entries().get(index)) else {
            return;
        };
        let Some(first) = self.places.get_mut(before) else {
            return;
        };
        let touch = first.span.last().checked_add(1) == Some(next.span.start());
        if touch && first.advice == next.advice {
            first.span = first.span.union(next.span);
            let behind = index.saturating_add(1)..self.used;
            if behind.start <= behind.end {
                self.places.copy_within(behind, index);
                self.used = self.used.saturating_sub(1);
            }
        }
    }

    /// Takes `span` out. If an entry becomes two and there is no place for the second, that is
    /// taken out too.
    pub fn cut(&mut self, span: Span) {
        self.splice(span, 0, core::iter::empty());
    }

    /// Takes what `other` has for `span`, in place of what was advised before. If it has nothing
    /// there, nothing changes.
    pub fn take_from(&mut self, other: &mut Self, span: Span) {
        if other.within(span).is_empty() {
            return;
        }
        self.splice(span, other.within(span).len(), other.parts(span));
        other.cut(span);
    }

    /// Advises for `span`, in place of what was advised before. The list was not
    /// [full](Self::is_full).
    pub fn set(&mut self, span: Span, advice: Advice) {
        let entry = (advice != Advice::NONE).then_some(Entry { span, advice });
        self.splice(span, usize::from(entry.is_some()), entry.into_iter());
    }

    /// Drops the entries that `is_kept` does not want.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&Entry) -> bool) {
        let mut kept = 0_usize;
        for index in 0..self.used {
            let Some(&entry) = self.places.get(index) else {
                break;
            };
            if is_kept(&entry) {
                if let Some(place) = self.places.get_mut(kept) {
                    *place = entry;
                }
                kept = kept.saturating_add(1);
            }
        }
        self.used = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u64 = 64;

    fn empty(places: usize) -> Advised<Vec<Entry>> {
        Advised::new(vec![Entry::UNUSED; places])
    }

    fn span(first: u64, pages: u64) -> Span {
        Span::new(first, pages).unwrap()
    }

    fn check(advised: &Advised<Vec<Entry>>, model: &[u32]) {
        let entries = advised.entries();
        for pair in entries.windows(2) {
            let (before, next) = (pair[0], pair[1]);
            assert!(before.span.last() < next.span.start());
            let touch = before.span.last() + 1 == next.span.start();
            assert!(!touch || before.advice != next.advice, "not joined");
        }
        assert!(entries.iter().all(|entry| entry.advice != Advice::NONE));
        for (addr, &bits) in model.iter().enumerate() {
            let (advice, around) = advised.at(addr as u64);
            assert_eq!(advice.bits(), bits);
            assert!(around.contains(addr as u64));
            let last = around.last().min(PAGES - 1) as usize;
            let all = &model[around.start() as usize..=last];
            assert!(all.iter().all(|&other| other == bits));
        }
    }

    #[test]
    fn whole_address_space() {
        let mut advised = empty(4);
        let all = Span::from_bounds(0, u64::MAX).unwrap();
        advised.set(all, Advice::HOST);
        assert_eq!(advised.at(u64::MAX), (Advice::HOST, all));
        assert_eq!(
            advised.parts(all).map(|part| part.span).collect::<Vec<_>>(),
            [all]
        );
        advised.cut(all);
        assert_eq!(advised.at(0), (Advice::NONE, all));
    }

    #[test]
    fn hole_without_a_place() {
        let mut advised = empty(1);
        advised.set(span(0, 10), Advice::HOST);
        advised.cut(span(4, 2));
        let left = [Entry {
            span: span(0, 4),
            advice: Advice::HOST,
        }];
        assert_eq!(advised.entries(), left);
    }

    /// Advice that was given page by page is taken by one pass, however much it is.
    #[test]
    fn many_at_once() {
        const MANY: u64 = 100_000;
        let (mut home, mut away) = (empty(MANY as usize + MORE), empty(MANY as usize + MORE));
        for page in 0..MANY {
            home.set(span(2 * page, 1), Advice::HOST);
        }
        away.set(span(2 * MANY, 1), Advice::HOST);
        away.take_from(&mut home, span(1, 2 * MANY - 1));
        assert_eq!(home.entries().len(), 1);
        assert_eq!(away.entries().len(), MANY as usize);
        assert_eq!(away.at(2 * MANY - 2), (Advice::HOST, span(2 * MANY - 2, 1)));
    }

    /// Where there are too few places the rest is dropped, and what is behind stays.
    #[test]
    fn taken_without_places() {
        let (mut home, mut away) = (empty(16), empty(3));
        for page in 0..4 {
            home.set(span(2 * page, 1), Advice::HOST);
        }
        away.set(span(20, 1), Advice::HOST);
        away.take_from(&mut home, span(0, 10));
        assert!(home.entries().is_empty());
        let starts: Vec<_> = away
            .entries()
            .iter()
            .map(|entry| entry.span.start())
            .collect();
        assert_eq!(starts, [0, 2, 20]);
    }

    proptest! {
        #[test]
        fn as_a_list_of_pages(
            changes in prop::collection::vec((0..PAGES, 1..PAGES, 0_u32..4, any::<bool>()), 0..40),
        ) {
            let mut advised = empty(2);
            let mut away = empty(4 * PAGES as usize);
            let (mut model, mut gone) = (vec![0; PAGES as usize], vec![0; PAGES as usize]);
            for (first, pages, bits, cut) in changes {
                let pages = pages.min(PAGES - first);
                let range = first as usize..(first + pages) as usize;
                if advised.is_full() {
                    let more = vec![Entry::UNUSED; advised.room() * 2];
                    let left = advised.grow(more);
                    prop_assert!(left.len() < advised.places.len());
                }
                if cut {
                    away.take_from(&mut advised, span(first, pages));
                    if model[range.clone()].iter().any(|&bits| bits != 0) {
                        gone[range.clone()].copy_from_slice(&model[range.clone()]);
                    }
                    model[range].fill(0);
                    check(&away, &gone);
                } else {
                    advised.set(span(first, pages), Advice::from_bits(bits).unwrap());
                    model[range].fill(bits);
                }
                check(&advised, &model);
            }
        }

        #[test]
        fn retained(firsts in prop::collection::vec(0..PAGES, 0..10), keep in 0..PAGES) {
            let mut advised = empty(32);
            for first in firsts {
                advised.set(span(first, 1), Advice::HOST);
            }
            let kept: Vec<_> = advised.entries().iter().copied()
                .filter(|entry| entry.span.start() >= keep).collect();
            advised.retain(|entry| entry.span.start() >= keep);
            prop_assert_eq!(advised.entries(), kept);
        }
    }
}
