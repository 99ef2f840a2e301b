// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of the driver's that tell without a system call that registrations may have gone stale.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{fence, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::ioctl;
use crate::sys;

/// The numbers of a context, mapped for reading.
///
/// # Invariants
///
/// Begins with a page, and is mapped readable as long as it exists.
pub(crate) struct Generations(MmapRaw);

impl Generations {
    pub(crate) fn of(device: &Device) -> Result<Self> {
        let attempt = || format!("map the generations of {device}");
        let mut args = sys::pinmap_generations::default();
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
    pub(crate) fn fake(numbers: MmapRaw) -> Self {
        Self(numbers)
    }

    /// The number of a registration. What was read before is older, what is read later is newer.
    pub(crate) fn of_handle(&self, handle: u64) -> u64 {
        let count = self.0.len() / size_of::<AtomicU64>();
        let index = (handle % count as u64) as usize;
        fence(Ordering::SeqCst);
        // SAFETY: Inside of the mapping, aligned and readable, by the invariant; the kernel only ever
        // adds to it atomically. A relaxed load of 8 bytes may be one of memory that cannot be written.
        let number = unsafe {
            let numbers = self.0.as_ptr().cast::<AtomicU64>();
            (*numbers.add(index)).load(Ordering::Relaxed)
        };
        fence(Ordering::SeqCst);
        number
    }
}
