// SPDX-License-Identifier: GPL-2.0
//! The edges of each request.

use super::*;
use crate::uapi::{
    PINMAP_ADVICE_ACCESSED_BY, PINMAP_ADVICE_PREFER_DEVICE, PINMAP_ADVICE_PREFER_HOST,
};

const USER_LAST: u64 = 0x7fff_ffff_efff;

fn args(
    flags: u32,
    reserved: u32,
    address: u64,
    length: u64,
    device_address: u64,
    address_bits: u32,
) -> RegisterArgs {
    RegisterArgs {
        flags,
        reserved,
        address,
        length,
        device_address,
        address_bits,
    }
}

#[test]
fn register_edges() {
    use Refusal::{Invalid, Overflow, Unsupported};
    let table = [
        ("plain", (0, 0, 0x1000, 0x1000, 0, 0), Ok(())),
        (
            "unknown flag",
            (1 << 6, 0, 0x1000, 0x1000, 0, 0),
            Err(Unsupported),
        ),
        (
            "unknown high flag",
            (1 << 31, 0, 0x1000, 0x1000, 0, 0),
            Err(Unsupported),
        ),
        ("reserved", (0, 1, 0x1000, 0x1000, 0, 0), Err(Unsupported)),
        (
            "unsupported before overflow",
            (1 << 6, 0, u64::MAX, 2, 0, 0),
            Err(Unsupported),
        ),
        (
            "wrap",
            (0, 0, u64::MAX - 0xfff, 0x2000, 0, 0),
            Err(Overflow),
        ),
        (
            "overflow before alignment",
            (0, 0, u64::MAX, 2, 0, 0),
            Err(Overflow),
        ),
        (
            "device address wraps",
            (
                PINMAP_REGISTER_FIXED,
                0,
                0x1000,
                0x2000,
                u64::MAX - 0xfff,
                0,
            ),
            Err(Overflow),
        ),
        ("length 0", (0, 0, 0x1000, 0, 0, 0), Err(Invalid)),
        (
            "length 0 at the top",
            (0, 0, u64::MAX, 0, 0, 0),
            Err(Invalid),
        ),
        (
            "address within a page",
            (0, 0, 0x1001, 0x1000, 0, 0),
            Err(Invalid),
        ),
        ("part of a page", (0, 0, 0x1000, 0xfff, 0, 0), Err(Invalid)),
        (
            "last user page",
            (0, 0, USER_LAST - 0xfff, 0x1000, 0, 0),
            Ok(()),
        ),
        (
            "beyond user space",
            (0, 0, USER_LAST - 0xfff, 0x2000, 0, 0),
            Err(Invalid),
        ),
        (
            "kernel address",
            (0, 0, 0xffff_8880_0000_0000, 0x1000, 0, 0),
            Err(Invalid),
        ),
        (
            "top of everything",
            (0, 0, u64::MAX - 0xfff, 0x1000, 0, 0),
            Err(Invalid),
        ),
        (
            "fixed",
            (PINMAP_REGISTER_FIXED, 0, 0x1000, 0x1000, 0x4000, 0),
            Ok(()),
        ),
        (
            "fixed within a page",
            (PINMAP_REGISTER_FIXED, 0, 0x1000, 0x1000, 0x4001, 0),
            Err(Invalid),
        ),
        (
            "fixed at 0",
            (PINMAP_REGISTER_FIXED, 0, 0x1000, 0x1000, 0, 0),
            Ok(()),
        ),
        (
            "address without fixed",
            (0, 0, 0x1000, 0x1000, 0x4000, 0),
            Err(Invalid),
        ),
        (
            "fixed and identity",
            (
                PINMAP_REGISTER_FIXED | PINMAP_REGISTER_IDENTITY,
                0,
                0x1000,
                0x1000,
                0x4000,
                0,
            ),
            Err(Invalid),
        ),
        (
            "identity and no map",
            (
                PINMAP_REGISTER_NO_MAP | PINMAP_REGISTER_IDENTITY,
                0,
                0x1000,
                0x1000,
                0,
                0,
            ),
            Err(Invalid),
        ),
        ("11 bits", (0, 0, 0x1000, 0x1000, 0, 11), Err(Invalid)),
        ("12 bits", (0, 0, 0x1000, 0x1000, 0, 12), Ok(())),
        ("64 bits", (0, 0, 0x1000, 0x1000, 0, 64), Ok(())),
        ("65 bits", (0, 0, 0x1000, 0x1000, 0, 65), Err(Invalid)),
    ];
    for (name, (flags, reserved, address, length, device, bits), want) in table {
        let got = register(
            &args(flags, reserved, address, length, device, bits),
            USER_LAST,
        );
        assert_eq!(got.map(|_| ()), want, "{name}");
    }
}

