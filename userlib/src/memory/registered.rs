// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory: memory of the program that an accelerator reaches until it is given back.
//!
//! The pages around the memory are registered, and shared with whatever else is lent of them. There
//! can be references to the memory, for the reasons that [`pinned`](super::pinned) gives.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU8;

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{ErrorWith, RegisterAllError, Result};
use crate::memory::deref::as_slice;
use crate::memory::element::{bytes_of, bytes_of_mut};
use crate::memory::lent::{self, Loans};
use crate::memory::program::{Memory, MemoryMut};
use crate::memory::slice::{DeviceSlice, DeviceSliceMut, Reach};
use crate::memory::view::View;

/// Memory of the program that an accelerator reaches until it is given back: a slice for the CPU,
/// and an operand for the streams.
///
/// Made by [`Accelerator::register`]. It dereferences to a slice as long as no work of the device
/// borrows it. Register memory once that many pieces of work use. Dropping it takes the memory from
/// the device, and then drops the memory.
///
/// The memory stays where it is, also when the value moves. It may begin and end anywhere, so that
/// `O_DIRECT` takes it only if it happens to begin with a page:
/// [`Pinned`](crate::accelerator::Pinned) and [`Buffer`](crate::Buffer) do.
///
/// ```no_run
/// use pinmap::accelerator::{Accelerator, Stream};
/// # fn f(gpu: &Accelerator, stream: &Stream) -> pinmap::Result<()> {
/// let numbers: Vec<f32> = (0..1 << 20).map(|i| i as f32).collect();
/// let mut numbers = gpu.register(numbers)?;
/// let mut local = gpu.alloc_vram::<f32>(numbers.len())?;
/// for _ in 0..100 {
///     stream.scope(|work| {
///         let mut local = local.slice_mut();
///         work.copy(&numbers, &mut local)?;
///         work.launch(pinmap_testgpu::IncrementF32 { data: &mut local })
///     })?;
/// }
/// stream.scope(|work| work.copy(&local, &mut numbers))?;
/// assert_eq!(numbers[7], 8.0);
/// let numbers: Vec<f32> = numbers.release()?;
/// # Ok(()) }
/// ```
pub struct Registered<M: Memory> {
    device: Device,
    loans: Loans,
    /// `None` only after it was taken.
    memory: Option<M>,
}

impl Accelerator {
    /// Registers memory that the program already has, in place: a `Vec`, a boxed, borrowed or
    /// shared slice, a [`Buffer`](crate::Buffer), or, with the feature `memmap2`, a mapped file. It
    /// stays pinned, and at its address for the device, until it is released or dropped.
    ///
    /// The memory may begin and end anywhere. Its first and last page are registered as a whole,
    /// but work names only what is in the memory. The device may write where the program may:
    /// shared slices and files that are mapped for reading can only be read.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut weights = gpu.register(std::fs::read("weights.bin")?)?;
    /// weights[0] = 1; // a slice, while no work borrows it
    /// let weights: Vec<u8> = weights.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An owner of memory comes back with the error. As for
    /// [`Device::register_raw`](crate::Device::register_raw), where `EEXIST` means that a part of
    /// these pages was registered in another way. `EACCES`: the memory shares a page that can only
    /// be read with memory that is lent already.
    pub fn register<M: Memory>(&self, memory: M) -> Result<Registered<M>, M::Error> {
        let elements = memory.elements();
        let (addr, len) = (elements.as_ptr().expose_provenance(), size_of_val(elements));
        match lent::register(self.device(), addr, len, M::ACCESS) {
            Ok(loans) => Ok(Registered {
                device: self.device().clone(),
                loans,
                memory: Some(memory),
            }),
            Err(error) => Err(memory.refuse(error)),
        }
    }

