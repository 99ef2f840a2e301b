// SPDX-License-Identifier: GPL-2.0
//! Claims that are only tested: the prover does not get through them in minutes.

use super::*;
use crate::gaps::{self, Bounds, FreeSpace};
use crate::msix;
use crate::place::{NoPlace, Space, Taken};
use core::cell::Cell;

pub(super) const CLAIMS: &[Claim] = &[
    ("a_place_is_free_and_fits", a_place_is_free_and_fits),
    ("gaps_end_at_their_neighbours", gaps_end_at_their_neighbours),
    (
        "a_range_of_pages_has_its_pages",
        a_range_of_pages_has_its_pages,
    ),
    ("msix_structures_are_hidden", msix_structures_are_hidden),
];

/// An address space that answers as it likes, within its contract, and remembers what it said.
struct Imagined {
    from: Cell<Option<Span>>,
    gaps: [Cell<Option<Span>>; 2],
    classes: u64,
}

impl Taken for Imagined {
    fn from(&self, address: u64) -> Option<Span> {
        let answer = any_span().filter(|span| span.last() >= address);
        self.from.set(answer);
        answer
    }

    fn gap(&self, class: u32, from: u64) -> Option<Span> {
        let told = self.gaps.iter().find(|told| told.get().is_none())?;
        let gap = any_span()?;
        if gaps::class(gap) != class || gap.start() < from {
            return None;
        }
        told.set(Some(gap));
        Some(gap)
    }

    fn classes(&self) -> u64 {
        self.classes
    }
}

/// Neighbours of a range, and the gaps that were put and removed.
struct Book {
    below: Option<Span>,
    above: Option<Span>,
    put: [Option<Span>; 2],
    removed: [Option<Span>; 2],
}

impl FreeSpace for Book {
    fn below(&self, address: u64) -> Option<Span> {
        self.below.filter(|span| span.last() < address)
    }

    fn above(&self, address: u64) -> Option<Span> {
        self.above.filter(|span| span.last() >= address)
    }

    fn put(&mut self, gap: Span) {
        let free = self.put.iter_mut().find(|put| put.is_none());
        *free.expect("two are put at most") = Some(gap);
    }

    fn remove(&mut self, gap: Span) {
        let free = self.removed.iter_mut().find(|removed| removed.is_none());
        *free.expect("two are removed at most") = Some(gap);
    }
}

/// Whatever the address space answers, within its contract, for up to two gaps.
fn a_place_is_free_and_fits() -> Option<()> {
    let (pages, address) = (any(), any());
    let length = pages.checked_mul(PAGE_SIZE).filter(|&length| length != 0)?;
    let placement = match any_u32(3) {
        0 => Placement::Fixed(address),
        1 => Placement::Near(address),
        _ => Placement::Packed(address),
    };
    let (aperture, reserved, bits) = (any_span()?, any_span()?, any_bits().0);
    let classes = any_of(&[0, 1 << 12, (1 << 21) | (1 << 12), (1 << 63) | (1 << 32)]);
    if address % PAGE_SIZE != 0 || classes.count_ones() > 2 {
        return None;
    }
    let taken = Imagined {
        from: Cell::new(None),
        gaps: Default::default(),
        classes,
    };
    let space = Space {
        aperture,
        reserved: &[reserved],
        taken: &taken,
    };
    let got = space.place(length, placement, bits);

    let usable = |span: Span| aperture.covers(span) && (bits >= 64 || span.last() >> bits == 0);
    let is_free = |span: Span| {
        let from = taken.from.get();
        !reserved.overlaps(span) && !from.is_some_and(|from| from.overlaps(span))
    };
    let modulus = match length {
        0..LARGE => PAGE_SIZE,
        LARGE..0x4000_0000 => LARGE,
        _ => 0x4000_0000,
    };
    let congruent = |at: u64| at.wrapping_sub(address) % modulus == 0;
    let in_gap = |span: Span| {
        let mut gaps = taken.gaps.iter().filter_map(Cell::get);
        gaps.any(|gap| gap.covers(span))
    };
    match got {
        Ok(span) => {
            assert!(span.length() == length && usable(span));
            let exact = span.start() == address && is_free(span);
            match placement {
                Placement::Fixed(_) => assert!(exact),
                Placement::Near(_) => {
                    assert!(exact && address != 0 || congruent(span.start()) && in_gap(span))
                }
                Placement::Packed(_) => assert!(congruent(span.start()) && in_gap(span)),
            }
            assert!(placement.suits(length, span) || matches!(placement, Placement::Near(_)));
        }
        // Nothing that it has seen would have done.
        Err(NoPlace::Full) => {
            let missed = Span::new(any(), length).ok()?;
            assert!(!(congruent(missed.start()) && usable(missed) && in_gap(missed)));
        }
        Err(NoPlace::Taken(way)) => assert!(taken.from.get() == Some(way)),
        Err(NoPlace::Reserved(way)) => assert!(way == reserved),
        Err(NoPlace::Aperture(last)) => assert!(last <= aperture.last()),
    }
    Some(())
}

/// Taking and freeing change the gaps in opposite ways.
fn gaps_end_at_their_neighbours() -> Option<()> {
    let (aperture, reserved, span) = (any_span()?, any_span()?, any_span()?);
    let neighbours = (any_span(), any_span());
    let below = neighbours.0.filter(|below| below.last() < span.start());
    let above = neighbours.1.filter(|above| above.start() > span.last());
    let usable = Span::from_bounds(aperture.start().max(PAGE_SIZE), aperture.last())?;
    let part = usable.intersection(span)?;
    if reserved.overlaps(span) {
        return None;
    }
    let book = || Book {
        below,
        above,
        put: [None; 2],
        removed: [None; 2],
    };
    let bounds = Bounds::new(aperture, core::slice::from_ref(&reserved));
    let (mut took, mut freed) = (book(), book());
    bounds.take(&mut took, span);
    bounds.free(&mut freed, span);

    let mut gap = usable;
    for way in [below, above, Some(reserved)].into_iter().flatten() {
        gap = if way.last() < span.start() {
            gap.behind(way)?
        } else {
            gap.before(way)?
        };
    }
    let sides = [gap.before(part), gap.behind(part)];
    let sides = if sides[0].is_none() {
        [sides[1], None]
    } else {
        sides
    };
    assert!(took.removed == [Some(gap), None] && took.put == sides);
    assert!(freed.removed == sides && freed.put == [Some(gap), None]);
    Some(())
}

fn a_range_of_pages_has_its_pages() -> Option<()> {
    let (first, last, page) = (any_page(), any_page(), any_page());
    let pages = block::Pages::range(first, last);
    let is_in = page < block::PAGES && first <= page && page <= last;
    assert!(pages.has(page) == is_in);
    Some(())
}

fn msix_structures_are_hidden() -> Option<()> {
    let msix = msix::Msix {
        vectors: any_of(&[0, 1, 64, 65, 2048]) as u32,
        table: (any_u32(2), any() as u32),
        pending: (any_u32(2), any() as u32),
    };
    let hidden = msix.bytes_in(0);
    if msix.vectors != 0 {
        let (table, pending) = (u64::from(msix.table.1), u64::from(msix.pending.1));
        let last = table + u64::from(msix.vectors) * 16 - 1;
        let is_in = |at| hidden.is_some_and(|hidden| hidden.contains(at));
        assert!(msix.table.0 != 0 || is_in(table) && is_in(last));
        let last = pending + u64::from(msix.vectors - 1) / 64 * 8 + 7;
        assert!(msix.pending.0 != 0 || is_in(pending) && is_in(last));
    }
    Some(())
}
