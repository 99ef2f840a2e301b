// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mapping of a window in the program.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{madvise, mmap_anonymous, munmap, MapFlags, MmapAdvise, ProtFlags};

use super::HUGE;

const ACCESS: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// Memory that was mapped for a window. Unmapped when dropped.
pub(super) struct Reservation {
    pub(super) start: NonNull<u8>,
    pub(super) len: NonZeroUsize,
}

// SAFETY: The pointer is only a name for addresses, which whoever has a piece of them accesses.
unsafe impl Send for Reservation {}
// SAFETY: As above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Maps memory: at `addr`, if nothing is there, or at a multiple of 2 MiB that is free.
    pub(super) fn new(addr: Option<NonZeroUsize>, len: NonZeroUsize) -> nix::Result<Self> {
        let Some(addr) = addr else {
            return Self::anywhere(len);
        };
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        let flags = flags | MapFlags::MAP_FIXED_NOREPLACE;
        // SAFETY: New memory, which takes the place of nothing.
        let start = unsafe { mmap_anonymous(Some(addr), len, ACCESS, flags) }?;
        let made = Self {
            start: start.cast(),
            len,
        };
        // An old kernel takes the address for a wish.
        match made.start.addr() == addr {
            true => Ok(made),
            false => Err(Errno::EEXIST),
        }
    }

    fn anywhere(len: NonZeroUsize) -> nix::Result<Self> {
        let more = len.checked_add(HUGE).ok_or(Errno::ENOMEM)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: New memory, at an address that the kernel chooses.
        let all = unsafe { mmap_anonymous(None, more, ACCESS, flags) }?.cast::<u8>();
        let before = all.addr().get().next_multiple_of(HUGE) - all.addr().get();
        // SAFETY: It is less than `HUGE`, and so within the mapping.
        let start = unsafe { all.add(before) };
        // SAFETY: As above: the mapping is longer by `HUGE`.
        let end = unsafe { start.add(len.get()) };
        for (at, len) in [(all, before), (end, HUGE - before)] {
            if len != 0 {
                // SAFETY: A part of the new mapping which nobody uses.
                let _ = unsafe { munmap(at.cast(), len) };
            }
        }
        Ok(Self { start, len })
    }

    pub(super) fn advise(&self, advice: MmapAdvise) -> nix::Result<()> {
        // SAFETY: It is our mapping, and none of the advice that is given here changes contents.
        unsafe { madvise(self.start.cast(), self.len.get(), advice) }
    }

    /// Takes memory from one node only.
    pub(super) fn bind(&self, node: u32) -> nix::Result<()> {
        const BITS: usize = libc::c_ulong::BITS as usize;
        // The most nodes that Linux can be built for.
        let mut nodes = [0 as libc::c_ulong; 1024 / BITS];
        let word = nodes.get_mut(node as usize / BITS).ok_or(Errno::EINVAL)?;
        *word = 1 << (node as usize % BITS);
        // SAFETY: The mapping is ours, and the kernel reads so many bits (without the last one).
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.len.get(),
                libc::MPOL_BIND,
                nodes.as_ptr(),
                nodes.len() * BITS + 1,
                0,
            )
        };
        Errno::result(result).map(drop)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: It is our mapping, and no piece of it is left.
        let _ = unsafe { munmap(self.start.cast(), self.len.get()) };
    }
}
