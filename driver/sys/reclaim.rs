// SPDX-License-Identifier: GPL-2.0
//! Locks that may be taken while memory is reclaimed.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h).

use super::helpers;

/// Calls `take`, which takes and releases a lock, as if memory were being reclaimed. Lockdep, if
/// the kernel has it, then reports every allocation that waits for reclaim with this lock held.
pub(crate) fn may_wait(take: impl FnOnce()) {
    // SAFETY: May sleep here, as the caller says of itself; ended below.
    unsafe { helpers::pinmap_reclaim_begin() };
    take();
    // SAFETY: Begun above.
    unsafe { helpers::pinmap_reclaim_end() };
}
