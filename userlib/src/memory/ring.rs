// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptor rings: how a program hands work to a device that has no queues of the driver's.
//!
//! A ring is an array of descriptors in pinned memory. The program fills the next one and passes it
//! to the device by its *status word*; the device works in order, and passes it back by changing
//! that word. So each descriptor belongs to one side at a time, and the status word says to which.
//!
//! # Order
//!
//! [`Ring::push`] stores the status word last, as a release, and behind all earlier writes of the
//! program, also those to write-combined memory: a device that sees it sees the rest. A store to a
//! doorbell register that follows is ordered behind it ([`Bar::write`](crate::Bar::write)).
//! [`Ring::pop`] loads the status word first, as an acquire: what the device wrote before it is
//! seen by later reads. Where the device does not snoop the CPU's caches, both maintain the caches
//! for the descriptor ([`Registration::sync_for_device`]). That takes descriptors that are whole
//! cache lines: the CPU writes a line back as a whole, and in a line of two descriptors it would
//! overwrite what the device has written in the other one. The memory that descriptors point to is
//! the program's to maintain.

use std::fmt;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::buffer::Buffer;
use crate::memory::completion_ring::CompletionRing;
use crate::memory::element::{bytes_of, Element};
use crate::memory::options::RegisterOptions;
use crate::memory::registration::Registration;
use crate::sys::word::Word;

/// Bytes of a cache line, on the processors that the driver is for.
const CACHE_LINE: usize = 64;

/// A descriptor of a [`Ring`] or a [`CompletionRing`], as the manual of the device lays it out.
///
/// ```
/// use pinmap::Descriptor;
///
/// pinmap::element! {
///     pub struct Transfer { pub source: u64, pub target: u64, pub len: u32, pub status: u32 }
/// }
///
/// impl Descriptor for Transfer {
///     type Status = u32;
///     const STATUS: usize = std::mem::offset_of!(Transfer, status);
///
///     fn is_done(status: u32) -> bool {
///         status & 1 != 0
///     }
/// }
/// ```
pub trait Descriptor: Element {
    /// The type of the status word.
    type Status: Word;

    /// The offset of the status word in the descriptor, in bytes: a multiple of its size.
    const STATUS: usize;

    /// Whether the device has passed the descriptor back, by its status word. What the program
    /// pushes must not look like that.
    #[must_use]
    fn is_done(status: Self::Status) -> bool;

    /// Whether the device has passed the descriptor back in lap `lap` of the ring, from 0 on. The
    /// default ignores the lap and asks [`is_done`](Self::is_done). Override it for a device that
    /// marks its laps by a *phase bit*. The program pushes the other phase; the lap of the next
    /// descriptor is [`tail`](Ring::tail) divided by [`len`](Ring::len).
    ///
    /// ```
    /// use pinmap::{Descriptor, Ring};
    ///
    /// pinmap::element! {
    ///     struct Job { addr: u64, len: u32, status: u32 }
    /// }
    ///
    /// impl Descriptor for Job {
    ///     type Status = u32;
    ///     const STATUS: usize = std::mem::offset_of!(Job, status);
    ///
    ///     fn is_done(status: u32) -> bool {
    ///         Self::is_done_in_lap(status, 0)
    ///     }
    ///
    ///     fn is_done_in_lap(status: u32, lap: u64) -> bool {
    ///         // The device stores 1 in even laps, and 0 in odd ones.
    ///         (status & 1 != 0) == (lap % 2 == 0)
    ///     }
    /// }
    ///
    /// fn push(ring: &mut Ring<Job>, addr: u64, len: u32) -> pinmap::Result<usize> {
    ///     let lap = ring.tail() / ring.len() as u64;
    ///     ring.push(Job { addr, len, status: (lap % 2) as u32 })
    /// }
    /// ```
    #[must_use]
    fn is_done_in_lap(status: Self::Status, lap: u64) -> bool {
        let _ = lap;
        Self::is_done(status)
    }
}

