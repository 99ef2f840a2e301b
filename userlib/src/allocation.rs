// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the driver allocates for device and CPU: of the host, or of the device.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsFd;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::alloc_options::AllocOptions;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Operation, Result};
use crate::failure::Failure;
use crate::gpu::Gpu;
use crate::info::Kind;
use crate::ioctl;
use crate::pages::{page_size, Memory};
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::sys;
use crate::view::{View, Vram};

/// Where the memory of an [`Allocation`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the host's memory, pinned.
    Host,
    /// In the device's own memory. The CPU reaches it too, write-combined: it writes fast and
    /// reads slowly.
    Vram,
}

/// Memory for a number of elements that the driver allocated, zeroed; the CPU and the device both
/// read and write it.
///
/// Made by [`Device::alloc`], [`Device::import`] and [`Gpu::alloc_vram`](crate::Gpu::alloc_vram). On a paged device its
/// device address equals its user address. The CPU copies elements in and out; there is no
/// reference to them. Dropped, the device cannot reach it any more. It keeps the device open.
///
/// Once the device is gone, touching [`Place::Vram`] raises `SIGBUS`; host memory stays.
pub struct Allocation<T> {
    device: Device,
    handle: u64,
    device_addr: u64,
    memory: Mapped,
    /// Elements.
    len: usize,
    /// The device sees what CPUs have in their caches.
    coherent: bool,
    elements: PhantomData<T>,
}

/// What the CPU sees of it.
pub(crate) enum Mapped {
    Host(Memory),
    Vram(Vram),
}

impl Device {
    /// Allocates pinned host memory for `count` elements, zeroed, and maps it for the device: at
    /// the address where the program has it, on a paged device always, on a flat one if the
    /// IOMMU allows. On a flat device this makes the context the owner.
    ///
    /// It is charged like registered memory, in whole pages, and made of huge pages where there are
    /// any.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no elements; `EOVERFLOW`: no address space is that large; `ENOMEM`: over
    /// `RLIMIT_MEMLOCK`, or out of memory; `ENOSPC`: too many objects; `EBUSY`: another context owns
    /// the device; `EPERM`: another process opened it; `ENODEV`: it is gone.
    /// [`Error::failure`](crate::Error::failure) has the details.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Allocation<T>> {
        self.alloc_with(count, AllocOptions::new())
    }

    /// As [`alloc`](Self::alloc), with a say in what memory it is.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc); `EINVAL` also: there is no such NUMA node, or it has no memory;
    /// `EOPNOTSUPP`: there is no write-combined memory on this architecture.
    pub fn alloc_with<T: Element>(
        &self,
        count: usize,
        options: AllocOptions,
    ) -> Result<Allocation<T>> {
        Allocation::new(self, count, Place::Host, options)
    }
}

impl Gpu {
    /// Allocates memory of the device for `count` elements, zeroed, at the device address where the
    /// program has it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no elements; `EOVERFLOW`: no address space is that large; `ENOSPC`: no free piece
    /// of the device's memory is that long, or too many objects; `ENOMEM`: out of memory or
    /// address space; `EPERM`: another process opened the device; `ENODEV`: it is gone.
    /// [`Error::failure`](crate::Error::failure) has the details.
    pub fn alloc_vram<T: Element>(&self, count: usize) -> Result<Allocation<T>> {
        Allocation::new(self.device(), count, Place::Vram, AllocOptions::new())
    }
}

/// A handle that is released if nothing becomes of it.
pub(crate) struct Handle<'a> {
    device: &'a Device,
    handle: u64,
}

impl<'a> Handle<'a> {
    pub(crate) fn new(device: &'a Device, handle: u64) -> Self {
        Self { device, handle }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // If it fails, then because the device is gone, or the file not the driver's any more.
        let _ = release(self.device, self.handle);
    }
}

