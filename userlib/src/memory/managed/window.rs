// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows: addresses that are reserved for the program and the device at once.
//!
//! # Why there may be references to memory in a window
//!
//! A window is one mapping, made for it alone. What it gives out are pieces that do not overlap,
//! each of which belongs to one [`Managed`]. A piece keeps the window, so neither the mapping nor
//! what the driver has of it ends before the last value does; a value that is forgotten keeps its
//! piece for ever. A piece comes back after its contents were given up, so that it is zeroed when
//! it is given out again.
#![allow(unsafe_code)]

mod reservation;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::mman::{madvise, MmapAdvise};

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::element::{check_layout, Element};
use crate::memory::lent::managed::ManagedRange;
use crate::sys::map::page_size;

use super::owned::{Managed, HUGE};
use super::statistics::ManagedStatistics;
use reservation::Reservation;

/// Options of a window, for [`Accelerator::window`].
///
/// ```no_run
/// use pinmap::accelerator::WindowOptions;
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// // 1 GiB, from node 1, and not in core dumps.
/// let options = WindowOptions::new(1 << 30).node(1).without_core_dump();
/// let window = gpu.window(options)?;
/// println!("{} bytes from {:#x} on", window.len(), window.addr());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowOptions {
    len: usize,
    addr: Option<usize>,
    node: Option<u32>,
    huge_pages: bool,
    core_dump: bool,
    on_host: bool,
}

impl WindowOptions {
    /// Options for a window of `len` bytes, a multiple of 2 MiB: at an address that the kernel
    /// chooses, with huge pages, in core dumps, and on the NUMA node that the memory policy
    /// chooses.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            addr: None,
            node: None,
            huge_pages: true,
            core_dump: true,
            on_host: false,
        }
    }

    /// Sets the address, for the program and for the device: a multiple of 2 MiB at which nothing
    /// is mapped.
    #[must_use]
    pub fn at(mut self, addr: usize) -> Self {
        self.addr = Some(addr);
        self
    }

    /// Sets the NUMA node from which the host's memory is taken, and no other one (`mbind()`).
    #[must_use]
    pub fn node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Asks for no huge pages. Without this, memory comes in huge pages as far as the system has
    /// them. Each moves to the device at once, and comes home at once, as small pages.
    #[must_use]
    pub fn without_huge_pages(mut self) -> Self {
        self.huge_pages = false;
        self
    }

    /// Keeps the contents out of core dumps of the program (`MADV_DONTDUMP`). Without this, what is
    /// on the device comes home for a dump.
    #[must_use]
    pub fn without_core_dump(mut self) -> Self {
        self.core_dump = false;
        self
    }

    /// Leaves memory where it is when the device touches it, unless something else is
    /// [advised](Accelerator::advise).
    #[must_use]
    pub fn on_host(mut self) -> Self {
        self.on_host = true;
        self
    }
}

/// Addresses that belong to the program and the device together, from which memory is allocated.
///
/// Made by [`Accelerator::window`]. The program or the kernel chooses the addresses, which are the
/// same for both. Nothing else can be registered there, or mapped for the device. The device's page
/// tables for all of them are made at once, so no access of the device fails later because there is
/// none left. They count against `RLIMIT_MEMLOCK`, one page for each 2 MiB.
///
/// Memory from it is a [`Managed`] as any other: it moves, is prefetched and advised, and is an
/// operand of work.
///
/// ```no_run
/// use pinmap::accelerator::{Place, StreamOptions, WindowOptions};
/// use pinmap_testgpu as testgpu;
/// # fn main() -> pinmap::Result<()> {
/// let gpu = pinmap_testgpu::find()?;
/// let stream = gpu.stream(StreamOptions::new())?;
/// // The same addresses in each run, and nothing of it in a core dump.
/// let options = WindowOptions::new(64 << 20).at(0x1000_0000_0000).without_core_dump();
/// let window = gpu.window(options)?;
/// let mut numbers = window.alloc_at::<f32>(2 << 20, 1 << 20)?;
/// assert_eq!(numbers.addr(), 0x1000_0020_0000);
/// numbers.fill(1.0);
/// numbers.prefetch(Place::Vram)?;
/// stream.scope(|work| {
///     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
/// })?;
/// assert_eq!(numbers[0], 2.0);
/// println!("{:?}", window.statistics()?);
/// # Ok(()) }
/// ```
///
/// Clones are the same window. It ends with the last clone and the last memory from it.
#[derive(Clone)]
pub struct Window {
    gpu: Accelerator,
    reserved: Arc<Reserved>,
}

/// Parts of a window.
struct Reserved {
    /// Ends before the memory is unmapped.
    range: ManagedRange,
    memory: Reservation,
    /// The pieces that are not given out: their lengths by their offsets, none next to another.
    free: Mutex<BTreeMap<usize, usize>>,
}

/// A piece of a window, in whole pages. Dropping it gives up the contents, and gives it back.
pub(super) struct Piece {
    reserved: Arc<Reserved>,
    offset: usize,
    len: usize,
}