/// A ring of descriptors in pinned memory, which the program fills and a device works off in order.
///
/// Made by [`Device::ring`].
///
/// ```no_run
/// # use pinmap::{Access, Bar, Descriptor, Device, RegisterOptions};
/// # pinmap::element! {
/// #     #[derive(Default)]
/// #     pub struct Transfer { pub source: u64, pub target: u64, pub len: u32, pub status: u32 }
/// # }
/// # impl Descriptor for Transfer {
/// #     type Status = u32;
/// #     const STATUS: usize = std::mem::offset_of!(Transfer, status);
/// #     fn is_done(status: u32) -> bool { status & 1 != 0 }
/// # }
/// # fn f(device: &Device, bar: &Bar, source: u64, target: u64) -> pinmap::Result<()> {
/// // The device drives 40 address bits.
/// let options = RegisterOptions::new(Access::ReadWrite).address_bits(40);
/// let mut ring = device.ring::<Transfer>(256, options)?;
/// bar.write(0x10, ring.device_addr()?)?;
///
/// ring.push(Transfer { source, target, len: 4096, ..Default::default() })?;
/// bar.write(0x1c, ring.tail() as u32)?; // the doorbell
/// // ... wait for the interrupt ...
/// while let Some(done) = ring.pop()? {
///     println!("{} bytes are at {:#x}", done.len, done.target);
/// }
/// # Ok(()) }
/// ```
pub struct Ring<D> {
    /// The descriptors, a power of two, and how far they were popped.
    back: CompletionRing<D>,
    /// Descriptors that were pushed since the beginning.
    tail: u64,
}

impl Device {
    /// Makes a ring of `len` descriptors, zeroed, in memory that is registered with these options.
    /// On a flat device this makes the context the owner.
    ///
    /// ```no_run
    /// use pinmap::{Access, Device, RegisterOptions};
    /// # pinmap::element! { struct Transfer { address: u64, len: u32, status: u32 } }
    /// # impl pinmap::Descriptor for Transfer {
    /// #     type Status = u32;
    /// #     const STATUS: usize = 12;
    /// #     fn is_done(status: u32) -> bool { status != 0 }
    /// # }
    /// # fn f(device: &Device) -> pinmap::Result<()> {
    /// // 256 descriptors, for a device that drives 40 bits of addresses.
    /// let options = RegisterOptions::new(Access::ReadWrite).address_bits(40);
    /// let ring = device.ring::<Transfer>(256, options)?;
    /// device.bar(0)?.write(0x10, ring.device_addr()?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `len` is no power of two, or the options allow the device to read only, or the
    /// device does not snoop caches, and descriptors are not whole cache lines of 64 bytes;
    /// otherwise as for [`Buffer::register`].
    pub fn ring<D: Descriptor>(
        &self,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<Ring<D>> {
        const { check::<D>() }
        let options = options.into();
        let refuse = |cause| {
            let attempt = format!("make a ring of {len} descriptors with {self}");
            Err(Error::refused(
                Operation::Register,
                attempt,
                Errno::EINVAL,
                cause,
            ))
        };
        if !len.is_power_of_two() {
            return refuse("that is no power of two");
        }
        if size_of::<D>() % CACHE_LINE != 0 && !self.is_coherent() {
            return refuse(
                "the device does not snoop caches, and the descriptors are not whole cache lines \
                 of 64 bytes",
            );
        }
        Ok(Ring {
            back: self.completion_ring(len, options)?,
            tail: 0,
        })
    }
}

/// Fails to compile for descriptors whose status word is not one.
pub(super) const fn check<D: Descriptor>() {
    let size = size_of::<D::Status>();
    assert!(D::STATUS % size == 0, "the status word is not aligned");
    assert!(
        D::STATUS + size <= size_of::<D>(),
        "the status word is outside of the descriptor"
    );
    // So that it is aligned in each descriptor, too.
    assert!(
        size_of::<D>() % size == 0,
        "the descriptors do not keep the status word aligned"
    );
}

impl<D: Descriptor> Ring<D> {
    /// Passes a descriptor to the device, and returns its place in the ring. The device is told by
    /// what its manual says, usually by writing [`tail`](Self::tail) to a register.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the ring is full; `EINVAL`: the status word says that the descriptor is done;
    /// `ENODEV`: the device is gone, and it does not snoop caches.
    pub fn push(&mut self, descriptor: D) -> Result<usize> {
        let memory = &self.back.memory;
        let attempt = || format!("pass a descriptor to {}", memory.device());
        if self.room() == 0 {
            let (errno, cause) = (Errno::EAGAIN, "the ring is full");
            return Err(Error::refused(Operation::Submit, attempt(), errno, cause));
        }
        let bytes = bytes_of(std::slice::from_ref(&descriptor));
        let (before, rest) = bytes.split_at(D::STATUS);
        let (status, after) = rest.split_at(size_of::<D::Status>());
        let mut word = [0; 8];
        word[..status.len()].copy_from_slice(status);
        let status = word_of::<D::Status>(word);
        if D::is_done_in_lap(status, self.tail / self.len() as u64) {
            let (errno, cause) = (Errno::EINVAL, "its status word says that it is done");
            return Err(Error::refused(Operation::Submit, attempt(), errno, cause));
        }
        let place = (self.tail % self.len() as u64) as usize;
        let at = place * size_of::<D>();
        memory.write_at(at, before)?;
        memory.write_at(at + D::STATUS + size_of::<D::Status>(), after)?;
        memory.store(at + D::STATUS, status)?;
        memory.sync_for_device(at..at + size_of::<D>())?;
        self.tail += 1;
        Ok(place)
    }

