// SPDX-License-Identifier: GPL-2.0
//! Raw arguments of REGISTER and MAP, checked in the order that the ABI promises: unsupported,
//! overflow, invalid.

use super::{is_page_aligned, place::Wish, span::Span, Refusal, PAGE_SHIFT};
use crate::sys::uapi::{
    PINMAP_ALLOC_NODE, PINMAP_ALLOC_PORTABLE, PINMAP_ALLOC_VRAM, PINMAP_ALLOC_WRITE_COMBINED,
    PINMAP_MAP_FIXED, PINMAP_MAP_WRITE, PINMAP_REGISTER_FIXED, PINMAP_REGISTER_IDENTITY,
    PINMAP_REGISTER_INTERRUPTIBLE, PINMAP_REGISTER_NO_MAP, PINMAP_REGISTER_PORTABLE,
    PINMAP_REGISTER_WRITE, PINMAP_SYNC_FOR_CPU, PINMAP_SYNC_FOR_DEVICE, PINMAP_SYNC_NO_SNOOP,
};

/// The flags that REGISTER knows.
const REGISTER_FLAGS: u32 = PINMAP_REGISTER_WRITE
    | PINMAP_REGISTER_NO_MAP
    | PINMAP_REGISTER_FIXED
    | PINMAP_REGISTER_IDENTITY
    | PINMAP_REGISTER_PORTABLE
    | PINMAP_REGISTER_INTERRUPTIBLE;
/// The flags that MAP knows.
const MAP_FLAGS: u32 = PINMAP_MAP_WRITE | PINMAP_MAP_FIXED;
/// The flags that ALLOC knows.
const ALLOC_FLAGS: u32 =
    PINMAP_ALLOC_VRAM | PINMAP_ALLOC_WRITE_COMBINED | PINMAP_ALLOC_NODE | PINMAP_ALLOC_PORTABLE;
/// The flags that SYNC knows.
const SYNC_FLAGS: u32 = PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_FOR_CPU | PINMAP_SYNC_NO_SNOOP;

/// Placement of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Address that was asked for.
    pub wish: Wish,
    /// Address bits that the device can drive.
    pub bits: u32,
}

/// Checked arguments of REGISTER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterPlan {
    /// Range of user memory, in whole pages.
    pub span: Span,
    /// Whether the device may write.
    pub write: bool,
    /// Placement of the mapping, if the memory is to be mapped.
    pub target: Option<Target>,
    /// Whether any signal ends the call.
    pub interruptible: bool,
    /// Whether every device that the process has open gets the memory.
    pub portable: bool,
}

/// Checked arguments of MAP, except for those that depend on the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPlan {
    /// Whether the device may write.
    pub write: bool,
    /// Demanded address, if there is one.
    pub fixed: Option<u64>,
    /// Address bits that the device can drive.
    pub bits: u32,
}

impl MapPlan {
    /// Returns the placement for a buffer with these user addresses.
    pub fn target(self, buffer: Span) -> Result<Target, Refusal> {
        let wish = match self.fixed {
            Some(fixed) => {
                Span::new(fixed, buffer.length())?;
                Wish::Exactly(fixed)
            }
            None => Wish::Near(buffer.start()),
        };
        Ok(Target {
            wish,
            bits: self.bits,
        })
    }
}

/// Checks the arguments of REGISTER. `user_last` is the last address of user space.
pub fn register(
    flags: u32,
    reserved: u32,
    address: u64,
    length: u64,
    device_address: u64,
    address_bits: u32,
    user_last: u64,
) -> Result<RegisterPlan, Refusal> {
    if flags & !REGISTER_FLAGS != 0 || reserved != 0 {
        return Err(Refusal::Unsupported);
    }
    // Length 0 is invalid and no overflow, and the check for it comes after the overflows.
    if length != 0 {
        Span::new(address, length)?;
        if flags & PINMAP_REGISTER_FIXED != 0 {
            Span::new(device_address, length)?;
        }
    }
    let span = Span::new(address, length)?;
    let one_way = (flags
        & (PINMAP_REGISTER_NO_MAP | PINMAP_REGISTER_FIXED | PINMAP_REGISTER_IDENTITY))
        .count_ones()
        <= 1
        && flags & (PINMAP_REGISTER_NO_MAP | PINMAP_REGISTER_PORTABLE)
            != PINMAP_REGISTER_NO_MAP | PINMAP_REGISTER_PORTABLE;
    if !span.is_whole_pages() || span.last() > user_last || !one_way {
        return Err(Refusal::Invalid);
    }
    let bits = check_bits(address_bits)?;
    let wish = match check_fixed(flags & PINMAP_REGISTER_FIXED != 0, device_address)? {
        Some(fixed) => Wish::Exactly(fixed),
        None if flags & PINMAP_REGISTER_IDENTITY != 0 => Wish::Exactly(address),
        None => Wish::Near(address),
    };
    let target = (flags & PINMAP_REGISTER_NO_MAP == 0).then_some(Target { wish, bits });
    Ok(RegisterPlan {
        span,
        write: flags & PINMAP_REGISTER_WRITE != 0,
        target,
        interruptible: flags & PINMAP_REGISTER_INTERRUPTIBLE != 0,
        portable: flags & PINMAP_REGISTER_PORTABLE != 0,
    })
}

