// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory that belongs to a value.
//!
//! # Why there may be references to memory that a device writes
//!
//! A [`Managed`] is a slice of the program, and an operand of work. It is never both at once: an
//! operand borrows the value, exclusively if the device is to write, until the device is done, as
//! [lent](crate::memory::lent) memory does. So a value that is forgotten, or a panic, changes
//! nothing. What can name memory without a borrow is a packet that the program makes itself, and
//! submitting those is unsafe.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::slice_from_raw_parts;
use std::sync::atomic::AtomicU8;
use std::sync::Arc;

use memmap2::{Advice as MapAdvice, MmapOptions};
use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::Place;
use crate::memory::deref::as_slice;
use crate::memory::element::{check_layout, Element};
use crate::memory::lent::managed::ManagedRange;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut, Reach};
use crate::memory::view::View;
use crate::stream::prefetch::Prefetching;
use crate::stream::Stream;
use crate::sys::map::{page_size, Map};

use super::advice::Advice;
use super::prefetch::Prefetched;
use super::residency::Residency;
use super::statistics::ManagedStatistics;
use super::window::Piece;

/// Memory from this length on consists of whole huge pages, each of which moves there at once.
pub(super) const HUGE: usize = 2 << 20;

/// Memory for a number of elements that moves between the host and a device, to where it is used.
///
/// Made by [`Accelerator::alloc_managed`], or in a [`Window`](crate::accelerator::Window). For the
/// CPU it is a slice. For the device it is an operand of work, which borrows it until the device is
/// done: [`slice`](Self::slice) and [`slice_mut`](Self::slice_mut). Nothing is pinned, nothing
/// counts against `RLIMIT_MEMLOCK`, and it may be larger than the device's memory.
///
/// ```no_run
/// use pinmap::accelerator::{Place, StreamOptions};
/// use pinmap_testgpu as testgpu;
/// # fn main() -> pinmap::Result<()> {
/// let gpu = pinmap_testgpu::find()?;
/// let stream = gpu.stream(StreamOptions::new())?;
/// let mut numbers = gpu.alloc_managed::<f32>(1 << 20)?;
/// numbers.fill(1.0);
/// numbers.prefetch(Place::Vram)?;
/// stream.scope(|work| {
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
/// })?;
/// // A read by the CPU brings home the block around it.
/// assert!(numbers.iter().all(|&number| number == 2.0));
/// # Ok(()) }
/// ```
///
/// The memory is private and anonymous, and has whole pages of its own. Its address stays the same
/// as long as the value exists. A device of another context works on it as on any slice
/// ([`Work::slice`](crate::accelerator::Work::slice)).
///
/// # Mistakes that do not compile
///
/// The CPU cannot use it while the device works on it:
///
/// ```compile_fail,E0502
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Managed<f32>) -> Result<()> {
/// stream.scope(|work| {
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })?;
///     assert_eq!(numbers[0], 1.0);
///     Ok(())
/// }) }
/// ```
///
/// ```compile_fail,E0502
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Managed<f32>, sum: &mut Managed<f32>) -> Result<()> {
/// stream.scope(|work| {
///     let sum = &mut sum.slice_mut();
///     work.launch(testgpu::SumF32 { data: numbers.slice(), sum })?;
///     numbers[0] = 1.0;
///     Ok(())
/// }) }
/// ```
///
/// Nor can it be discarded, or freed:
///
/// ```compile_fail,E0499
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Managed<f32>) -> Result<()> {
/// stream.scope(|work| {
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })?;
///     numbers.discard();
///     Ok(())
/// }) }
/// ```
///
/// ```compile_fail,E0505
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Managed<f32>) -> Result<()> {
/// stream.scope(|work| {
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })?;
///     drop(numbers);
///     Ok(())
/// }) }
/// ```
///
/// A reference of the CPU cannot be kept while the device writes:
///
/// ```compile_fail,E0502
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Managed<f32>) -> Result<()> {
/// let first = &numbers[0];
/// stream.scope(|work| {
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
/// })?;
/// assert_eq!(*first, 1.0);
/// # Ok(()) }
/// ```
///
/// Managed memory must outlive the work:
///
/// ```compile_fail,E0597
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
/// stream.scope(|work| {
///     let mut numbers = gpu.alloc_managed::<f32>(1024)?;
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
/// }) }
/// ```
///
/// The elements are of types of which any bytes are a value:
///
/// ```compile_fail,E0277
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(gpu: &Accelerator) -> Result<()> {
/// let texts = gpu.alloc_managed::<String>(1024)?;
/// # Ok(()) }
/// ```
pub struct Managed<T> {
    gpu: Accelerator,
    memory: Arc<Memory>,
    len: usize,
    elements: PhantomData<T>,
}

/// The memory of a value, which a call in a stream's order may keep for longer. Only the value
/// accesses it.
enum Memory {
    /// Memory of its own.
    Own {
        /// Ends before the memory is unmapped.
        range: ManagedRange,
        map: Map,
    },
    /// A piece of a [window](super::window).
    InWindow(Piece),
}

impl Memory {
    /// The first byte.
    fn start(&self) -> *mut u8 {
        match self {
            Self::Own { map, .. } => map.start(),
            Self::InWindow(piece) => piece.start(),
        }
    }

    /// The length in bytes: whole pages.
    fn len(&self) -> usize {
        match self {
            Self::Own { map, .. } => map.len(),
            Self::InWindow(piece) => piece.len(),
        }
    }

    /// The managed range in which it lies.
    fn range(&self) -> &ManagedRange {
        match self {
            Self::Own { range, .. } => range,
            Self::InWindow(piece) => piece.range(),
        }
    }
}

impl Accelerator {
    /// Allocates memory for `count` elements, zeroed, that moves between the host and the device.
    ///
    /// Memory of 2 MiB or more consists of huge pages where the system has them. If the program has
    /// not chosen managed ranges itself, all of its addresses are [managed](Self::manage_all) as
    /// long as the value exists, as for slices that are lent. Otherwise this memory is one more
    /// range.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let mut numbers = gpu.alloc_managed::<f32>(1 << 20)?;
    /// numbers.fill(1.0); // a slice for the CPU
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `count` is 0; `EOVERFLOW`: the length exceeds every address space; `ENOMEM`: out
    /// of memory or address space; otherwise as for [`manage`](Self::manage).
    pub fn alloc_managed<T: Element>(&self, count: usize) -> Result<Managed<T>> {
        Managed::new(self, count, false)
    }

    /// Allocates memory as [`alloc_managed`](Self::alloc_managed) does, and has it managed as a
    /// range of its own. So its [statistics](Managed::statistics) count this memory alone.
    ///
    /// Slices of other memory that are lent meanwhile are registered, unless they are managed, too.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let numbers = gpu.alloc_managed_apart::<f32>(1 << 20)?;
    /// assert_eq!(numbers.range().range(), Some((numbers.addr(), 4 << 20)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`alloc_managed`](Self::alloc_managed); `EEXIST`: all addresses are managed already.
    pub fn alloc_managed_apart<T: Element>(&self, count: usize) -> Result<Managed<T>> {
        Managed::new(self, count, true)
    }
}

/// The length of the mapping for a number of bytes: whole pages, or whole huge pages, so that the
/// kernel aligns it to these.
pub(super) fn mapped_len(bytes: usize) -> Option<usize> {
    let unit = if bytes < HUGE { page_size() } else { HUGE };
    let len = bytes.checked_next_multiple_of(unit)?;
    isize::try_from(len).is_ok().then_some(len)
}

impl<T: Element> Managed<T> {
    fn new(gpu: &Accelerator, count: usize, apart: bool) -> Result<Self> {
        const { check_layout::<T>() }
        let attempt = || {
            format!(
                "allocate managed memory for {count} elements with {}",
                gpu.device()
            )
        };
        let refuse = |errno, cause| Error::refused(Operation::Allocate, attempt(), errno, cause);
        if count == 0 {
            return Err(refuse(Errno::EINVAL, "there must be at least one element"));
        }
        let len = count.checked_mul(size_of::<T>()).and_then(mapped_len);
        let len = len.ok_or_else(|| refuse(Errno::EOVERFLOW, "no address space is that large"))?;
        let map = MmapOptions::new()
            .len(len)
            .map_anon()
            .map_err(|error| Error::from_io(Operation::Allocate, attempt(), &error))?;
        let map = Map::new(map.into());
        if len >= HUGE {
            // A kernel without transparent huge pages says EINVAL.
            let _ = map.advise(MapAdvice::HugePage);
        }
        let range = gpu.manage_owned(map.addr(), len, apart)?;
        Ok(Self {
            gpu: gpu.clone(),
            memory: Arc::new(Memory::Own { range, map }),
            len: count,
            elements: PhantomData,
        })
    }

    /// Takes over a piece of a window, which is zeroed and has room for `count` elements.
    pub(super) fn in_window(gpu: &Accelerator, piece: Piece, count: usize) -> Self {
        const { check_layout::<T>() }
        Self {
            gpu: gpu.clone(),
            memory: Arc::new(Memory::InWindow(piece)),
            len: count,
            elements: PhantomData,
        }
    }

    /// Borrows the elements as a slice that the device can read.
    pub fn slice(&self) -> DeviceSlice<'_, T> {
        let elements: &[T] = self;
        let bytes = size_of_val(elements);
        // SAFETY: Elements are initialised and have no padding. `self` is borrowed for as long, so
        // nobody writes to them.
        let view = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), bytes) };
        self.device_slice(View::Plain(view))
    }

    /// Borrows the elements exclusively as a slice that the device can write.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Managed, Stream};
    /// use pinmap_testgpu::Saxpy;
    /// # fn f(stream: &Stream, x: &Managed<f32>, y: &mut Managed<f32>) -> pinmap::Result<()> {
    /// stream.scope(|work| work.launch(Saxpy { a: 2.0, x: x.slice(), y: &mut y.slice_mut() }))
    /// # }
    /// ```
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        let (start, bytes) = (self.memory.start(), self.len * size_of::<T>());
        // SAFETY: The memory is mapped, readable and writable, and any bytes are elements. `self`
        // is borrowed exclusively for as long, so only this view refers to the memory, by atomics,
        // which allow the device to write, too.
        let view = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU8>(), bytes) };
        DeviceSliceMut::new(self.device_slice(View::Lent(view)))
    }

    fn device_slice<'a>(&self, view: View<'a>) -> DeviceSlice<'a, T> {
        let (addr, device) = (self.addr() as u64, self.gpu.device());
        DeviceSlice::lent(device, view, addr, self.len, Reach::Managed)
    }

    /// The elements as a range of addresses.
    fn elements(&self) -> *const [T] {
        slice_from_raw_parts(self.memory.start().cast::<T>(), self.len)
    }

    /// Moves all of it to the memory of the device, or to that of the host: see
    /// [`Accelerator::prefetch`], which also moves a part.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::prefetch`].
    pub fn prefetch(&self, to: Place) -> Result<Prefetched> {
        self.gpu.prefetch(self.elements(), to)
    }

    /// Moves all of it in the order of a stream: when everything is done that was submitted before,
    /// and before what is submitted next. Returns at once. If the value is dropped before, the
    /// memory stays mapped until then.
    ///
    /// While the memory is borrowed for work,
    /// [`Work::prefetch`](crate::accelerator::Work::prefetch) does this.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{self, Place, StreamOptions};
    /// use pinmap_testgpu as testgpu;
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let stream = gpu.stream(StreamOptions::new())?;
    /// let mut numbers = gpu.alloc_managed::<f32>(1 << 20)?;
    /// let there = numbers.prefetch_on(&stream, Place::Vram)?;
    /// accelerator::scope(|scope| {
    ///     let work = scope.on(&stream);
    ///     let mut data = numbers.slice_mut();
    ///     work.launch(testgpu::IncrementF32 { data: &mut data })?;
    ///     work.prefetch(&data, Place::Host).map(drop)
    /// })?;
    /// println!("{} bytes have moved", there.wait()?.moved);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Errors of [`Stream::call`]. [`Prefetching::wait`] has those of [`Accelerator::prefetch`].
    pub fn prefetch_on(&self, stream: &Stream, to: Place) -> Result<Prefetching> {
        let pages = (self.addr(), self.memory.len());
        stream.prefetch(self.gpu.device(), pages, to, Arc::clone(&self.memory))
    }

    /// Advises how the memory will be used: see [`Accelerator::advise`], which also advises on a
    /// part.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Advice, Place};
    /// # fn f(flags: &pinmap::accelerator::Managed<u64>) -> pinmap::Result<()> {
    /// // Both sides look at them all the time.
    /// flags.advise(Advice::new().prefer(Place::Host))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::advise`].
    pub fn advise(&self, advice: Advice) -> Result<()> {
        self.gpu.advise(self.elements(), advice)
    }

    /// Tells where the memory is: see [`Accelerator::residency`].
    ///
    /// ```no_run
    /// # fn f(numbers: &pinmap::accelerator::Managed<f32>) -> pinmap::Result<()> {
    /// for run in numbers.residency()?.runs {
    ///     println!("{} bytes: {:?}, because {}", run.len, run.place, run.rule);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::residency`].
    pub fn residency(&self) -> Result<Residency> {
        self.gpu.residency(self.elements())
    }

    /// Tells what happened to the managed range in which the memory lies. That may be all memory of
    /// the program: see [`Accelerator::alloc_managed_apart`].
    ///
    /// # Errors
    ///
    /// As for [`ManagedRange::statistics`].
    pub fn statistics(&self) -> Result<ManagedStatistics> {
        self.memory.range().statistics()
    }

    /// Gives up the contents, without copying them: all elements become zero, and pages on the
    /// device are freed there. Returns how many bytes were given up: all of them, or 0 for locked
    /// memory (`mlock()`), which is overwritten with zeros where it is.
    ///
    /// ```no_run
    /// # fn f(scratch: &mut pinmap::accelerator::Managed<f32>) -> pinmap::Result<()> {
    /// // What the device wrote there is not needed, and does not come home.
    /// scratch.discard();
    /// assert_eq!(scratch[0], 0.0);
    /// # Ok(()) }
    /// ```
    pub fn discard(&mut self) -> usize {
        let (start, len) = (self.memory.start(), self.memory.len());
        // SAFETY: The memory is mapped, readable, writable and initialised. `self` is borrowed
        // exclusively, so nothing else refers to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
        self.gpu.discard(bytes)
    }
}

impl<T> Managed<T> {
    /// The context whose queues reach the memory.
    pub fn accelerator(&self) -> &Accelerator {
        &self.gpu
    }

    /// The device whose queues reach the memory.
    pub fn device(&self) -> &Device {
        self.gpu.device()
    }

    /// Address of the first element, for the program and for the device.
    pub fn addr(&self) -> usize {
        self.memory.start().expose_provenance()
    }

    /// The managed range in which the memory lies.
    pub fn range(&self) -> &ManagedRange {
        self.memory.range()
    }
}

impl<T: Element> Deref for Managed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: The memory is mapped, aligned, and initialised, because memory from mmap() is;
        // any bytes are elements. Whoever writes to it, a device included, has borrowed `self`
        // exclusively until that is over.
        unsafe { &*self.elements() }
    }
}

impl<T: Element> DerefMut for Managed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let start = self.memory.start().cast::<T>();
        // SAFETY: As for `deref`. Whoever reads it has borrowed `self`, which excludes this.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

as_slice! { (T: Element) (T: Element) Managed<T> as T }

impl<T> fmt::Debug for Managed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Managed")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
