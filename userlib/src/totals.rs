// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory a device, or one of its contexts, has.

use std::os::fd::AsFd;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::ioctl;
use crate::sys;

/// How much there is of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Total {
    /// How many of them.
    pub number: u64,
    /// Bytes of all of them; what is mapped twice counts twice.
    pub bytes: u64,
}

/// How much memory is in use. The numbers are of different moments where other programs are at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Contexts that are open, with the one that asks.
    pub contexts: u32,
    /// Registered memory, as long as it is pinned.
    pub pinned: Total,
    /// Host memory that the driver allocated.
    pub allocated: Total,
    /// Memory of the device's own.
    pub vram: Total,
    /// Memory that belongs to somebody else.
    pub shared: Total,
    /// What the device can reach.
    pub mapped: Total,
    /// Registrations whose memory went away, and that were not released yet.
    pub stale: Total,
}

impl Totals {
    fn from_abi(args: &sys::pinmap_get_totals) -> Self {
        let total = |total: sys::pinmap_total| Total {
            number: total.number,
            bytes: total.bytes,
        };
        Self {
            contexts: args.out_contexts,
            pinned: total(args.out_pinned),
            allocated: total(args.out_allocated),
            vram: total(args.out_vram),
            shared: total(args.out_shared),
            mapped: total(args.out_mapped),
            stale: total(args.out_stale),
        }
    }
}

impl Device {
    /// What all contexts of the device have together, those of other programs included.
    ///
    /// # Errors
    ///
    /// `ENOTTY`: the driver is older than this crate.
    pub fn totals(&self) -> Result<Totals> {
        self.get_totals(0)
    }

    /// What this context has.
    ///
    /// # Errors
    ///
    /// As for [`totals`](Self::totals).
    pub fn own_totals(&self) -> Result<Totals> {
        self.get_totals(sys::PINMAP_TOTALS_CONTEXT)
    }

    fn get_totals(&self, flags: u32) -> Result<Totals> {
        let mut args = sys::pinmap_get_totals {
            flags,
            ..Default::default()
        };
        ioctl::get_totals(self.as_fd(), &mut args).map_err(|errno| {
            Error::new(Operation::Info, format!("ask how much {self} has"), errno)
        })?;
        Ok(Totals::from_abi(&args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_total_has_its_place() {
        let total = |number| sys::pinmap_total {
            number,
            bytes: number * 4096,
        };
        let totals = Totals::from_abi(&sys::pinmap_get_totals {
            out_contexts: 7,
            out_pinned: total(1),
            out_allocated: total(2),
            out_vram: total(3),
            out_shared: total(4),
            out_mapped: total(5),
            out_stale: total(6),
            ..Default::default()
        });
        let numbers = [
            totals.pinned,
            totals.allocated,
            totals.vram,
            totals.shared,
            totals.mapped,
            totals.stale,
        ]
        .map(|total| (total.number, total.bytes / 4096));
        assert_eq!(numbers, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]);
        assert_eq!(totals.contexts, 7);
    }

    #[test]
    fn another_file_has_none() {
        let error = Device::fake().totals().expect_err("no device");
        assert!(
            error.to_string().contains("how much /dev/null has"),
            "{error}"
        );
    }
}
