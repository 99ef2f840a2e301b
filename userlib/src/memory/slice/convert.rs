// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device slices of memory that this crate knows only by its address, and of other elements.
//!
//! They are for those who build on this crate: a library for another language, whose memory has no
//! lifetime that the compiler could check, or a type that owns device memory in a way of its own.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::slice;
use std::sync::atomic::AtomicU8;

use nix::errno::Errno;

use super::{DeviceSlice, DeviceSliceMut, Reach};
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::element::{check_layout, Element};
use crate::memory::view::View;

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// A slice of `len` elements of host memory, which the device finds at `device_addr`.
    ///
    /// The device finds memory there that was registered with
    /// [`Device::register_raw`], at [`Registration::device_addr`], and memory that is
    /// [managed](crate::accelerator::Accelerator::manage), at the address that it has for the CPU.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Accelerator, DeviceSlice, Stream};
    /// use pinmap::Access;
    /// # fn f(gpu: &Accelerator, stream: &Stream, memory: *mut f32) -> pinmap::Result<()> {
    /// // SAFETY: A page that a library of C has, which frees it after this function.
    /// let page = unsafe { gpu.device().register_raw(memory.cast(), 4096, Access::Read)? };
    /// let mut local = gpu.alloc_vram::<f32>(1024)?;
    /// // SAFETY: Registered, there until the scope has ended, and nobody refers to it.
    /// let page = unsafe {
    ///     DeviceSlice::from_raw_parts(gpu.device(), memory, page.device_addr()?, 1024)
    /// };
    /// stream.scope(|work| work.copy(page, local.slice_mut()))
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// As long as `'a` lasts:
    ///
    /// - `memory` must be the address of `len` elements that can be read. There must be no
    ///   reference to any part of them, except to atomics, and shared ones as long as nobody
    ///   writes.
    /// - In this context, the device must find these elements at `device_addr`, or fail.
    ///
    /// [`Device::register_raw`]: crate::Device::register_raw
    /// [`Registration::device_addr`]: crate::Registration::device_addr
    pub unsafe fn from_raw_parts(
        device: &Device,
        memory: *const T,
        device_addr: u64,
        len: usize,
    ) -> Self {
        const { check_layout::<T>() }
        let bytes = memory.cast::<AtomicU8>();
        // SAFETY: The elements can be read as the caller promises, and are accessed as atomics
        // only.
        let bytes = unsafe { slice::from_raw_parts(bytes, len * size_of::<T>()) };
        Self {
            context: device.id(),
            reach: Reach::Mapped,
            view: View::Lent(bytes),
            offset: 0,
            addr: device_addr,
            len,
            elements: PhantomData,
        }
    }

    /// Returns the same memory as elements of another type.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory is not a whole number of such elements, or its address is not aligned
    /// for them.
    pub fn cast<U: Element>(self) -> Result<DeviceSlice<'a, U>> {
        const { check_layout::<U>() }
        let bytes = self.len * size_of::<T>();
        let (size, align) = (size_of::<U>(), align_of::<U>());
        let cause = if bytes % size != 0 {
            format!("it has {bytes} bytes, and an element {size}")
        } else if self.addr % align as u64 != 0 {
            format!("an element begins at a multiple of {align} bytes")
        } else {
            return Ok(DeviceSlice {
                context: self.context,
                reach: self.reach,
                view: self.view,
                offset: self.offset,
                addr: self.addr,
                len: bytes / size,
                elements: PhantomData,
            });
        };
        let attempt = format!(
            "take device memory at {:#x} for elements of {size} bytes",
            self.addr
        );
        let errno = Errno::EINVAL;
        Err(Error::refused(Operation::Access, attempt, errno, cause))
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// A slice of `len` elements of host memory, which the device finds at `device_addr` and may
    /// write: see [`DeviceSlice::from_raw_parts`].
    ///
    /// # Safety
    ///
    /// As for [`DeviceSlice::from_raw_parts`]. The elements can also be written, and there must be
    /// no references to them except to atomics.
    pub unsafe fn from_raw_parts(
        device: &Device,
        memory: *mut T,
        device_addr: u64,
        len: usize,
    ) -> Self {
        // SAFETY: As the caller promises.
        Self::new(unsafe { DeviceSlice::from_raw_parts(device, memory, device_addr, len) })
    }

    /// Returns the same memory as elements of another type: see [`DeviceSlice::cast`].
    ///
    /// ```no_run
    /// use pinmap::accelerator::Stream;
    /// use pinmap::Allocation;
    /// use pinmap_testgpu::IncrementF32;
    /// # fn f(stream: &Stream, bytes: &mut Allocation<u8>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     work.launch(IncrementF32 { data: &mut bytes.slice_mut().cast()? })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DeviceSlice::cast`].
    pub fn cast<U: Element>(self) -> Result<DeviceSliceMut<'a, U>> {
        self.0.cast().map(DeviceSliceMut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_taken_for_others() {
        let device = Device::fake();
        let mut words = [0x0302_0100u32, 0x0706_0504, 0x0b0a_0908];
        let memory = words.as_mut_ptr();
        // SAFETY: They are there until the end of the test, and no device knows them.
        let mut words = unsafe { DeviceSliceMut::from_raw_parts(&device, memory, 0x1000, 3) };
        let mut bytes = words.reborrow().cast::<u8>().expect("bytes");
        assert_eq!(bytes.to_vec(), (0..12).collect::<Vec<u8>>());
        let part = bytes.part(4..12).expect("inside");
        let pair = part.cast::<[u16; 2]>().expect("aligned for it");
        assert_eq!((pair.device_addr(), pair.len()), (0x1004, 2));
        assert_eq!(pair.get(1).expect("inside"), [0x0908, 0x0b0a]);
        words.set(0, 7).expect("inside");
        assert_eq!(bytes.to_vec()[..4], [7, 0, 0, 0]);
        let text = |result: Result<DeviceSlice<'_, u64>>| result.expect_err("refused").to_string();
        let refused = text(words.as_slice().cast());
        assert!(refused.contains("12 bytes, and an element 8"), "{refused}");
        let refused = text(bytes.as_slice().part(4..).and_then(DeviceSlice::cast));
        assert!(refused.contains("a multiple of 8"), "{refused}");
    }
}
