// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that other processes read and write at the same time.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

/// A file, mapped shared and writable as a whole.
///
/// No reference to its bytes ever exists: they are copied in and out, so other processes may change
/// them at any time. A copy of bytes that are being written is a mixture of old and new ones.
///
/// # Invariants
///
/// `base` is the start of `size` bytes that stay mapped, readable and writable, as long as the
/// value lives.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: Through `&Mapping` bytes are only copied, by raw pointers and never by references. Other
// processes do the same at any time, so another thread that does it adds nothing new.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `size` bytes of `file`.
    pub fn new(file: impl AsFd, size: u64) -> io::Result<Self> {
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: A new mapping at an address that the kernel picks replaces no existing one.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_fd().as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // INVARIANT: mmap() made it so; only drop() undoes it.
        Ok(Self { base, size })
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// Returns a pointer to `length` bytes at `offset`, if all of them are inside.
    fn place(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(length)? > self.size {
            return None;
        }
        // SAFETY: by the check the result is inside the mapping, or one past its end.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    /// Copies bytes out. `None` if they are not all inside.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Option<()> {
        let from = self.place(offset, to.len())?;
        // SAFETY: `from` has that many readable bytes by place() and the invariant; `to` is memory
        // of this process alone, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies bytes in. `None`, and nothing is written, if they would not all be inside.
    pub fn write(&self, offset: u64, from: &[u8]) -> Option<()> {
        let to = self.place(offset, from.len())?;
        // SAFETY: as in read(), with the roles exchanged.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Some(())
    }

    /// Copies bytes from one mapping to another, or within one. `None`, and nothing is written, if
    /// they are not all inside.
    pub fn copy(&self, offset: u64, to: &Self, to_offset: u64, bytes: usize) -> Option<()> {
        let from = self.place(offset, bytes)?;
        let to = to.place(to_offset, bytes)?;
        // SAFETY: both have that many bytes by place() and the invariant; copy() lets them overlap.
        unsafe { ptr::copy(from, to, bytes) };
        Some(())
    }

    /// Returns the 8 bytes at `offset`, a multiple of 8, for single accesses.
    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let place = self.place(offset, 8)?.cast::<u64>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: mapped by place(), aligned, lives as long as `self`; other accesses to it are
        // other processes', the atomic ones made here, or the copies above, which may tear but are
        // never referred to.
        Some(unsafe { AtomicU64::from_ptr(place) })
    }

    /// Reads 8 bytes in one access.
    pub fn load(&self, offset: u64) -> Option<u64> {
        Some(u64::from_le(self.word(offset)?.load(Ordering::Acquire)))
    }

    /// Writes 8 bytes in one access, after everything that this thread wrote before.
    pub fn store(&self, offset: u64, value: u64) -> Option<()> {
        self.word(offset)?.store(value.to_le(), Ordering::SeqCst);
        Some(())
    }

    /// Replaces 4 or 8 aligned bytes by what `change` makes of them, in one atomic access, and
    /// returns what they were. Nothing is written where `change` says `None`. `None` if they are
    /// not aligned or not inside.
    pub fn update(
        &self,
        offset: u64,
        bytes: usize,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        let order = Ordering::SeqCst;
        if bytes == 8 {
            let change = |before| Some(change(u64::from_le(before))?.to_le());
            let before = self.word(offset)?.fetch_update(order, order, change);
            return Some(u64::from_le(before.unwrap_or_else(|before| before)));
        }
        let place = self.place(offset, 4)?.cast::<u32>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: as in word().
        let place = unsafe { AtomicU32::from_ptr(place) };
        let change = |before| Some((change(u32::from_le(before).into())? as u32).to_le());
        let before = place.fetch_update(order, order, change);
        Some(u32::from_le(before.unwrap_or_else(|before| before)).into())
    }
}

/// Size of a [`Page`] in bytes.
const PAGE: usize = 4096;

/// A page of a mapping, found once for many small accesses.
///
/// # Invariants
///
/// `base` is a multiple of 4096, and that many bytes from there on are inside of `owner`.
#[derive(Clone, Debug)]
pub struct Page {
    base: NonNull<u8>,
    owner: Arc<Mapping>,
}

// SAFETY: It gives access to no more than its owner does, which is `Send`.
unsafe impl Send for Page {}
// SAFETY: likewise; the owner is `Sync`.
unsafe impl Sync for Page {}

