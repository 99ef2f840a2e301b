// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned memory: host memory of an accelerator that is a slice for the CPU.
//!
//! # Why there can be references to it
//!
//! An accelerator executes only what is submitted to its queues. Work names operands that it
//! borrows until it is done, and submitting raw packets is unsafe. So as long as nothing borrows
//! the memory, no device writes to it. That holds only if nothing else can reach the memory, so:
//!
//! - it is of an accelerator: the registers of a flat device start DMA by a safe store;
//! - it is neither portable, imported nor exported, which would make others reach it;
//! - it is host memory: that of the device disappears with it.
//!
//! [`Allocation`] is the type of memory for which one of these does not hold.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::alloc::AllocOptions;
use crate::memory::allocation::Allocation;
use crate::memory::deref::as_slice;
use crate::memory::element::Element;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};

/// Pinned host memory, allocated by the driver and zeroed: a slice for the CPU, and an operand for
/// the queues of an accelerator.
///
/// Made by [`Accelerator::alloc`]. It dereferences to `[T]` as long as no work of the device
/// borrows it, so that everything that takes slices takes it, also `read(2)`. Dropping it frees the
/// memory.
///
/// The memory is whole pages, however few elements it has, and begins with one, as `O_DIRECT`
/// wants it. Its address is the same for the program and for the device, and stays the same as
/// long as the value exists, also when the value moves. Others that have pinned the pages when it
/// is dropped, such as io_uring, keep them until they let go.
///
/// ```no_run
/// use std::io::Read;
/// # use pinmap::accelerator::{Accelerator, Stream};
/// # use pinmap::Result;
/// # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
/// let mut bytes = gpu.alloc::<u8>(1 << 20)?;
/// let mut file = std::fs::File::open("/etc/hostname").expect("a file");
/// let len = file.read(&mut bytes).expect("its text"); // into pinned memory, without a copy
/// let mut counts = gpu.alloc::<u32>(256)?;
/// stream.scope(|work| {
///     work.launch(pinmap_testgpu::HistogramU8 {
///         data: bytes.slice().part(..len)?,
///         counts: &mut counts.slice_mut(),
///     })
/// })?;
/// println!("{} lines", counts[usize::from(b'\n')]);
/// # Ok(()) }
/// ```
///
/// # Mistakes that do not compile
///
/// The CPU cannot read it while the device writes to it:
///
/// ```compile_fail,E0502
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Pinned<f32>) -> Result<()> {
/// stream.scope(|work| {
///     work.fill(&mut numbers, 1.0)?;
///     assert_eq!(numbers[0], 1.0);
///     Ok(())
/// }) }
/// ```
///
/// A reference of the CPU cannot be kept while the device writes:
///
/// ```compile_fail,E0502
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut numbers: Pinned<f32>) -> Result<()> {
/// let first = &numbers[0];
/// stream.scope(|work| work.fill(&mut numbers, 1.0))?;
/// assert_eq!(*first, 1.0);
/// # Ok(()) }
/// ```
///
/// Nor can the CPU write it while the device reads it:
///
/// ```compile_fail,E0502
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(stream: &Stream, mut a: Pinned<f32>, b: &mut Pinned<f32>) -> Result<()> {
/// stream.scope(|work| {
///     work.copy(&a, b)?;
///     a[0] = 1.0;
///     Ok(())
/// }) }
/// ```
///
/// Pinned memory must outlive the work:
///
/// ```compile_fail,E0597
/// # use pinmap::{accelerator::*, *};
/// # use pinmap_testgpu as testgpu;
/// # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
/// stream.scope(|work| {
///     let mut numbers = gpu.alloc::<f32>(1024)?;
///     work.fill(&mut numbers, 1.0)
/// }) }
/// ```
pub struct Pinned<T> {
    /// # Invariants
    ///
    /// Host memory of an accelerator that is neither portable, imported nor exported.
    memory: Allocation<T>,
}

impl Accelerator {
    /// Allocates pinned host memory for `count` elements, zeroed, and maps it for the device at the
    /// address that it has for the program.
    ///
    /// ```no_run
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let mut numbers = gpu.alloc::<f32>(1024)?;
    /// numbers[0] = 1.0;
    /// numbers[1..].fill(2.0);
    /// assert_eq!(numbers.iter().sum::<f32>(), 2047.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Device::alloc`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Pinned<T>> {
        self.alloc_with(count, AllocOptions::new())
    }

    /// Allocates pinned host memory as [`alloc`](Self::alloc) does, of the kind that the options
    /// say.
    ///
    /// # Errors
    ///
    /// As for [`Device::alloc_with`]; `EINVAL`: the options say
    /// [`portable`](AllocOptions::portable), for which there is [`Device::alloc_with`].
    pub fn alloc_with<T: Element>(&self, count: usize, options: AllocOptions) -> Result<Pinned<T>> {
        if options.portable {
            let attempt = format!("allocate pinned memory with {}", self.device());
            let cause = "portable memory is reached by other devices, too";
            let error = Error::refused(Operation::Allocate, attempt, Errno::EINVAL, cause);
            return Err(error.with_hint("use `Device::alloc_with`"));
        }
        // There will be references to it, so no queue may go on with it unseen.
        self.device().note_lending();
        // INVARIANT: It is the driver's, for an accelerator, and nothing exports it.
        let memory = self.device().alloc_with(count, options)?;
        Ok(Pinned { memory })
    }

    /// Allocates pinned host memory as [`alloc`](Self::alloc) does, with a copy of these elements.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let numbers = gpu.alloc_from(&[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(numbers[2], 3.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_from<T: Element>(&self, elements: &[T]) -> Result<Pinned<T>> {
        let mut memory = self.alloc(elements.len())?;
        memory.copy_from_slice(elements);
        Ok(memory)
    }
}

