// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether memory could be registered, without doing it.

use std::os::fd::AsFd;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::failure::Failure;
use crate::ioctl;
use crate::memory::Buffer;
use crate::options::RegisterOptions;

/// What registering would take, and what is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Preflight {
    /// Bytes that this user would have locked.
    pub memlock_needed: u64,
    /// Bytes that may be locked; none: no limit.
    pub memlock_allowed: Option<u64>,
    /// Registrations that the context would have.
    pub registrations_needed: u64,
    /// Registrations that it may have.
    pub registrations_allowed: u64,
}

impl Device {
    /// Finds out whether memory at `addr` could be registered now: what
    /// [`register_raw`](Self::register_raw) would say, without pinning anything. Touches no page, so
    /// it does not find out that there is no memory, or that a page cannot be had.
    ///
    /// # Errors
    ///
    /// As for [`register_raw`](Self::register_raw), with the same details: which limit, what is
    /// needed and what is allowed, and what to do.
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

impl Buffer {
    /// Finds out whether this buffer could be registered now: see [`Device::preflight`].
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    pub fn preflight(
        &self,
        device: &Device,
        options: impl Into<RegisterOptions>,
    ) -> Result<Preflight> {
        device.preflight(self.addr(), self.len(), options)
    }
}
