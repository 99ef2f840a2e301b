// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures lookups of memory that is registered already.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::Instant;

use nix::libc::c_void;
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use pinmap::{Access, Cache, Device};

use crate::{Bench, Result};

/// Lookups for one measurement, since one takes less time than reading the clock.
const REPEAT: u32 = 256;

struct Memory {
    start: NonNull<c_void>,
    length: NonZeroUsize,
}

impl Memory {
    fn new(length: NonZeroUsize) -> Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
        // SAFETY: A new mapping at an address that the kernel picks replaces no existing one.
        let start = unsafe { mmap_anonymous(None, length, access, flags)? };
        Ok(Self { start, length })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: Mapped by `new`, and the cache, which does not access it, notices.
        let _ = unsafe { munmap(self.start, self.length.get()) };
    }
}

/// Measures the case `cached` on the first device.
pub(crate) fn measure(bench: &Bench) -> Result<()> {
    let node = Device::list()?;
    let device = Device::open(&node.first().ok_or("no device is bound to pinmap")?.path)?;
    for (size, bytes) in [("4KiB", 4 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)] {
        let memory = Memory::new(NonZeroUsize::new(bytes).ok_or("no size")?)?;
        let cache = Cache::new(&device, Access::ReadWrite, 256 << 20)?;
        let get = || {
            // SAFETY: Nobody accesses the memory, and it is unmapped after the cache is dropped.
            unsafe { cache.get(memory.start.as_ptr().cast(), bytes) }
        };
        get()?;
        bench.compare("cached", size, "4k-natural", ["pinmap"], |_| {
            let start = Instant::now();
            for _ in 0..REPEAT {
                get()?;
            }
            Ok((start.elapsed() / REPEAT).as_nanos() as u64)
        })?;
        drop(cache);
    }
    Ok(())
}
