// SPDX-License-Identifier: GPL-2.0
//! All address spaces of a few units, and all that can be done in each: taking, freeing, placing.
//! The answers are those of a search through all addresses.

use crate::gaps::{model::Model, Bounds};
use crate::place::{NoPlace, Placement, Space};
use crate::{pte::LARGE, span::Span, PAGE_SIZE};

/// An address space of `UNITS` units, one of which is reserved.
struct Tiny {
    unit: u64,
    reserved: Span,
}

const UNITS: u64 = 6;

impl Tiny {
    fn span(&self, first: u64, units: u64) -> Span {
        Span::new(first * self.unit, units * self.unit).unwrap()
    }

    fn aperture(&self) -> Span {
        self.span(0, UNITS)
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds::new(self.aperture(), core::slice::from_ref(&self.reserved))
    }

    fn model(&self, taken: &[Span]) -> Model {
        let mut model = Model::new(self.bounds());
        taken
            .iter()
            .for_each(|&span| model.take(self.bounds(), span));
        model
    }

    /// Calls `visit` with all sets of disjoint spans from unit `from` on, added to `taken`.
    fn each(&self, from: u64, taken: &mut Vec<Span>, visit: &mut impl FnMut(&[Span])) {
        if from >= UNITS {
            return visit(taken);
        }
        self.each(from + 1, taken, visit);
        for units in 1..=UNITS - from {
            let span = self.span(from, units);
            if span.overlaps(self.reserved) {
                break;
            }
            taken.push(span);
            self.each(from + units, taken, visit);
            taken.pop();
        }
    }

    fn is_free(&self, taken: &[Span], span: Span) -> bool {
        let mut ways = taken.iter().chain([&self.reserved]);
        self.aperture().covers(span) && !ways.any(|way| way.overlaps(span))
    }

    /// Finds the lowest free address but 0 that is congruent to another one.
    fn lowest(&self, taken: &[Span], length: u64, address: u64, modulus: u64) -> Option<u64> {
        let mut starts: Vec<u64> = match modulus {
            PAGE_SIZE => (0..UNITS).map(|unit| unit * self.unit).collect(),
            _ => (0..UNITS)
                .map(|number| address % modulus + number * modulus)
                .collect(),
        };
        starts.insert(1, PAGE_SIZE);
        let mut starts = starts.into_iter().filter(|&start| start != 0);
        starts.find(|&start| {
            let span = Span::new(start, length).unwrap();
            start.abs_diff(address) % modulus == 0 && self.is_free(taken, span)
        })
    }

    fn place(&self, taken: &[Span], length: u64, placement: Placement) -> Option<u64> {
        let address = placement.address();
        let is_there = self.is_free(taken, Span::new(address, length).unwrap());
        let modulus = if length < LARGE { PAGE_SIZE } else { LARGE };
        let lowest = |modulus| self.lowest(taken, length, address, modulus);
        match placement {
            Placement::Fixed(_) => is_there.then_some(address),
            Placement::Near(_) if is_there && address != 0 => Some(address),
            Placement::Near(_) => lowest(LARGE).or_else(|| lowest(modulus)),
            Placement::Packed(_) => lowest(modulus),
        }
    }

    fn check_places(&self, taken: &[Span], model: &Model) {
        let space = Space {
            aperture: self.aperture(),
            reserved: core::slice::from_ref(&self.reserved),
            taken: model,
        };
        for length in (1..=UNITS).map(|units| units * self.unit) {
            for address in (0..=UNITS).map(|unit| unit * self.unit) {
                for new in [Placement::Fixed, Placement::Near, Placement::Packed] {
                    let placement = new(address);
                    let got = space.place(length, placement, 64);
                    let wanted = self.place(taken, length, placement);
                    let at = got.ok().map(Span::start);
                    assert_eq!(at, wanted, "{length:#x} {placement:x?} in {taken:x?}");
                    if let Err(NoPlace::Taken(way)) = got {
                        assert!(taken.contains(&way));
                    }
                }
            }
        }
    }

    fn check(&self) -> usize {
        let mut spaces = 0;
        self.each(0, &mut Vec::new(), &mut |taken| {
            let model = self.model(taken);
            for unit in 0..UNITS {
                let last = self.span(unit, 1).last();
                let is_free = self.is_free(taken, Span::from_bounds(last, last).unwrap());
                let mut gaps = model.all().into_iter().filter(|gap| gap.contains(last));
                let is_in_gap = gaps.next().is_some() && gaps.next().is_none();
                assert_eq!(is_in_gap, is_free && last != PAGE_SIZE - 1);
            }
            for (index, &gone) in taken.iter().enumerate() {
                let mut rest = taken.to_vec();
                rest.remove(index);
                let mut freed = self.model(taken);
                freed.free(self.bounds(), gone);
                assert_eq!(
                    freed.all(),
                    self.model(&rest).all(),
                    "{gone:x?} of {taken:x?}"
                );
            }
            self.check_places(taken, &model);
            spaces += 1;
        });
        spaces
    }
}

#[test]
fn all_small_address_spaces() {
    for unit in [PAGE_SIZE, LARGE / 2, LARGE] {
        for reserved in 0..UNITS {
            let reserved = Span::new(reserved * unit, unit).unwrap();
            assert!(Tiny { unit, reserved }.check() >= 65);
        }
    }
}
