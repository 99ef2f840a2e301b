// SPDX-License-Identifier: GPL-2.0
//! The current task: its signals, its share of the processor, its addresses.
//!
//! C headers: [`include/linux/sched/signal.h`](srctree/include/linux/sched/signal.h),
//! [`include/linux/sched.h`](srctree/include/linux/sched.h).

use super::helpers;

/// The last address that user space has.
pub(crate) fn user_last() -> u64 {
    // SAFETY: No requirements.
    (unsafe { helpers::pinmap_task_size() } as u64).saturating_sub(1)
}

/// Lets others run; in loops whose length user space chooses.
pub(crate) fn cond_resched() {
    // SAFETY: May sleep here, as the callers say of themselves.
    unsafe { helpers::pinmap_cond_resched() };
}

/// Whether a fatal signal waits for the current task.
pub(crate) fn fatal_signal_pending() -> bool {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_fatal_signal_pending() }
}

/// Whether any signal waits for the current task.
pub(crate) fn signal_pending() -> bool {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_signal_pending() }
}