impl<T: Element> Allocation<T> {
    fn new(device: &Device, count: usize, place: Place, options: AllocOptions) -> Result<Self> {
        let what = match place {
            Place::Host => "pinned memory",
            Place::Vram => "memory of the device",
        };
        let attempt = || {
            let size = size_of::<T>();
            format!("allocate {what} for {count} elements of {size} bytes with {device}")
        };
        let length = length(count, size_of::<T>(), page_size()).map_err(|(errno, cause)| {
            Error::refused(Operation::Allocate, attempt(), errno, cause)
        })?;
        let fail = |errno| Error::new(Operation::Allocate, attempt(), errno);

        let mut args = options.to_abi(length);
        if place == Place::Vram {
            args.flags |= sys::PINMAP_ALLOC_VRAM;
        }
        ioctl::alloc(device.as_fd(), &mut args)
            .map_err(|errno| fail(errno).with_failure(Failure::from_abi(&args.fail)))?;
        let handle = Handle::new(device, args.out_handle);
        let map = MmapOptions::new()
            .offset(args.out_offset)
            .len(length)
            .map_raw(device.file())
            .map_err(|error| Error::from_io(Operation::Allocate, attempt(), &error))?;
        Self::map(device, handle, Mapped::new(map, place), count)
            .map_err(|(errno, failure)| fail(errno).with_failure(failure))
    }

    /// Maps memory of `len` elements for the device.
    pub(crate) fn map(
        device: &Device,
        handle: Handle<'_>,
        memory: Mapped,
        len: usize,
    ) -> Result<Self, (Errno, Option<Failure>)> {
        let device_addr = map_for(device, handle.handle, memory.addr())
            .map_err(|(errno, fail)| (errno, Failure::from_abi(&fail)))?;
        // A device that cannot be asked is gone, and nothing is in its way.
        let coherent = device.info().map_or(true, |info| info.coherent);
        let handle = std::mem::ManuallyDrop::new(handle).handle;
        Ok(Self {
            device: device.clone(),
            handle,
            device_addr,
            memory,
            len,
            coherent,
            elements: PhantomData,
        })
    }

    /// The elements, for the device to read.
    pub fn slice(&self) -> DeviceSlice<'_, T> {
        let view = match &self.memory {
            Mapped::Host(memory) => View::Host(memory.words()),
            Mapped::Vram(vram) => View::Vram(vram),
        };
        DeviceSlice::new(&self.device, view, self.device_addr, self.len)
    }

    /// The elements, for the device to write.
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.slice())
    }

    /// One element.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn get(&self, index: usize) -> Result<T> {
        self.slice().get(index)
    }

    /// Stores one element.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        self.slice().write(index, &[value])
    }

    /// Copies elements out, beginning with one. What the device wrote before what was waited for is
    /// seen.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it would reach beyond the last element.
    pub fn read(&self, index: usize, to: &mut [T]) -> Result<()> {
        self.slice().read(index, to)
    }

    /// Copies elements in, beginning with one. What is submitted later sees them.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it would reach beyond the last element.
    pub fn write(&mut self, index: usize, from: &[T]) -> Result<()> {
        self.slice().write(index, from)
    }

    /// Has the device see what the CPU wrote to these elements, if it does not see that by itself
    /// (see [`Info::coherent`](crate::Info::coherent); otherwise this costs nothing): between the
    /// last write and the start of the device's work.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it would reach beyond the last element; `EOPNOTSUPP`: this architecture cannot;
    /// `ENODEV`: the device is gone.
    pub fn sync_for_device(&self, elements: Range<usize>) -> Result<()> {
        self.sync(elements, sys::PINMAP_SYNC_FOR_DEVICE)
    }

    /// The other way round: between the end of the device's work and the first read of what it wrote.
    ///
    /// # Errors
    ///
    /// As [`sync_for_device`](Self::sync_for_device).
    pub fn sync_for_cpu(&self, elements: Range<usize>) -> Result<()> {
        self.sync(elements, sys::PINMAP_SYNC_FOR_CPU)
    }

    fn sync(&self, elements: Range<usize>, flags: u32) -> Result<()> {
        let attempt = || format!("synchronise elements {elements:?} of {self:?}");
        if elements.start > elements.end || elements.end > self.len {
            let cause = format!("there are {} elements", self.len);
            return Err(Error::refused(
                Operation::Sync,
                attempt(),
                Errno::EINVAL,
                cause,
            ));
        }
        if self.coherent || elements.is_empty() {
            return Ok(());
        }
        let mut args = sys::pinmap_sync {
            flags,
            handle: self.handle,
            offset: (elements.start * size_of::<T>()) as u64,
            length: (elements.len() * size_of::<T>()) as u64,
            ..Default::default()
        };
        ioctl::sync(self.device.as_fd(), &mut args)
            .map_err(|errno| Error::new(Operation::Sync, attempt(), errno))
    }

    /// A copy of all elements.
    pub fn to_vec(&self) -> Vec<T> {
        self.slice().to_vec()
    }
}

