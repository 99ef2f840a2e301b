// SPDX-License-Identifier: MIT OR Apache-2.0
//! File registrations: parts of files that a device can reach without being mapped here.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, ErrorWith, Operation, Result};
use crate::memory::mapping::Mapping;
use crate::memory::options::{Access, MapOptions, RegisterOptions};
use crate::memory::query::RegistrationInfo;
use crate::memory::raw::RawRegistration;
use crate::sys::ioctl;

/// A part of a memfd, or of a file in tmpfs or hugetlbfs, that a device can reach.
///
/// Made by [`Device::register_file`]. The file need not be mapped: the program and the device share
/// its content. Dropping the registration releases it. It keeps the device open, but not the file.
///
/// ```no_run
/// use pinmap::{Access, Device};
/// # fn f(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
/// let file = std::fs::File::options().read(true).write(true).open("/dev/shm/frames")?;
/// let frames = device.register_file(&file, 0, 1 << 20, Access::ReadWrite)?;
/// println!("the device finds byte 0 of the file at {:#x}", frames.device_addr()?);
/// frames.release()?;
/// # Ok(()) }
/// ```
#[must_use = "dropped, the device cannot reach the file any more"]
#[derive(Debug)]
pub struct FileRegistration {
    raw: RawRegistration,
    offset: u64,
}

impl Device {
    /// Registers a part of a file: `len` bytes from byte `offset` on, whole pages. The file can be
    /// closed afterwards.
    ///
    /// The registration never goes stale. Pages that leave the file by truncation or hole punching
    /// stay with the device, while the file gets others; seal the file (`F_SEAL_SHRINK`) to rule
    /// that out. With [`Access::ReadWrite`] the device writes to the file, as every process can
    /// that has it open for writing.
    ///
    /// Unless the options fix it, the device address is congruent to `offset` modulo 2 MiB.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the file is of another kind, or the part is not whole pages; `EACCES`: the file is
    /// not open for the demanded access; `EPERM`: the file is sealed against writing, or another
    /// process opened the device; `EFAULT`: the file ends before the part does; `EOPNOTSUPP`: the
    /// options demand [`identity`](RegisterOptions::identity), and there is no user address;
    /// otherwise as for [`Buffer::register`](crate::Buffer::register).
    pub fn register_file(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<FileRegistration> {
        let options = options.into();
        let mut args = options.to_abi_fd(file.as_raw_fd(), offset, len as u64);
        ioctl::register_fd(self.as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("register {len} bytes of a file from {offset:#x} on with {self}");
            let error = Error::new(Operation::Register, attempt, errno)
                .with_failure(Failure::from_abi(&args.fail));
            match errno {
                Errno::EPERM => error.with_hint(
                    "if the file is sealed against writing, register it with `Access::Read`",
                ),
                Errno::EINVAL => error
                    .with_hint("use whole pages of a memfd, or of a file in tmpfs or hugetlbfs"),
                _ => error,
            }
        })?;
        let device_addr = options.maps().then_some(args.device_addr);
        let raw =
            RawRegistration::made(self, args.out_handle, 0, len, device_addr, options.access());
        Ok(FileRegistration { raw, offset })
    }
}

impl FileRegistration {
    /// Makes the part of the file unreachable for the device, and removes all of its mappings.
    ///
    /// # Errors
    ///
    /// The registration comes back with the error. `EIO`: as for [`RawRegistration::release`].
    pub fn release(self) -> Result<(), ErrorWith<Self>> {
        let offset = self.offset;
        self.raw.release().map_err(|failed| ErrorWith {
            error: failed.error,
            value: Self {
                raw: failed.value,
                offset,
            },
        })
    }

    /// Maps the part of the file at one more device address: see
    /// [`Registration::map`](crate::Registration::map).
    ///
    /// # Errors
    ///
    /// As for [`Registration::map`](crate::Registration::map).
    pub fn map(&self, options: impl Into<MapOptions>) -> Result<Mapping<'_>> {
        self.raw.map(options)
    }

    pub(crate) fn device(&self) -> &Device {
        self.raw.device()
    }

    /// Offset of the first byte in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Says what it is, in the words of an error.
    pub(crate) fn words(&self) -> String {
        format!(
            "the {} bytes from byte {} on of a file",
            self.len(),
            self.offset
        )
    }

    /// Length in bytes, a multiple of the page size.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Device address of the first byte, in the mapping that registering made.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the file was registered [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        self.raw.device_addr()
    }

    /// The access that the device has.
    pub fn access(&self) -> Access {
        self.raw.access()
    }

    /// The handle of the registration, unique in its context.
    pub fn handle(&self) -> u64 {
        self.raw.handle()
    }

    /// Asks for all that the driver knows about the registration.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn query(&self) -> Result<RegistrationInfo> {
        self.raw.query()
    }
}