#[test]
fn register_says_where() {
    let placement = |flags, device| {
        register(&args(flags, 0, 0x5000, 0x1000, device, 28), USER_LAST)
            .unwrap()
            .target
    };
    assert_eq!(
        placement(0, 0),
        Some(Target {
            placement: Placement::Near(0x5000),
            address_bits: 28
        })
    );
    assert_eq!(
        placement(PINMAP_REGISTER_IDENTITY, 0),
        Some(Target {
            placement: Placement::Fixed(0x5000),
            address_bits: 28
        })
    );
    assert_eq!(
        placement(PINMAP_REGISTER_FIXED, 0x9000),
        Some(Target {
            placement: Placement::Fixed(0x9000),
            address_bits: 28
        })
    );
    assert_eq!(placement(PINMAP_REGISTER_NO_MAP, 0), None);
    assert!(
        register(
            &args(PINMAP_REGISTER_WRITE, 0, 0x5000, 0x1000, 0, 0),
            USER_LAST
        )
        .unwrap()
        .write
    );
}

#[test]
fn map_edges() {
    assert_eq!(map(4, 0, 0, 0), Err(Refusal::Unsupported));
    assert_eq!(map(0, 1, 0, 0), Err(Refusal::Unsupported));
    assert_eq!(map(0, 0, 0x1000, 0), Err(Refusal::Invalid));
    assert_eq!(map(PINMAP_MAP_FIXED, 0, 0x1001, 0), Err(Refusal::Invalid));
    assert_eq!(
        map(MAP_FLAGS, 0, 0x1000, 40),
        Ok(MapPlan {
            write: true,
            fixed: Some(0x1000),
            address_bits: 40
        })
    );
    assert_eq!(
        map(0, 0, 0, 0),
        Ok(MapPlan {
            write: false,
            fixed: None,
            address_bits: 64
        })
    );
}

#[test]
fn register_fd_edges() {
    use Refusal::{Invalid, Overflow, Unsupported};
    let table = [
        (0, 0, 4096, 0, Ok(Some(Placement::Near(0)))),
        (
            PINMAP_REGISTER_WRITE | PINMAP_REGISTER_INTERRUPTIBLE,
            1 << 40,
            8192,
            0,
            Ok(Some(Placement::Near(1 << 40))),
        ),
        (
            PINMAP_REGISTER_FIXED,
            4096,
            4096,
            1 << 20,
            Ok(Some(Placement::Fixed(1 << 20))),
        ),
        (PINMAP_REGISTER_NO_MAP, 4096, 4096, 0, Ok(None)),
        (PINMAP_REGISTER_IDENTITY, 0, 4096, 0, Err(Unsupported)),
        (
            PINMAP_REGISTER_PORTABLE,
            4096,
            4096,
            0,
            Ok(Some(Placement::Near(4096))),
        ),
        (
            PINMAP_REGISTER_PORTABLE | PINMAP_REGISTER_NO_MAP,
            0,
            4096,
            0,
            Err(Invalid),
        ),
        (1 << 31, 0, 4096, 0, Err(Unsupported)),
        (0, 0, 0, 0, Err(Invalid)),
        (0, 1, 4096, 0, Err(Invalid)),
        (0, 0, 4097, 0, Err(Invalid)),
        (
            0,
            i64::MAX as u64 - 4095,
            4096,
            0,
            Ok(Some(Placement::Near(i64::MAX as u64 - 4095))),
        ),
        (0, 1 << 63, 4096, 0, Err(Invalid)),
        (0, u64::MAX - 4095, 8192, 0, Err(Overflow)),
    ];
    for (flags, offset, length, device, want) in table {
        let got = register_fd(flags, offset, length, device, 0);
        let got = got.map(|plan| plan.target.map(|target| target.placement));
        assert_eq!(got, want, "{flags} {offset:#x} {length:#x}");
    }
}

