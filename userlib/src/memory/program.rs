// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the program, which is registered where it is.
//!
//! # Why a flat device may read a `Vec` that safe code gives away
//!
//! A flat device accesses what it reaches whenever it likes, and what it reaches are whole pages.
//! So it is given memory of the heap for reading only: whatever it does then changes no byte, and
//! no reference of the program notices that it reads. What else lies in the first and the last page
//! it can read as well, but not harm. Writing takes a [`Buffer`], whose pages nothing else is in.
//!
//! The registration owns the memory, lends it as a shared slice, and gives it back when the device
//! reaches it no more. A value that is forgotten, or cannot be taken from the device, is never
//! dropped, so its pages are never given to anything else.
#![allow(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, ErrorWith, Operation, Result};
use crate::memory::buffer::Buffer;
use crate::memory::element::Element;
use crate::memory::options::{Access, RegisterOptions};
use crate::memory::raw::RawRegistration;
use crate::memory::registration::Registration;

/// Memory of the program that can be registered where it is: a value that owns or borrows a slice
/// of elements.
///
/// [`Accelerator::register`](crate::accelerator::Accelerator::register) takes all of it, and
/// [`Device::register`] what is a [`ReadMemory`].
///
/// ```no_run
/// use pinmap::{Access, Device};
/// # fn f(
/// #     device: &Device, gpu: &pinmap::accelerator::Accelerator, part: &mut [f32],
/// # ) -> pinmap::Result<()> {
/// let read = device.register(vec![0u8; 4096], Access::Read)?; // any device reads it
/// let owned = gpu.register(vec![0u8; 4096])?; // gives the `Vec` back in the end
/// let borrowed = gpu.register(part)?;
/// # Ok(()) }
/// ```
///
/// # Safety
///
/// Both slices are the same memory. It has the same address and length each time, also after the
/// value has moved, unless something else was done to the value.
pub unsafe trait Memory {
    /// The elements.
    type Element: Element;

    /// The error when the memory cannot be registered or released: [`ErrorWith`] the memory for an
    /// owner, and [`Error`] alone for a reference.
    type Error;

    /// The access that a device is given: [`Access::ReadWrite`] only for a [`MemoryMut`].
    const ACCESS: Access;

    /// The elements as a slice.
    fn elements(&self) -> &[Self::Element];

    /// Makes the error of an operation that has failed, which may give the memory back.
    fn refuse(self, error: Error) -> Self::Error;
}

/// Memory that an accelerator may write.
///
/// # Safety
///
/// As for [`Memory`].
pub unsafe trait MemoryMut: Memory {
    /// The elements as a slice for writing.
    fn elements_mut(&mut self) -> &mut [Self::Element];
}

/// Memory that a device may read at any time while the program reads it, too: what
/// [`Device::register`] takes. A [`Buffer`] is left out, because the program writes it while it is
/// registered.
///
/// # Safety
///
/// The memory lasts as long as the program if the value is forgotten.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered for a device that reads it at any time",
    note = "give the memory away, as a `Vec` for instance; a `Buffer` has a `register` of its own"
)]
pub unsafe trait ReadMemory: Memory + 'static {}

// SAFETY: What is forgotten is never freed, here and below.
unsafe impl<T: Element> ReadMemory for Vec<T> {}
// SAFETY: As above.
unsafe impl<T: Element> ReadMemory for Box<[T]> {}
// SAFETY: As above.
unsafe impl<T: Element> ReadMemory for Arc<[T]> {}
// SAFETY: Statics are never freed.
unsafe impl<T: Element> ReadMemory for &'static [T] {}
#[cfg(feature = "memmap2")]
// SAFETY: What is forgotten is never unmapped, here and below.
unsafe impl ReadMemory for memmap2::Mmap {}
#[cfg(feature = "memmap2")]
// SAFETY: As above.
unsafe impl ReadMemory for memmap2::MmapMut {}

macro_rules! memory {
    ($(($($generics:tt)*) $type:ty as $element:ty: $access:ident, $given:ident;)*) => { $(
        // SAFETY: The type keeps its elements on the heap, or elsewhere, and never moves them by
        // itself.
        unsafe impl<$($generics)*> Memory for $type {
            type Element = $element;
            const ACCESS: Access = Access::$access;
            memory!(@$given);

            fn elements(&self) -> &[$element] {
                self
            }
        }
        memory!(@$access ($($generics)*) $type as $element);
    )* };
    (@owner) => {
        type Error = ErrorWith<Self>;

        fn refuse(self, error: Error) -> ErrorWith<Self> {
            ErrorWith::new(error, self)
        }
    };
    (@reference) => {
        type Error = Error;

        fn refuse(self, error: Error) -> Error {
            error
        }
    };
    (@Read ($($generics:tt)*) $type:ty as $element:ty) => {};
    (@ReadWrite ($($generics:tt)*) $type:ty as $element:ty) => {
        // SAFETY: As for `Memory`.
        unsafe impl<$($generics)*> MemoryMut for $type {
            fn elements_mut(&mut self) -> &mut [$element] {
                self
            }
        }
    };
}

