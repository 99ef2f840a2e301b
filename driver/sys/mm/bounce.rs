// SPDX-License-Identifier: GPL-2.0
//! A bounce buffer: contiguous memory by which pages are copied that a device cannot reach well.

use crate::{logic::block::PAGES, sys::helpers};
use kernel::{error::to_result, prelude::*};

/// 2 MiB of the system's memory, contiguous and aligned.
///
/// # Invariants
///
/// We own [`PAGES`] pages from frame `pfn` on, which `pinmap_bounce_new()` allocated.
pub(crate) struct Bounce {
    pfn: u64,
}

impl Bounce {
    /// Allocates a buffer, if that is easy. Sleeps.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No requirements.
        let pfn = unsafe { helpers::pinmap_bounce_new(PAGES as u32) };
        if pfn == 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: They were allocated just now.
        Ok(Self { pfn: pfn as u64 })
    }

    /// Returns the frame number of its first page.
    pub(crate) fn pfn(&self) -> u64 {
        self.pfn
    }

    /// Copies the page with frame number `from` to page `place`. `EIO`: it cannot be read, because
    /// the memory has an error.
    ///
    /// # Safety
    ///
    /// The page stays meanwhile.
    pub(crate) unsafe fn fill(&self, place: u64, from: u64) -> Result {
        // SAFETY: One page is ours, by the type invariants; the other one by the requirements.
        to_result(unsafe { helpers::pinmap_copy_page(self.page(place)?, from as usize) })
    }

    /// Copies page `place` to the page with frame number `to`. `EIO` as in [`fill`](Self::fill).
    ///
    /// # Safety
    ///
    /// The page stays meanwhile, and nobody else uses its contents.
    pub(crate) unsafe fn empty(&self, place: u64, to: u64) -> Result {
        // SAFETY: One page is ours, by the type invariants; the other one by the requirements.
        to_result(unsafe { helpers::pinmap_copy_page(to as usize, self.page(place)?) })
    }

    fn page(&self, place: u64) -> Result<usize> {
        if place >= PAGES as u64 {
            return Err(EINVAL);
        }
        Ok(self.pfn.saturating_add(place) as usize)
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { helpers::pinmap_bounce_free(self.pfn as usize, PAGES as u32) };
    }
}
