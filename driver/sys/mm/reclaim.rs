// SPDX-License-Identifier: GPL-2.0
//! Locks that are taken while memory is reclaimed.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h).

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
