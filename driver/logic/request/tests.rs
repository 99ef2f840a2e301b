// SPDX-License-Identifier: GPL-2.0
//! The edges of each request.

use super::*;

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
    // Flags, the reserved field, the address, and the length.
    let table = [
        ((0, 0, 0x1000, 0x1000), Ok(())),
        ((1 << 6, 0, 0x1000, 0x1000), Err(Unsupported)),
        ((1 << 31, 0, 0x1000, 0x1000), Err(Unsupported)),
        ((0, 1, 0x1000, 0x1000), Err(Unsupported)),
        // In the order that is promised: unsupported, overflow, invalid.
        ((1 << 6, 0, u64::MAX, 2), Err(Unsupported)),
        ((0, 0, u64::MAX, 2), Err(Overflow)),
        ((0, 0, u64::MAX - 0xfff, 0x2000), Err(Overflow)),
        ((0, 0, 0x1000, 0), Err(Invalid)),
        ((0, 0, u64::MAX, 0), Err(Invalid)),
        ((0, 0, 0x1001, 0x1000), Err(Invalid)),
        ((0, 0, 0x1000, 0xfff), Err(Invalid)),
        // The end of user space, and beyond.
        ((0, 0, USER_LAST - 0xfff, 0x1000), Ok(())),
        ((0, 0, USER_LAST - 0xfff, 0x2000), Err(Invalid)),
        ((0, 0, 0xffff_8880_0000_0000, 0x1000), Err(Invalid)),
        ((0, 0, u64::MAX - 0xfff, 0x1000), Err(Invalid)),
    ];
    for ((flags, reserved, address, length), want) in table {
        let got = register(&args(flags, reserved, address, length, 0, 0), USER_LAST);
        assert_eq!(got.map(|_| ()), want, "{flags:#x} {address:#x} {length:#x}");
    }
    let (fixed, identity) = (PINMAP_REGISTER_FIXED, PINMAP_REGISTER_IDENTITY);
    // Flags, the length, the device address, and its bits.
    let table = [
        ((fixed, 0x2000, u64::MAX - 0xfff, 0), Err(Overflow)),
        ((fixed, 0x1000, 0x4000, 0), Ok(())),
        ((fixed, 0x1000, 0x4001, 0), Err(Invalid)),
        ((fixed, 0x1000, 0, 0), Ok(())),
        ((0, 0x1000, 0x4000, 0), Err(Invalid)),
        ((fixed | identity, 0x1000, 0x4000, 0), Err(Invalid)),
        (
            (PINMAP_REGISTER_NO_MAP | identity, 0x1000, 0, 0),
            Err(Invalid),
        ),
        ((0, 0x1000, 0, 11), Err(Invalid)),
        ((0, 0x1000, 0, 12), Ok(())),
        ((0, 0x1000, 0, 64), Ok(())),
        ((0, 0x1000, 0, 65), Err(Invalid)),
    ];
    for ((flags, length, device, bits), want) in table {
        let got = register(&args(flags, 0, 0x1000, length, device, bits), USER_LAST);
        assert_eq!(got.map(|_| ()), want, "{flags:#x} {device:#x} {bits}");
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
    assert_eq!(map(8, 0, 0, 0), Err(Refusal::Unsupported));
    assert_eq!(map(MAP_FLAGS, 0, 0x1000, 40), Err(Refusal::Invalid));
    assert_eq!(map(0, 1, 0, 0), Err(Refusal::Unsupported));
    assert_eq!(map(0, 0, 0x1000, 0), Err(Refusal::Invalid));
    assert_eq!(map(PINMAP_MAP_FIXED, 0, 0x1001, 0), Err(Refusal::Invalid));
    assert_eq!(
        map(PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, 0, 0x1000, 40),
        Ok(MapPlan {
            access: Access::Atomic,
            fixed: Some(0x1000),
            address_bits: 40
        })
    );
    assert_eq!(
        map(PINMAP_MAP_EXECUTE, 0, 0, 0).map(|plan| plan.access),
        Ok(Access::Fetch)
    );
    assert_eq!(
        map(0, 0, 0, 0),
        Ok(MapPlan {
            access: Access::Read,
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
        (PINMAP_ALLOC_VRAM | PINMAP_ALLOC_P2PDMA, 0x1000, Ok(true)),
        (PINMAP_ALLOC_P2PDMA, 0x1000, Err(Refusal::Invalid)),
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
            assert_eq!(plan.p2pdma, flags & PINMAP_ALLOC_P2PDMA != 0);
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

#[test]
fn map_says_where() {
    let buffer = Span::new(0x5000, 0x2000).unwrap();
    let plan = |fixed| MapPlan {
        access: Access::Read,
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