/// Checks the arguments of REGISTER_FD. The span is one of offsets in the file.
pub fn register_fd(
    flags: u32,
    offset: u64,
    length: u64,
    device_address: u64,
    address_bits: u32,
) -> Result<RegisterPlan, Refusal> {
    // A part of a file has no user address to be identical to.
    if flags & PINMAP_REGISTER_IDENTITY != 0 {
        return Err(Refusal::Unsupported);
    }
    let last = i64::MAX as u64;
    register(flags, 0, offset, length, device_address, address_bits, last)
}

/// Checks the arguments of MAP that do not depend on the buffer.
pub fn map(
    flags: u32,
    reserved: u32,
    device_address: u64,
    address_bits: u32,
) -> Result<MapPlan, Refusal> {
    if flags & !MAP_FLAGS != 0 || reserved != 0 {
        return Err(Refusal::Unsupported);
    }
    let bits = check_bits(address_bits)?;
    let fixed = check_fixed(flags & PINMAP_MAP_FIXED != 0, device_address)?;
    Ok(MapPlan {
        write: flags & PINMAP_MAP_WRITE != 0,
        fixed,
        bits,
    })
}

/// Checked arguments of ALLOC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocPlan {
    /// User addresses of the buffer, which begin at 0 because it has none yet.
    pub span: Span,
    /// Whether VRAM is wanted.
    pub local: bool,
    /// Whether the memory is write-combined.
    pub write_combined: bool,
    /// NUMA node of the memory, if one was demanded.
    pub node: Option<u32>,
    /// Whether every device that the process has open gets the memory.
    pub portable: bool,
}

/// Checks the arguments of ALLOC.
pub fn alloc(flags: u32, reserved: u32, length: u64, node: u32) -> Result<AllocPlan, Refusal> {
    if flags & !ALLOC_FLAGS != 0 || reserved != 0 {
        return Err(Refusal::Unsupported);
    }
    let span = Span::new(0, length)?;
    let local = flags & PINMAP_ALLOC_VRAM != 0;
    let on_node = flags & PINMAP_ALLOC_NODE != 0;
    // No other device can have a device's VRAM, and the flags of host memory mean nothing there.
    let of_hosts =
        flags & (PINMAP_ALLOC_WRITE_COMBINED | PINMAP_ALLOC_NODE | PINMAP_ALLOC_PORTABLE) != 0;
    if !span.is_whole_pages() || local && of_hosts || !on_node && node != 0 {
        return Err(Refusal::Invalid);
    }
    Ok(AllocPlan {
        span,
        local,
        write_combined: flags & PINMAP_ALLOC_WRITE_COMBINED != 0,
        node: on_node.then_some(node),
        portable: flags & PINMAP_ALLOC_PORTABLE != 0,
    })
}

/// Checked arguments of SYNC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPlan {
    /// Part of the buffer.
    pub part: Span,
    /// Whether to flush even if DMA is coherent.
    pub always: bool,
}

/// Checks the arguments of SYNC that do not depend on the buffer.
pub fn sync(flags: u32, offset: u64, length: u64) -> Result<SyncPlan, Refusal> {
    if flags & !SYNC_FLAGS != 0 {
        return Err(Refusal::Unsupported);
    }
    let part = Span::new(offset, length)?;
    if flags & (PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_FOR_CPU) == 0 {
        return Err(Refusal::Invalid);
    }
    Ok(SyncPlan {
        part,
        always: flags & PINMAP_SYNC_NO_SNOOP != 0,
    })
}

/// Checks a number of address bits. 0 stands for all bits; fewer bits than a page offset has are
/// invalid.
fn check_bits(bits: u32) -> Result<u32, Refusal> {
    match bits {
        0 => Ok(u64::BITS),
        PAGE_SHIFT..=64 => Ok(bits),
        _ => Err(Refusal::Invalid),
    }
}