    /// Registers several pieces of memory, as [`register`](Self::register) does each of them: all
    /// or none. The driver does it by one call for up to 1024 of them, which takes less time than
    /// as many calls. No memory does nothing.
    ///
    /// Pieces may lie in the same page. Each is an operand of its own, and is released by itself or
    /// with others ([`Registered::release_all`]).
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Accelerator, Registered};
    /// # fn f(gpu: &Accelerator, layers: Vec<Vec<f32>>) -> pinmap::Result<()> {
    /// let mut layers = gpu.register_all(layers)?;
    /// layers[2][0] = 1.0; // a slice, as each `Registered` is
    /// let layers: Vec<Vec<f32>> = Registered::release_all(layers)?;
    ///
    /// // Borrowed: each half by itself, until it is dropped.
    /// let mut numbers = vec![0.0f32; 1 << 20];
    /// let (left, right) = numbers.split_at_mut(1 << 19);
    /// let halves = gpu.register_all([left, right])?;
    /// # drop((layers, halves)); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register), of one of the pieces, or of all of them. Nothing is
    /// registered then, and all memory comes back with the error.
    pub fn register_all<M: Memory>(
        &self,
        memory: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Registered<M>>, RegisterAllError<M>> {
        let memory: Vec<M> = memory.into_iter().collect();
        let range = |memory: &M| {
            let elements = memory.elements();
            (elements.as_ptr().expose_provenance(), size_of_val(elements))
        };
        let ranges: Vec<_> = memory.iter().map(range).collect();
        match lent::register_all(self.device(), &ranges, M::ACCESS) {
            Ok(loans) => {
                let each = loans.into_iter().zip(memory);
                let registered = each.map(|(loans, memory)| Registered {
                    device: self.device().clone(),
                    loans,
                    memory: Some(memory),
                });
                Ok(registered.collect())
            }
            Err(refused) => Err(refused.with(self.device(), &ranges, memory)),
        }
    }
}

impl<M: Memory> Registered<M> {
    fn memory(&self) -> &M {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("only a release takes it, and that consumes the value"),
        }
    }

    /// The device that reaches the memory.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Borrows the elements as a slice that the device can read.
    pub fn slice(&self) -> DeviceSlice<'_, M::Element> {
        let elements = self.memory().elements();
        let addr = elements.as_ptr().expose_provenance() as u64;
        let view = View::Plain(bytes_of(elements));
        DeviceSlice::lent(&self.device, view, addr, elements.len(), Reach::Mapped)
    }

    /// Registers the memory with another accelerator of this program, the first time, and borrows
    /// the elements as a slice that this one can read. Both reach it at its own address, until it
    /// is released or dropped. It is pinned, and counts against the limits of the user, for each
    /// of them.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Accelerator, Stream};
    /// # fn f(
    /// #     first: &Accelerator, second: &Accelerator, streams: [Stream; 2],
    /// # ) -> pinmap::Result<()> {
    /// let mut numbers = first.register(vec![1.0f32; 1 << 20])?;
    /// let mut local = second.alloc_vram::<f32>(numbers.len())?;
    /// streams[0].scope(|work| work.fill(&mut numbers, 2.0))?;
    /// streams[1].scope(|work| work.copy(numbers.on(second)?, &mut local))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`register`](Accelerator::register).
    pub fn on(&self, other: &Accelerator) -> Result<DeviceSlice<'_, M::Element>> {
        let elements = self.memory().elements();
        let (addr, len) = (elements.as_ptr().expose_provenance(), size_of_val(elements));
        let lend = || lent::register(other.device(), addr, len, M::ACCESS);
        self.loans.extend(other.device(), lend)?;
        Ok(self.slice().of(other.device()))
    }

    /// Takes the memory from the device, and gives it back.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator, numbers: Vec<f32>) -> pinmap::Result<()> {
    /// let registered = gpu.register(numbers).map_err(|failed| failed.error)?;
    /// let numbers: Vec<f32> = registered.release()?; // an error has the `Vec`, too
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An owner of memory comes back with the error: the device cannot reach it even then. `EIO`:
    /// as for [`Registration::release`](crate::Registration::release); the driver has cut the
    /// device off from all memory.
    pub fn release(mut self) -> Result<M, M::Error> {
        let ended = self.loans.end();
        let Some(memory) = self.memory.take() else {
            unreachable!("only this takes it, and that consumes the value");
        };
        match ended {
            Ok(()) => Ok(memory),
            Err(error) => Err(memory.refuse(error)),
        }
    }

    /// Takes several pieces of memory from their devices, and gives all of them back in their
    /// order. The driver does it by one call for up to 1024 of them, with one flush of the IOMMU.
    /// No memory does nothing.
    ///
    /// A page that something else of the context still needs, such as work on memory beside it,
    /// stays registered for that.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Registered;
    /// # fn f(gpu: &pinmap::accelerator::Accelerator, frames: Vec<Vec<u8>>) -> pinmap::Result<()> {
    /// let frames = gpu.register_all(frames)?;
    /// let (first, rest) = frames.split_at(1);
    /// println!("{} bytes, and {} more frames", first[0].len(), rest.len());
    /// let frames: Vec<Vec<u8>> = Registered::release_all(frames)?;
    /// # drop(frames); Ok(()) }
    /// ```
    ///
    /// Memory on which a device works cannot be released:
    ///
    /// ```compile_fail,E0505
    /// # use pinmap::{accelerator::*, *};
    /// # use pinmap_testgpu as testgpu;
    /// # fn f(stream: &Stream, mut numbers: Vec<Registered<Vec<f32>>>) -> Result<()> {
    /// stream.scope(|work| {
    ///     work.fill(&mut numbers[0], 1.0)?;
    ///     Registered::release_all(numbers)?;
    ///     Ok(())
    /// }) }
    /// ```
    ///
    /// # Errors
    ///
    /// All memory comes back with the error, whatever it is made of: no device can reach it even
    /// then. `EIO`: as for [`release`](Self::release).
    pub fn release_all(
        registered: impl IntoIterator<Item = Self>,
    ) -> Result<Vec<M>, ErrorWith<Vec<M>>> {
        let mut registered: Vec<Self> = registered.into_iter().collect();
        let ended = Loans::end_all(registered.iter().map(|one| &one.loans));
        let memory = registered.iter_mut().filter_map(|one| one.memory.take());
        let memory = memory.collect();
        match ended {
            Ok(()) => Ok(memory),
            Err(error) => Err(ErrorWith::new(error, memory)),
        }
    }
}

