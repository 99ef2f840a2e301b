// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations: memory that the driver allocates for a device and the CPU, in host memory or in the
//! device's memory.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsFd;

use memmap2::MmapRaw;
use nix::errno::Errno;

#[cfg(feature = "accelerator")]
use crate::device::accelerator::Accelerator;
use crate::device::info::Kind;
use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::element::Element;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::memory::view::{View, Vram};
use crate::sys::map::Map;
use crate::sys::{bindings as abi, ioctl};

/// Where memory is, or is to be: an [`Allocation`], or managed memory.
///
/// ```no_run
/// use pinmap::accelerator::Place;
/// use pinmap::Allocation;
/// # fn f(memory: &Allocation<u8>) -> pinmap::Result<()> {
/// if memory.place() == Place::Vram {
///     println!("reading this by the CPU is slow");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Place {
    /// The host's memory: pinned for an [`Allocation`], not pinned for managed memory.
    Host,
    /// The device's own memory. The CPU reaches an [`Allocation`] there, write-combined: writes are
    /// fast, reads are slow. Managed memory comes home instead when the CPU touches it.
    Vram,
}

/// Memory for a number of elements, allocated by the driver and zeroed. The CPU and the device both
/// read and write it.
///
/// Made by [`Device::alloc`], [`Device::import`] and [`Accelerator::alloc_vram`]. On a paged device
/// the device address equals the user address. The CPU copies elements in and out; there are no
/// references to them, because a device may change them at any time. Host memory of an accelerator
/// to which there are references is [`Pinned`](crate::accelerator::Pinned). Dropping an allocation
/// frees the memory, and the device cannot reach it any more. An allocation keeps the device open.
///
/// ```no_run
/// # fn f(device: &pinmap::Device, registers: &pinmap::Bar) -> pinmap::Result<()> {
/// let mut samples = device.alloc::<i16>(4096)?;
/// samples.write(0, &[1, 2, 3])?;
/// registers.write(0x10, samples.device_addr())?;
/// println!("{}", samples.get(2)?);
/// # Ok(()) }
/// ```
///
/// Once the device is gone, or has taken imported memory back, an access to memory in
/// [`Place::Vram`] raises `SIGBUS`; host memory stays accessible.
pub struct Allocation<T> {
    device: Device,
    handle: u64,
    device_addr: u64,
    memory: Mapped,
    /// Number of elements.
    len: usize,
    /// Other devices of the process have it at the same address.
    portable: bool,
    elements: PhantomData<T>,
}

/// The mapping of an allocation for the CPU.
pub(crate) enum Mapped {
    Host(Map),
    Vram(Vram),
}

/// A handle of the driver that is released when this is dropped, unless an allocation takes it
/// over.
pub(crate) struct HandleGuard<'a> {
    device: &'a Device,
    handle: u64,
}

impl<'a> HandleGuard<'a> {
    pub(crate) fn new(device: &'a Device, handle: u64) -> Self {
        Self { device, handle }
    }
}

impl Drop for HandleGuard<'_> {
    fn drop(&mut self) {
        // An error means that the device is gone, or that the file is not the driver's any more.
        let _ = release(self.device, self.handle);
    }
}

impl<T: Element> Allocation<T> {
    /// Maps memory of `len` elements for the device, and takes the handle over. `portable`: other
    /// devices of the process have it at the same address.
    pub(crate) fn map(
        device: &Device,
        handle: HandleGuard<'_>,
        memory: Mapped,
        len: usize,
        portable: bool,
    ) -> Result<Self, (Errno, Option<Failure>)> {
        let device_addr = map_for(device, handle.handle, memory.addr())
            .map_err(|(errno, fail)| (errno, Failure::from_abi(&fail)))?;
        let handle = std::mem::ManuallyDrop::new(handle).handle;
        Ok(Self {
            device: device.clone(),
            handle,
            device_addr,
            memory,
            len,
            portable,
            elements: PhantomData,
        })
    }

