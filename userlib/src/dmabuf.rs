// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations that several devices and processes share, as dma-bufs.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use memmap2::MmapOptions;
use nix::errno::Errno;

use crate::allocation::{Allocation, Handle, Mapped, Place};
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Operation, Result};
use crate::file::FileRegistration;
use crate::ioctl;
use crate::options::Access;
use crate::sys;

/// The memory of an [`Allocation`] for others: for other devices, other processes, and other drivers
/// that import dma-bufs.
///
/// Made by [`Allocation::export`] and [`FileRegistration::export`]. It keeps the memory, which is gone when the last of its
/// allocations, imports and dma-bufs is. Sent to another process as a file descriptor, it is
/// [made from it](Self::from) again there.
///
/// ```no_run
/// use pinmap::{Access, Device};
///
/// # fn main() -> pinmap::Result<()> {
/// let (first, second) = (Device::open("/dev/pinmap0")?, Device::open("/dev/pinmap1")?);
/// let mut mine = first.alloc::<u32>(1024)?;
/// let shared = second.import::<u32>(&mine.export(Access::ReadWrite)?)?;
///
/// // The same memory, for both devices and for the program.
/// mine.set(7, 77)?;
/// assert_eq!(shared.get(7)?, 77);
/// # Ok(())
/// # }
/// ```
pub struct DmaBuf(OwnedFd);

impl<T> Allocation<T> {
    /// A dma-buf of the memory. Whoever has it reaches all of it, also what is beside the elements
    /// in the last page; with [`Access::Read`] nobody writes by it, and it cannot be
    /// [imported](Device::import) as an allocation.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: it is memory of the device; `EPERM`: another process opened the device;
    /// `EMFILE`: too many open files; `ENODEV`: the device is gone.
    pub fn export(&self, access: Access) -> Result<DmaBuf> {
        // SAFETY: It is memory of the driver's own, which this crate accesses by atomics only, as
        // long as it exists.
        unsafe { export(self.device(), self.handle(), access, self) }
    }
}

impl FileRegistration {
    /// A dma-buf of the part of the file, which keeps those pages pinned. Imported as an
    /// [allocation](Device::import), or mapped, it shows the pages that the device has, whatever
    /// becomes of the file.
    ///
    /// # Errors
    ///
    /// `EACCES`: it was registered for reading only; `EPERM`: another process opened the device;
    /// `EMFILE`: too many open files; `ENODEV`: the device is gone.
    pub fn export(&self, access: Access) -> Result<DmaBuf> {
        // SAFETY: Nobody has a reference into it: it is not mapped here, and whoever has the file
        // mapped shares it with all others who have the file open.
        unsafe { export(self.device(), self.handle(), access, self) }
    }
}

/// # Safety
///
/// As for [`ioctl::export`].
unsafe fn export(
    device: &Device,
    handle: u64,
    access: Access,
    what: &dyn fmt::Debug,
) -> Result<DmaBuf> {
    let mut args = sys::pinmap_export {
        flags: match access {
            Access::Read => 0,
            Access::ReadWrite => sys::PINMAP_EXPORT_WRITE,
        },
        handle,
        ..Default::default()
    };
    // SAFETY: As the caller promises.
    unsafe { ioctl::export(device.as_fd(), &mut args) }.map_err(|errno| {
        let attempt = format!("export {what:?} of {device}");
        Error::new(Operation::Export, attempt, errno)
    })?;
    // SAFETY: The driver has just made it, for us.
    Ok(DmaBuf(unsafe { OwnedFd::from_raw_fd(args.out_fd) }))
}

impl Device {
    /// The memory of a dma-buf that was exported by [`Allocation::export`] or
    /// [`FileRegistration::export`], by this or another process and device, mapped for this device and this process as [`alloc`](Self::alloc) does.
    /// As many elements as fit. On a flat device this makes the context the owner.
    ///
    /// It is pinned and charged once, to who allocated it.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: it is a dma-buf of another driver, whose memory only the kernel's DMA API could
    /// map, and that has no say in this device's addresses; `EINVAL`: it is no dma-buf, or of
    /// registered memory, which cannot be mapped here, or not even one element long; `EACCES`: it
    /// was exported for reading only; `ENOSPC`: too many objects; `EBUSY`: another context owns the
    /// device; `EPERM`: another process opened it; `ENODEV`: it is gone.
    pub fn import<T: Element>(&self, dma_buf: &DmaBuf) -> Result<Allocation<T>> {
        let attempt = || format!("import {dma_buf:?} for {self}");
        let mut args = sys::pinmap_import {
            fd: dma_buf.0.as_raw_fd(),
            ..Default::default()
        };
        ioctl::import(self.as_fd(), &mut args)
            .map_err(|errno| Error::new(Operation::Import, attempt(), errno))?;
        let handle = Handle::new(self, args.out_handle);
        let refuse = |errno, cause| Err(Error::refused(Operation::Import, attempt(), errno, cause));
        if args.out_flags & sys::PINMAP_EXPORT_WRITE == 0 {
            return refuse(Errno::EACCES, "it was exported for reading only");
        }
        let length = args.out_length as usize;
        let len = length.checked_div(size_of::<T>()).unwrap_or(0);
        if len == 0 {
            return refuse(Errno::EINVAL, "it is not even one element long");
        }
        let map = MmapOptions::new()
            .len(length)
            .map_raw(dma_buf.0.as_raw_fd())
            .map_err(|error| Error::from_io(Operation::Import, attempt(), &error))?;
        Allocation::map(self, handle, Mapped::new(map, Place::Host), len).map_err(
            |(errno, failure)| {
                Error::new(Operation::Import, attempt(), errno).with_failure(failure)
            },
        )
    }
}

impl DmaBuf {
    /// One more descriptor of the same memory.
    ///
    /// # Errors
    ///
    /// `EMFILE`: too many open files.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Self).map_err(|error| {
            let attempt = format!("copy the descriptor of {self:?}");
            Error::from_io(Operation::Export, attempt, &error)
        })
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// To be sent to another process.
impl From<DmaBuf> for OwnedFd {
    fn from(dma_buf: DmaBuf) -> Self {
        dma_buf.0
    }
}

/// Received from another process. Whether it is a dma-buf is found out by
/// [importing](Device::import) it.
impl From<OwnedFd> for DmaBuf {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// As a file that other crates take.
impl From<DmaBuf> for File {
    fn from(dma_buf: DmaBuf) -> Self {
        dma_buf.0.into()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({})", self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> DmaBuf {
        let file = File::open("/dev/null").expect("there is always /dev/null");
        DmaBuf::from(OwnedFd::from(file))
    }

    #[test]
    fn what_failed_is_told() {
        let error = Device::fake().import::<u8>(&null()).expect_err("no driver");
        assert_eq!(error.operation(), Operation::Import);
        let text = error.to_string();
        assert!(text.starts_with("cannot import DmaBuf("), "{text}");
        assert!(text.contains(") for /dev/null: "), "{text}");
    }

    #[test]
    fn descriptors_can_be_copied_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<DmaBuf>();
        let copy = null().try_clone().expect("a copy");
        drop(OwnedFd::from(copy));
    }
}