impl<T: Element> Pinned<T> {
    /// Borrows the elements as a slice that the device can read.
    pub fn slice(&self) -> DeviceSlice<'_, T> {
        self.memory.slice()
    }

    /// Borrows the elements exclusively as a slice that the device can write.
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.memory.slice_mut()
    }

    /// Makes what the CPU wrote visible to a device that is not coherent: see
    /// [`Allocation::sync_for_device`].
    ///
    /// # Errors
    ///
    /// As for [`Allocation::sync_for_device`].
    pub fn sync_for_device(&self, elements: Range<usize>) -> Result<()> {
        self.memory.sync_for_device(elements)
    }

    /// Makes what a device that is not coherent wrote visible to the CPU: see
    /// [`Allocation::sync_for_cpu`].
    ///
    /// # Errors
    ///
    /// As for [`Allocation::sync_for_cpu`].
    pub fn sync_for_cpu(&mut self, elements: Range<usize>) -> Result<()> {
        self.memory.sync_for_cpu(elements)
    }
}

impl<T> Pinned<T> {
    /// The device that reaches the memory.
    pub fn device(&self) -> &Device {
        self.memory.device()
    }

    /// Address of the first element, for the program and for the device.
    pub fn addr(&self) -> usize {
        self.memory.addr()
    }

    /// The handle of the allocation, unique in its context.
    pub fn handle(&self) -> u64 {
        self.memory.handle()
    }

    /// Turns it into an allocation, which can be [exported](Allocation::export), and to which there
    /// are no references.
    pub fn into_allocation(self) -> Allocation<T> {
        self.memory
    }
}

impl<T: Element> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: By the invariant, only work that borrows `self` exclusively writes to it.
        unsafe { self.memory.host_slice() }
    }
}

impl<T: Element> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: By the invariant, only work that borrows `self` reaches it.
        unsafe { self.memory.host_slice_mut() }
    }
}

as_slice! { (T: Element) (T: Element) Pinned<T> as T }

impl<T: Element> From<Pinned<T>> for Vec<T> {
    /// Copies the elements.
    fn from(memory: Pinned<T>) -> Self {
        memory.to_vec()
    }
}

impl<T> From<Pinned<T>> for Allocation<T> {
    fn from(memory: Pinned<T>) -> Self {
        memory.into_allocation()
    }
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.memory.len())
            .finish()
    }
}
