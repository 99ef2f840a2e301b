// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of files, registered without being mapped here.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::options::RegisterOptions;
use crate::memory::raw::RawRegistration;
use crate::memory::registration::Registration;
use crate::sys::ioctl;

/// A part of a file that is [registered](Device::register_file). The file need not stay open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilePart {
    /// The byte of the file with which the part begins.
    pub offset: u64,
}

impl Device {
    /// Registers a part of a memfd, or of a file in tmpfs or hugetlbfs: `len` bytes from byte
    /// `offset` on, whole pages. The file need not be mapped: the program and the device share its
    /// content. It can be closed afterwards.
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
    ///
    /// The registration never goes stale. Pages that leave the file by truncation or hole punching
    /// stay with the device, while the file gets others; seal the file (`F_SEAL_SHRINK`) to rule
    /// that out. With [`Access::ReadWrite`](crate::Access::ReadWrite) the device writes to the
    /// file, as every process can that has it open for writing.
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
        file: impl AsFd,
        offset: u64,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<Registration<FilePart>> {
        let options = options.into();
        let mut args = options.to_abi_fd(file.as_fd().as_raw_fd(), offset, len as u64);
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
        Ok(Registration::new(raw, FilePart { offset }))
    }
}
