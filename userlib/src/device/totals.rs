// SPDX-License-Identifier: MIT OR Apache-2.0
//! Totals: how much memory a device or a context has in use.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::sys::{bindings as abi, ioctl};

/// How many pieces of memory there are of one kind, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Total {
    /// Number of pieces.
    pub number: u64,
    /// Bytes of all pieces. Memory that is mapped twice counts twice.
    pub bytes: u64,
}

/// How much memory is in use.
///
/// While other programs are at work, the numbers may stem from slightly different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Totals {
    /// Number of open contexts, including the one that asks.
    pub contexts: u32,
    /// Registered memory that is pinned.
    pub pinned: Total,
    /// Host memory that the driver allocated.
    pub allocated: Total,
    /// Allocated memory of the device.
    pub vram: Total,
    /// Memory that another context owns: imported, or portable.
    pub shared: Total,
    /// Memory that the device can reach.
    pub mapped: Total,
    /// Stale registrations that are not released yet.
    pub stale: Total,
    /// Managed ranges.
    pub managed: Total,
    /// Faults of queues on managed memory.
    pub faults: FaultTotals,
}

/// The faults of queues so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FaultTotals {
    /// Faults on managed memory that were served.
    pub served: u64,
    /// Faults that stopped a queue, on any memory.
    pub failed: u64,
    /// Pages of 4 KiB that the device was given by faults.
    pub pages: u64,
    /// How long all queues together waited until faults were served.
    pub time: Duration,
}

impl Totals {
    fn from_abi(args: &abi::pinmap_get_totals) -> Self {
        let total = |total: abi::pinmap_total| Total {
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
            managed: total(args.out_managed),
            faults: FaultTotals {
                served: args.out_faults_served,
                failed: args.out_faults_failed,
                pages: args.out_fault_pages,
                time: Duration::from_nanos(args.out_fault_ns),
            },
        }
    }
}

impl Device {
    /// Asks for the totals of all contexts of the device, including those of other programs.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let totals = device.totals()?;
    /// println!("{} programs have it open", totals.contexts);
    /// println!("{} bytes are pinned", totals.pinned.bytes);
    /// println!("{} bytes can be reached by the device", totals.mapped.bytes);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EDEADLK`: this is a host function.
    pub fn totals(&self) -> Result<Totals> {
        self.get_totals(0)
    }

    /// Asks for the totals of this context.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let faults = gpu.device().own_totals()?.faults;
    /// println!("{} faults for {} pages took {:?}", faults.served, faults.pages, faults.time);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`totals`](Self::totals).
    pub fn own_totals(&self) -> Result<Totals> {
        self.get_totals(abi::PINMAP_TOTALS_CONTEXT)
    }

    fn get_totals(&self, flags: u32) -> Result<Totals> {
        let mut args = abi::pinmap_get_totals {
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
        let total = |number| abi::pinmap_total {
            number,
            bytes: number * 4096,
        };
        let totals = Totals::from_abi(&abi::pinmap_get_totals {
            out_contexts: 7,
            out_pinned: total(1),
            out_allocated: total(2),
            out_vram: total(3),
            out_shared: total(4),
            out_mapped: total(5),
            out_stale: total(6),
            out_managed: total(7),
            out_faults_served: 8,
            out_faults_failed: 9,
            out_fault_pages: 10,
            out_fault_ns: 11,
            ..Default::default()
        });
        let numbers = [
            totals.pinned,
            totals.allocated,
            totals.vram,
            totals.shared,
            totals.mapped,
            totals.stale,
            totals.managed,
        ]
        .map(|total| (total.number, total.bytes / 4096));
        assert_eq!(
            numbers,
            [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7)]
        );
        let faults = totals.faults;
        assert_eq!((faults.served, faults.failed, faults.pages), (8, 9, 10));
        assert_eq!(faults.time, Duration::from_nanos(11));
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
