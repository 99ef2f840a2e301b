// SPDX-License-Identifier: GPL-2.0
//! Chooses the device address of a buffer.
//!
//! Three things are wanted, in this order: the address that the caller demands or prefers; an
//! address congruent to it, so that the IOMMU maps huge pages as such; and a low address, so that
//! the tables of the IOMMU stay few. Reserved ranges and the aperture limit the choice, and so do
//! the address bits that the device can drive.
//!
//! Where no exact address is demanded, the search goes through the classes of gaps, the longest
//! first. In a gap that is long enough for any alignment the first try succeeds. Shorter gaps may
//! fit by chance, and are tried a few times (`PATIENCE`), since they keep addresses low. They are
//! all tried only if nothing else is left. Thus a full address space costs no more than an empty
//! one.

use super::{span::Span, PAGE_SHIFT, PAGE_SIZE};

/// Sizes of the larger leaves of most page tables: 2 MiB and 1 GiB. With pages of 16 KiB (Arm's)
/// the first is 32 MiB, and there is no other that is used.
const LARGE: u64 = 1 << (2 * PAGE_SHIFT - 3);
const GIGANTIC: u64 = if PAGE_SHIFT == 12 { 1 << 30 } else { LARGE };

/// Storage of the spans that are taken.
pub trait Taken {
    /// Returns the lowest taken span that does not lie wholly below `address`.
    fn from(&self, address: u64) -> Option<Span>;

    /// Returns the lowest gap of a [class](super::gaps::class) that begins at `from` or above.
    /// Reserved spans and the page at address 0 are in no gap.
    fn gap(&self, class: u32, from: u64) -> Option<Span>;

    /// Returns a set of classes, a bit for each, that has all of which there are gaps.
    fn classes(&self) -> u64 {
        u64::MAX
    }
}

/// Address that a caller wants for its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At this address or not at all.
    Fixed(u64),
    /// At this address if possible, otherwise at one congruent to it.
    Near(u64),
    /// As low as possible, so that all mappings are close together; congruent to this address as
    /// far as huge pages need it.
    Packed(u64),
}

impl Placement {
    /// Returns the address that was asked for.
    pub const fn address(self) -> u64 {
        match self {
            Self::Fixed(address) | Self::Near(address) | Self::Packed(address) => address,
        }
    }

    /// Returns whether `length` bytes that were at `span` before may be placed there again.
    pub const fn suits(self, length: u64, span: Span) -> bool {
        let offset = span.start().wrapping_sub(self.address());
        span.length() == length
            && match self {
                Self::Fixed(_) | Self::Near(_) => offset == 0,
                Self::Packed(_) => offset & modulus(length).wrapping_sub(1) == 0,
            }
    }
}

/// Returns the modulus by which addresses must be congruent so that huge pages stay huge.
const fn modulus(length: u64) -> u64 {
    if length >= GIGANTIC {
        GIGANTIC
    } else if length >= LARGE {
        LARGE
    } else {
        PAGE_SIZE
    }
}

/// Reason for which no address can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Outside of what can be addressed; this is the last usable address.
    Aperture(u64),
    /// Touches this reserved span.
    Reserved(Span),
    /// Touches this taken span.
    Taken(Span),
    /// No gap is large enough.
    Full,
}

/// The address space in which to place a buffer.
#[derive(Debug)]
pub struct Space<'a, T: ?Sized> {
    /// Addresses that can be translated.
    pub aperture: Span,
    /// Spans that must not be used, sorted and disjoint.
    pub reserved: &'a [Span],
    /// Spans that are taken.
    pub taken: &'a T,
}

