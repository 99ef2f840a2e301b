// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of files that a device can reach, without mapping them.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, ErrorWith, Operation, Result};
use crate::failure::Failure;
use crate::ioctl;
use crate::mapping::Mapping;
use crate::options::{Access, MapOptions, RegisterOptions};
use crate::query::RegistrationInfo;
use crate::raw::RawRegistration;

/// A part of a memfd, or of a file in tmpfs or hugetlbfs, that a device can reach.
///
/// Made by [`Device::register_file`]. The file need not be mapped: what the program and the device
/// have in common is its content. Dropped, it releases. It keeps the device open, not the file.
#[must_use = "dropped, the device cannot reach it any more"]
#[derive(Debug)]
pub struct FileRegistration {
    raw: RawRegistration,
    offset: u64,
}

impl Device {
    /// Makes a part of a file reachable for the device. The file may be closed then.
    ///
    /// It never goes stale: pages that leave the file by truncation or hole punching stay with the
    /// device, and the file has others. Seal the file (`F_SEAL_SHRINK`) to rule that out. With
    /// [`Access::ReadWrite`] the device writes to the file as anybody does who has it open for
    /// writing.
    ///
    /// Without a demand its device address is congruent to `offset` modulo 2 MiB.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not such a file, or not whole pages; `EACCES`: the file is not open for that;
    /// `EPERM`: it is sealed against writing, or another process opened the device; `EFAULT`: it
    /// ends before; `EOPNOTSUPP`: [`identity`](RegisterOptions::identity), for there is no user
    /// address; otherwise as for [`Buffer::register`](crate::Buffer::register).
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
    /// Makes it unreachable for the device. All its mappings are gone then.
    ///
    /// # Errors
    ///
    /// `EIO`: as for [`RawRegistration::release`]. The registration comes back with the error.
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

    /// As [`Registration::map`](crate::Registration::map), with the same errors.
    pub fn map(&self, options: impl Into<MapOptions>) -> Result<Mapping<'_>> {
        self.raw.map(options)
    }

    pub(crate) fn device(&self) -> &Device {
        self.raw.device()
    }

    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Device address of the first byte, in the mapping made when registering.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it was registered [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        self.raw.device_addr()
    }

    /// What the device may do.
    pub fn access(&self) -> Access {
        self.raw.access()
    }

    /// The driver's name for it, unique in its context.
    pub fn handle(&self) -> u64 {
        self.raw.handle()
    }

    /// All that the driver knows about it.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn query(&self) -> Result<RegistrationInfo> {
        self.raw.query()
    }
}
