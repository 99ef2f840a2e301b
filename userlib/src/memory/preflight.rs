// SPDX-License-Identifier: MIT OR Apache-2.0
//! Preflights: whether memory could be registered, without doing it.

use std::os::fd::AsFd;

use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::buffer::Buffer;
use crate::memory::options::RegisterOptions;
use crate::sys::ioctl;

/// The limits that a registration would come up against. Returned by [`Device::preflight`].
///
/// ```no_run
/// use pinmap::{Access, Buffer};
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// let buffer = Buffer::<u8>::new(64 << 20)?;
/// let asked = buffer.preflight(device, Access::ReadWrite)?; // an error names the limit
/// println!("{} of {:?} bytes would be locked", asked.memlock_needed, asked.memlock_allowed);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Preflight {
    /// Bytes that this user would then have locked.
    pub memlock_needed: u64,
    /// Bytes that this user may have locked (`RLIMIT_MEMLOCK`). `None` means no limit.
    pub memlock_allowed: Option<u64>,
    /// Registrations and allocations that the context would then have.
    pub registrations_needed: u64,
    /// Registrations and allocations that the context may have.
    pub registrations_allowed: u64,
}

impl Device {
    /// Asks whether `len` bytes at `addr` could be registered now, without pinning anything. No
    /// page is touched, so this does not notice that the system is out of memory, or that a page of
    /// a file cannot be read.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device, addr: usize) -> pinmap::Result<()> {
    /// // 1 MiB at `addr`, for the device to read: what would be in the way?
    /// match device.preflight(addr, 1 << 20, pinmap::Access::Read) {
    ///     Ok(limits) => println!("{} registrations then", limits.registrations_needed),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`register_raw`](Self::register_raw), with the same details.
    pub fn preflight(
        &self,
        addr: usize,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<Preflight> {
        let mut args = options.into().to_abi_preflight(addr as u64, len as u64);
        ioctl::preflight(self.as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("register {len} bytes at {addr:#x} with {self}");
            Error::new(Operation::Register, attempt, errno)
                .with_failure(Failure::from_abi(&args.fail))
        })?;
        let allowed = args.out_memlock_allowed;
        Ok(Preflight {
            memlock_needed: args.out_memlock_needed,
            memlock_allowed: (allowed != u64::MAX).then_some(allowed),
            registrations_needed: args.out_objects_needed,
            registrations_allowed: args.out_objects_allowed,
        })
    }
}

impl<T> Buffer<T> {
    /// Asks whether this buffer could be registered now: see [`Device::preflight`].
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    pub fn preflight(
        &self,
        device: &Device,
        options: impl Into<RegisterOptions>,
    ) -> Result<Preflight> {
        device.preflight(self.addr(), self.memory().len(), options)
    }
}
