// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generations: counters that tell without a system call whether a registration may be stale.
//!
//! The driver shares a page of counters with each context. When registered memory leaves the
//! address space, the driver adds one to the counter of that registration before `munmap()` or
//! `madvise()` returns. Several registrations can share a counter: an unchanged counter proves that
//! a registration is live; a changed one means that the driver must be asked.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{fence, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::sys::bindings as abi;
use crate::sys::ioctl;

/// The counters of a context, mapped for reading.
///
/// # Invariants
///
/// The mapping begins with a page, and stays readable as long as the value exists.
pub(super) struct Generations(MmapRaw);

impl Generations {
    /// Maps the counters of a context.
    pub(super) fn of(device: &Device) -> Result<Self> {
        let attempt = || format!("map the generations of {device}");
        let mut args = abi::pinmap_generations::default();
        ioctl::generations(device.as_fd(), &mut args)
            .map_err(|errno| Error::new(Operation::Cache, attempt(), errno))?;
        let map = MmapOptions::new()
            .offset(args.out_offset)
            .len(args.out_length as usize)
            .map_raw_read_only(device.file())
            .map_err(|error| Error::from_io(Operation::Cache, attempt(), &error))?;
        if map.len() < size_of::<AtomicU64>() {
            return Err(Error::new(Operation::Cache, attempt(), Errno::EINVAL));
        }
        // INVARIANT: mmap() maps whole pages.
        Ok(Self(map))
    }

    #[cfg(test)]
    pub(super) fn fake(numbers: MmapRaw) -> Self {
        Self(numbers)
    }

    /// The counter of a registration. Earlier reads of memory happen before it is loaded, later
    /// ones after.
    pub(super) fn of_handle(&self, handle: u64) -> u64 {
        let count = self.0.len() / size_of::<AtomicU64>();
        let index = (handle % count as u64) as usize;
        fence(Ordering::SeqCst);
        // SAFETY: Inside the mapping, aligned and readable, by the invariant. The kernel changes it
        // atomically. Read-only memory allows relaxed loads of 8 bytes.
        let number = unsafe {
            let numbers = self.0.as_ptr().cast::<AtomicU64>();
            (*numbers.add(index)).load(Ordering::Relaxed)
        };
        fence(Ordering::SeqCst);
        number
    }
}
