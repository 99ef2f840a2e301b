// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of transfers, before anything is begun.

use std::os::fd::AsRawFd;

use pinmap::{Access, Device};

use crate::discovery::{ChannelInfo, Direction};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::transfer::Transfer;

/// Lengths on streams are multiples of this, but for the end of a packet to the card (PG195, "DMA
/// C2H Stream"). The data path is not wider.
const STREAM_UNIT: usize = 64;

fn invalid<T>(words: String) -> Result<T> {
    Err(Error::Invalid(words))
}

impl<M: Memory> Transfer<M> {
    /// Checks the transfer for a channel of a device, with so many bytes for a descriptor.
    pub(crate) fn check(&self, device: &Device, info: &ChannelInfo, piece: usize) -> Result<()> {
        let (part, len) = (&self.part, self.memory.len());
        if part.is_empty() || part.end > len {
            return invalid(format!("the bytes {part:?} are none of {len} bytes"));
        }
        // A context has one file, however many there are of its `Device`.
        if self.memory.device().as_raw_fd() != device.as_raw_fd() {
            return invalid(format!("the memory is of {}", self.memory.device()));
        }
        if info.direction == Direction::C2h && self.memory.access() != Access::ReadWrite {
            return invalid("the card may only read this memory (Access::Read)".into());
        }
        self.target(info, part.len(), piece)
    }

    /// Checks the card's side.
    fn target(&self, info: &ChannelInfo, bytes: usize, piece: usize) -> Result<()> {
        match self.at {
            Some(_) if info.stream => invalid(format!("{info} is a stream, without addresses")),
            None if !info.stream => invalid(format!(
                "{info} is memory-mapped: the transfer needs an address"
            )),
            None => self.stream(info, bytes, piece),
            Some(at) => check_mapped(info, at, bytes),
        }
    }

    fn stream(&self, info: &ChannelInfo, bytes: usize, piece: usize) -> Result<()> {
        let receives = info.direction == Direction::C2h;
        if self.fixed {
            return invalid(format!("{info} is a stream, without addresses"));
        }
        if (receives || !self.ends) && bytes % STREAM_UNIT != 0 {
            return invalid(format!("{bytes} bytes are no multiple of {STREAM_UNIT}"));
        }
        if receives && bytes > piece {
            return invalid(format!("{bytes} bytes of a stream are more than {piece}"));
        }
        Ok(())
    }
}

fn check_mapped(info: &ChannelInfo, at: u64, bytes: usize) -> Result<()> {
    let bits = info.address_bits;
    let last = at.checked_add(bytes as u64 - 1);
    if last.is_none_or(|last| last > u64::MAX >> (64 - bits)) {
        return invalid(format!(
            "{bytes} bytes at {at:#x} are not in {bits} bits of addresses"
        ));
    }
    let unit = info.granularity;
    if bytes % unit != 0 {
        return invalid(format!(
            "{bytes} bytes are no multiple of {unit}, as {info} needs"
        ));
    }
    Ok(())
}

/// Checks that an address of memory fits the card's address. If that stays the same for all bytes,
/// both have to be aligned.
pub(crate) fn check_alignment(info: &ChannelInfo, memory: u64, at: u64, fixed: bool) -> Result<()> {
    let unit = info.alignment;
    if fixed && (memory | at) % unit as u64 != 0 {
        return invalid(format!(
            "memory at {memory:#x} and the card's fixed {at:#x} are no multiples of {unit}"
        ));
    }
    if (memory ^ at) % unit as u64 != 0 {
        return invalid(format!(
            "memory at {memory:#x} and the card's {at:#x} differ below {unit}, as {info} cannot"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(alignments: u32) -> ChannelInfo {
        ChannelInfo::of(Direction::H2c, 0, 0x1fc0_0006, alignments)
    }

    fn is_invalid(result: Result<()>, words: &str) -> bool {
        matches!(result, Err(Error::Invalid(said)) if said.contains(words))
    }

    #[test]
    fn bytes_and_addresses_fit_the_channel() {
        let (any, narrow) = (info(0), info(0x0008_0420));
        assert!(check_mapped(&any, u64::MAX - 2, 3).is_ok());
        assert!(is_invalid(check_mapped(&any, u64::MAX, 2), "64 bits"));
        assert!(check_mapped(&narrow, 0xffff_fffc, 4).is_ok());
        assert!(is_invalid(check_mapped(&narrow, 0xffff_fffc, 8), "32 bits"));
        assert!(is_invalid(check_mapped(&narrow, 0, 6), "no multiple of 4"));
    }

    #[test]
    fn both_sides_are_aligned_alike() {
        let info = info(0x0008_0120);
        assert!(check_alignment(&info, 0x1003, 0x2b, false).is_ok());
        assert!(is_invalid(
            check_alignment(&info, 0x1003, 0x2c, false),
            "differ below 8"
        ));
        assert!(is_invalid(
            check_alignment(&info, 0x1003, 0x2b, true),
            "no multiples of 8"
        ));
        assert!(check_alignment(&info, 0x1008, 0x10, true).is_ok());
    }
}