impl Accelerator {
    /// Reserves a window: addresses at which only managed memory of the program is, for the CPU and
    /// for this context's queues.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// use pinmap::accelerator::WindowOptions;
    ///
    /// let window = gpu.window(WindowOptions::new(64 << 20).at(0x1000_0000_0000))?;
    /// assert_eq!(window.addr(), 0x1000_0000_0000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the length or the address is no multiple of 2 MiB, the length is 0, the device
    /// does not translate these addresses, or the machine has no such NUMA node; `EEXIST`:
    /// something is mapped at the addresses, in the program or on the device; `ENOMEM`: no address
    /// space is that large, or `RLIMIT_MEMLOCK` is too small for the page tables; `ENOSPC`: the
    /// device has no room for them; otherwise as for [`manage`](Self::manage).
    pub fn window(&self, options: WindowOptions) -> Result<Window> {
        let WindowOptions { len, addr, .. } = options;
        let attempt = || match addr {
            Some(addr) => format!(
                "reserve a window of {len} bytes at {addr:#x} with {}",
                self.device()
            ),
            None => format!("reserve a window of {len} bytes with {}", self.device()),
        };
        let refuse = |errno, cause| Error::refused(Operation::Manage, attempt(), errno, cause);
        let whole = |number: usize| number % HUGE == 0;
        let length = NonZeroUsize::new(len).filter(|len| whole(len.get()));
        let length = length.ok_or_else(|| {
            refuse(
                Errno::EINVAL,
                "the length of a window is a multiple of 2 MiB",
            )
        })?;
        let start = addr.map(|addr| NonZeroUsize::new(addr).filter(|addr| whole(addr.get())));
        let start = start.map(|start| {
            start.ok_or_else(|| {
                refuse(
                    Errno::EINVAL,
                    "the address of a window is a multiple of 2 MiB, and not 0",
                )
            })
        });
        let memory = Reservation::new(start.transpose()?, length);
        let memory = memory.map_err(|errno| match errno {
            Errno::EEXIST => refuse(errno, "the program has something mapped there"),
            Errno::ENOMEM | Errno::EINVAL | Errno::EOVERFLOW => {
                refuse(Errno::ENOMEM, "no address space is that large")
            }
            errno => Error::new(Operation::Manage, attempt(), errno),
        })?;
        if let Some(node) = options.node {
            memory.bind(node).map_err(|errno| match errno {
                Errno::EINVAL => refuse(errno, "there is no such NUMA node, or it has no memory"),
                errno => Error::new(Operation::Manage, attempt(), errno),
            })?;
        }
        // A kernel without transparent huge pages says EINVAL.
        let _ = memory.advise(match options.huge_pages {
            true => MmapAdvise::MADV_HUGEPAGE,
            false => MmapAdvise::MADV_NOHUGEPAGE,
        });
        if !options.core_dump {
            let advised = memory.advise(MmapAdvise::MADV_DONTDUMP);
            advised.map_err(|errno| Error::new(Operation::Manage, attempt(), errno))?;
        }
        let addr = memory.start.as_ptr().expose_provenance();
        let range = self.manage_window(addr, len, options.on_host)?;
        let free = Mutex::new(BTreeMap::from([(0, len)]));
        Ok(Window {
            gpu: self.clone(),
            reserved: Arc::new(Reserved {
                range,
                memory,
                free,
            }),
        })
    }
}

impl Window {
    /// The context whose queues reach the window.
    pub fn accelerator(&self) -> &Accelerator {
        &self.gpu
    }

    /// The device whose queues reach the window.
    pub fn device(&self) -> &Device {
        self.gpu.device()
    }

    /// The first address, for the program and for the device.
    pub fn addr(&self) -> usize {
        self.reserved.memory.start.addr().get()
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.reserved.memory.len.get()
    }

    /// How many bytes are not allocated, in one piece or in several.
    pub fn free(&self) -> usize {
        self.reserved.lock().values().sum()
    }

    /// The managed range that the window is.
    pub fn range(&self) -> &ManagedRange {
        &self.reserved.range
    }

    /// Tells what happened in the window, and the last access of the device that was refused.
    ///
    /// # Errors
    ///
    /// As for [`ManagedRange::statistics`].
    pub fn statistics(&self) -> Result<ManagedStatistics> {
        self.reserved.range.statistics()
    }

    /// Allocates memory for `count` elements, zeroed, in the first place that is large enough. It
    /// takes whole pages, and whole huge pages from 2 MiB on.
    ///
    /// ```no_run
    /// # fn f(window: &pinmap::accelerator::Window) -> pinmap::Result<()> {
    /// let table = window.alloc::<u32>(1 << 20)?;
    /// println!("{} bytes are left", window.free());
    /// drop(table); // its addresses can be given out again
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `count` is 0; `ENOMEM`: there is no room for it in one piece.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Managed<T>> {
        let (len, unit) = self.length::<T>(count)?;
        let mut free = self.reserved.lock();
        let room = free.iter().find_map(|(&offset, &room)| {
            let at = offset.next_multiple_of(unit);
            (at + len <= offset + room).then_some(at)
        });
        let Some(offset) = room else {
            drop(free);
            let cause = "the window has no room for it in one piece";
            return Err(self.refuse::<T>(count, Errno::ENOMEM, cause));
        };
        take(&mut free, offset, len);
        drop(free);
        Ok(self.give_out(offset, len, count))
    }

