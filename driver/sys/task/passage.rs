// SPDX-License-Identifier: GPL-2.0
//! An operation that many tasks may do at once, even if it sleeps, until it is forbidden for good.
//!
//! This is what drm_dev_enter() does for drivers of DRM.
//!
//! C header: [`include/linux/srcu.h`](srctree/include/linux/srcu.h).

use crate::sys::helpers;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Release},
};

/// A gate around an operation, open until it is closed for good. Any number of tasks can be inside
/// at once. They wait neither for each other nor for the task that closes the gate.
///
/// # Invariants
///
/// `domain` is valid, initialized, and ours.
pub(crate) struct Passage {
    open: Atomic<bool>,
    domain: NonNull<bindings::srcu_struct>,
}

// SAFETY: SRCU domains may be used from any thread.
unsafe impl Send for Passage {}
// SAFETY: SRCU domains may be used from any thread.
unsafe impl Sync for Passage {}

impl Passage {
    /// Makes an open passage.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No requirements.
        let domain = unsafe { helpers::pinmap_srcu_new() };
        // INVARIANT: The domain was made just now, for us.
        Ok(Self {
            open: Atomic::new(true),
            domain: NonNull::new(domain).ok_or(ENOMEM)?,
        })
    }

    /// Calls `what`, unless the passage is closed. May sleep.
    pub(crate) fn while_open<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        // SAFETY: Valid by the type invariants.
        let index = unsafe { helpers::pinmap_srcu_lock(self.domain.as_ptr()) };
        let result = self.open.load(Acquire).then(what);
        // SAFETY: Valid by the type invariants; this task took the lock above.
        unsafe { helpers::pinmap_srcu_unlock(self.domain.as_ptr(), index) };
        result
    }

    /// Closes the passage for good. When this returns, no task is inside. Must not be called from
    /// inside.
    pub(crate) fn close(&self) {
        self.open.store(false, Release);
        // Tasks that saw the passage open are in a section that began before this.
        //
        // SAFETY: Valid by the type invariants.
        unsafe { helpers::pinmap_srcu_wait(self.domain.as_ptr()) };
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        // SAFETY: The domain is ours by the type invariants. No task is inside, since none has
        // `self`.
        unsafe { helpers::pinmap_srcu_free(self.domain.as_ptr()) };
    }
}
