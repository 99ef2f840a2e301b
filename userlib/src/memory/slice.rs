// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device slices: typed parts of memory that a device can reach, the operands of its work.
//!
//! Their lifetimes keep the memory allocated, and registered or managed, until the device is done
//! with it.

mod convert;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

use nix::errno::Errno;

#[cfg(feature = "accelerator")]
use crate::device::accelerator::Accelerator;
use crate::device::{ContextId, Device};
use crate::error::{Error, Operation, Result};
use crate::memory::element::{bytes_of, bytes_of_mut, check_layout, zero, Element};
use crate::memory::view::View;

/// How a device reaches the memory of a slice, and what that cost.
///
/// Returned by [`DeviceSlice::reach`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Reach {
    /// The program registered or allocated the memory itself, or the slice is empty.
    Mapped,
    /// The memory is managed. Nothing is pinned; a page that the device does not have yet is
    /// faulted in when the device touches it. [`Device::own_totals`] counts these faults.
    Managed,
    /// The memory is registered until the work is done, because the device cannot fault, the
    /// options of the stream ask for it, or the program manages other ranges.
    Registered {
        /// How many bytes were pinned for this slice. What other slices have pinned does not count.
        bytes: usize,
        /// How long that took.
        time: Duration,
    },
    /// The memory is another device's, and this one reaches it by the bus.
    Peer,
}

/// A borrowed slice of elements in memory that a device can reach, for the device to read.
///
/// Made by the method `slice` of [`Pinned`](crate::accelerator::Pinned),
/// [`Registered`](crate::accelerator::Registered), [`Managed`](crate::accelerator::Managed),
/// [`Allocation`](crate::Allocation) and [`Registration`](crate::Registration), and of an ordinary
/// slice by [`Work::slice`](crate::accelerator::Work::slice). While the slice exists, the memory
/// can be neither released nor written through its owner.
///
/// A device slice does not dereference to `&[T]`, because the device might change the elements. The
/// CPU copies them.
///
/// ```no_run
/// # fn f(numbers: &pinmap::Allocation<f32>) -> pinmap::Result<()> {
/// let all = numbers.slice();
/// let first = all.part(..16)?;
/// println!("{:?}, at device address {:#x}", first.to_vec(), first.device_addr());
/// # Ok(()) }
/// ```
pub struct DeviceSlice<'a, T> {
    /// The context whose queues reach the memory.
    context: ContextId,
    reach: Reach,
    view: View<'a>,
    /// Offset of the first element in `view`, in bytes.
    offset: usize,
    /// Device address of the first element.
    addr: u64,
    /// Number of elements.
    len: usize,
    elements: PhantomData<T>,
}

