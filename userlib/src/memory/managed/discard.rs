// SPDX-License-Identifier: MIT OR Apache-2.0
//! Discarding: contents that are not needed any more are given up, and not moved.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use nix::sys::mman::{madvise, MmapAdvise};

use crate::device::accelerator::Accelerator;
use crate::memory::element::{bytes_of_mut, Element};
use crate::sys::map::page_size;

impl Accelerator {
    /// Gives up the contents of memory, without copying them: all elements become zero. Pages that
    /// are on the device are freed there. Returns how many bytes were given up. The rest lies in
    /// pages that `memory` shares with something else, and is overwritten with zeros.
    ///
    /// Use it for private anonymous memory: the heap, the stack, a
    /// [`Managed`](crate::accelerator::Managed). Any other memory is overwritten with zeros, and 0
    /// is returned: a [`Pinned`](crate::accelerator::Pinned), memory of a file, huge pages that
    /// were set aside, memory that is locked (`mlock()`). Discarding a
    /// [`Registered`](crate::accelerator::Registered) of anonymous memory makes the registration
    /// stale, because the device has the pages that were given up: register it again.
    ///
    /// The driver is not called: it notices that the kernel frees the pages.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator, scratch: &mut Vec<f32>) {
    /// // What the device computed there is not needed: do not bring it home.
    /// gpu.discard(scratch);
    /// assert_eq!(scratch[0], 0.0);
    /// # }
    /// ```
    pub fn discard<T: Element>(&self, memory: &mut [T]) -> usize {
        let page = page_size();
        let (start, bytes) = (memory.as_ptr().addr(), size_of_val(memory));
        // Zeroed bytes are zeroed elements, wherever a page begins.
        let memory = bytes_of_mut(memory);
        let Some((head, inner)) = inwards(start, bytes, page) else {
            memory.fill(0);
            return 0;
        };
        let (before, rest) = memory.split_at_mut(head);
        let (pages, after) = rest.split_at_mut(inner);
        // First, so that setting the ends does not bring the rest of a huge page home.
        let given_up = give_up(pages);
        before.fill(0);
        after.fill(0);
        if !given_up {
            pages.fill(0);
            return 0;
        }
        size_of_val(pages)
    }
}

/// The whole pages inside of memory: how many bytes come before them, and how many they have.
fn inwards(start: usize, bytes: usize, page: usize) -> Option<(usize, usize)> {
    let head = start.checked_next_multiple_of(page)? - start;
    let inner = bytes.checked_sub(head)?;
    let inner = inner - inner % page;
    (inner != 0).then_some((head, inner))
}

/// Gives up whole pages. Returns false if they are of a kind that cannot be given up; then they
/// have any contents.
fn give_up(pages: &mut [u8]) -> bool {
    let bytes = size_of_val(pages);
    let start = NonNull::from(&mut *pages).cast();
    // Other memory than private anonymous memory would keep its contents, or those of a file. The
    // kernel refuses MADV_FREE for it.
    let advice = [MmapAdvise::MADV_FREE, MmapAdvise::MADV_DONTNEED];
    advice.iter().all(|&advice| {
        // SAFETY: The pages are borrowed exclusively and contain nothing else. Elements can be any
        // bytes.
        unsafe { madvise(start, bytes, advice) }.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;
    use nix::sys::memfd::{memfd_create, MFdFlags};

    #[test]
    fn only_whole_pages_are_given_up() {
        assert_eq!(inwards(0x1000, 0x2000, 0x1000), Some((0, 0x2000)));
        assert_eq!(inwards(0x1008, 0x2000, 0x1000), Some((0xff8, 0x1000)));
        assert_eq!(inwards(0x1ff8, 0x1008, 0x1000), Some((8, 0x1000)));
        assert_eq!(inwards(0x1008, 0x1fef, 0x1000), None);
        assert_eq!(inwards(0x1008, 8, 0x1000), None);
        assert_eq!(inwards(0x1000, 0, 0x1000), None);
        assert_eq!(inwards(usize::MAX - 7, 7, 0x1000), None);
    }

    #[test]
    fn memory_that_keeps_its_contents_is_set_to_zero() {
        let (gpu, page) = (Accelerator::fake(), page_size());
        let file = memfd_create("memory", MFdFlags::MFD_CLOEXEC).expect("made");
        let file = std::fs::File::from(file);
        file.set_len(4 * page as u64).expect("as long");
        // SAFETY: Nobody else has the file.
        let mut map = unsafe { MmapMut::map_mut(&file) }.expect("memory");
        map.fill(7);
        assert_eq!(gpu.discard(&mut map[..3 * page]), 0);
        assert!(map[..3 * page].iter().all(|&byte| byte == 0));
        assert!(map[3 * page..].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn what_is_discarded_is_zero_and_nothing_else() {
        let (gpu, page) = (Accelerator::fake(), page_size());
        let mut map = MmapMut::map_anon(4 * page).expect("memory");
        map.fill(7);
        // SAFETY: Aligned, because pages are, and of this mapping, which is not used meanwhile.
        let all =
            unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast::<u64>(), page / 2) };
        let words = page / 8;
        let given = gpu.discard(&mut all[3..3 * words + 5]);
        assert_eq!(given, 2 * page);
        assert!(all[..3].iter().all(|&word| word == 0x0707_0707_0707_0707));
        assert!(all[3..3 * words + 5].iter().all(|&word| word == 0));
        assert!(all[3 * words + 5..].iter().all(|&word| word != 0));
        assert_eq!(gpu.discard(&mut all[..3]), 0);
        assert_eq!(gpu.discard::<u64>(&mut []), 0);
        assert!(all[..3].iter().all(|&word| word == 0));
    }
}