    /// Allocates memory for `count` elements, zeroed, `offset` bytes behind the first address of
    /// the window: a multiple of the page size.
    ///
    /// ```no_run
    /// # fn f(window: &pinmap::accelerator::Window) -> pinmap::Result<()> {
    /// let table = window.alloc_at::<u32>(2 << 20, 1024)?;
    /// assert_eq!(table.addr(), window.addr() + (2 << 20));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `count` is 0, or `offset` is no multiple of the page size; `ENOMEM`: it reaches
    /// out of the window; `EEXIST`: some of it is allocated already.
    pub fn alloc_at<T: Element>(&self, offset: usize, count: usize) -> Result<Managed<T>> {
        let (len, _) = self.length::<T>(count)?;
        let refuse = |errno, cause| Err(self.refuse::<T>(count, errno, cause));
        if offset % page_size() != 0 {
            return refuse(Errno::EINVAL, "the offset is no multiple of the page size");
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return refuse(Errno::ENOMEM, "it reaches out of the window");
        }
        let mut free = self.reserved.lock();
        let room = free.range(..=offset).next_back();
        let is_free = room.is_some_and(|(&start, &room)| offset + len <= start + room);
        if !is_free {
            drop(free);
            return refuse(Errno::EEXIST, "some of it is allocated already");
        }
        take(&mut free, offset, len);
        drop(free);
        Ok(self.give_out(offset, len, count))
    }

    fn give_out<T: Element>(&self, offset: usize, len: usize, count: usize) -> Managed<T> {
        let piece = Piece {
            reserved: Arc::clone(&self.reserved),
            offset,
            len,
        };
        Managed::in_window(&self.gpu, piece, count)
    }

    /// The length of the piece for so many elements, and what its offset is a multiple of.
    fn length<T: Element>(&self, count: usize) -> Result<(usize, usize)> {
        const { check_layout::<T>() }
        if count == 0 {
            let cause = "there must be at least one element";
            return Err(self.refuse::<T>(count, Errno::EINVAL, cause));
        }
        let bytes = count.checked_mul(size_of::<T>());
        let bytes = bytes.filter(|&bytes| bytes <= self.len()).ok_or_else(|| {
            self.refuse::<T>(count, Errno::ENOMEM, "the window is not that large")
        })?;
        let unit = match bytes < HUGE {
            true => page_size(),
            false => HUGE,
        };
        Ok((bytes.next_multiple_of(page_size()), unit))
    }

    fn refuse<T>(&self, count: usize, errno: Errno, cause: &str) -> Error {
        let attempt = format!(
            "allocate {count} elements of {} bytes in the window of {:#x} bytes at {:#x}",
            size_of::<T>(),
            self.len(),
            self.addr()
        );
        Error::refused(Operation::Allocate, attempt, errno, cause)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:#x}+{:#x})", self.addr(), self.len())
    }
}

impl Reserved {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // Nothing that panics is done with the lock.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Piece {
    /// The first byte.
    pub(super) fn start(&self) -> *mut u8 {
        // SAFETY: A piece is inside of the mapping.
        unsafe { self.reserved.memory.start.as_ptr().add(self.offset) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn range(&self) -> &ManagedRange {
        &self.reserved.range
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(start) = NonNull::new(self.start()) {
            // SAFETY: The pages are the piece's alone, and nobody accesses them any more.
            let given_up = unsafe { madvise(start.cast(), self.len, MmapAdvise::MADV_DONTNEED) };
            if given_up.is_err() {
                // The program has locked them.
                // SAFETY: As above; they are mapped for writing.
                unsafe { start.write_bytes(0, self.len) };
            }
        }
        put(&mut self.reserved.lock(), self.offset, self.len);
    }
}

/// Takes a piece, which is not empty, out of the free ones, one of which has all of it.
fn take(free: &mut BTreeMap<usize, usize>, offset: usize, len: usize) {
    debug_assert_ne!(len, 0);
    let room = free.range(..=offset).next_back();
    let Some((start, room)) = room.map(|(&start, &room)| (start, room)) else {
        return;
    };
    free.remove(&start);
    if start < offset {
        free.insert(start, offset - start);
    }
    if offset + len < start + room {
        free.insert(offset + len, start + room - (offset + len));
    }
}

/// Puts a piece back, and joins it with its neighbours.
fn put(free: &mut BTreeMap<usize, usize>, offset: usize, len: usize) {
    let (mut start, mut end) = (offset, offset + len);
    if let Some((&before, &room)) = free.range(..offset).next_back() {
        if before + room == offset {
            start = before;
        }
    }
    if let Some(room) = free.remove(&end) {
        end += room;
    }
    free.insert(start, end - start);
}

#[cfg(test)]
mod tests;