memory! {
    (T: Element) Vec<T> as T: ReadWrite, owner;
    (T: Element) Box<[T]> as T: ReadWrite, owner;
    (T: Element) &mut [T] as T: ReadWrite, reference;
    (T: Element) Buffer<T> as T: ReadWrite, owner;
    (T: Element) &[T] as T: Read, reference;
    (T: Element) Arc<[T]> as T: Read, reference;
}

#[cfg(feature = "memmap2")]
memory! {
    () memmap2::MmapMut as u8: ReadWrite, owner;
    () memmap2::Mmap as u8: Read, owner;
}

impl Device {
    /// Registers memory that the program already has, in place and for reading: a `Vec`, a boxed or
    /// shared slice, a static one, or, with the feature `memmap2`, a mapped file. The program goes
    /// on reading it by [`elements`](Registration::elements), and releasing gives it back.
    ///
    /// The memory may begin and end anywhere. The device reaches the whole pages around it, so it
    /// can read what else of the program lies in the first and the last one. Use a [`Buffer`] for a
    /// device that must not, and for every device that writes. A page can be registered once in a
    /// context, so also take a `Buffer` for memory of less than a few pages, which shares a page
    /// with other memory. A device that is not coherent needs
    /// [`sync_for_device`](Registration::sync_for_device).
    ///
    /// ```no_run
    /// use pinmap::{Access, Bar, Device};
    /// # fn f(device: &Device, registers: &Bar) -> Result<(), Box<dyn std::error::Error>> {
    /// let weights = device.register(std::fs::read("weights.bin")?, Access::Read)?;
    /// registers.write(0x80, weights.device_addr()?)?; // of the first byte, not of its page
    /// println!("{:?}", &weights.elements()[..4]); // nobody writes it
    /// let weights: Vec<u8> = weights.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// Memory that is only borrowed is not taken, because a device could go on reading it:
    ///
    /// ```compile_fail,E0521
    /// # fn f(device: &pinmap::Device, part: &[f32]) -> pinmap::Result<()> {
    /// let part = device.register(part, pinmap::Access::Read)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An owner of memory comes back with the error. `EACCES`: the options demand
    /// [`Access::ReadWrite`]; `EINVAL`: the memory is empty; `EEXIST`: a part of these pages is
    /// registered already, perhaps by other memory in the same page; otherwise as for
    /// [`Buffer::register`].
    pub fn register<M: ReadMemory>(
        &self,
        memory: M,
        options: impl Into<RegisterOptions>,
    ) -> Result<Registration<M>, M::Error> {
        let options = options.into().round_outwards();
        let elements = memory.elements();
        let (addr, len) = (elements.as_ptr().expose_provenance(), size_of_val(elements));
        if options.access() != Access::Read {
            let attempt = format!("have {self} write {len} bytes at {addr:#x}");
            let cause = "its pages may hold other memory of the program";
            let error = Error::refused(Operation::Register, attempt, Errno::EACCES, cause);
            return Err(memory.refuse(error.with_hint(
                "register it with `Access::Read`, or a `Buffer`, which has pages of its own",
            )));
        }
        // SAFETY: The device can only read. What it reads stays as it is: until a release succeeds,
        // `memory` is not dropped, it borrows nothing that could be, and `elements` lends shared
        // references only.
        match unsafe { RawRegistration::new(self, addr, len, options) } {
            Ok(raw) => Ok(Registration::new(raw, memory)),
            Err(error) => Err(memory.refuse(error)),
        }
    }
}

impl<M: ReadMemory> Registration<M> {
    /// The elements as a slice. Neither the device nor the program writes them.
    ///
    /// The slice cannot be kept beyond the release:
    ///
    /// ```compile_fail,E0505
    /// # fn f(numbers: pinmap::Registration<Vec<f32>>) -> pinmap::Result<()> {
    /// let elements = numbers.elements();
    /// let mut numbers = numbers.release()?;
    /// numbers[0] = 1.0;
    /// println!("{}", elements[0]);
    /// # Ok(()) }
    /// ```
    pub fn elements(&self) -> &[M::Element] {
        self.memory().elements()
    }
}