fn check_fixed(fixed: bool, device_address: u64) -> Result<Option<u64>, Refusal> {
    match (fixed, device_address) {
        (false, 0) => Ok(None),
        (true, address) if is_page_aligned(address) => Ok(Some(address)),
        _ => Err(Refusal::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USER_LAST: u64 = 0x7fff_ffff_efff;

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
            let got = register(flags, reserved, address, length, device, bits, USER_LAST);
            assert_eq!(got.map(|_| ()), want, "{name}");
        }
    }

    #[test]
    fn register_says_where() {
        let wish = |flags, device| {
            register(flags, 0, 0x5000, 0x1000, device, 28, USER_LAST)
                .unwrap()
                .target
        };
        assert_eq!(
            wish(0, 0),
            Some(Target {
                wish: Wish::Near(0x5000),
                bits: 28
            })
        );
        assert_eq!(
            wish(PINMAP_REGISTER_IDENTITY, 0),
            Some(Target {
                wish: Wish::Exactly(0x5000),
                bits: 28
            })
        );
        assert_eq!(
            wish(PINMAP_REGISTER_FIXED, 0x9000),
            Some(Target {
                wish: Wish::Exactly(0x9000),
                bits: 28
            })
        );
        assert_eq!(wish(PINMAP_REGISTER_NO_MAP, 0), None);
        assert!(
            register(PINMAP_REGISTER_WRITE, 0, 0x5000, 0x1000, 0, 0, USER_LAST)
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
                bits: 40
            })
        );
        assert_eq!(
            map(0, 0, 0, 0),
            Ok(MapPlan {
                write: false,
                fixed: None,
                bits: 64
            })
        );
    }

    #[test]
    fn register_fd_edges() {
        use Refusal::{Invalid, Overflow, Unsupported};
        let table = [
            (0, 0, 4096, 0, Ok(Some(Wish::Near(0)))),
            (
                PINMAP_REGISTER_WRITE | PINMAP_REGISTER_INTERRUPTIBLE,
                1 << 40,
                8192,
                0,
                Ok(Some(Wish::Near(1 << 40))),
            ),
            (
                PINMAP_REGISTER_FIXED,
                4096,
                4096,
                1 << 20,
                Ok(Some(Wish::Exactly(1 << 20))),
            ),
            (PINMAP_REGISTER_NO_MAP, 4096, 4096, 0, Ok(None)),
            (PINMAP_REGISTER_IDENTITY, 0, 4096, 0, Err(Unsupported)),
            (
                PINMAP_REGISTER_PORTABLE,
                4096,
                4096,
                0,
                Ok(Some(Wish::Near(4096))),
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
                Ok(Some(Wish::Near(i64::MAX as u64 - 4095))),
            ),
            (0, 1 << 63, 4096, 0, Err(Invalid)),
            (0, u64::MAX - 4095, 8192, 0, Err(Overflow)),
        ];
        for (flags, offset, length, device, want) in table {
            let got = register_fd(flags, offset, length, device, 0);
            let got = got.map(|plan| plan.target.map(|target| target.wish));
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
            assert_eq!(got.map(|plan| plan.local), want, "{flags} {length:#x}");
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

    #[test]
    fn map_says_where() {
        let buffer = Span::new(0x5000, 0x2000).unwrap();
        let plan = |fixed| MapPlan {
            write: false,
            fixed,
            bits: 48,
        };
        let wish = |fixed| plan(fixed).target(buffer).map(|target| target.wish);
        assert_eq!(wish(None), Ok(Wish::Near(0x5000)));
        assert_eq!(wish(Some(0x9000)), Ok(Wish::Exactly(0x9000)));
        assert_eq!(
            wish(Some(u64::MAX - 0x1fff)),
            Ok(Wish::Exactly(u64::MAX - 0x1fff))
        );
        assert_eq!(wish(Some(u64::MAX - 0xfff)), Err(Refusal::Overflow));
    }

    proptest! {
        #[test]
        fn a_plan_is_sound(flags in 0u32..32, address: u64, length: u64, device: u64, bits in 0u32..70, align: bool) {
            let mask = if align { !0xfff } else { !0 };
            if let Ok(plan) = register(flags, 0, address & mask, length & mask, device & mask, bits, USER_LAST) {
                prop_assert!(plan.span.is_whole_pages() && plan.span.last() <= USER_LAST);
                prop_assert_eq!(plan.span.length(), length & mask);
                prop_assert_eq!(plan.target.is_none(), flags & PINMAP_REGISTER_NO_MAP != 0);
            }
        }
    }
}