impl<T: Taken + ?Sized> Space<'_, T> {
    /// Finds a place for `length` bytes (whole pages) at addresses of at most `bits` bits.
    ///
    /// If no exact address was demanded, low addresses come first. They are congruent to the
    /// placement modulo 2 MiB, or 1 GiB for lengths from there on, so that huge pages stay huge.
    /// The page at address 0 is left out: too many devices take that address for "none". Buffers
    /// too short for a huge page get any page when congruent addresses are scarce.
    pub fn place(&self, length: u64, placement: Placement, bits: u32) -> Result<Span, NoPlace> {
        let unused = u64::BITS.saturating_sub(bits);
        let highest = u64::MAX.checked_shr(unused).unwrap_or(0);
        let highest = highest.min(self.aperture.last());
        let Some(usable) = Span::from_bounds(self.aperture.start(), highest) else {
            return Err(NoPlace::Aperture(highest));
        };
        let fit = |modulus| Fit {
            length,
            address: placement.address(),
            modulus,
            usable,
        };
        match placement {
            Placement::Fixed(address) => self.exactly(length, address, usable),
            Placement::Near(address) => match self.exactly(length, address, usable) {
                Ok(span) if address >= PAGE_SIZE => Ok(span),
                _ if length >= LARGE => self.in_gaps(fit(modulus(length)), u32::MAX),
                _ => self
                    .in_gaps(fit(LARGE), PATIENCE)
                    .or_else(|_| self.in_gaps(fit(PAGE_SIZE), u32::MAX)),
            },
            Placement::Packed(_) => self.in_gaps(fit(modulus(length)), u32::MAX),
        }
    }

    fn exactly(&self, length: u64, address: u64, usable: Span) -> Result<Span, NoPlace> {
        let span = Span::new(address, length).map_err(|_| NoPlace::Aperture(usable.last()))?;
        if !usable.covers(span) {
            return Err(NoPlace::Aperture(usable.last()));
        }
        let below = self.reserved.partition_point(|way| way.last() < address);
        if let Some(&way) = self.reserved.get(below).filter(|way| way.overlaps(span)) {
            return Err(NoPlace::Reserved(way));
        }
        if let Some(way) = self.taken.from(address).filter(|way| way.overlaps(span)) {
            return Err(NoPlace::Taken(way));
        }
        Ok(span)
    }

    /// Returns the lowest place in a gap that is long enough wherever it begins, or a lower one in
    /// a gap that is long enough by chance. Of the latter, `patience` gaps of a class are tried.
    fn in_gaps(&self, fit: Fit, patience: u32) -> Result<Span, NoPlace> {
        let sure = fit.sure_length();
        let mut best: Option<Span> = None;
        let shortest = fit.length.checked_ilog2().unwrap_or(0);
        let mut classes = self.taken.classes() & u64::MAX.wrapping_shl(shortest);
        while let Some(class) = classes.checked_ilog2() {
            classes &= !1_u64.wrapping_shl(class);
            let tries = match 1_u64.checked_shl(class) {
                Some(least) if least >= sure => 1,
                _ if best.is_some() => PATIENCE,
                _ => patience,
            };
            if let Some(span) = self.in_class(class, tries, fit) {
                if best.is_none_or(|best| span.start() < best.start()) {
                    best = Some(span);
                }
            }
        }
        best.ok_or(NoPlace::Full)
    }

    fn in_class(&self, class: u32, tries: u32, fit: Fit) -> Option<Span> {
        let mut from = 0;
        for _ in 0..tries {
            let gap = self.taken.gap(class, from)?;
            if let Some(span) = fit.in_gap(gap) {
                return Some(span);
            }
            if gap.start() > fit.usable.last() {
                return None;
            }
            from = gap.start().checked_add(1)?;
        }
        None
    }
}

/// Number of gaps of a class that are tried although they may be too short, where another address
/// will do.
const PATIENCE: u32 = 16;

/// Length and congruence of what has to fit into a gap.
#[derive(Clone, Copy)]
struct Fit {
    length: u64,
    /// Address to which the place must be congruent modulo `modulus`, a power of two.
    address: u64,
    modulus: u64,
    usable: Span,
}

impl Fit {
    /// Returns the length of a gap in which it fits wherever the gap begins.
    fn sure_length(self) -> u64 {
        self.length
            .saturating_add(self.modulus)
            .saturating_sub(PAGE_SIZE)
    }

    fn in_gap(self, gap: Span) -> Option<Span> {
        let room = gap.intersection(self.usable)?;
        let start = congruent(room.start(), self.address, self.modulus)?;
        let span = Span::new(start, self.length).ok()?;
        room.covers(span).then_some(span)
    }
}

/// Returns the lowest address from `from` on that is congruent to `address` modulo `modulus`, a
/// power of two.
fn congruent(from: u64, address: u64, modulus: u64) -> Option<u64> {
    let step = address.wrapping_sub(from) & modulus.checked_sub(1)?;
    from.checked_add(step)
}

#[cfg(test)]
mod tests {
    use super::{
        super::gaps::{model::Model, Bounds, FreeSpace},
        *,
    };
    use proptest::prelude::*;

    const MSI: Span = match Span::from_bounds(0xfee0_0000, 0xfeef_ffff) {
        Some(span) => span,
        None => unreachable!(),
    };

    fn span(start: u64, length: u64) -> Span {
        Span::new(start, length).unwrap()
    }

    const APERTURE: Span = match Span::from_bounds(0, (1 << 48) - 1) {
        Some(span) => span,
        None => unreachable!(),
    };

    impl Taken for Model {
        fn from(&self, address: u64) -> Option<Span> {
            self.above(address)
        }

        fn gap(&self, class: u32, from: u64) -> Option<Span> {
            self.gap(class, from)
        }
    }

