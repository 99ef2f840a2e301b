// SPDX-License-Identifier: GPL-2.0
//! The current task: signals, rescheduling, addresses.
//!
//! C headers: [`include/linux/sched/signal.h`](srctree/include/linux/sched/signal.h),
//! [`include/linux/sched.h`](srctree/include/linux/sched.h).

pub(crate) mod account;
#[cfg(pinmap_mirror)]
pub(crate) mod cgroup;
pub(crate) mod clock;
pub(crate) mod coverage;
#[cfg(not(pinmap_flat))]
pub(crate) mod dmem;
pub(crate) mod gate;
#[cfg(not(pinmap_flat))]
pub(crate) mod killable;
pub(crate) mod passage;
pub(crate) mod process;
#[cfg(pinmap_mirror)]
pub(crate) mod sort;
#[cfg(not(pinmap_flat))]
pub(crate) mod thread;
pub(crate) mod wait;
pub(crate) mod work;

use super::helpers;
use kernel::{bindings, ffi};

/// The last address that user space can have.
pub(crate) fn user_last() -> u64 {
    // SAFETY: No requirements.
    (unsafe { helpers::pinmap_task_size() } as u64).saturating_sub(1)
}

/// The last address that user space is given without asking for higher ones, as it may with page
/// tables of five levels.
pub(crate) fn default_user_last() -> u64 {
    // SAFETY: No requirements.
    (unsafe { helpers::pinmap_default_task_size() } as u64).saturating_sub(1)
}

/// Lets other tasks run. For loops whose length user space chooses; may sleep.
pub(crate) fn cond_resched() {
    // SAFETY: Callers may sleep, as the documentation demands.
    unsafe { helpers::pinmap_cond_resched() };
}

/// Whether the current task may keep the system from sleeping.
pub(crate) fn may_block_suspend() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::capable(bindings::CAP_BLOCK_SUSPEND as ffi::c_int) }
}

/// Has lockdep warn if the caller holds the mmap lock of its address space.
pub(crate) fn assert_mmap_unlocked() {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_assert_mmap_unlocked() };
}

/// Whether a fatal signal waits for the current task.
pub(crate) fn fatal_signal_pending() -> bool {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_fatal_signal_pending() }
}

/// Whether a signal, fatal or not, waits for the current task.
pub(crate) fn signal_pending() -> bool {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_signal_pending() }
}
