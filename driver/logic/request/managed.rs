// SPDX-License-Identifier: GPL-2.0
//! Raw arguments of the calls for managed memory, checked in the order that the ABI promises.

use super::super::{pte::LARGE, residence::Advice, span::Span, Refusal};
use crate::uapi::{
    PINMAP_BUDGET_SET, PINMAP_MANAGE_ALL, PINMAP_MANAGE_HOST, PINMAP_MANAGE_WINDOW,
    PINMAP_PREFETCH_HOST, PINMAP_PREFETCH_PREFLIGHT,
};

/// Checked arguments of MANAGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagePlan {
    /// The addresses.
    pub range: Span,
    /// Advice that holds there where the program has given none.
    pub advice: Advice,
    /// Whether it is a window, which has whole large pages.
    pub is_window: bool,
}

/// Checks the arguments of MANAGE: the range is within `bounds`.
pub fn manage(flags: u32, address: u64, length: u64, bounds: Span) -> Result<ManagePlan, Refusal> {
    if flags & !(PINMAP_MANAGE_ALL | PINMAP_MANAGE_HOST | PINMAP_MANAGE_WINDOW) != 0 {
        return Err(Refusal::Unsupported);
    }
    let is_window = flags & PINMAP_MANAGE_WINDOW != 0;
    let advice = if flags & PINMAP_MANAGE_HOST != 0 {
        Advice::HOST
    } else {
        Advice::NONE
    };
    if flags & PINMAP_MANAGE_ALL != 0 {
        return match (address, length) {
            (0, 0) if !is_window => Ok(ManagePlan {
                range: bounds,
                advice,
                is_window,
            }),
            _ => Err(Refusal::Invalid),
        };
    }
    let range = managed_range(address, length, bounds)?;
    if is_window && (address | length) & (LARGE - 1) != 0 {
        return Err(Refusal::Invalid);
    }
    Ok(ManagePlan {
        range,
        advice,
        is_window,
    })
}

/// Checks addresses that have to be managed.
fn managed_range(address: u64, length: u64, bounds: Span) -> Result<Span, Refusal> {
    let range = Span::new(address, length)?;
    if !range.is_whole_pages() || !bounds.covers(range) {
        return Err(Refusal::Invalid);
    }
    Ok(range)
}

/// Checks the arguments of ADVISE. Returns the range, and the advice.
pub fn advise(
    flags: u32,
    reserved: u32,
    address: u64,
    length: u64,
    advice: u32,
    bounds: Span,
) -> Result<(Span, Advice), Refusal> {
    let advice = Advice::from_bits(advice).ok_or(Refusal::Unsupported)?;
    if flags != 0 || reserved != 0 {
        return Err(Refusal::Unsupported);
    }
    let range = managed_range(address, length, bounds)?;
    if advice.is_contradictory() {
        return Err(Refusal::Invalid);
    }
    Ok((range, advice))
}

/// Checks the arguments of BUDGET. Returns the new budget, if there is to be one.
pub fn budget(flags: u32, bytes: u64) -> Result<Option<u64>, Refusal> {
    match (flags, bytes) {
        (PINMAP_BUDGET_SET, bytes) => Ok(Some(bytes)),
        (0, 0) => Ok(None),
        (0, _) => Err(Refusal::Invalid),
        _ => Err(Refusal::Unsupported),
    }
}

/// Checks the arguments of RESIDENCY. Returns the range.
pub fn residency(
    flags: u32,
    address: u64,
    length: u64,
    runs: u64,
    bounds: Span,
) -> Result<Span, Refusal> {
    if flags != 0 {
        return Err(Refusal::Unsupported);
    }
    let range = managed_range(address, length, bounds)?;
    const IN_WORD: u64 = size_of::<u64>() as u64 - 1;
    if runs & IN_WORD != 0 {
        return Err(Refusal::Invalid);
    }
    Ok(range)
}

/// A plan of PREFETCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchPlan {
    /// The memory.
    pub range: Span,
    /// To the host, and not to the device.
    pub home: bool,
    /// Nothing moves; it is only told what would.
    pub preflight: bool,
}