    fn model(aperture: Span, reserved: &[Span], used: &[Span]) -> Model {
        let bounds = Bounds::new(aperture, reserved);
        let mut model = Model::new(bounds);
        for &used in used {
            model.take(bounds, used);
        }
        model
    }

    fn used(used: &[Span]) -> Model {
        model(APERTURE, &[MSI], used)
    }

    fn space(taken: &Model) -> Space<'_, Model> {
        Space {
            aperture: APERTURE,
            reserved: core::slice::from_ref(&MSI),
            taken,
        }
    }

    #[test]
    fn exact_edges() {
        let used = [span(0x10_0000, 0x1000)];
        let taken = model(APERTURE, &[MSI], &used);
        let space = space(&taken);
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
            let got = space.place(length, Placement::Fixed(address), bits);
            assert_eq!(got.map(|_| ()), want, "{address:#x} {length:#x} {bits}");
        }
    }

    #[test]
    fn falls_back_to_a_congruent_address() {
        let got = space(&used(&[]))
            .place(4 << 20, Placement::Near(0x7f12_3456_7000), 32)
            .unwrap();
        assert_eq!(got.start(), 0x16_7000);
        let got = space(&used(&[]))
            .place(1 << 30, Placement::Near(0x7f12_3456_7000), 40)
            .unwrap();
        assert_eq!(got.start(), 0x3456_7000);
        assert!(!got.overlaps(MSI));
    }

    #[test]
    fn never_hands_out_address_zero() {
        assert_eq!(
            space(&used(&[]))
                .place(0x1000, Placement::Near(1 << 50), 64)
                .unwrap()
                .start(),
            LARGE
        );
    }

    #[test]
    fn nearness_to_zero_is_no_demand() {
        let got = space(&used(&[]))
            .place(0x1000, Placement::Near(0), 64)
            .unwrap();
        assert_eq!(got.start(), LARGE);
        let got = space(&used(&[]))
            .place(0x1000, Placement::Fixed(0), 64)
            .unwrap();
        assert_eq!(got.start(), 0);
    }

    #[test]
    fn short_buffers_use_the_last_page() {
        let used = used(&[span(0, 0xff_f000)]);
        let got = space(&used)
            .place(0x1000, Placement::Near(0x7f00_0000_0000), 24)
            .unwrap();
        assert_eq!(got.start(), 0xff_f000);
        assert_eq!(
            space(&used).place(0x2000, Placement::Near(0x7f00_0000_0000), 24),
            Err(NoPlace::Full)
        );
    }

    #[test]
    fn packed_ones_are_side_by_side() {
        let bounds = Bounds::new(APERTURE, core::slice::from_ref(&MSI));
        let mut model = used(&[]);
        for index in 0..3000 {
            let placement = Placement::Packed(0x7f00_0000_0000 + index * LARGE);
            let place = space(&model).place(PAGE_SIZE, placement, 64).unwrap();
            assert_eq!(place.start(), (index + 1) * PAGE_SIZE);
            assert!(placement.suits(PAGE_SIZE, place) && !placement.suits(2 * PAGE_SIZE, place));
            assert!(!Placement::Near(placement.address()).suits(PAGE_SIZE, place));
            model.take(bounds, place);
        }
        for (length, modulus) in [(LARGE, LARGE), (GIGANTIC, GIGANTIC)] {
            let placement = Placement::Packed(0x7f12_3456_7000);
            let place = space(&model).place(length, placement, 64).unwrap();
            assert_eq!(place.start() % modulus, placement.address() % modulus);
            assert!(placement.suits(length, place));
            assert!(!Placement::Packed(placement.address() + PAGE_SIZE).suits(length, place));
        }
    }

    /// Counts how often a gap is looked up.
    struct Counted<'a>(&'a Model, core::cell::Cell<u32>);

    impl Taken for Counted<'_> {
        fn from(&self, address: u64) -> Option<Span> {
            Taken::from(self.0, address)
        }

        fn gap(&self, class: u32, from: u64) -> Option<Span> {
            self.1.set(self.1.get() + 1);
            self.0.gap(class, from)
        }
    }

    #[test]
    fn a_full_space_costs_no_more_than_an_empty_one() {
        let bounds = Bounds::new(APERTURE, core::slice::from_ref(&MSI));
        let mut model = used(&[]);
        for index in 0..20_000 {
            let counted = Counted(&model, Default::default());
            let space = Space {
                aperture: APERTURE,
                reserved: core::slice::from_ref(&MSI),
                taken: &counted,
            };
            // Every other page, so that nothing merges.
            let placement = Placement::Near(0x7f00_0000_0000 + index * 2 * PAGE_SIZE);
            let place = space.place(PAGE_SIZE, placement, 32).unwrap();
            assert!(counted.1.get() < 400, "{index}: {}", counted.1.get());
            model.take(bounds, place);
        }
    }

    #[test]
    fn the_last_address_there_is() {
        let aperture = Span::from_bounds(0, u64::MAX).unwrap();
        let last = u64::MAX - 0xfff;
        let mut taken = model(aperture, &[MSI], &[]);
        let place = |taken: &Model, length, placement, bits| {
            let space = Space {
                aperture,
                reserved: core::slice::from_ref(&MSI),
                taken,
            };
            space.place(length, placement, bits).map(Span::start)
        };
        assert_eq!(place(&taken, 0x1000, Placement::Fixed(last), 64), Ok(last));
        assert_eq!(place(&taken, 0x1000, Placement::Near(last), 64), Ok(last));
        assert_eq!(
            place(&taken, 0x1000, Placement::Near(last), 63),
            Ok(0x1f_f000)
        );
        assert_eq!(
            place(&taken, 0x2000, Placement::Fixed(last), 64),
            Err(NoPlace::Aperture(u64::MAX))
        );
        // Two pages from the last one on are one too many.
        assert_eq!(
            place(&taken, 0x2000, Placement::Near(last), 64),
            Ok(0x1f_f000)
        );
        taken.take(
            Bounds::new(aperture, core::slice::from_ref(&MSI)),
            span(last, 0x1000),
        );
        assert_eq!(
            place(&taken, 0x1000, Placement::Fixed(last), 64),
            Err(NoPlace::Taken(span(last, 0x1000)))
        );
        assert_eq!(
            place(&taken, 0x1000, Placement::Near(last), 64),
            Ok(0x1f_f000)
        );
        assert_eq!(
            place(&taken, 0x1000, Placement::Near(last - 0x1000), 64),
            Ok(last - 0x1000)
        );
    }

    #[test]
    fn no_bits_no_place() {
        let aperture = Span::from_bounds(1 << 32, 1 << 40).unwrap();
        let high = Space {
            aperture,
            reserved: &[],
            taken: &model(aperture, &[], &[]),
        };
        assert_eq!(
            high.place(0x1000, Placement::Near(0x1000), 20),
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
        fn a_place_is_free_and_congruent(
            used in layout(),
            pages in 1u64..1500,
            placement in 0u64..1 << 36,
            bits in 20u32..36,
        ) {
            let taken: Vec<Span> = used.into_iter().filter(|used| !used.overlaps(MSI)).collect();
            let model = model(APERTURE, &[MSI], &taken);
            let (used, space) = (taken, space(&model));
            let placement = placement * PAGE_SIZE;
            let length = pages * PAGE_SIZE;
            match space.place(length, Placement::Near(placement), bits) {
                Ok(got) => {
                    prop_assert_eq!(got.length(), length);
                    prop_assert!(got.last() < 1 << bits);
                    prop_assert!(!used.iter().any(|u| u.overlaps(got)) && !MSI.overlaps(got));
                    if length >= LARGE {
                        prop_assert_eq!(got.start() % LARGE, placement % LARGE);
                    }
                }
                Err(_) => {
                    // The slow search finds none either.
                    let step = if length >= LARGE { LARGE } else { PAGE_SIZE };
                    let first = if step == LARGE { placement % LARGE } else { PAGE_SIZE };
                    let mut at = if first == 0 { LARGE } else { first };
                    while at + length <= 1 << bits.min(26) {
                        let try_ = span(at, length);
                        let is_taken = used.iter().any(|u| u.overlaps(try_));
                        prop_assert!(is_taken || MSI.overlaps(try_), "missed {:#x}", at);
                        at += step;
                    }
                }
            }
        }

        #[test]
        fn nothing_panics(
            start: u64, last: u64, length: u64, placement: u64, exact: bool, bits: u32,
            reserved in proptest::collection::vec(any::<(u64, u64)>(), 0..3),
        ) {
            if let Some(aperture) = Span::from_bounds(start, last) {
                let bounds = reserved.into_iter();
                let spans = bounds.filter_map(|(start, last)| Span::from_bounds(start, last));
                let mut reserved: Vec<Span> = spans.collect();
                reserved.sort_by_key(|s| s.start());
                reserved.dedup_by(|next, kept| kept.overlaps(*next));
                let taken = model(aperture, &reserved, &[]);
                let space = Space { aperture, reserved: &reserved, taken: &taken };
                let new = if exact { Placement::Fixed } else { Placement::Near };
                let placement = new(placement);
                let _ = space.place(length, placement, bits);
            }
        }
    }
}
