// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dma-bufs: memory that several devices, processes and drivers share.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use memmap2::MmapOptions;
use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::{Allocation, HandleGuard, Mapped, Place};
use crate::memory::element::Element;
use crate::memory::file::FilePart;
use crate::memory::options::Access;
use crate::memory::registration::Registration;
use crate::sys::bindings as abi;
use crate::sys::ioctl;

/// Memory that can be shared with other devices, other processes, and other drivers that import
/// dma-bufs.
///
/// Made by [`Allocation::export`] and [`Registration::export`]. Host memory exists until the last
/// of its allocations, imports and dma-bufs is dropped; VRAM until its allocation is, when it is
/// taken back from all others. To share it with another process, send the file descriptor there and
/// [convert it](Self::from) back.
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
    /// Exports the memory as a dma-buf. Its holders reach all of the memory, including the rest of
    /// the last page behind the elements. With [`Access::Read`] they cannot write to it, and it
    /// cannot be [imported](Device::import) as an allocation.
    ///
    /// ```no_run
    /// use pinmap::Access;
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let memory = device.alloc::<u8>(1 << 20)?;
    /// // Another driver of the machine takes this descriptor.
    /// let file: std::os::fd::OwnedFd = memory.export(Access::ReadWrite)?.into();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: it was imported from another driver or from a device; `EPERM`: another process
    /// opened the device; `EMFILE`: too many open files; `ENODEV`: the device is gone.
    pub fn export(&self, access: Access) -> Result<DmaBuf> {
        // SAFETY: The memory belongs to the driver, and this crate accesses it by atomics only.
        unsafe { export(self.device(), self.handle(), access, || self.words()) }
    }
}