    /// Takes the oldest descriptor back, if the device has passed it back. Later reads see what the
    /// device wrote before it did.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone, and it does not snoop caches.
    pub fn pop(&mut self) -> Result<Option<D>> {
        if self.in_flight() == 0 {
            return Ok(None);
        }
        self.back.pop()
    }
}

/// The value of the first bytes of a word, in the CPU's byte order.
fn word_of<W: Word>(mut bytes: [u8; 8]) -> W {
    if cfg!(target_endian = "big") {
        bytes.rotate_right(8 - size_of::<W>());
    }
    W::from_word(u64::from_ne_bytes(bytes))
}

impl<D> Ring<D> {
    /// Device address of the first descriptor.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory was registered [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        self.back.device_addr()
    }

    /// Number of descriptors: a power of two.
    #[expect(
        clippy::len_without_is_empty,
        reason = "it is about the ring, which has places"
    )]
    pub fn len(&self) -> usize {
        self.back.len()
    }

    /// How many descriptors were pushed since the beginning. Modulo [`len`](Self::len) this is the
    /// place of the next one.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// How many descriptors were popped since the beginning.
    pub fn head(&self) -> u64 {
        self.back.head()
    }

    /// How many descriptors are with the device, or were passed back and not popped.
    pub fn in_flight(&self) -> usize {
        (self.tail - self.head()) as usize
    }

    /// How many descriptors can be pushed before one must be popped.
    #[must_use]
    pub fn room(&self) -> usize {
        self.len() - self.in_flight()
    }

    /// The memory of the ring, for what a device does beside the order.
    pub fn memory(&self) -> &Registration<Buffer<D>> {
        &self.back.memory
    }
}

