// SPDX-License-Identifier: MIT OR Apache-2.0
//! An allocator whose large allocations have pages of their own.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::ptr::{null_mut, NonNull};

use nix::errno::Errno;
use nix::sys::mman::{
    madvise, mmap_anonymous, mremap, munmap, MRemapFlags, MapFlags, MmapAdvise, ProtFlags,
};

use crate::sys::map::page_size;

use super::owned::{mapped_len, HUGE};

/// Allocations from this length on have pages of their own.
const LARGE: usize = 128 << 10;

/// An allocator for programs whose collections are to move between host and device: each allocation
/// of 128 KiB or more has whole pages of its own, and huge ones from 2 MiB on.
///
/// With [`Accelerator::manage_all`](crate::accelerator::Accelerator::manage_all) every `Vec` is
/// managed memory, whatever allocates it. But a large `Vec` of the system's allocator may share its
/// first and last page with other data, which then moves along, and is advised along. With this
/// allocator it does not, it is discarded as a whole, and it grows by `mremap()`, which copies
/// nothing and leaves pages of the device where they are. (It is copied if the program has split it
/// into several areas, as by `mlock()` of a part.)
///
/// ```
/// use pinmap::accelerator::ManagedAlloc;
///
/// #[global_allocator]
/// static ALLOC: ManagedAlloc = ManagedAlloc;
///
/// let numbers = vec![1.0f32; 1 << 20];
/// assert_eq!(numbers.as_ptr().addr() % 4096, 0);
/// ```
///
/// Smaller allocations are those of [`System`]. That one `Vec` alone has an allocator of its own is
/// not possible in stable Rust (`allocator_api` is unstable), so this is one for the whole program;
/// for a single piece of memory there is [`Managed`](crate::accelerator::Managed).
#[derive(Debug, Clone, Copy, Default)]
pub struct ManagedAlloc;

/// Restores `errno` when dropped, so that a buffer that is dropped between a call of C that fails
/// and the look at its error does not change that error.
struct KeptErrno(i32);

impl KeptErrno {
    fn new() -> Self {
        Self(Errno::last_raw())
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        Errno::set_raw(self.0);
    }
}

/// The length of the mapping of an allocation. `None`: the system's allocator has it.
fn mapped(size: usize, align: usize) -> Option<usize> {
    if size < LARGE || align > page_size() {
        return None;
    }
    mapped_len(size)
}

/// Hints that memory is to consist of huge pages.
fn make_huge(start: NonNull<u8>, len: usize) {
    if len >= HUGE {
        // SAFETY: The memory is a mapping of this allocator; its contents stay. A kernel without
        // transparent huge pages says EINVAL.
        let _ = unsafe { madvise(start.cast(), len, MmapAdvise::MADV_HUGEPAGE) };
    }
}

/// Maps new memory, zeroed. Null if there is none.
fn map(len: usize) -> *mut u8 {
    let Some(length) = NonZeroUsize::new(len) else {
        return null_mut();
    };
    let _errno = KeptErrno::new();
    let (access, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    );
    // SAFETY: New memory, at an address that the kernel chooses.
    match unsafe { mmap_anonymous(None, length, access, flags) } {
        Ok(start) => {
            make_huge(start.cast(), len);
            start.as_ptr().cast()
        }
        Err(_) => null_mut(),
    }
}

