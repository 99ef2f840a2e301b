// SPDX-License-Identifier: GPL-2.0
//! What is advised for which addresses: a list of disjoint spans, in order. Neighbours that are
//! advised alike are one.
//!
//! The list lives in memory that its owner provides, since it is changed where nothing can be
//! allocated.

use super::{residence::Advice, span::Span};
use core::ops::DerefMut;

/// A span, and what is advised for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The addresses.
    pub span: Span,
    /// The advice; never none.
    pub advice: Advice,
}

impl Entry {
    /// What fills places that are not used.
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

    /// Puts `entry` at `index`. If there is no place, it is dropped.
    fn insert(&mut self, index: usize, entry: Entry) {
        let end = self.used.saturating_add(1);
        let Some(places) = self.places.get_mut(index..end) else {
            return;
        };
        places.rotate_right(1);
        if let Some(place) = places.first_mut() {
            *place = entry;
        }
        self.used = end;
    }

    fn remove(&mut self, index: usize) {
        if let Some(places) = self.places.get_mut(index..self.used) {
            places.rotate_left(1);
            self.used = self.used.saturating_sub(1);
        }
    }

    /// Takes `span` out. Calls `removed` for each part of it that something was advised for. If an
    /// entry becomes two and there is no place for the second, that is taken out too.
    pub fn cut(&mut self, span: Span, mut removed: impl FnMut(Entry)) {
        let mut index = self.first(span.start());
        while let Some(&Entry { span: old, advice }) = self.entries().get(index) {
            let Some(part) = old.intersection(span) else {
                return;
            };
            removed(Entry { span: part, advice });
            self.remove(index);
            let before = part.start().checked_sub(1);
            if let Some(rest) = before.and_then(|last| Span::from_bounds(old.start(), last)) {
                self.insert(index, Entry { span: rest, advice });
                index = index.saturating_add(1);
            }
            let behind = part.last().checked_add(1);
            if let Some(rest) = behind.and_then(|start| Span::from_bounds(start, old.last())) {
                self.insert(index, Entry { span: rest, advice });
                return;
            }
        }
    }

    /// Advises for `span`, in place of what was advised before. The list was not
    /// [full](Self::is_full).
    pub fn set(&mut self, span: Span, advice: Advice) {
        self.cut(span, |_| {});
        if advice == Advice::NONE {
            return;
        }
        let mut index = self.first(span.start());
        let mut all = span;
        let is_alike = |entry: &&Entry| entry.advice == advice;
        let before = index.checked_sub(1);
        let before = before.and_then(|index| Some((index, *self.entries().get(index)?)));
        if let Some((previous, entry)) = before {
            if is_alike(&&entry) && entry.span.last().checked_add(1) == Some(span.start()) {
                all = all.union(entry.span);
                self.remove(previous);
                index = previous;
            }
        }
        let next = self.entries().get(index).filter(is_alike).copied();
        if let Some(entry) = next {
            if span.last().checked_add(1) == Some(entry.span.start()) {
                all = all.union(entry.span);
                self.remove(index);
            }
        }
        self.insert(index, Entry { span: all, advice });
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
        advised.cut(all, |entry| assert_eq!(entry.span, all));
        assert_eq!(advised.at(0), (Advice::NONE, all));
    }

    #[test]
    fn hole_without_a_place() {
        let mut advised = empty(1);
        advised.insert(
            0,
            Entry {
                span: span(0, 10),
                advice: Advice::HOST,
            },
        );
        advised.cut(span(4, 2), |_| {});
        let left = [Entry {
            span: span(0, 4),
            advice: Advice::HOST,
        }];
        assert_eq!(advised.entries(), left);
    }

    proptest! {
        #[test]
        fn as_a_list_of_pages(
            changes in prop::collection::vec((0..PAGES, 1..PAGES, 0_u32..4, any::<bool>()), 0..40),
        ) {
            let mut advised = empty(2);
            let mut model = vec![0; PAGES as usize];
            for (first, pages, bits, cut) in changes {
                let pages = pages.min(PAGES - first);
                let range = first as usize..(first + pages) as usize;
                if advised.is_full() {
                    let more = vec![Entry::UNUSED; advised.places.len() * 2];
                    let left = advised.grow(more);
                    prop_assert!(left.len() < advised.places.len());
                }
                if cut {
                    let mut removed = vec![0; PAGES as usize];
                    advised.cut(span(first, pages), |entry| {
                        for page in entry.span.start()..=entry.span.last() {
                            removed[page as usize] = entry.advice.bits();
                        }
                    });
                    prop_assert_eq!(&removed[range.clone()], &model[range.clone()]);
                    model[range].fill(0);
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
