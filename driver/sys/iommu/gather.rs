// SPDX-License-Identifier: GPL-2.0
//! Ranges that were unmapped and not flushed yet, so that one flush serves many.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

use super::mapped::Use;
use crate::sys::helpers;
use kernel::{bindings, prelude::*, types::Opaque};

/// Ranges of one page table that were unmapped and not flushed yet. Dropping it flushes. Until then
/// a device may still reach what was mapped, so whoever unmaps keeps the pages.
///
/// # Invariants
///
/// `gather` is initialised, and has ranges of the page table of `table` only.
pub(crate) struct Gather {
    /// In a place of its own, since it has a list.
    gather: KBox<Opaque<bindings::iommu_iotlb_gather>>,
    table: Option<Use>,
}

impl Gather {
    /// Makes one without any range.
    pub(crate) fn new() -> Result<Self> {
        let gather = KBox::new(Opaque::<bindings::iommu_iotlb_gather>::uninit(), GFP_KERNEL)?;
        // SAFETY: The place can be written, and does not move.
        unsafe { helpers::pinmap_gather_init(gather.get()) };
        // INVARIANT: Initialised just now.
        Ok(Self {
            gather,
            table: None,
        })
    }

    /// Unmaps `length` bytes from `start` on, which were mapped by way of `table`. Fails if not all
    /// of it was mapped.
    pub(super) fn unmap(&mut self, table: &Use, start: u64, length: u64) -> Result {
        let page_table = table.table();
        let is_another = |gathered: &Use| gathered.table() != page_table;
        if self.table.as_ref().is_some_and(is_another) {
            self.flush();
        }
        if self.table.is_none() {
            self.table = Some(table.another());
        }
        // SAFETY: The page table is valid, and so is `gather`, which has ranges of this page table
        // only.
        let unmapped = unsafe {
            bindings::iommu_unmap_fast(
                page_table,
                start as usize,
                length as usize,
                self.gather.get(),
            )
        };
        if unmapped as u64 == length {
            return Ok(());
        }
        Err(table.domain.lose(unmapped as u64, length))
    }

    /// Flushes: no device can reach anything that was unmapped.
    pub(crate) fn flush(&mut self) {
        if let Some(table) = self.table.take() {
            // SAFETY: The page table is valid, and so is `gather`. The call makes it empty.
            unsafe { helpers::pinmap_gather_sync(table.table(), self.gather.get()) };
        }
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        self.flush();
    }
}
