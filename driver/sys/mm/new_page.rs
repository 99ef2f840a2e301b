// SPDX-License-Identifier: GPL-2.0
//! New pages, which others move to: see `migrate.rs`.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h).

use crate::sys::helpers;
use core::ops::Range;

/// A page to which another one can move. Dropping it frees the page.
///
/// # Invariants
///
/// The page with frame number `pfn` is locked, is mapped nowhere, and has one reference. The lock
/// and the reference are ours.
pub(crate) struct NewPage {
    pfn: u64,
}

impl NewPage {
    /// Takes over the page with frame number `pfn`.
    ///
    /// # Safety
    ///
    /// The invariants hold for the page.
    pub(super) unsafe fn of(pfn: u64) -> Self {
        // INVARIANT: By the requirements.
        Self { pfn }
    }

    pub(crate) fn pfn(&self) -> u64 {
        self.pfn
    }
}

impl Drop for NewPage {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { helpers::pinmap_drop_page(self.pfn as usize) };
    }
}

/// The new pages of a block, in order. Dropping it frees the rest.
///
/// # Invariants
///
/// The invariants of [`NewPage`] hold for each page of `frames`.
pub(crate) struct Neighbours {
    frames: Range<u64>,
}

impl Neighbours {
    /// Takes over the pages with the frame numbers `frames`.
    ///
    /// # Safety
    ///
    /// The invariants hold for the pages.
    pub(super) unsafe fn of(frames: Range<u64>) -> Self {
        // INVARIANT: By the requirements.
        Self { frames }
    }
}

impl Iterator for Neighbours {
    type Item = NewPage;

    fn next(&mut self) -> Option<NewPage> {
        // INVARIANT: The page is no more in `frames`.
        self.frames.next().map(|pfn| NewPage { pfn })
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}
