// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registers of a controller (NVM Express Base Specification, "Controller Properties").

use std::time::Duration;

use crate::error::{demand, Error, Result};

pinmap::registers! {
    /// The registers before the doorbells.
    pub(crate) struct Block: 0x5c {
        0x00 => capabilities: ReadOnly<u64>,
        0x08 => version: ReadOnly<u32>,
        0x14 => configuration: ReadWrite<u32>,
        0x1c => status: ReadOnly<u32>,
        0x24 => admin_entries: WriteOnly<u32>,
        0x28 => admin_submissions: WriteOnly<u64>,
        0x30 => admin_completions: WriteOnly<u64>,
        0x38 => cmb_location: ReadOnly<u32>,
        0x3c => cmb_size: ReadOnly<u32>,
        0x50 => cmb_control: WriteOnly<u64>,
        0x58 => cmb_status: ReadOnly<u32>,
    }
}

/// Offset of the first doorbell.
pub(crate) const DOORBELLS: usize = 0x1000;

/// Configuration: enabled, with pages of 4 KiB, entries of 64 and of 16 bytes, and the commands for
/// blocks.
pub(crate) const ENABLED: u32 = (4 << 20) | (6 << 16) | 1;
/// Configuration: the power will go.
pub(crate) const SHUT_DOWN: u32 = 1 << 14;

/// Status: the controller is ready; it has failed.
pub(crate) const READY: u32 = 1;
pub(crate) const FAILED: u32 = 1 << 1;

/// The capabilities that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Entries that a queue can have.
    pub(crate) entries: u32,
    /// How long enabling and disabling may take.
    pub(crate) patience: Duration,
    /// Bytes from one doorbell to the next.
    pub(crate) stride: usize,
}

impl Capabilities {
    /// Decodes the register.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`]: nobody answers; [`Error::Unsupported`]: the controller has no commands for
    /// blocks, or wants larger pages.
    pub(crate) fn of(register: u64) -> Result<Self> {
        let bits = |shift: u32, count: u32| (register >> shift) & ((1 << count) - 1);
        if register == u64::MAX {
            return Err(Error::Gone);
        }
        demand!(Unsupported, bits(37, 1) != 0 => "no commands for blocks");
        let smallest = 4096u64 << bits(48, 4);
        let is_ours = smallest == crate::PAGE as u64;
        demand!(Unsupported, is_ours => "no pages of 4096 bytes, but {smallest} and more");
        Ok(Self {
            // One fewer than there may be, so that numbers of them have 16 bits.
            entries: (bits(0, 16) as u32 + 1).min(0xffff),
            // In units of half a second; none says 0.
            patience: Duration::from_millis(500 * bits(24, 8).max(1)),
            stride: 4 << bits(32, 4),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_qemu() {
        let capabilities = Capabilities::of(0x0240_0820_0f01_07ff).expect("supported");
        assert_eq!(capabilities.entries, 2048);
        assert_eq!(capabilities.patience, Duration::from_millis(7500));
        assert_eq!(capabilities.stride, 4);
    }

    #[test]
    fn controllers_that_cannot_be_driven_are_refused() {
        let of = |register| Capabilities::of(register).expect_err("refused").to_string();
        assert_eq!(of(u64::MAX), Error::Gone.to_string());
        assert!(of(0x0f01_07ff).contains("commands for blocks"));
        assert!(of(0x0011_0020_0f01_07ff).contains("but 8192 and more"));
    }
}
