// SPDX-License-Identifier: GPL-2.0
//! Memory that can be reclaimed, and locks that are taken while it is.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h).

use crate::sys::helpers;

/// Calls `take`, which takes and releases a lock, as if memory were being reclaimed. Lockdep, if
/// the kernel has it, then reports each allocation that waits for reclaim with the lock held.
pub(crate) fn may_wait(take: impl FnOnce()) {
    // SAFETY: Callers may sleep, as the documentation demands; ended below.
    unsafe { helpers::pinmap_reclaim_begin() };
    take();
    // SAFETY: `pinmap_reclaim_begin` was called above.
    unsafe { helpers::pinmap_reclaim_end() };
}

/// Returns how many pages can be had without swapping.
#[cfg(not(pinmap_flat))]
pub(crate) fn available_pages() -> u64 {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_available_pages() as u64 }
}