impl<M: MemoryMut> Registered<M> {
    /// Borrows the elements exclusively as a slice that the device can write.
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_, M::Element> {
        DeviceSliceMut::new(self.lend_mut())
    }

    fn lend_mut(&mut self) -> DeviceSlice<'_, M::Element> {
        let Some(memory) = &mut self.memory else {
            unreachable!("only a release takes it, and that consumes the value");
        };
        let elements = memory.elements_mut();
        let len = elements.len();
        let bytes = bytes_of_mut(elements);
        let (start, bytes) = (bytes.as_mut_ptr().cast::<AtomicU8>(), bytes.len());
        let addr = start.expose_provenance() as u64;
        // SAFETY: The elements are borrowed exclusively, and not used again, so that only this view
        // refers to them, by atomics, which allow the device to write, too.
        let view = View::Lent(unsafe { std::slice::from_raw_parts(start, bytes) });
        DeviceSlice::lent(&self.device, view, addr, len, Reach::Mapped)
    }

    /// Borrows the elements exclusively as a slice that another accelerator of this program can
    /// write: see [`on`](Self::on).
    ///
    /// # Errors
    ///
    /// As for [`on`](Self::on).
    pub fn on_mut(&mut self, other: &Accelerator) -> Result<DeviceSliceMut<'_, M::Element>> {
        self.on(other)?;
        Ok(DeviceSliceMut::new(self.lend_mut().of(other.device())))
    }
}

impl<M: Memory> Drop for Registered<M> {
    fn drop(&mut self) {
        // Before the memory is dropped. An error means that the device is cut off.
        let _ = self.loans.end();
    }
}

impl<M: Memory> Deref for Registered<M> {
    type Target = [M::Element];

    fn deref(&self) -> &Self::Target {
        self.memory().elements()
    }
}

impl<M: MemoryMut> DerefMut for Registered<M> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match &mut self.memory {
            Some(memory) => memory.elements_mut(),
            None => unreachable!("only a release takes it, and that consumes the value"),
        }
    }
}

as_slice! { (M: Memory) (M: MemoryMut) Registered<M> as M::Element }

impl<M: Memory> fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("addr", &format_args!("{:#x}", self.as_ptr().addr()))
            .field("len", &self.len())
            .finish()
    }
}
