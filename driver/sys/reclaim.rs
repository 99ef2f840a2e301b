// SPDX-License-Identifier: GPL-2.0
//! Locks that somebody may take who reclaims memory.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h).

use super::helpers;

/// Calls `take`, which takes and releases a lock, as if that were needed to reclaim memory. Lockdep, where
/// the kernel has it, then tells of any allocation that waits for reclaim with the lock held.
pub(crate) fn may_wait(take: impl FnOnce()) {
    // SAFETY: May sleep here, as the caller says of itself; ended below.
    unsafe { helpers::pinmap_reclaim_begin() };
    take();
    // SAFETY: Begun above.
    unsafe { helpers::pinmap_reclaim_end() };
}
