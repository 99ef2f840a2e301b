// SPDX-License-Identifier: GPL-2.0
//! Raw arguments of REGISTER and MAP, checked in the order that the ABI promises: unsupported,
//! overflow, invalid.

use super::{is_page_aligned, place::Placement, pte::Access, span::Span, Refusal, PAGE_SHIFT};
use crate::uapi::{
    PINMAP_ALLOC_NODE, PINMAP_ALLOC_P2PDMA, PINMAP_ALLOC_PORTABLE, PINMAP_ALLOC_VRAM,
    PINMAP_ALLOC_WRITE_COMBINED, PINMAP_MAP_EXECUTE, PINMAP_MAP_FIXED, PINMAP_MAP_WRITE,
    PINMAP_REGISTER_FIXED, PINMAP_REGISTER_IDENTITY, PINMAP_REGISTER_INTERRUPTIBLE,
    PINMAP_REGISTER_NO_MAP, PINMAP_REGISTER_PORTABLE, PINMAP_REGISTER_WRITE, PINMAP_SYNC_FOR_CPU,
    PINMAP_SYNC_FOR_DEVICE, PINMAP_SYNC_NO_SNOOP,
};

pub mod managed;

/// The flags that REGISTER knows.
const REGISTER_FLAGS: u32 = PINMAP_REGISTER_WRITE
    | PINMAP_REGISTER_NO_MAP
    | PINMAP_REGISTER_FIXED
    | PINMAP_REGISTER_IDENTITY
    | PINMAP_REGISTER_PORTABLE
    | PINMAP_REGISTER_INTERRUPTIBLE;
/// The flags that MAP knows.
const MAP_FLAGS: u32 = PINMAP_MAP_WRITE | PINMAP_MAP_FIXED | PINMAP_MAP_EXECUTE;
/// The flags that ALLOC knows.
const ALLOC_FLAGS: u32 = PINMAP_ALLOC_VRAM
    | PINMAP_ALLOC_WRITE_COMBINED
    | PINMAP_ALLOC_NODE
    | PINMAP_ALLOC_PORTABLE
    | PINMAP_ALLOC_P2PDMA;
/// The flags that SYNC knows.
const SYNC_FLAGS: u32 = PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_FOR_CPU | PINMAP_SYNC_NO_SNOOP;

/// Placement of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Address that was asked for.
    pub placement: Placement,
    /// Address bits that the device can drive.
    pub address_bits: u32,
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
    /// Access that the device may have.
    pub access: Access,
    /// Demanded address, if there is one.
    pub fixed: Option<u64>,
    /// Address bits that the device can drive.
    pub address_bits: u32,
}

impl MapPlan {
    /// Returns the placement for a buffer with these user addresses.
    pub fn target(self, buffer: Span) -> Result<Target, Refusal> {
        let placement = match self.fixed {
            Some(fixed) => {
                Span::new(fixed, buffer.length())?;
                Placement::Fixed(fixed)
            }
            None => Placement::Near(buffer.start()),
        };
        Ok(Target {
            placement,
            address_bits: self.address_bits,
        })
    }
}

/// Raw arguments of REGISTER, and of PREFLIGHT, which answers as REGISTER does.
#[derive(Clone, Copy, Debug)]
pub struct RegisterArgs {
    /// `PINMAP_REGISTER_` flags.
    pub flags: u32,
    /// The field that must be 0.
    pub reserved: u32,
    /// First address of user memory.
    pub address: u64,
    /// Bytes of user memory.
    pub length: u64,
    /// Demanded device address, with `PINMAP_REGISTER_FIXED`.
    pub device_address: u64,
    /// Address bits that the device can drive.
    pub address_bits: u32,
}

/// Checks the arguments of REGISTER. `user_last` is the last address of user space.
pub fn register(args: &RegisterArgs, user_last: u64) -> Result<RegisterPlan, Refusal> {
    let RegisterArgs {
        flags,
        reserved,
        address,
        length,
        device_address,
        address_bits,
    } = *args;
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
    let address_bits = check_bits(address_bits)?;
    let placement = match check_fixed(flags & PINMAP_REGISTER_FIXED != 0, device_address)? {
        Some(fixed) => Placement::Fixed(fixed),
        None if flags & PINMAP_REGISTER_IDENTITY != 0 => Placement::Fixed(address),
        None => Placement::Near(address),
    };
    let target = (flags & PINMAP_REGISTER_NO_MAP == 0).then_some(Target {
        placement,
        address_bits,
    });
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
    let args = RegisterArgs {
        flags,
        reserved: 0,
        address: offset,
        length,
        device_address,
        address_bits,
    };
    register(&args, i64::MAX as u64)
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
    let address_bits = check_bits(address_bits)?;
    let fixed = check_fixed(flags & PINMAP_MAP_FIXED != 0, device_address)?;
    let access = match (
        flags & PINMAP_MAP_EXECUTE != 0,
        flags & PINMAP_MAP_WRITE != 0,
    ) {
        (true, true) => return Err(Refusal::Invalid),
        (true, false) => Access::Fetch,
        (false, write) => Access::all(write),
    };
    Ok(MapPlan {
        access,
        fixed,
        address_bits,
    })
}

/// Checked arguments of ALLOC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocPlan {
    /// User addresses of the buffer, which begin at 0 because it has none yet.
    pub span: Span,
    /// Whether VRAM is wanted.
    pub vram: bool,
    /// Whether `mmap()` is to show P2PDMA pages of it.
    pub p2pdma: bool,
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
    let vram = flags & PINMAP_ALLOC_VRAM != 0;
    let on_node = flags & PINMAP_ALLOC_NODE != 0;
    // No other device can have a device's VRAM, and the flags of host memory mean nothing there.
    let of_hosts =
        flags & (PINMAP_ALLOC_WRITE_COMBINED | PINMAP_ALLOC_NODE | PINMAP_ALLOC_PORTABLE) != 0;
    let p2pdma = flags & PINMAP_ALLOC_P2PDMA != 0;
    let unfit = vram && of_hosts || p2pdma && !vram;
    if !span.is_whole_pages() || unfit || !on_node && node != 0 {
        return Err(Refusal::Invalid);
    }
    Ok(AllocPlan {
        span,
        vram,
        p2pdma,
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
mod tests;