/// Checks the arguments of PREFETCH.
pub fn prefetch(
    flags: u32,
    address: u64,
    length: u64,
    bounds: Span,
) -> Result<PrefetchPlan, Refusal> {
    if flags & !(PINMAP_PREFETCH_HOST | PINMAP_PREFETCH_PREFLIGHT) != 0 {
        return Err(Refusal::Unsupported);
    }
    Ok(PrefetchPlan {
        range: managed_range(address, length, bounds)?,
        home: flags & PINMAP_PREFETCH_HOST != 0,
        preflight: flags & PINMAP_PREFETCH_PREFLIGHT != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::{
        PINMAP_ADVICE_ACCESSED_BY, PINMAP_ADVICE_PREFER_DEVICE, PINMAP_ADVICE_PREFER_HOST,
    };

    const USER_LAST: u64 = 0x7fff_ffff_efff;

    fn bounds() -> Span {
        Span::from_bounds(0, USER_LAST).unwrap()
    }

    fn ends(range: Span) -> (u64, u64) {
        (range.start(), range.last())
    }

    #[test]
    fn manage_edges() {
        use Refusal::{Invalid, Overflow, Unsupported};
        let (all, window) = (PINMAP_MANAGE_ALL, PINMAP_MANAGE_WINDOW);
        let table = [
            ((0, 0x1000, 0x2000), Ok((0x1000, 0x2fff))),
            ((all, 0, 0), Ok((0, USER_LAST))),
            ((all, 0x1000, 0), Err(Invalid)),
            ((all, 0, 0x1000), Err(Invalid)),
            ((0, 0x1000, 0), Err(Invalid)),
            ((0, 0x1001, 0x1000), Err(Invalid)),
            ((0, 0x1000, 0x1001), Err(Invalid)),
            (
                (0, USER_LAST - 0xfff, 0x1000),
                Ok((USER_LAST - 0xfff, USER_LAST)),
            ),
            ((0, USER_LAST - 0xfff, 0x2000), Err(Invalid)),
            ((0, !0xfff, 0x2000), Err(Overflow)),
            ((8, 0x1000, 0x1000), Err(Unsupported)),
            ((all | (1 << 31), 0, 0), Err(Unsupported)),
            ((all | window, 0, 0), Err(Invalid)),
            ((window, 0x20_0000, 0x40_0000), Ok((0x20_0000, 0x5f_ffff))),
            ((window, 0x20_1000, 0x20_0000), Err(Invalid)),
            ((window, 0x20_0000, 0x20_1000), Err(Invalid)),
            ((window, 0x1000, 0x1000), Err(Invalid)),
            ((window, 0x20_0000, 0), Err(Invalid)),
            ((window, USER_LAST - 0xfff, 0x20_0000), Err(Invalid)),
            ((window, !0x1f_ffff, 0x40_0000), Err(Overflow)),
        ];
        for ((flags, address, length), want) in table {
            for (host, advice) in [(0, Advice::NONE), (PINMAP_MANAGE_HOST, Advice::HOST)] {
                let got = manage(flags | host, address, length, bounds());
                let got = got.map(|it| (ends(it.range), it.advice, it.is_window));
                let want = want.map(|ends| (ends, advice, flags & window != 0));
                assert_eq!(got, want, "{flags:#x} {address:#x} {length:#x}");
            }
        }
    }

    /// An address, a length, and the first and last byte of what they name.
    type Case = (u64, u64, Result<(u64, u64), Refusal>);

    /// Rules for the addresses of ADVISE, RESIDENCY and PREFETCH.
    const RANGES: [Case; 7] = [
        (0x1000, 0x2000, Ok((0x1000, 0x2fff))),
        (0x1000, 0, Err(Refusal::Invalid)),
        (0x1001, 0x1000, Err(Refusal::Invalid)),
        (0x1000, 0xfff, Err(Refusal::Invalid)),
        (
            USER_LAST - 0xfff,
            0x1000,
            Ok((USER_LAST - 0xfff, USER_LAST)),
        ),
        (USER_LAST - 0xfff, 0x2000, Err(Refusal::Invalid)),
        (!0xfff, 0x2000, Err(Refusal::Overflow)),
    ];

    #[test]
    fn ranges_that_are_managed() {
        for (address, length, want) in RANGES {
            let name = format!("{address:#x} {length:#x}");
            let advised = advise(0, 0, address, length, 0, bounds());
            assert_eq!(advised.map(|(range, _)| ends(range)), want, "{name}");
            let told = residency(0, address, length, 0, bounds());
            assert_eq!(told.map(ends), want, "{name}");
            for (flags, home, preflight) in [
                (0, false, false),
                (PINMAP_PREFETCH_HOST, true, false),
                (PINMAP_PREFETCH_PREFLIGHT, false, true),
                (PINMAP_PREFETCH_HOST | PINMAP_PREFETCH_PREFLIGHT, true, true),
            ] {
                let plan = prefetch(flags, address, length, bounds());
                let plan = plan.map(|plan| (ends(plan.range), plan.home, plan.preflight));
                assert_eq!(plan, want.map(|ends| (ends, home, preflight)), "{name}");
            }
            // Whatever the addresses.
            assert_eq!(
                advise(1, 0, address, length, 0, bounds()),
                Err(Refusal::Unsupported)
            );
            assert_eq!(
                residency(1, address, length, 0, bounds()),
                Err(Refusal::Unsupported)
            );
            assert_eq!(
                prefetch(4, address, length, bounds()),
                Err(Refusal::Unsupported)
            );
        }
    }

    #[test]
    fn advise_edges() {
        use Refusal::{Invalid, Overflow, Unsupported};
        let both = PINMAP_ADVICE_PREFER_HOST | PINMAP_ADVICE_PREFER_DEVICE;
        let table = [
            ((0, 0), Ok(0)),
            (
                (0, PINMAP_ADVICE_PREFER_HOST | PINMAP_ADVICE_ACCESSED_BY),
                Ok(5),
            ),
            ((0, 15 - PINMAP_ADVICE_PREFER_HOST), Ok(14)),
            ((0, 15), Err(Invalid)),
            ((0, both), Err(Invalid)),
            ((0, 16), Err(Unsupported)),
            ((0, 16 | both), Err(Unsupported)),
            ((0, 1 << 31), Err(Unsupported)),
            ((1, 0), Err(Unsupported)),
        ];
        for ((reserved, bits), want) in table {
            let got = advise(0, reserved, 0x1000, 0x1000, bits, bounds());
            let got = got.map(|(_, advice)| advice.bits());
            assert_eq!(got, want, "{reserved} {bits:#x}");
        }
        let order = |reserved, bits| advise(0, reserved, !0xfff, 0x2000, bits, bounds());
        assert_eq!(order(0, 16), Err(Unsupported));
        assert_eq!(order(1, 0), Err(Unsupported));
        assert_eq!(order(0, both), Err(Overflow));
    }

    #[test]
    fn budget_edges() {
        use Refusal::{Invalid, Unsupported};
        let table = [
            ((0, 0), Ok(None)),
            ((0, 1), Err(Invalid)),
            ((PINMAP_BUDGET_SET, 0), Ok(Some(0))),
            ((PINMAP_BUDGET_SET, u64::MAX), Ok(Some(u64::MAX))),
            ((2, 0), Err(Unsupported)),
            ((2, 1), Err(Unsupported)),
            ((PINMAP_BUDGET_SET | 2, 1), Err(Unsupported)),
        ];
        for ((flags, bytes), want) in table {
            assert_eq!(budget(flags, bytes), want, "{flags:#x} {bytes:#x}");
        }
    }

    #[test]
    fn residency_edges() {
        let runs = |runs| residency(0, 0x1000, 0x1000, runs, bounds()).map(ends);
        assert_eq!(runs(8), Ok((0x1000, 0x1fff)));
        assert_eq!(runs(u64::MAX - 7), Ok((0x1000, 0x1fff)));
        for misaligned in [1, 2, 4, 7, 12, u64::MAX] {
            assert_eq!(runs(misaligned), Err(Refusal::Invalid));
        }
    }
}