impl Registration<FilePart> {
    /// Exports the part of the file as a dma-buf, which keeps those pages pinned. Imported as an
    /// [allocation](Device::import), or mapped, it shows the pages that the device has, even if the
    /// file has got others since.
    ///
    /// ```no_run
    /// use pinmap::{Access, Device};
    /// # fn f(device: &Device, file: &std::fs::File) -> pinmap::Result<()> {
    /// let part = device.register_file(file, 0, 1 << 20, Access::ReadWrite)?;
    /// let shared = part.export(Access::ReadWrite)?; // the pages that the device has
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EACCES`: it was registered for reading only; `EPERM`: another process opened the device;
    /// `EMFILE`: too many open files; `ENODEV`: the device is gone.
    pub fn export(&self, access: Access) -> Result<DmaBuf> {
        let what = || format!("{} bytes of a file", self.len());
        // SAFETY: There is no reference to the memory: it is not mapped here, and a mapping of the
        // file elsewhere is shared with all others who have the file open.
        unsafe { export(self.device(), self.handle(), access, what) }
    }
}

/// Exports a registration or an allocation.
///
/// # Safety
///
/// As for [`ioctl::export`].
unsafe fn export(
    device: &Device,
    handle: u64,
    access: Access,
    what: impl FnOnce() -> String,
) -> Result<DmaBuf> {
    let mut args = abi::pinmap_export {
        flags: match access {
            Access::Read => 0,
            Access::ReadWrite => abi::PINMAP_EXPORT_WRITE,
        },
        handle,
        ..Default::default()
    };
    // SAFETY: As the caller promises.
    unsafe { ioctl::export(device.as_fd(), &mut args) }.map_err(|errno| {
        let attempt = format!("export {} of {device}", what());
        Error::new(Operation::Export, attempt, errno)
    })?;
    // SAFETY: The driver has just opened the descriptor, for this call.
    Ok(DmaBuf(unsafe { OwnedFd::from_raw_fd(args.out_fd) }))
}

impl Device {
    /// Imports memory that [`Allocation::export`] or [`Registration::export`] exported, in this
    /// or another process, for this or another device. It is mapped for this device and this
    /// process as [`alloc`](Self::alloc) does, and has as many elements as fit. On a flat device
    /// this makes the context the owner.
    ///
    /// Host memory is pinned once, and charged once to the user who allocated it. VRAM of this
    /// device, from another process, is VRAM here ([`Place::Vram`]): when it is released there, the
    /// device no longer reaches it, and touching it is a `SIGBUS`.
    ///
    /// [`Place::Vram`]: crate::accelerator::Place::Vram
    ///
    /// ```no_run
    /// use std::os::fd::OwnedFd;
    /// use pinmap::{Device, DmaBuf};
    /// # fn f(device: &Device, received: OwnedFd) -> pinmap::Result<()> {
    /// // Another process has sent this descriptor.
    /// let shared = device.import::<u32>(&DmaBuf::from(received))?;
    /// println!("{} elements, the first is {}", shared.len(), shared.get(0)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the dma-buf belongs to another driver, which may move its memory; `EINVAL`:
    /// the file is no dma-buf, or is shorter than one element, or the CPU cannot map its memory,
    /// which is registered memory of a program, or another device's; `EACCES`: it was exported for
    /// reading only; `EREMOTEIO`: it is memory of a device that the bus does not let this one
    /// reach; `ESTALE`: it was taken back; `ENOMEM`: it is another driver's, and the user may lock
    /// no more; `ENOSPC`: too many registrations and allocations; `EBUSY`: another context owns the
    /// device; `EPERM`: another process opened the device; `ENODEV`: the device is gone.
    pub fn import<T: Element>(&self, dma_buf: &DmaBuf) -> Result<Allocation<T>> {
        let attempt = || format!("import the dma-buf {} for {self}", dma_buf.0.as_raw_fd());
        let mut args = abi::pinmap_import {
            fd: dma_buf.0.as_raw_fd(),
            ..Default::default()
        };
        ioctl::import(self.as_fd(), &mut args).map_err(|errno| {
            let failure = Failure::from_abi(&args.fail);
            Error::new(Operation::Import, attempt(), errno).with_failure(failure)
        })?;
        let handle = HandleGuard::new(self, args.out_handle);
        let refuse = |errno, cause| Err(Error::refused(Operation::Import, attempt(), errno, cause));
        if args.out_flags & abi::PINMAP_EXPORT_WRITE == 0 {
            return refuse(Errno::EACCES, "it was exported for reading only");
        }
        let length = args.out_length as usize;
        let len = length.checked_div(size_of::<T>()).unwrap_or(0);
        if len == 0 {
            return refuse(Errno::EINVAL, "it is not even one element long");
        }
        let mut view = MmapOptions::new();
        view.len(length);
        let (map, place) = match args.out_offset {
            0 => (view.map_raw(dma_buf.0.as_raw_fd()), Place::Host),
            offset => (view.offset(offset).map_raw(self.file()), Place::Vram),
        };
        let map = map.map_err(|error| Error::from_io(Operation::Import, attempt(), &error))?;
        let memory = Mapped::new(map, place);
        Allocation::map(self, handle, memory, len, false).map_err(|(errno, failure)| {
            Error::new(Operation::Import, attempt(), errno).with_failure(failure)
        })
    }
}

impl DmaBuf {
    /// Duplicates the file descriptor. The memory is the same.
    ///
    /// ```no_run
    /// # fn f(dma_buf: &pinmap::DmaBuf) -> pinmap::Result<()> {
    /// let to_send: std::os::fd::OwnedFd = dma_buf.try_clone()?.into();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EMFILE`: too many open files.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Self).map_err(|error| {
            let attempt = format!("copy the descriptor {}", self.0.as_raw_fd());
            Error::from_io(Operation::Export, attempt, &error)
        })
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for DmaBuf {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Gives the descriptor, for instance to send it to another process.
impl From<DmaBuf> for OwnedFd {
    fn from(dma_buf: DmaBuf) -> Self {
        dma_buf.0
    }
}

/// Takes a descriptor, for instance one that another process sent. Only [importing](Device::import)
/// finds out whether it is a dma-buf.
impl From<OwnedFd> for DmaBuf {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// Gives the descriptor as a file.
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
        assert!(text.starts_with("cannot import the dma-buf "), "{text}");
        assert!(text.contains(" for /dev/null: "), "{text}");
    }

    #[test]
    fn descriptors_can_be_copied_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<DmaBuf>();
        let copy = null().try_clone().expect("a copy");
        drop(OwnedFd::from(copy));
    }
}
