// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of a device in allocations: the parts of an image, at addresses of its own.

use std::os::fd::AsFd;

use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::Allocation;
use crate::sys::bindings as abi;
use crate::sys::ioctl;

impl<T> Allocation<T> {
    /// Maps the memory once more for the device, as code of a program: at exactly this device
    /// address, where the device executes and reads it, but does not write it. It stays mapped
    /// there as long as the allocation exists.
    ///
    /// ```no_run
    /// # use pinmap::{accelerator::Accelerator, Result};
    /// # fn f(gpu: &Accelerator, code: &[u32], at: u64) -> Result<()> {
    /// let mut memory = gpu.alloc_vram::<u32>(code.len())?;
    /// memory.write(0, code)?;
    /// memory.map_code(at)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device is not paged, and executes no programs; `EINVAL`: the address is no
    /// multiple of the size of a page; `EEXIST`: something else is mapped there; `ERANGE`,
    /// `ENOMEM`, `ENODEV`, `ENOSPC`: as for [`Registration::map`](crate::Registration::map).
    pub fn map_code(&self, device_addr: u64) -> Result<()> {
        self.map_at(device_addr, abi::PINMAP_MAP_EXECUTE, "code")
    }

    /// Maps the memory once more for the device, as data of a program: at exactly this device
    /// address, where the device reads and writes it. It stays mapped there as long as the
    /// allocation exists.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator, at: u64) -> pinmap::Result<()> {
    /// gpu.alloc_vram::<u32>(1024)?.map_data(at)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`map_code`](Self::map_code), except that every device has data.
    pub fn map_data(&self, device_addr: u64) -> Result<()> {
        self.map_at(device_addr, abi::PINMAP_MAP_WRITE, "data")
    }

    fn map_at(&self, device_addr: u64, flags: u32, what: &str) -> Result<()> {
        let mut args = abi::pinmap_map {
            flags: flags | abi::PINMAP_MAP_FIXED,
            handle: self.handle(),
            device_addr,
            ..Default::default()
        };
        ioctl::map(self.device().as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("map {} as {what} at {device_addr:#x}", self.words());
            let failure = Failure::from_abi(&args.fail);
            Error::new(Operation::Map, attempt, errno).with_failure(failure)
        })
    }
}