impl<T> Allocation<T> {
    /// Elements.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The device that reaches it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// User address of the first element.
    pub fn addr(&self) -> usize {
        self.memory.addr()
    }

    /// Device address of the first element: on a paged device the same as [`addr`](Self::addr).
    pub fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        match self.memory {
            Mapped::Host(_) => Place::Host,
            Mapped::Vram(_) => Place::Vram,
        }
    }

    /// The driver's name for it, unique in its context.
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Mapped {
    pub(crate) fn new(map: MmapRaw, place: Place) -> Self {
        match place {
            Place::Host => Self::Host(Memory::new(map)),
            Place::Vram => Self::Vram(Vram::new(map)),
        }
    }

    fn addr(&self) -> usize {
        match self {
            Self::Host(memory) => memory.addr(),
            Self::Vram(vram) => vram.addr(),
        }
    }
}

/// Maps an allocation for the device where the program has it. Elsewhere only for a flat device,
/// whose IOMMU may not have that address.
fn map_for(device: &Device, handle: u64, addr: usize) -> Result<u64, (Errno, sys::pinmap_fail)> {
    let mut args = sys::pinmap_map {
        flags: sys::PINMAP_MAP_WRITE | sys::PINMAP_MAP_FIXED,
        handle,
        device_addr: addr as u64,
        ..Default::default()
    };
    let mut result = ioctl::map(device.as_fd(), &mut args);
    let taken = matches!(result, Err(Errno::ENOSPC | Errno::EEXIST));
    if taken && device.kind().is_ok_and(|kind| kind == Kind::Flat) {
        args = sys::pinmap_map {
            flags: sys::PINMAP_MAP_WRITE,
            handle,
            ..Default::default()
        };
        result = ioctl::map(device.as_fd(), &mut args);
    }
    match result {
        Ok(()) => Ok(args.device_addr),
        Err(errno) => Err((errno, args.fail)),
    }
}

fn release(device: &Device, handle: u64) -> Result<(), Errno> {
    let mut args = sys::pinmap_release {
        handle,
        ..Default::default()
    };
    ioctl::release(device.as_fd(), &mut args)
}

/// Bytes for so many elements, in whole pages.
fn length(count: usize, size: usize, page: usize) -> Result<usize, (Errno, &'static str)> {
    if count == 0 {
        return Err((Errno::EINVAL, "there must be at least one element"));
    }
    count
        .checked_mul(size)
        .and_then(|bytes| bytes.checked_next_multiple_of(page))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or((Errno::EOVERFLOW, "no address space is that large"))
}

impl<T> Drop for Allocation<T> {
    fn drop(&mut self) {
        // Whatever it says, the pages are the driver's: it frees them once neither the device nor
        // this process, which unmaps them next, can reach them.
        let _ = release(&self.device, self.handle);
    }
}

impl<T> fmt::Debug for Allocation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("place", &self.place())
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("device_addr", &format_args!("{:#x}", self.device_addr))
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(count: usize) -> i32 {
        let error = Device::fake().alloc::<u64>(count).expect_err("refused");
        assert_eq!(error.operation(), Operation::Allocate);
        error.errno()
    }

    #[test]
    fn impossible_lengths_are_refused_before_the_driver_is_asked() {
        assert_eq!(errno(0), Errno::EINVAL as i32);
        assert_eq!(errno(usize::MAX), Errno::EOVERFLOW as i32);
        assert_eq!(errno(1 << 61), Errno::EOVERFLOW as i32);
        assert_eq!(errno(1 << 60), Errno::EOVERFLOW as i32);
        assert_eq!(errno(1), Errno::ENOTTY as i32);
    }

    #[test]
    fn lengths_are_whole_pages() {
        assert_eq!(length(1, 8, 4096), Ok(4096));
        assert_eq!(length(512, 8, 4096), Ok(4096));
        assert_eq!(length(513, 8, 4096), Ok(8192));
    }

    #[test]
    fn what_was_tried_is_told() {
        let error = Device::fake().alloc::<f32>(1024).expect_err("no driver");
        let text = error.to_string();
        let expected =
            "cannot allocate pinned memory for 1024 elements of 4 bytes with /dev/null: ";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn allocations_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Allocation<f32>>();
    }
}
