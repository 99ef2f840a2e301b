// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller memory buffer (CMB): memory of the controller, from which it takes commands
//! quicker than from the program's. Each queue that it can have has the same part of it.
//!
//! From NVM Express 1.4 on, the host chooses the addresses by which commands and queues name the
//! buffer: here the upper half of 64 bits, where no memory is. Older controllers name it by its
//! addresses on the bus, where the program can have memory as well, so theirs is not used.

use std::ops::Range;

use pinmap::{Bar, Device};

use crate::entry::Entry;
use crate::error::{demand, Result};
use crate::registers::Block;
use crate::PAGE;

/// The first address of the buffer.
const BASE: u64 = 1 << 63;
/// Bits of the control register: the other registers tell where the buffer is; it is used.
const TOLD: u64 = 1;
const USED: u64 = 2;

/// The part of a BAR that is the buffer.
#[derive(Debug)]
pub(crate) struct Cmb(Bar);

impl Cmb {
    /// Finds the buffer, if the controller has one for commands that the program can map.
    pub(crate) fn find(device: &Device, block: &Block) -> Option<Self> {
        // Whether there are registers for it as NVM Express 1.4 has them.
        if block.capabilities().read() & (1 << 57) == 0 {
            return None;
        }
        block.cmb_control().write(TOLD);
        let (bar, bytes) = bytes(block.cmb_location().read(), block.cmb_size().read())?;
        let bar = device.bar(bar).ok()?;
        let cmb = Self(bar.window(bytes.start..bytes.end.min(bar.len())).ok()?);
        cmb.begin(block);
        // Bit 0: the controller cannot have it at these addresses.
        (block.cmb_status().read() & 1 == 0).then_some(cmb)
    }

    /// Has the controller use the buffer, also after a reset.
    pub(crate) fn begin(&self, block: &Block) {
        block.cmb_control().write(BASE | USED | TOLD);
    }

    /// The place of so many commands of one of the queues, and its address.
    pub(crate) fn place(&self, queue: u16, queues: usize, entries: u16) -> Result<(Bar, u64)> {
        let len = self.0.len() / queues as u64 / PAGE as u64 * PAGE as u64;
        let most = (len / size_of::<Entry>() as u64).saturating_sub(1);
        demand!(Unsupported, u64::from(entries) <= most + 1 =>
            "memory of its own for {most} commands in flight of each queue");
        let at = u64::from(queue - 1) * len;
        let part = self.0.window(at..at + len)?;
        // The table of interrupt vectors may be in the midst of it.
        part.as_mut_ptr(0, len as usize)?;
        Ok((part, BASE + at))
    }
}

/// The number of the BAR, and the bytes in it, that the registers tell, if commands can be there.
fn bytes(location: u32, size: u32) -> Option<(usize, Range<u64>)> {
    let unit = 4096u64 << (4 * ((size >> 8) & 15)).min(24);
    let start = u64::from(location >> 12) * unit;
    let end = start + u64::from(size >> 12) * unit;
    (size & 1 != 0 && start < end).then_some(((location & 7) as usize, start..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_tell_where_the_buffer_is() {
        assert_eq!(bytes(0x2, 0x0000_121d), Some((2, 0..1 << 20)));
        assert_eq!(bytes(0x3004, 0x2001), Some((4, 0x3000..0x5000)));
        assert_eq!(bytes(0, 0), None);
        // For data alone.
        assert_eq!(bytes(2, 0x0000_1218), None);
    }
}
