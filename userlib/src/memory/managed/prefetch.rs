// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving memory of the program to a device, and home.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::Place;
use crate::sys::trace::span;
use crate::sys::{bindings as abi, ioctl};

use super::{pages_around, words};

/// The outcome for memory that was prefetched, in bytes. Each byte counts in exactly one field.
///
/// ```no_run
/// use pinmap::accelerator::Place;
/// # fn f(numbers: &pinmap::accelerator::Managed<f32>) -> pinmap::Result<()> {
/// let prefetched = numbers.prefetch(Place::Vram)?;
/// println!("{} bytes have moved, {} had no room", prefetched.moved, prefetched.no_room);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Prefetched {
    /// Bytes that moved.
    pub moved: u64,
    /// Bytes that were there already.
    pub there: u64,
    /// Bytes for which there was no room.
    pub no_room: u64,
    /// Bytes that stay where they are because somebody has the pages pinned, shares them since
    /// `fork()`, or is using them at this moment.
    pub busy: u64,
    /// Bytes that never move: memory of files, shared memory, what is locked (`mlock()`) or may be
    /// merged (`MADV_MERGEABLE`), and addresses where nothing is.
    pub fixed: u64,
}

impl Accelerator {
    /// Moves memory that is [managed](Self::manage) to the memory of the device, or to that of the
    /// host. The whole pages around `memory` move; addresses and contents stay the same.
    ///
    /// The device reaches what is in its memory at the speed of that memory. When the CPU touches a
    /// page there, the page comes home first, with some of its neighbours. The same happens to a
    /// page that somebody pins. Pages that nobody has touched yet are made where they are to go,
    /// filled with zeros.
    ///
    /// Only private anonymous memory moves: heap, stack, `MAP_PRIVATE`. What moved belongs to the
    /// program: it stays where it is when the device is closed, and comes home before the device
    /// goes away.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Place, StreamOptions};
    /// use pinmap_testgpu as testgpu;
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let stream = gpu.stream(StreamOptions::new())?;
    /// let mut numbers = vec![0.0f32; 1 << 20];
    /// let _managed = gpu.manage_all()?;
    /// gpu.prefetch(&numbers[..], Place::Vram)?;
    /// stream.scope(|work| {
    ///     let mut data = work.slice_mut(&mut numbers)?;
    ///     work.launch(testgpu::IncrementF32 { data: &mut data })
    /// })?;
    /// gpu.prefetch(&numbers[..], Place::Host)?;
    /// assert_eq!(numbers[0], 1.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOENT`: some of it is not managed by this context; `EINVAL`: the range is empty, or
    /// outside of the program's addresses; `EOPNOTSUPP`: as for [`manage`](Self::manage); `EPERM`:
    /// another process opened the device; `EIO`: the device did not copy the pages, which stay
    /// where they were; `ENOMEM`: out of memory; `ENODEV`: the device is gone; `EDEADLK`:
    /// this is a host function.
    pub fn prefetch<T>(&self, memory: *const [T], to: Place) -> Result<Prefetched> {
        let attempt = || format!("move {} by {}", words(memory), self.device());
        match pages_around(memory) {
            Some(pages) => move_pages(self.device(), pages, to, ioctl::prefetch, attempt),
            None => Err(Error::new(Operation::Prefetch, attempt(), Errno::EINVAL)),
        }
    }

    /// Tells what [`prefetch`](Self::prefetch) would do now, and moves nothing. For
    /// [`Place::Vram`], `moved` and `no_room` together are what the memory needs of the device's
    /// memory beyond what it has there. `no_room` is what it cannot have even if everything else
    /// that programs moved there goes home: the device has too little memory, or the
    /// [budget](Self::set_budget) of this context is too small.
    ///
    /// Nothing is reserved, so another program may be quicker. `busy` is 0: whether a page is in
    /// use is known only when it is to move.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Place;
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let _managed = gpu.manage_all()?;
    /// let numbers = vec![1.0f32; 64 << 20];
    /// let needs = gpu.preflight_prefetch(&numbers[..], Place::Vram)?;
    /// println!("{} bytes fit, {} do not", needs.there + needs.moved, needs.no_room);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`prefetch`](Self::prefetch), but for `EIO`.
    pub fn preflight_prefetch<T>(&self, memory: *const [T], to: Place) -> Result<Prefetched> {
        let attempt = || format!("ask what {} on {} needs", words(memory), self.device());
        let ioctl: Ioctl = |fd, args| {
            args.flags |= abi::PINMAP_PREFETCH_PREFLIGHT;
            ioctl::prefetch(fd, args)
        };
        match pages_around(memory) {
            Some(pages) => move_pages(self.device(), pages, to, ioctl, attempt),
            None => Err(Error::new(Operation::Prefetch, attempt(), Errno::EINVAL)),
        }
    }
}

/// An ioctl with which pages are moved.
type Ioctl = fn(BorrowedFd<'_>, &mut abi::pinmap_prefetch) -> Result<(), Errno>;

/// Moves whole pages, given as address and length.
pub(crate) fn move_pages(
    device: &Device,
    (addr, len): (usize, usize),
    to: Place,
    ioctl: Ioctl,
    attempt: impl FnOnce() -> String,
) -> Result<Prefetched> {
    span!("prefetch", addr = addr, len = len, vram = to == Place::Vram);
    let mut args = abi::pinmap_prefetch {
        flags: match to {
            Place::Host => abi::PINMAP_PREFETCH_HOST,
            Place::Vram => 0,
        },
        addr: addr as u64,
        length: len as u64,
        ..Default::default()
    };
    ioctl(device.as_fd(), &mut args)
        .map_err(|errno| Error::new(Operation::Prefetch, attempt(), errno))?;
    Ok(Prefetched {
        moved: args.out_moved,
        there: args.out_there,
        no_room: args.out_no_room,
        busy: args.out_busy,
        fixed: args.out_fixed,
    })
}