    /// Borrows the elements as a slice that the device can read.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Pinned;
    /// use pinmap::Allocation;
    /// # fn f(
    /// #     stream: &pinmap::accelerator::Stream, from: &Allocation<f32>, to: &mut Pinned<f32>,
    /// # ) -> pinmap::Result<()> {
    /// // The first half.
    /// stream.scope(|work| work.copy(from.slice().part(..512)?, to.slice_mut().part(..512)?))?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "accelerator")]
    pub fn slice(&self) -> DeviceSlice<'_, T> {
        self.all()
    }

    fn all(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(&self.device, self.view(), self.device_addr, self.len)
    }

    pub(crate) fn view(&self) -> View<'_> {
        match &self.memory {
            Mapped::Host(memory) => View::Host(memory.words()),
            Mapped::Vram(vram) => View::Vram(vram),
        }
    }

    /// Borrows the elements exclusively as a slice that the device can write.
    ///
    /// ```no_run
    /// use pinmap::Allocation;
    /// use pinmap_testgpu::IncrementF32;
    /// # use pinmap::accelerator::Stream;
    /// # use pinmap::Result;
    /// # fn f(stream: &Stream, local: &mut Allocation<f32>) -> Result<()> {
    /// stream.scope(|work| {
    ///     // Borrowed once, for both: the first piece of work has it until the end of the scope.
    ///     let mut local = local.slice_mut();
    ///     work.fill(&mut local, 1.0)?;
    ///     work.launch(IncrementF32 { data: &mut local })
    /// })?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "accelerator")]
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.slice())
    }

    /// Borrows memory as a slice that another accelerator of this program can read: its own memory
    /// in VRAM, which the other one then reaches by the bus, or
    /// [portable](crate::AllocOptions::portable) host memory.
    ///
    /// VRAM is registered with the other accelerator the first time, until the allocation is
    /// dropped.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Accelerator, Stream};
    /// use pinmap::{accelerator, AllocOptions};
    /// # fn f(first: &Accelerator, second: &Accelerator, stream: &Stream) -> pinmap::Result<()> {
    /// let shared = first.device().alloc_with::<f32>(1024, AllocOptions::new().portable())?;
    /// let mut local = second.alloc_vram::<f32>(1024)?;
    /// // `stream` is one of the second accelerator.
    /// stream.scope(|work| work.copy(shared.on(second)?, &mut local))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is host memory that is not portable; `EREMOTEIO`: the bus does not let the
    /// other device reach it, and the message says what is between the two; otherwise as for
    /// [`register`](Self::register).
    #[cfg(feature = "accelerator")]
    pub fn on(&self, other: &Accelerator) -> Result<DeviceSlice<'_, T>> {
        if self.place() == Place::Vram {
            return self.slice().near(other.device());
        }
        if !self.portable {
            let attempt = format!("use {} with {}", self.words(), other.device());
            let cause = "it is not portable";
            let error = Error::refused(Operation::Access, attempt, Errno::EINVAL, cause);
            return Err(error.with_hint("allocate it with `AllocOptions::portable`"));
        }
        Ok(self.slice().of(other.device()))
    }

    /// Borrows memory exclusively as a slice that another accelerator of this program can write:
    /// see [`on`](Self::on).
    ///
    /// # Errors
    ///
    /// As for [`on`](Self::on).
    #[cfg(feature = "accelerator")]
    pub fn on_mut(&mut self, other: &Accelerator) -> Result<DeviceSliceMut<'_, T>> {
        self.on(other).map(DeviceSliceMut::new)
    }

    /// The elements as a slice, if this is host memory; `None` for memory of the device.
    ///
    /// # Safety
    ///
    /// As long as the slice exists, no device writes to the memory, and nobody else who shares it:
    /// devices to which it is portable, importers, other processes. A device may be told to by a
    /// store to its registers, or by a raw packet.
    pub unsafe fn as_slice(&self) -> Option<&[T]> {
        // SAFETY: As the caller promises.
        matches!(self.memory, Mapped::Host(_)).then(|| unsafe { self.host_slice() })
    }

    /// The elements as a slice for writing, if this is host memory; `None` for memory of the
    /// device.
    ///
    /// # Safety
    ///
    /// As long as the slice exists, no device reads or writes the memory, and nobody else who
    /// shares it: see [`as_slice`](Self::as_slice).
    pub unsafe fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        // SAFETY: As the caller promises.
        matches!(self.memory, Mapped::Host(_)).then(|| unsafe { self.host_slice_mut() })
    }

    /// The elements of host memory as a slice. Panics for memory of the device.
    ///
    /// # Safety
    ///
    /// Nothing writes to the memory as long as the slice exists.
    pub(crate) unsafe fn host_slice(&self) -> &[T] {
        let start = self.host().start().cast::<T>();
        // SAFETY: It is mapped, begins with a page, hence aligned, and is initialised by the
        // driver; any bytes are elements. It is not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }

    /// The elements of host memory as a slice for writing. Panics for memory of the device.
    ///
    /// # Safety
    ///
    /// Nothing else reads or writes the memory as long as the slice exists.
    pub(crate) unsafe fn host_slice_mut(&mut self) -> &mut [T] {
        let start = self.host().start().cast::<T>();
        // SAFETY: As for `host_slice`, and unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }

    fn host(&self) -> &Map {
        match &self.memory {
            Mapped::Host(memory) => memory,
            Mapped::Vram(_) => unreachable!("the caller knows that this is host memory"),
        }
    }

    /// Loads one element.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn get(&self, index: usize) -> Result<T> {
        self.all().get(index)
    }

    /// Stores one element.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        self.all().write(index, &[value])
    }

    /// Copies elements from the memory, from element `index` on. The copy sees what the device
    /// wrote in work that was waited for.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the allocation.
    pub fn read(&self, index: usize, to: &mut [T]) -> Result<()> {
        self.all().read(index, to)
    }

    /// Copies elements to the memory, from element `index` on. Work that is submitted later sees
    /// them.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the allocation.
    pub fn write(&mut self, index: usize, from: &[T]) -> Result<()> {
        self.all().write(index, from)
    }

    /// Makes what the CPU wrote to these elements visible to a device that is not coherent (see
    /// [`Info::coherent`](crate::Info::coherent)). To be called after the last write, and before
    /// the device's work starts. On a coherent device this costs nothing.
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar, input: &mut pinmap::Allocation<u32>) -> pinmap::Result<()> {
    /// input.write(0, &[1, 2, 3])?;
    /// input.sync_for_device(0..3)?;
    /// bar.write(0x98, 1u32)?; // start
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the allocation; `EOPNOTSUPP`: this architecture
    /// cannot do it; `ENODEV`: the device is gone.
    pub fn sync_for_device(&self, elements: Range<usize>) -> Result<()> {
        self.sync(elements, abi::PINMAP_SYNC_FOR_DEVICE)
    }

    /// Makes what a device that is not coherent wrote to these elements visible to the CPU. To be
    /// called after the device's work ended, and before the first read.
    ///
    /// ```no_run
    /// # fn f(
    /// #     interrupt: &pinmap::Interrupt, output: &pinmap::Allocation<u32>,
    /// # ) -> pinmap::Result<()> {
    /// interrupt.wait()?;
    /// output.sync_for_cpu(0..3)?;
    /// println!("{}", output.get(0)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`sync_for_device`](Self::sync_for_device).
    pub fn sync_for_cpu(&self, elements: Range<usize>) -> Result<()> {
        self.sync(elements, abi::PINMAP_SYNC_FOR_CPU)
    }

    fn sync(&self, elements: Range<usize>, flags: u32) -> Result<()> {
        let attempt = || {
            let Range { start, end } = &elements;
            format!(
                "synchronise the elements {start}..{end} of {}",
                self.words()
            )
        };
        if elements.start > elements.end || elements.end > self.len {
            let cause = format!("there are {} elements", self.len);
            return Err(Error::refused(
                Operation::Sync,
                attempt(),
                Errno::EINVAL,
                cause,
            ));
        }
        if elements.is_empty() || self.device.is_coherent() {
            return Ok(());
        }
        let mut args = abi::pinmap_sync {
            flags,
            handle: self.handle,
            offset: (elements.start * size_of::<T>()) as u64,
            length: (elements.len() * size_of::<T>()) as u64,
            ..Default::default()
        };
        ioctl::sync(self.device.as_fd(), &mut args)
            .map_err(|errno| Error::new(Operation::Sync, attempt(), errno))
    }

    /// Copies all elements.
    ///
    /// ```no_run
    /// # fn f(local: &pinmap::Allocation<f32>) -> pinmap::Result<()> {
    /// let sum: f32 = local.to_vec().iter().sum();
    /// # Ok(()) }
    /// ```
    pub fn to_vec(&self) -> Vec<T> {
        self.all().to_vec()
    }
}

