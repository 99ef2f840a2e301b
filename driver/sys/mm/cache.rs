// SPDX-License-Identifier: GPL-2.0
//! CPU caches: write-combined pages, and flushing.
//!
//! C headers: [`arch/x86/include/asm/set_memory.h`](srctree/arch/x86/include/asm/set_memory.h),
//! [`arch/x86/include/asm/cacheflush.h`](srctree/arch/x86/include/asm/cacheflush.h).

use super::pages::Pages;
use crate::{
    logic::{runs::Run, span::Span, PAGE_SIZE},
    sys::{helpers, task},
};
use core::ptr;
use kernel::{bindings, error::to_result, ffi, prelude::*};

/// Pages whose memory type is changed at a time: as many as a huge page has.
const BATCH: usize = 512;

/// Makes pages write-combined in the kernel's own mapping. Its array of pages is allocated first,
/// so that the way back needs no memory.
pub(crate) struct Combined {
    batch: KVec<*mut bindings::page>,
}

// SAFETY: The pointers are scratch; they are not used between calls.
unsafe impl Send for Combined {}
// SAFETY: The pointers are scratch; they are not used between calls.
unsafe impl Sync for Combined {}

type Change = unsafe extern "C" fn(*mut *mut bindings::page, ffi::c_int) -> ffi::c_int;

impl Combined {
    /// Whether this architecture has write-combined memory.
    pub(crate) fn is_possible() -> bool {
        cfg!(CONFIG_X86)
    }

    /// Allocates the array.
    pub(crate) fn new() -> Result<Self> {
        let batch = KVec::from_elem(ptr::null_mut(), BATCH, GFP_KERNEL_ACCOUNT)?;
        Ok(Self { batch })
    }

    /// Makes `folios`, which nobody but the caller may use, write-combined. A fatal signal ends it.
    /// After a failure some of them may be write-combined.
    pub(super) fn combine(&mut self, folios: &[Run]) -> Result {
        self.change(folios, helpers::pinmap_combine_writes, true)
    }

    /// Makes `folios` cached again; they may already be.
    pub(super) fn take_back(&mut self, folios: &[Run]) -> Result {
        self.change(folios, helpers::pinmap_write_back, false)
    }

    fn change(&mut self, folios: &[Run], change: Change, may_stop: bool) -> Result {
        let mut filled = 0_usize;
        for run in folios {
            for index in 0..run.pages() {
                if filled == BATCH {
                    self.change_batch(filled, change)?;
                    filled = 0;
                    if may_stop && task::fatal_signal_pending() {
                        return Err(EINTR);
                    }
                }
                let pfn = run.pfn().saturating_add(index);
                if let Some(slot) = self.batch.get_mut(filled) {
                    // SAFETY: A run consists of pages.
                    *slot = unsafe { helpers::pinmap_pfn_to_page(pfn as usize) };
                    filled = filled.saturating_add(1);
                }
            }
        }
        self.change_batch(filled, change)
    }

    fn change_batch(&mut self, filled: usize, change: Change) -> Result {
        // SAFETY: The first `filled` entries are pages. While their type changes, their owner lets
        // nobody use them in a way that depends on it.
        to_result(unsafe { change(self.batch.as_mut_ptr(), filled as ffi::c_int) })?;
        task::cond_resched();
        Ok(())
    }
}

/// Bytes flushed at a time, before other tasks get a chance to run.
const FLUSH: u64 = 1 << 20;

/// Writes back and invalidates the CPU caches for `part` of `pages`. Fails with `EINTR` after a
/// fatal signal, and with `EOPNOTSUPP` if the architecture cannot flush.
pub(crate) fn flush(pages: &dyn Pages, part: Span) -> Result {
    if !pages.is_cached() {
        return Ok(());
    }
    // SAFETY: No requirements.
    if !unsafe { helpers::pinmap_can_flush() } {
        return Err(EOPNOTSUPP);
    }
    let mut at = 0_u64;
    pages.each(&mut |run| {
        let start = at;
        let length = run.pages().saturating_mul(PAGE_SIZE);
        at = at.saturating_add(length);
        let inside = Span::new(start, length)
            .ok()
            .and_then(|span| span.intersection(part));
        let Some(inside) = inside else {
            return Ok(());
        };
        // SAFETY: A run consists of pages. The kernel maps them one after the other, since a 64-bit
        // kernel has no high memory.
        let first = unsafe {
            helpers::pinmap_page_address(helpers::pinmap_pfn_to_page(run.pfn() as usize))
        };
        let mut offset = inside.start().saturating_sub(start);
        let end = offset.saturating_add(inside.length());
        while offset < end {
            if task::fatal_signal_pending() {
                return Err(EINTR);
            }
            let bytes = end.saturating_sub(offset).min(FLUSH);
            // SAFETY: So many bytes of the run are left. Flushing changes no content.
            unsafe {
                helpers::pinmap_flush(first.wrapping_byte_add(offset as usize), bytes as u32)
            };
            offset = offset.saturating_add(bytes);
            task::cond_resched();
        }
        Ok(())
    })
}
