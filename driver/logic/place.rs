// SPDX-License-Identifier: GPL-2.0
//! Where in the device's address space a buffer goes.

use super::{span::Span, PAGE_SIZE};

/// 2 MiB and 1 GiB: the sizes of the larger leaves of x86 and of most other page tables.
const LARGE: u64 = 1 << 21;
const GIGANTIC: u64 = 1 << 30;

/// Spans that are taken, in no particular representation.
pub trait Taken {
    /// The lowest taken span that does not lie wholly below `address`.
    fn from(&self, address: u64) -> Option<Span>;
}

/// Sorted, disjoint spans.
impl Taken for [Span] {
    fn from(&self, address: u64) -> Option<Span> {
        let below = self.partition_point(|span| span.last() < address);
        self.get(below).copied()
    }
}

/// Where a caller wants its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// At this address or not at all.
    Exactly(u64),
    /// At this address if possible, otherwise at one congruent to it.
    Near(u64),
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Outside of what can be addressed, whose last address this is.
    Aperture(u64),
    /// In the way of this reserved span.
    Reserved(Span),
    /// In the way of this mapping.
    Taken(Span),
    /// No gap is large enough.
    Full,
}

/// The address space to place in.
#[derive(Debug)]
pub struct Space<'a, T: ?Sized> {
    /// What can be translated.
    pub aperture: Span,
    /// What must not be used: sorted and disjoint.
    pub reserved: &'a [Span],
    /// What is mapped already.
    pub taken: &'a T,
}

impl<T: Taken + ?Sized> Space<'_, T> {
    /// Finds a place for `length` bytes (whole pages) at addresses of at most `bits` bits.
    ///
    /// Without an exact wish, first fit from the bottom, congruent to the wish modulo 2 MiB, or 1 GiB
    /// from that length on, so that huge pages can stay huge. The page at address 0 is left out: too
    /// many devices take that address for "none". Buffers too short for a huge page fall back to any
    /// page when nothing congruent is left.
    pub fn place(&self, length: u64, wish: Wish, bits: u32) -> Result<Span, NoPlace> {
        let unused = u64::BITS.saturating_sub(bits);
        let highest = u64::MAX.checked_shr(unused).unwrap_or(0);
        let highest = highest.min(self.aperture.last());
        let Some(usable) = Span::from_bounds(self.aperture.start(), highest) else {
            return Err(NoPlace::Aperture(highest));
        };
        match wish {
            Wish::Exactly(address) => self.exactly(length, address, usable),
            Wish::Near(address) => match self.exactly(length, address, usable) {
                Ok(span) if address >= PAGE_SIZE => Ok(span),
                _ if length >= GIGANTIC => self.first_fit(length, address, GIGANTIC, usable),
                _ if length >= LARGE => self.first_fit(length, address, LARGE, usable),
                _ => self
                    .first_fit(length, address, LARGE, usable)
                    .or_else(|_| self.first_fit(length, address, PAGE_SIZE, usable)),
            },
        }
    }

    fn exactly(&self, length: u64, address: u64, usable: Span) -> Result<Span, NoPlace> {
        let span = Span::new(address, length).map_err(|_| NoPlace::Aperture(usable.last()))?;
        if !usable.covers(span) {
            return Err(NoPlace::Aperture(usable.last()));
        }
        if let Some(way) = self.reserved.from(address).filter(|way| way.overlaps(span)) {
            return Err(NoPlace::Reserved(way));
        }
        if let Some(way) = self.taken.from(address).filter(|way| way.overlaps(span)) {
            return Err(NoPlace::Taken(way));
        }
        Ok(span)
    }

    fn first_fit(
        &self,
        length: u64,
        address: u64,
        modulus: u64,
        usable: Span,
    ) -> Result<Span, NoPlace> {
        let mut from = usable.start().max(PAGE_SIZE);
        loop {
            let start = congruent(from, address, modulus).ok_or(NoPlace::Full)?;
            match self.exactly(length, start, usable) {
                Ok(span) => return Ok(span),
                Err(NoPlace::Reserved(way) | NoPlace::Taken(way)) => {
                    from = way.last().checked_add(1).ok_or(NoPlace::Full)?;
                }
                Err(NoPlace::Aperture(_) | NoPlace::Full) => return Err(NoPlace::Full),
            }
        }
    }
}