impl<T> Allocation<T> {
    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The device that reaches the memory.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// User address of the first element.
    pub fn addr(&self) -> usize {
        self.memory.addr()
    }

    /// Device address of the first element. On a paged device it equals [`addr`](Self::addr).
    pub fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// The mapping for the CPU.
    pub(crate) fn mapped(&self) -> &Mapped {
        &self.memory
    }

    /// Whether the memory is host memory or the device's.
    #[cfg(feature = "accelerator")]
    pub fn place(&self) -> Place {
        self.memory.place()
    }

    /// The handle of the allocation, unique in its context.
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Mapped {
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Host(_) => Place::Host,
            Self::Vram(_) => Place::Vram,
        }
    }

    pub(crate) fn new(map: MmapRaw, place: Place) -> Self {
        match place {
            Place::Host => Self::Host(Map::new(map)),
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

/// Maps an allocation for the device at its user address. For a flat device, whose IOMMU may not
/// have that address, another one will do.
fn map_for(device: &Device, handle: u64, addr: usize) -> Result<u64, (Errno, abi::pinmap_fail)> {
    let mut args = abi::pinmap_map {
        flags: abi::PINMAP_MAP_WRITE | abi::PINMAP_MAP_FIXED,
        handle,
        device_addr: addr as u64,
        ..Default::default()
    };
    let mut result = ioctl::map(device.as_fd(), &mut args);
    let taken = matches!(result, Err(Errno::ENOSPC | Errno::EEXIST));
    if taken && device.kind().is_ok_and(|kind| kind == Kind::Flat) {
        args = abi::pinmap_map {
            flags: abi::PINMAP_MAP_WRITE,
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
    let mut args = abi::pinmap_release {
        handle,
        ..Default::default()
    };
    ioctl::release(device.as_fd(), &mut args)
}

impl<T> Drop for Allocation<T> {
    fn drop(&mut self) {
        // Even after an error, the driver frees the pages only when neither the device nor this
        // process, which unmaps them next, can reach them.
        let _ = release(&self.device, self.handle);
    }
}

impl<T> Allocation<T> {
    /// Says what it is, in the words of an error.
    pub(crate) fn words(&self) -> String {
        let place = match self.memory.place() {
            Place::Host => "host memory",
            Place::Vram => "VRAM",
        };
        let (bytes, addr) = (self.len * size_of::<T>(), self.addr());
        format!("the {bytes} bytes of {place} at {addr:#x}")
    }
}

impl<T> fmt::Debug for Allocation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("place", &self.memory.place())
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("device_addr", &format_args!("{:#x}", self.device_addr))
            .field("len", &self.len)
            .finish()
    }
}
