// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped memory, in whole pages.
#![allow(unsafe_code)]

use std::fmt;
use std::io;

use memmap2::{Advice, MmapRaw};
use nix::libc::{sysconf, _SC_PAGESIZE};

use super::sync::AtomicU64;

/// Bytes in a page of the CPU. Leaves `errno` alone, because the allocator asks.
pub(crate) fn page_size() -> usize {
    // SAFETY: The function has no requirements. The C library knows this number, and does not fail.
    let size = unsafe { sysconf(_SC_PAGESIZE) };
    size.try_into().unwrap_or(4096)
}

/// Panics if a mapping does not begin with a page.
pub(crate) fn check_start(map: &MmapRaw) {
    let start = map.as_ptr().addr();
    assert!(start % page_size() == 0, "a mapping from within a page on");
}

/// A mapping of whole pages, unmapped when dropped. Its owner knows whether a device can reach the
/// pages, and with that which of the accesses below are sound.
///
/// # Invariants
///
/// The mapping begins and ends at page boundaries, and stays readable and writable as long as the
/// value exists.
pub(crate) struct Map(MmapRaw);

impl Map {
    /// Takes over a mapping of whole pages, which must be readable and writable. Panics if it does
    /// not begin with a page, as when it is of a file from somewhere within a page on.
    pub(crate) fn new(map: MmapRaw) -> Self {
        check_start(&map);
        // INVARIANT: It begins with a page, as just checked; mmap() maps whole pages, and nobody
        // else can unmap them.
        Self(map)
    }

    #[cfg(test)]
    pub(crate) fn anonymous(len: usize) -> Self {
        Self::new(memmap2::MmapMut::map_anon(len).expect("memory").into())
    }

    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        self.0.advise(advice)
    }

    /// User address of the first byte, exposed because the driver gets it as a number.
    pub(crate) fn addr(&self) -> usize {
        self.0.as_mut_ptr().expose_provenance()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// The memory as atomic words, which a device may change at any time.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let words = self.0.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY:
        // - It is mapped, readable and writable, and begins with a page, hence aligned, by the
        //   invariant; the length is rounded down.
        // - A reference to atomics allows others to write: the device by its own, coherent
        //   accesses, which are no part of this process, and threads by these same atomics.
        unsafe { std::slice::from_raw_parts(words, self.0.len() / size_of::<AtomicU64>()) }
    }
}

/// A mapped register of a device, of 64 bits. Once the device is gone, writing it has no effect.
///
/// # Invariants
///
/// The mapping begins with a page, and stays writable as long as the value exists.
pub(crate) struct Register(MmapRaw);

impl Register {
    /// Takes over a mapping, which must be writable and at least a page. The register is at its
    /// beginning.
    pub(crate) fn new(map: MmapRaw) -> Self {
        check_start(&map);
        // INVARIANT: It begins with a page, as just checked, and nobody else can unmap it.
        Self(map)
    }

    /// Writes the register, in the device's byte order.
    pub(crate) fn write(&self, value: u64) {
        let at = self.0.as_mut_ptr().cast::<u64>();
        // SAFETY: Mapped, writable and aligned by the invariant. A device's registers are outside
        // of the memory model.
        unsafe { at.write_volatile(value.to_le()) };
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.addr(), self.len())
    }
}