/// The lowest address from `from` on that is congruent to `address` modulo `modulus`, a power of two.
fn congruent(from: u64, address: u64, modulus: u64) -> Option<u64> {
    let step = address.wrapping_sub(from) & modulus.checked_sub(1)?;
    from.checked_add(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSI: Span = match Span::from_bounds(0xfee0_0000, 0xfeef_ffff) {
        Some(span) => span,
        None => unreachable!(),
    };

    fn span(start: u64, length: u64) -> Span {
        Span::new(start, length).unwrap()
    }

    fn space(taken: &[Span]) -> Space<'_, [Span]> {
        Space {
            aperture: Span::from_bounds(0, (1 << 48) - 1).unwrap(),
            reserved: core::slice::from_ref(&MSI),
            taken,
        }
    }

    #[test]
    fn exact_edges() {
        let used = [span(0x10_0000, 0x1000)];
        let space = space(&used);
        let top = (1 << 48) - 1;
        let table = [
            (0x1000, 0x1000, 64, Ok(())),
            (0, 0x1000, 64, Ok(())),
            (0x10_0000, 0x1000, 64, Err(NoPlace::Taken(used[0]))),
            (0xf_f000, 0x1000, 64, Ok(())),
            (0xf_f000, 0x1001, 64, Err(NoPlace::Taken(used[0]))),
            (0x10_1000, 0x1000, 64, Ok(())),
            (0xfedf_f000, 0x1000, 64, Ok(())),
            (0xfedf_f000, 0x2000, 64, Err(NoPlace::Reserved(MSI))),
            (0xfeef_f000, 0x1000, 64, Err(NoPlace::Reserved(MSI))),
            (0xfef0_0000, 0x1000, 64, Ok(())),
            (top - 0xfff, 0x1000, 64, Ok(())),
            (top - 0xfff, 0x2000, 64, Err(NoPlace::Aperture(top))),
            (u64::MAX - 0xfff, 0x1000, 64, Err(NoPlace::Aperture(top))),
            (u64::MAX - 0xfff, 0x2000, 64, Err(NoPlace::Aperture(top))),
            (0xfff_f000, 0x1000, 28, Ok(())),
            (0xfff_f000, 0x2000, 28, Err(NoPlace::Aperture(0xfff_ffff))),
            (0x1000, 0x1000, 12, Err(NoPlace::Aperture(0xfff))),
        ];
        for (address, length, bits, want) in table {
            let got = space.place(length, Wish::Exactly(address), bits);
            assert_eq!(got.map(|_| ()), want, "{address:#x} {length:#x} {bits}");
        }
    }

    #[test]
    fn falls_back_to_a_congruent_address() {
        let got = space(&[])
            .place(4 << 20, Wish::Near(0x7f12_3456_7000), 32)
            .unwrap();
        assert_eq!(got.start(), 0x16_7000);
        let got = space(&[])
            .place(1 << 30, Wish::Near(0x7f12_3456_7000), 40)
            .unwrap();
        assert_eq!(got.start(), 0x3456_7000);
        assert!(!got.overlaps(MSI));
    }

    #[test]
    fn never_hands_out_address_zero() {
        assert_eq!(
            space(&[])
                .place(0x1000, Wish::Near(1 << 50), 64)
                .unwrap()
                .start(),
            LARGE
        );
    }

    #[test]
    fn nearness_to_zero_is_no_demand() {
        let got = space(&[]).place(0x1000, Wish::Near(0), 64).unwrap();
        assert_eq!(got.start(), LARGE);
        let got = space(&[]).place(0x1000, Wish::Exactly(0), 64).unwrap();
        assert_eq!(got.start(), 0);
    }

    #[test]
    fn short_buffers_use_the_last_page() {
        let used = [span(0, 0xff_f000)];
        let got = space(&used)
            .place(0x1000, Wish::Near(0x7f00_0000_0000), 24)
            .unwrap();
        assert_eq!(got.start(), 0xff_f000);
        assert_eq!(
            space(&used).place(0x2000, Wish::Near(0x7f00_0000_0000), 24),
            Err(NoPlace::Full)
        );
    }

    #[test]
    fn no_bits_no_place() {
        let high = Space {
            aperture: Span::from_bounds(1 << 32, 1 << 40).unwrap(),
            reserved: &[],
            taken: &[][..],
        };
        assert_eq!(
            high.place(0x1000, Wish::Near(0x1000), 20),
            Err(NoPlace::Aperture(0xf_ffff))
        );
    }

    /// Disjoint, sorted spans of pages in the low 16 MiB.
    fn layout() -> impl Strategy<Value = Vec<Span>> {
        proptest::collection::vec((0u64..40, 1u64..300), 0..24).prop_map(|steps| {
            let mut at = 0;
            let mut spans = Vec::new();
            for (gap, pages) in steps {
                at += gap * PAGE_SIZE;
                spans.push(span(at, pages * PAGE_SIZE));
                at += pages * PAGE_SIZE;
            }
            spans
        })
    }

    proptest! {
        #[test]
        fn a_place_is_free_and_congruent(used in layout(), pages in 1u64..1500, wish in 0u64..1 << 36, bits in 20u32..36) {
            let space = space(&used);
            let wish = wish * PAGE_SIZE;
            let length = pages * PAGE_SIZE;
            match space.place(length, Wish::Near(wish), bits) {
                Ok(got) => {
                    prop_assert_eq!(got.length(), length);
                    prop_assert!(got.last() < 1 << bits);
                    prop_assert!(!used.iter().any(|u| u.overlaps(got)) && !MSI.overlaps(got));
                    if length >= LARGE {
                        prop_assert_eq!(got.start() % LARGE, wish % LARGE);
                    }
                }
                Err(_) => {
                    // The slow way finds none either.
                    let step = if length >= LARGE { LARGE } else { PAGE_SIZE };
                    let first = if step == LARGE { wish % LARGE } else { PAGE_SIZE };
                    let mut at = if first == 0 { LARGE } else { first };
                    while at + length <= 1 << bits.min(26) {
                        let try_ = span(at, length);
                        prop_assert!(used.iter().any(|u| u.overlaps(try_)) || MSI.overlaps(try_), "missed {:#x}", at);
                        at += step;
                    }
                }
            }
        }

        #[test]
        fn nothing_panics(
            start: u64, last: u64, length: u64, wish: u64, exact: bool, bits: u32,
            reserved in proptest::collection::vec(any::<(u64, u64)>(), 0..3),
        ) {
            if let Some(aperture) = Span::from_bounds(start, last) {
                let mut reserved: Vec<Span> = reserved.into_iter().filter_map(|(a, b)| Span::from_bounds(a, b)).collect();
                reserved.sort_by_key(|s| s.start());
                let space = Space { aperture, reserved: &reserved, taken: &[][..] };
                let wish = if exact { Wish::Exactly(wish) } else { Wish::Near(wish) };
                let _ = space.place(length, wish, bits);
            }
        }
    }
}