/// An exclusively borrowed slice of elements in memory that a device can reach, for the device to
/// write.
///
/// Made by the method `slice_mut` of the types that [`DeviceSlice`] names, and of an ordinary slice
/// by [`Work::slice_mut`](crate::accelerator::Work::slice_mut). Submitting work borrows the slice
/// only for the time of the call, so that several pieces of work can use the same memory, in the
/// order of the stream. The memory itself stays borrowed until the
/// [scope](crate::accelerator::Stream::scope) has ended.
///
/// ```no_run
/// use pinmap::accelerator::Stream;
/// use pinmap_testgpu::IncrementF32;
/// # fn f(stream: &Stream, numbers: &mut [f32]) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     let mut data = work.slice_mut(numbers)?;
///     work.launch(IncrementF32 { data: &mut data })?;
///     work.stream().synchronize()?;
///     data.set(0, 0.0)?; // by the CPU
///     work.launch(IncrementF32 { data: &mut data })
/// })
/// # }
/// ```
pub struct DeviceSliceMut<'a, T>(DeviceSlice<'a, T>);

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// The first `len` elements of a view, whose device address is `addr`.
    pub(crate) fn new(device: &Device, view: View<'a>, addr: u64, len: usize) -> Self {
        Self::lent(device, view, addr, len, Reach::Mapped)
    }

    /// A slice as [`new`](Self::new) makes it, of memory that the device reaches in this way.
    pub(crate) fn lent(
        device: &Device,
        view: View<'a>,
        addr: u64,
        len: usize,
        reach: Reach,
    ) -> Self {
        const { check_layout::<T>() }
        Self {
            context: device.id(),
            reach,
            view,
            offset: 0,
            addr,
            len,
            elements: PhantomData,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Device address of the first element.
    pub fn device_addr(&self) -> u64 {
        self.addr
    }

    /// How the device reaches the memory, and what that cost.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Reach, Stream};
    /// # fn f(stream: &Stream, numbers: &[f32]) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     match work.slice(numbers)?.reach() {
    ///         Reach::Managed => println!("the device faults it in"),
    ///         Reach::Registered { bytes, time } => println!("{bytes} bytes pinned in {time:?}"),
    ///         _ => println!("the device had it before"),
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns a part of the slice, by a range of elements.
    ///
    /// ```no_run
    /// # fn f(numbers: &pinmap::accelerator::Pinned<f32>) -> pinmap::Result<()> {
    /// let all = numbers.slice();
    /// let (first, rest) = (all.part(..16)?, all.part(16..)?);
    /// assert_eq!(first.len() + rest.len(), all.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range ends before it begins, or after the last element.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(&first) => Some(first),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(self.len),
        };
        match start.zip(end) {
            Some((start, end)) if start <= end && end <= self.len => Ok(self.cut(start, end)),
            _ => Err(self.refused("take a part of", start.unwrap_or(usize::MAX))),
        }
    }

    /// A part of the slice, by a range that is inside.
    fn cut(&self, start: usize, end: usize) -> Self {
        Self {
            offset: self.offset + start * size_of::<T>(),
            addr: self.addr + (start * size_of::<T>()) as u64,
            len: end - start,
            ..*self
        }
    }

    /// Loads one element. Later reads see what the device wrote before it wrote this element
    /// (acquire).
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn get(&self, index: usize) -> Result<T> {
        let mut one = [zero()];
        self.read(index, &mut one)?;
        fence(Ordering::Acquire);
        Ok(one[0])
    }

    /// Copies elements from the memory, from element `index` on.
    ///
    /// The copy sees what the device wrote in work that was waited for. Each aligned 8 bytes are
    /// read at once; the copy as a whole is not.
    ///
    /// ```no_run
    /// # fn f(numbers: &pinmap::Allocation<f32>) -> pinmap::Result<()> {
    /// let mut three = [0.0; 3];
    /// numbers.slice().read(10, &mut three)?; // elements 10, 11 and 12
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the slice.
    pub fn read(&self, index: usize, to: &mut [T]) -> Result<()> {
        let at = self.at("read", index, to.len())?;
        self.view.read(at, bytes_of_mut(to));
        Ok(())
    }

    /// Copies all elements.
    pub fn to_vec(&self) -> Vec<T> {
        let mut all = vec![zero(); self.len];
        match self.read(0, &mut all) {
            Ok(()) => all,
            Err(error) => unreachable!("all of it is inside: {error}"),
        }
    }

    /// Copies elements to the memory; see [`DeviceSliceMut::write`].
    pub(crate) fn write(&self, index: usize, from: &[T]) -> Result<()> {
        let at = self.at("write", index, from.len())?;
        self.view.write(at, bytes_of(from));
        Ok(())
    }

    /// Offset in the view, in bytes, of `count` elements from element `index` on.
    fn at(&self, verb: &str, index: usize, count: usize) -> Result<usize> {
        match index.checked_add(count) {
            Some(end) if end <= self.len => Ok(self.offset + index * size_of::<T>()),
            _ => Err(self.refused(&format!("{verb} {count} elements of"), index)),
        }
    }

    fn refused(&self, verb: &str, index: usize) -> Error {
        let attempt = format!(
            "{verb} device memory at {:#x}, from element {index} on",
            self.addr
        );
        let cause = format!("it has {} elements", self.len);
        Error::refused(Operation::Access, attempt, Errno::EINVAL, cause)
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        // The memory is mapped here, so its length fits.
        (self.len * size_of::<T>()) as u64
    }

    /// Whether the queues of this context reach the memory.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.context == device.id()
    }

    /// Returns the same memory for another context, which has it at the same addresses.
    pub(crate) fn of(self, device: &Device) -> Self {
        let context = device.id();
        Self { context, ..self }
    }

    /// Returns the slice as another device reaches it by the bus, if it is memory of a device, and
    /// otherwise as it is.
    ///
    /// # Errors
    ///
    /// As for [`Allocation::on`](crate::Allocation::on).
    #[cfg(feature = "accelerator")]
    pub(crate) fn near(self, device: &Device) -> Result<Self> {
        let vram = match self.view {
            View::Vram(vram) | View::Peer(vram) if !self.is_of(device) => vram,
            _ => return Ok(self),
        };
        let giver = vram.peers.giver().map(Accelerator::device);
        let (reach, view, start) = match giver {
            // Back to its own device, where it has its user address.
            Some(giver) if giver.is_same(device) => {
                (Reach::Mapped, View::Vram(vram), vram.addr() as u64)
            }
            // No device reaches its own memory by the bus.
            Some(giver) if giver.path() == device.path() => return Ok(self),
            _ => (Reach::Peer, View::Peer(vram), vram.device_addr_for(device)?),
        };
        Ok(Self {
            context: device.id(),
            reach,
            view,
            addr: start + self.offset as u64,
            ..self
        })
    }

    /// The accelerator whose own memory it is.
    #[cfg(feature = "accelerator")]
    pub(crate) fn giver(&self) -> Option<&'a Accelerator> {
        match self.view {
            View::Vram(vram) | View::Peer(vram) => vram.peers.giver(),
            _ => None,
        }
    }

    /// Returns portable host memory for another context, and memory of a device as it is.
    #[cfg(feature = "accelerator")]
    pub(crate) fn of_portable(self, device: &Device) -> Self {
        match self.view {
            View::Host(_) => self.of(device),
            _ => self,
        }
    }

    /// Whether the elements are in the device's own memory.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.view, View::Vram(_))
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// A slice of memory that the device may write, and that is borrowed exclusively.
    pub(crate) fn new(slice: DeviceSlice<'a, T>) -> Self {
        Self(slice)
    }

    /// The elements as a slice for the device to read.
    pub fn as_slice(&self) -> DeviceSlice<'a, T> {
        self.0
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Device address of the first element.
    pub fn device_addr(&self) -> u64 {
        self.0.addr
    }

    /// How the device reaches the memory: see [`DeviceSlice::reach`].
    pub fn reach(&self) -> Reach {
        self.0.reach
    }

    /// Returns the slice once more, for as long as the memory is borrowed. Work on both is done in
    /// the order in which it is submitted.
    pub fn reborrow(&mut self) -> Self {
        Self(self.0)
    }

    /// Returns a part of the slice, by a range of elements, for as long as the memory is borrowed.
    /// So one piece of work can use a part, and the next one all of it.
    ///
    /// ```no_run
    /// # use pinmap::accelerator::Stream;
    /// # use pinmap::{Allocation, Result};
    /// # use pinmap_testgpu as testgpu;
    /// # fn f(stream: &Stream, numbers: &mut Allocation<f32>) -> Result<()> {
    /// stream.scope(|work| {
    ///     let mut all = numbers.slice_mut();
    ///     work.launch(testgpu::IncrementF32 { data: &mut all.part(..512)? })?;
    ///     work.launch(testgpu::IncrementF32 { data: &mut all })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DeviceSlice::part`].
    pub fn part(&mut self, range: impl RangeBounds<usize>) -> Result<Self> {
        self.0.part(range).map(Self)
    }

    /// Splits the slice into the elements before an index and those from there on.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{self, Pinned, Stream};
    /// use pinmap_testgpu::IncrementF32;
    /// # fn f(first: &Stream, second: &Stream, numbers: &mut Pinned<f32>) -> pinmap::Result<()> {
    /// accelerator::scope(|scope| {
    ///     // Each half by a stream of its own.
    ///     let (mut low, mut high) = numbers.slice_mut().split_at(512)?;
    ///     scope.on(first).launch(IncrementF32 { data: &mut low })?;
    ///     scope.on(second).launch(IncrementF32 { data: &mut high })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the index is greater than the length.
    pub fn split_at(&mut self, index: usize) -> Result<(Self, Self)> {
        let (before, after) = (self.0.part(..index)?, self.0.part(index..)?);
        Ok((Self(before), Self(after)))
    }

    /// Loads one element: see [`DeviceSlice::get`].
    ///
    /// # Errors
    ///
    /// As for [`DeviceSlice::get`].
    pub fn get(&self, index: usize) -> Result<T> {
        self.0.get(index)
    }

    /// Copies elements from the memory: see [`DeviceSlice::read`].
    ///
    /// # Errors
    ///
    /// As for [`DeviceSlice::read`].
    pub fn read(&self, index: usize, to: &mut [T]) -> Result<()> {
        self.0.read(index, to)
    }

    /// Copies all elements.
    pub fn to_vec(&self) -> Vec<T> {
        self.0.to_vec()
    }

    /// Copies elements to the memory, from element `index` on. Work that is submitted later sees
    /// them.
    ///
    /// ```no_run
    /// # fn f(numbers: &mut pinmap::Allocation<f32>) -> pinmap::Result<()> {
    /// let mut numbers = numbers.slice_mut();
    /// numbers.write(10, &[1.0, 2.0, 3.0])?;
    /// assert_eq!(numbers.get(12)?, 3.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the slice.
    pub fn write(&mut self, index: usize, from: &[T]) -> Result<()> {
        self.0.write(index, from)
    }

    /// Stores one element, as [`write`](Self::write) does.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        self.0.write(index, &[value])
    }
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

impl<T> fmt::Debug for DeviceSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSlice")
            .field("device_addr", &format_args!("{:#x}", self.addr))
            .field("len", &self.len)
            .finish()
    }
}

impl<T> fmt::Debug for DeviceSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceSliceMut").field(&self.0).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
