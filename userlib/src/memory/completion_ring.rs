// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion rings: how a device tells what is done in a ring that it alone writes.
//!
//! The program passes nothing in such a ring: it takes the next descriptor when the *phase bit* in
//! its status word says that the device has stored it in this lap, and tells the device by a
//! doorbell how far it is. A [`Ring`](crate::Ring), whose descriptors the program passes to the
//! device first, has one below it.

use std::fmt;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::buffer::Buffer;
use crate::memory::element::{bytes_of_mut, zero};
use crate::memory::options::RegisterOptions;
use crate::memory::registration::Registration;
use crate::memory::ring::{check, Descriptor};

/// A ring of descriptors in pinned memory that a device fills, and the program reads in order: the
/// completion queue of NVMe, for instance.
///
/// Made by [`Device::completion_ring`]. The descriptors have
/// [`is_done_in_lap`](Descriptor::is_done_in_lap): the memory begins as zeroes, and afterwards it
/// has what the device stored one lap before.
///
/// ```no_run
/// use pinmap::{Access, Bar, Descriptor, Device};
/// pinmap::element! {
///     pub struct Completion { pub result: u64, pub queue: u32, pub id: u16, pub status: u16 }
/// }
///
/// impl Descriptor for Completion {
///     type Status = u16;
///     const STATUS: usize = std::mem::offset_of!(Completion, status);
///
///     fn is_done(status: u16) -> bool {
///         Self::is_done_in_lap(status, 0)
///     }
///
///     fn is_done_in_lap(status: u16, lap: u64) -> bool {
///         (status & 1 != 0) == (lap % 2 == 0)
///     }
/// }
///
/// # fn f(device: &Device, bar: &Bar) -> pinmap::Result<()> {
/// let mut ring = device.completion_ring::<Completion>(64, Access::ReadWrite)?;
/// bar.write(0x30, ring.device_addr()?)?;
/// // ... wait for the interrupt ...
/// while let Some(done) = ring.pop()? {
///     println!("{} is done", done.id);
/// }
/// bar.write(0x1004, (ring.head() % ring.len() as u64) as u32)?; // the doorbell
/// # Ok(()) }
/// ```
pub struct CompletionRing<D> {
    pub(super) memory: Registration<Buffer<D>>,
    /// Descriptors.
    pub(super) len: usize,
    /// Descriptors that were popped since the beginning.
    pub(super) head: u64,
}

impl Device {
    /// Makes a completion ring of `len` descriptors, zeroed, in memory that is registered with
    /// these options. On a flat device this makes the context the owner.
    ///
    /// # Errors
    ///
    /// `EINVAL`: `len` is 0, or the options allow the device to read only; otherwise as for
    /// [`Buffer::register`].
    pub fn completion_ring<D: Descriptor>(
        &self,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<CompletionRing<D>> {
        const { check::<D>() }
        let options = options.into();
        if options.access() != crate::Access::ReadWrite {
            let attempt = format!("make a ring of {len} descriptors with {self}");
            let (errno, cause) = (Errno::EINVAL, "the device must write the status words");
            return Err(Error::refused(Operation::Register, attempt, errno, cause));
        }
        let memory = Buffer::new(len)?.register(self, options)?;
        let head = 0;
        Ok(CompletionRing { memory, len, head })
    }
}

impl<D: Descriptor> CompletionRing<D> {
    /// Takes the next descriptor, if the device has stored it. Later reads see what the device
    /// wrote before it did.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone, and it does not snoop caches.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<D>> {
        let (len, size) = (self.len as u64, size_of::<D>());
        let at = (self.head % len) as usize * size;
        self.memory.sync_for_cpu(at..at + size)?;
        let status = self.memory.load(at + D::STATUS)?;
        if !D::is_done_in_lap(status, self.head / len) {
            return Ok(None);
        }
        // The first time only the status was sure to be read after the device had stored it.
        self.memory.sync_for_cpu(at..at + size)?;
        let mut descriptor = [zero::<D>()];
        self.memory.read_at(at, bytes_of_mut(&mut descriptor))?;
        self.head += 1;
        Ok(Some(descriptor[0]))
    }
}

impl<D> CompletionRing<D> {
    /// Device address of the first descriptor.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory was registered [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        self.memory.device_addr()
    }

    /// Number of descriptors.
    #[expect(
        clippy::len_without_is_empty,
        reason = "it is about the ring, which has places"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many descriptors were popped since the beginning. Modulo [`len`](Self::len) this is the
    /// place of the next one, which devices are told by a doorbell.
    pub fn head(&self) -> u64 {
        self.head
    }
}

impl<D> fmt::Debug for CompletionRing<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionRing")
            .field("len", &self.len)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::memory::raw::RawRegistration;

    crate::element! {
        #[derive(Debug, PartialEq)]
        struct Completion { result: u32, id: u16, status: u16 }
    }

    impl Descriptor for Completion {
        type Status = u16;
        const STATUS: usize = std::mem::offset_of!(Completion, status);

        fn is_done(status: u16) -> bool {
            Self::is_done_in_lap(status, 0)
        }

        fn is_done_in_lap(status: u16, lap: u64) -> bool {
            (status & 1 != 0) == (lap % 2 == 0)
        }
    }

    #[test]
    fn what_the_device_stored_in_this_lap_is_popped_in_order() {
        let (len, head) = (3, 0);
        let buffer = Buffer::new(len).expect("memory");
        let raw = RawRegistration::fake(buffer.addr(), 4096, Some(0x1_0000));
        let memory = Registration::new(raw, buffer);
        let mut ring = CompletionRing::<Completion> { memory, len, head };
        assert_eq!(ring.device_addr().expect("mapped"), 0x1_0000);
        for number in 0..10u64 {
            assert_eq!(ring.pop().expect("a load"), None);
            assert_eq!(ring.head(), number);
            // The device stores a completion, and its status last.
            let at = (number % 3) as usize * size_of::<Completion>();
            ring.memory.store(at, 7 * number as u32).expect("a store");
            ring.memory.store(at + 4, number as u16).expect("a store");
            assert_eq!(ring.pop().expect("a load"), None);
            let status = 0x10 | u16::from(number / 3 % 2 == 0);
            ring.memory.store(at + 6, status).expect("a store");
            let expected = Completion {
                result: 7 * number as u32,
                id: number as u16,
                status,
            };
            assert_eq!(ring.pop().expect("a load"), Some(expected));
        }
    }

    #[test]
    fn the_device_must_write() {
        let device = Device::fake();
        for (len, access) in [(0, crate::Access::ReadWrite), (4, crate::Access::Read)] {
            let error = device.completion_ring::<Completion>(len, access);
            let error = error.expect_err("refused");
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{error}");
        }
    }
}