impl Mapping {
    /// Returns the page at `offset`, a multiple of 4096. `None` if it is not all inside.
    pub fn page(self: &Arc<Self>, offset: u64) -> Option<Page> {
        let base = NonNull::new(self.place(offset, PAGE)?)?;
        // INVARIANT: place() has checked the range.
        (base.as_ptr().addr() % PAGE == 0).then(|| Page {
            base,
            owner: Arc::clone(self),
        })
    }
}

/// Makes an access to `$offset` of a page by the atomic type, if that is aligned.
macro_rules! whole {
    ($page:expr, $offset:expr, $atomic:ty, |$place:ident| $access:expr) => {{
        let offset = $offset % PAGE;
        (offset % size_of::<$atomic>() == 0).then(|| {
            // SAFETY: By the invariant and the remainders the place is mapped and aligned. It stays
            // so while `owner` lives. About other accesses to it see `Mapping::word`.
            let $place = unsafe { <$atomic>::from_ptr($page.base.as_ptr().add(offset).cast()) };
            $access
        })
    }};
}

impl Page {
    /// Reads `N` bytes, 1, 2, 4 or 8 of them, as a number. In one access, if they are aligned.
    ///
    /// # Panics
    ///
    /// If they are not all in the page.
    #[inline(always)]
    pub fn load<const N: usize>(&self, offset: u64) -> u64 {
        let at = offset as usize % PAGE;
        let whole = match N {
            1 => whole!(self, at, AtomicU8, |place| place
                .load(Ordering::Relaxed)
                .into()),
            2 => whole!(self, at, AtomicU16, |place| {
                u16::from_le(place.load(Ordering::Relaxed)).into()
            }),
            4 => whole!(self, at, AtomicU32, |place| {
                u32::from_le(place.load(Ordering::Relaxed)).into()
            }),
            _ => whole!(self, at, AtomicU64, |place| {
                u64::from_le(place.load(Ordering::Relaxed))
            }),
        };
        whole.unwrap_or_else(|| self.pieces::<N>(at, None))
    }

    /// Writes the `N` low bytes of a number, likewise.
    ///
    /// # Panics
    ///
    /// If they are not all in the page.
    #[inline(always)]
    pub fn store<const N: usize>(&self, offset: u64, value: u64) {
        let at = offset as usize % PAGE;
        let whole = match N {
            1 => whole!(self, at, AtomicU8, |place| {
                place.store(value as u8, Ordering::Relaxed)
            }),
            2 => whole!(self, at, AtomicU16, |place| {
                place.store((value as u16).to_le(), Ordering::Relaxed)
            }),
            4 => whole!(self, at, AtomicU32, |place| {
                place.store((value as u32).to_le(), Ordering::Relaxed)
            }),
            _ => whole!(self, at, AtomicU64, |place| {
                place.store(value.to_le(), Ordering::Relaxed)
            }),
        };
        if whole.is_none() {
            self.pieces::<N>(at, Some(value));
        }
    }

    /// Reads or writes bytes one after another.
    #[cold]
    fn pieces<const N: usize>(&self, at: usize, value: Option<u64>) -> u64 {
        assert!(at + N <= PAGE);
        let mut result = 0;
        for index in 0..N {
            let byte = whole!(self, at + index, AtomicU8, |place| match value {
                Some(value) => place.store((value >> (8 * index)) as u8, Ordering::Relaxed),
                None => result |= u64::from(place.load(Ordering::Relaxed)) << (8 * index),
            });
            debug_assert!(byte.is_some());
        }
        result
    }

    /// Replaces 4 or 8 aligned bytes, as [`Mapping::update`] does.
    pub fn update(
        &self,
        offset: u64,
        bytes: usize,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        let first = self.base.as_ptr().addr() - self.owner.base.as_ptr().addr();
        let at = offset as usize % PAGE;
        self.owner.update((first + at) as u64, bytes, change)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by new() with this size; no pointer into it outlives a method call.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// Makes a file in memory of `size` zero bytes, which take no memory until they are written.
pub fn memory_file(name: &CStr, size: u64) -> io::Result<OwnedFd> {
    // SAFETY: `name` is a string that ends with a zero.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: The descriptor was just opened, and nobody else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    std::fs::File::from(file.try_clone()?).set_len(size)?;
    Ok(file)
}

/// Zeroes the first `size` bytes of a file in memory, for all who map it, and frees their memory.
pub fn zero(file: impl AsFd, size: u64) -> io::Result<()> {
    let size = libc::off_t::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: The call takes numbers only. Mappings of the file stay valid and read as zero.
    match unsafe { libc::fallocate(file.as_fd().as_raw_fd(), mode, 0, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
