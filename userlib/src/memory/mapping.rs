// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings: registrations at one more device address.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::options::{Access, RegisterOptions};
use crate::memory::raw::RawRegistration;
use crate::sys::bindings as abi;
use crate::sys::ioctl;

/// A registration at one more device address.
///
/// Made by [`Registration::map`](crate::Registration::map). When it is dropped, the device cannot
/// reach the memory at that address any more; the memory stays registered. A mapping cannot outlive
/// its registration, and a forgotten one ends with it.
///
/// ```no_run
/// use pinmap::Access;
/// # fn f(memory: &pinmap::Registration) -> pinmap::Result<()> {
/// let again = memory.map(Access::Read)?;
/// println!("also at {:#x}", again.device_addr());
/// again.unmap()?; // or a drop
/// # Ok(()) }
/// ```
#[must_use = "dropped, the mapping is removed"]
#[derive(Debug)]
pub struct Mapping<'a> {
    registration: &'a RawRegistration,
    device_addr: u64,
    access: Access,
    removed: bool,
}

impl<'a> Mapping<'a> {
    pub(crate) fn new(registration: &'a RawRegistration, options: RegisterOptions) -> Result<Self> {
        let page = registration.addr() - registration.offset() as usize;
        let args = options.to_abi_map(registration.handle(), page);
        let mut args = args.map_err(|(errno, cause)| {
            Error::refused(Operation::Map, registration.attempt("map"), errno, cause)
        })?;
        ioctl::map(registration.device().as_fd(), &mut args).map_err(|errno| {
            let error = registration.fail(Operation::Map, "map", errno);
            error.with_failure(Failure::from_abi(&args.fail))
        })?;
        Ok(Self {
            registration,
            device_addr: args.device_addr + registration.offset(),
            access: options.access(),
            removed: false,
        })
    }

    /// Device address of the first byte of the registration.
    pub fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// The access that the device has at this address.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Removes the mapping, as dropping it does, and returns the error if that fails. Succeeds also
    /// when the device is gone, or the registration stale.
    ///
    /// # Errors
    ///
    /// `EIO`: the IOMMU did not unmap the memory, or the device did not confirm in time that it has
    /// forgotten the address. The driver has cut the device off from all memory, and the device
    /// will be gone soon. Releasing the registration will fail with `EIO`, too.
    pub fn unmap(mut self) -> Result<()> {
        self.unmap_now()
    }

    fn unmap_now(&mut self) -> Result<()> {
        if self.removed {
            return Ok(());
        }
        self.removed = true;
        let device_addr = self.device_addr;
        let mut args = abi::pinmap_unmap {
            handle: self.registration.handle(),
            device_addr: device_addr - self.registration.offset(),
            ..Default::default()
        };
        match ioctl::unmap(self.registration.device().as_fd(), &mut args) {
            Ok(()) | Err(Errno::ENODEV | Errno::ESTALE) => Ok(()),
            Err(errno) => {
                let verb = format!("unmap from {device_addr:#x}");
                Err(self.registration.fail(Operation::Unmap, &verb, errno))
            }
        }
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        // If this fails, releasing the registration will fail, too.
        let _ = self.unmap_now();
    }
}