// SAFETY: What is returned is memory of the system's allocator, or a new mapping, which is not
// shorter than asked for, begins with a page, and is aligned as no more than a page. The length of
// the mapping follows from the layout alone, so that what frees it knows it. Nothing here panics.
unsafe impl GlobalAlloc for ManagedAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match mapped(layout.size(), layout.align()) {
            Some(len) => map(len),
            // SAFETY: As the caller promises.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match mapped(layout.size(), layout.align()) {
            Some(len) => map(len),
            // SAFETY: As the caller promises.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let Some(len) = mapped(layout.size(), layout.align()) else {
            // SAFETY: As the caller promises; the system's allocator has made it.
            return unsafe { System.dealloc(start, layout) };
        };
        if let Some(start) = NonNull::new(start) {
            let _errno = KeptErrno::new();
            // SAFETY: It is a mapping of this length, by the layout, which nobody uses any more.
            let _ = unsafe { munmap(start.cast(), len) };
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (old, new) = (
            mapped(layout.size(), layout.align()),
            mapped(new_size, layout.align()),
        );
        if let (None, None) = (old, new) {
            // SAFETY: As the caller promises; the system's allocator has made it.
            return unsafe { System.realloc(start, layout, new_size) };
        }
        let _errno = KeptErrno::new();
        if let (Some(at), Some(old), Some(new)) = (NonNull::new(start), old, new) {
            if old == new {
                return start;
            }
            let flags = MRemapFlags::MREMAP_MAYMOVE;
            // SAFETY: It is a mapping of the old length, by the layout, which nobody but the caller
            // uses.
            if let Ok(moved) = unsafe { mremap(at.cast(), old, new, flags, None) } {
                make_huge(moved.cast(), new);
                return moved.as_ptr().cast();
            }
            // The kernel does not move several areas at once, and the program may have split this
            // one, as by mlock() of a part.
        }
        // SAFETY: As the caller promises: the new size is a valid one for that alignment.
        let to = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: As the caller promises: the size is not 0.
        let other = unsafe { self.alloc(to) };
        if !other.is_null() {
            let common = layout.size().min(new_size);
            // SAFETY: Both have that many bytes, and are different allocations. The old one is not
            // used any more.
            unsafe {
                start.copy_to_nonoverlapping(other, common);
                self.dealloc(start, layout);
            }
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_allocations_are_those_of_the_system() {
        let page = page_size();
        assert_eq!(mapped(LARGE - 1, 8), None);
        assert_eq!(mapped(LARGE, 2 * page), None);
        assert_eq!(mapped(LARGE, page), Some(LARGE));
        assert_eq!(mapped(HUGE + 1, 8), Some(2 * HUGE));
    }

    /// A program may do something to a part of an allocation, which the kernel then does not move.
    #[test]
    fn an_allocation_of_several_areas_grows() {
        let layout = |size| Layout::from_size_align(size, 8).expect("a layout");
        // SAFETY: The layout of each call is that of the last one, and only what was allocated is
        // accessed; the advice is about core dumps.
        unsafe {
            let start = ManagedAlloc.alloc_zeroed(layout(8 * LARGE));
            start.write(7);
            start.add(8 * LARGE - 1).write(8);
            let part = NonNull::new(start).expect("memory").cast();
            madvise(part, 2 * page_size(), MmapAdvise::MADV_DONTDUMP).expect("split");
            Errno::EBADF.set();
            let grown = ManagedAlloc.realloc(start, layout(8 * LARGE), 9 * LARGE);
            assert_eq!(Errno::last(), Errno::EBADF, "that of mremap()");
            assert!(!grown.is_null());
            assert_eq!((grown.read(), grown.add(8 * LARGE - 1).read()), (7, 8));
            ManagedAlloc.dealloc(grown, layout(9 * LARGE));
        }
    }

    #[test]
    fn errno_stays() {
        let layout = |size| Layout::from_size_align(size, 8).expect("a layout");
        // SAFETY: The layout of each call is that of the last one.
        unsafe {
            let start = ManagedAlloc.alloc(layout(LARGE));
            Errno::EBADF.set();
            let start = ManagedAlloc.realloc(start, layout(LARGE), HUGE);
            let start = ManagedAlloc.realloc(start, layout(HUGE), LARGE);
            ManagedAlloc.dealloc(start, layout(LARGE));
        }
        assert_eq!(Errno::last(), Errno::EBADF);
    }

    /// An allocation that grows and shrinks over all limits keeps its contents.
    #[test]
    fn contents_stay_when_sizes_change() {
        let sizes = [
            8,
            LARGE - 8,
            LARGE,
            LARGE + 8,
            HUGE - 8,
            HUGE,
            3 * HUGE + 8,
            HUGE + 8,
            LARGE,
            64,
            5 * HUGE,
            8,
        ];
        let layout = |size| Layout::from_size_align(size, 8).expect("a layout");
        // SAFETY: The layout of each call is that of the last one, and only what was allocated is
        // accessed.
        unsafe {
            let mut size = sizes[0];
            let mut start = ManagedAlloc.alloc(layout(size));
            for &next in sizes.iter().chain(&sizes) {
                assert!(!start.is_null());
                for at in (0..size / 8).step_by(97) {
                    start.cast::<usize>().add(at).write(at ^ size);
                }
                let moved = ManagedAlloc.realloc(start, layout(size), next);
                assert!(!moved.is_null());
                for at in (0..size.min(next) / 8).step_by(97) {
                    assert_eq!(moved.cast::<usize>().add(at).read(), at ^ size);
                }
                assert!(next < LARGE || moved.addr() % page_size() == 0);
                (start, size) = (moved, next);
            }
            ManagedAlloc.dealloc(start, layout(size));
            let zeroed = ManagedAlloc.alloc_zeroed(layout(LARGE));
            assert!((0..LARGE).all(|at| zeroed.add(at).read() == 0));
            ManagedAlloc.dealloc(zeroed, layout(LARGE));
            let none = ManagedAlloc.alloc(layout(isize::MAX as usize - 7));
            assert!(none.is_null());
        }
    }
}