#[test]
fn alloc_edges() {
    let table = [
        (0, 0x1000, Ok(false)),
        (PINMAP_ALLOC_VRAM, 1 << 40, Ok(true)),
        (PINMAP_ALLOC_WRITE_COMBINED, 0x1000, Ok(false)),
        (
            PINMAP_ALLOC_NODE | PINMAP_ALLOC_WRITE_COMBINED,
            0x1000,
            Ok(false),
        ),
        (PINMAP_ALLOC_PORTABLE, 1 << 40, Ok(false)),
        (
            PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_WRITE_COMBINED,
            0x1000,
            Ok(false),
        ),
        (
            PINMAP_ALLOC_VRAM | PINMAP_ALLOC_WRITE_COMBINED,
            0x1000,
            Err(Refusal::Invalid),
        ),
        (
            PINMAP_ALLOC_VRAM | PINMAP_ALLOC_NODE,
            0x1000,
            Err(Refusal::Invalid),
        ),
        (
            PINMAP_ALLOC_VRAM | PINMAP_ALLOC_PORTABLE,
            1 << 40,
            Err(Refusal::Invalid),
        ),
        (1 << 31, 0x1000, Err(Refusal::Unsupported)),
        (1 << 31, 0, Err(Refusal::Unsupported)),
        (0, 0, Err(Refusal::Invalid)),
        (0, 0x1001, Err(Refusal::Invalid)),
        (0, u64::MAX, Err(Refusal::Invalid)),
    ];
    for (flags, length, want) in table {
        let got = alloc(flags, 0, length, 0);
        assert_eq!(got.map(|plan| plan.vram), want, "{flags} {length:#x}");
        if let Ok(plan) = got {
            assert_eq!(plan.portable, flags & PINMAP_ALLOC_PORTABLE != 0);
            assert_eq!(plan.span.length(), length);
            assert_eq!(
                plan.write_combined,
                flags & PINMAP_ALLOC_WRITE_COMBINED != 0
            );
            assert_eq!(plan.node, (flags & PINMAP_ALLOC_NODE != 0).then_some(0));
        }
    }
    assert_eq!(alloc(0, 1, 0x1000, 0), Err(Refusal::Unsupported));
    assert_eq!(alloc(ALLOC_FLAGS + 1, 0, 0, 1), Err(Refusal::Unsupported));
    assert_eq!(alloc(0, 0, 0x1000, 1), Err(Refusal::Invalid));
    let node = alloc(PINMAP_ALLOC_NODE, 0, 0x1000, u32::MAX).map(|plan| plan.node);
    assert_eq!(node, Ok(Some(u32::MAX)));
}

#[test]
fn sync_edges() {
    let table = [
        (PINMAP_SYNC_FOR_CPU, 0, 1, Ok(false)),
        (PINMAP_SYNC_FOR_DEVICE, u64::MAX, 1, Ok(false)),
        (SYNC_FLAGS, 1, u64::MAX, Ok(true)),
        (PINMAP_SYNC_FOR_CPU, 0, 0, Err(Refusal::Invalid)),
        (0, 0, 1, Err(Refusal::Invalid)),
        (PINMAP_SYNC_NO_SNOOP, 0, 1, Err(Refusal::Invalid)),
        (PINMAP_SYNC_FOR_CPU, 1, u64::MAX, Ok(false)),
        (PINMAP_SYNC_FOR_CPU, 2, u64::MAX, Err(Refusal::Overflow)),
        (SYNC_FLAGS + 1, 2, u64::MAX, Err(Refusal::Unsupported)),
    ];
    for (flags, offset, length, want) in table {
        let got = sync(flags, offset, length);
        assert_eq!(got.map(|plan| plan.always), want, "{flags} {offset:#x}");
        if let Ok(plan) = got {
            assert_eq!((plan.part.start(), plan.part.length()), (offset, length));
        }
    }
}

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

#[test]
fn map_says_where() {
    let buffer = Span::new(0x5000, 0x2000).unwrap();
    let plan = |fixed| MapPlan {
        write: false,
        fixed,
        address_bits: 48,
    };
    let placement = |fixed| plan(fixed).target(buffer).map(|target| target.placement);
    assert_eq!(placement(None), Ok(Placement::Near(0x5000)));
    assert_eq!(placement(Some(0x9000)), Ok(Placement::Fixed(0x9000)));
    assert_eq!(
        placement(Some(u64::MAX - 0x1fff)),
        Ok(Placement::Fixed(u64::MAX - 0x1fff))
    );
    assert_eq!(placement(Some(u64::MAX - 0xfff)), Err(Refusal::Overflow));
}