impl<D> fmt::Debug for Ring<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("len", &self.len())
            .field("head", &self.head())
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::memory::raw::RawRegistration;

    crate::element! {
        #[derive(Debug, Default, PartialEq)]
        struct Transfer { addr: u64, len: u32, status: u16, index: u16 }
    }

    impl Descriptor for Transfer {
        type Status = u16;
        const STATUS: usize = std::mem::offset_of!(Transfer, status);

        fn is_done(status: u16) -> bool {
            status & 0x8000 != 0
        }
    }

    fn ring(len: usize) -> Ring<Transfer> {
        ring_of(len)
    }

    fn ring_of<D: Descriptor>(len: usize) -> Ring<D> {
        let buffer = Buffer::new(len).expect("memory");
        let raw = RawRegistration::fake(buffer.addr(), 4096, Some(0x1_0000));
        let (memory, head) = (Registration::new(raw, buffer), 0);
        let back = CompletionRing { memory, len, head };
        Ring { back, tail: 0 }
    }

    fn transfer(addr: u64, index: u16) -> Transfer {
        let (len, status) = (7, 1);
        Transfer {
            addr,
            len,
            status,
            index,
        }
    }

    /// Acts as a device: changes the status word of a descriptor.
    fn finish(ring: &Ring<Transfer>, place: usize, status: u16) {
        let at = place * size_of::<Transfer>() + Transfer::STATUS;
        ring.memory().store(at, status).expect("a store");
    }

    #[test]
    fn descriptors_come_back_in_order_and_as_the_device_left_them() {
        let mut ring = ring(4);
        assert_eq!((ring.pop().expect("nothing"), ring.room()), (None, 4));
        for lap in 0..3u16 {
            for index in 0..4 {
                let place = ring.push(transfer(u64::from(lap), index)).expect("room");
                assert_eq!(place, usize::from(index));
            }
            let full = ring.push(transfer(9, 9)).expect_err("full");
            assert_eq!(full.kind(), crate::ErrorKind::WouldBlock);
            let attempt = format!("cannot pass a descriptor to {}: ", ring.memory().device());
            assert!(full.to_string().starts_with(&attempt), "{full}");
            assert_eq!(ring.pop().expect("nothing is done"), None);
            // The second is done first, and comes second.
            finish(&ring, 1, 0x8001);
            assert_eq!(ring.pop().expect("the first is not"), None);
            finish(&ring, 0, 0x8002);
            for (index, status) in [(0, 0x8002), (1, 0x8001)] {
                let expected = Transfer {
                    status,
                    ..transfer(u64::from(lap), index)
                };
                assert_eq!(ring.pop().expect("it is done"), Some(expected));
            }
            assert_eq!((ring.in_flight(), ring.room()), (2, 2));
            for place in [2, 3] {
                finish(&ring, place, 0x8000);
                ring.pop().expect("a load").expect("it is done");
            }
        }
        assert_eq!((ring.tail(), ring.head()), (12, 12));
    }

    #[test]
    fn a_phase_bit_marks_the_laps() {
        crate::element! {
            #[derive(Debug, Default, PartialEq)]
            struct Phased { addr: u64, status: u64 }
        }
        impl Descriptor for Phased {
            type Status = u64;
            const STATUS: usize = std::mem::offset_of!(Phased, status);

            fn is_done(status: u64) -> bool {
                Self::is_done_in_lap(status, 0)
            }

            fn is_done_in_lap(status: u64, lap: u64) -> bool {
                status != lap % 2
            }
        }
        let mut ring = ring_of::<Phased>(4);
        for number in 0..12 {
            let (addr, lap) = (number, ring.tail() / 4);
            let wrong = Phased {
                addr,
                status: 1 - lap % 2,
            };
            assert!(ring.push(wrong).is_err(), "it would come back at once");
            let place = ring
                .push(Phased {
                    addr,
                    status: lap % 2,
                })
                .expect("room");
            assert_eq!(
                ring.pop().expect("a load"),
                None,
                "the device has not seen it"
            );
            let at = place * size_of::<Phased>() + Phased::STATUS;
            ring.memory().store(at, 1 - lap % 2).expect("a store");
            let done = ring.pop().expect("a load").expect("it is done");
            assert_eq!(done.addr, number);
        }
    }

    #[test]
    fn what_looks_done_is_not_pushed() {
        let mut ring = ring(2);
        let done = Transfer {
            status: 0x8000,
            ..Transfer::default()
        };
        let error = ring.push(done).expect_err("it would come back at once");
        assert!(
            error.to_string().contains("says that it is done"),
            "{error}"
        );
        assert_eq!(ring.tail(), 0);
    }

    #[test]
    fn the_length_is_a_power_of_two_and_the_device_writes() {
        let device = Device::fake();
        for (len, access) in [
            (0, crate::Access::ReadWrite),
            (3, crate::Access::ReadWrite),
            (4, crate::Access::Read),
        ] {
            let error = device.ring::<Transfer>(len, access).expect_err("refused");
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{error}");
        }
        let error = device
            .ring::<Transfer>(4, crate::Access::ReadWrite)
            .expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
    }

    /// A write-back of a line would overwrite what the device writes to a neighbour in that line.
    #[test]
    fn descriptors_share_no_cache_line_that_must_be_written_back() {
        crate::element! {
            #[derive(Debug)]
            struct Line { transfer: Transfer, rest: [u8; 48] }
        }
        impl Descriptor for Line {
            type Status = u16;
            const STATUS: usize = Transfer::STATUS;

            fn is_done(status: u16) -> bool {
                Transfer::is_done(status)
            }
        }
        let device = Device::fake_without_snooping();
        let error = device.ring::<Transfer>(4, crate::Access::ReadWrite);
        let error = error.expect_err("refused");
        assert_eq!(error.errno(), Errno::EINVAL as i32);
        assert!(error.to_string().contains("64 bytes"), "{error}");
        let error = device.ring::<Line>(4, crate::Access::ReadWrite);
        assert_eq!(error.expect_err("no driver").errno(), Errno::ENOTTY as i32);
    }
}
