// SPDX-License-Identifier: GPL-2.0
//! Memory of the driver's that the kernel may swap out.
//!
//! C header: [`include/linux/shmem_fs.h`](srctree/include/linux/shmem_fs.h).

use crate::{logic::image::WORDS, sys::helpers};
use core::{ptr::NonNull, slice};
use kernel::{bindings, error::from_err_ptr, prelude::*};

/// Pages that are freed at a time.
const AT_ONCE: u64 = 512;

/// Pages of zeros, at first, that the kernel may swap out.
///
/// # Invariants
///
/// The pointer is valid, we own a reference, and nobody else knows the file.
pub(crate) struct Shmem(NonNull<bindings::file>);

// SAFETY: Files are reference-counted and may be used from any thread.
unsafe impl Send for Shmem {}

impl Shmem {
    /// How many pages can be had without taking more than a half of the memory that others could
    /// have.
    pub(crate) fn room() -> u64 {
        // SAFETY: No requirements.
        unsafe { helpers::pinmap_shmem_room() }
    }

    /// Makes `bytes` bytes, whole pages. `ENOMEM`: the system may not promise so much.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        // SAFETY: No requirements.
        let file = from_err_ptr(unsafe { helpers::pinmap_shmem_new(bytes) })?;
        // INVARIANT: The call made the file.
        NonNull::new(file).map(Self).ok_or(ENOMEM)
    }

    /// Has `write` store to page `number`. `ENOMEM`: there is no room. Sleeps.
    pub(crate) fn write(&mut self, number: u64, write: impl FnOnce(&mut [u64])) -> Result {
        self.with(number, true, write)
    }

    /// Shows page `number` to `read`. Frees it then, or with those behind it, because a page that
    /// is swapped in has no place in the swap any more. So pages are taken in ascending order.
    /// `ENOMEM`: there is no memory now; otherwise it was swapped out and cannot be read. Sleeps.
    pub(crate) fn take(&mut self, number: u64, read: impl FnOnce(&[u64])) -> Result {
        self.with(number, false, |words| read(words))?;
        let next = number.saturating_add(1);
        if next % AT_ONCE == 0 {
            let first = next.saturating_sub(AT_ONCE);
            // SAFETY: Valid by the type invariants.
            unsafe { helpers::pinmap_shmem_free(self.0.as_ptr(), first, AT_ONCE) };
        }
        Ok(())
    }

    fn with(&mut self, number: u64, write: bool, with: impl FnOnce(&mut [u64])) -> Result {
        // SAFETY: Valid by the type invariants.
        let page = unsafe { helpers::pinmap_shmem_get(self.0.as_ptr(), number, write) };
        let page = from_err_ptr(page)?;
        // SAFETY: A page is there until it is put, and by the type invariants nobody else writes
        // to it.
        with(unsafe { slice::from_raw_parts_mut(page.cast(), WORDS as usize) });
        // SAFETY: It was got above.
        unsafe { helpers::pinmap_shmem_put(page, write) };
        Ok(())
    }
}

impl Drop for Shmem {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, by the type invariants.
        unsafe { bindings::fput(self.0.as_ptr()) };
    }
}
