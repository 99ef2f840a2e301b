// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that other processes read and write at the same time.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

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

    /// Adds to 8 bytes in one atomic access; the sum wraps.
    pub fn add(&self, offset: u64, value: u64) -> Option<()> {
        let sum = |before| Some(u64::from_le(before).wrapping_add(value).to_le());
        let word = self.word(offset)?;
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum)
            .ok()
            .map(drop)
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
