// SPDX-License-Identifier: GPL-2.0
//! A section that many tasks may be in at once, also sleeping, until it is closed for good.
//!
//! C header: [`include/linux/srcu.h`](srctree/include/linux/srcu.h).

use super::helpers;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Release},
};

/// A section, open at first. Tasks in it wait neither for each other nor for the task that closes
/// it.
///
/// # Invariants
///
/// `domain` is valid, initialized and ours.
pub(crate) struct Passage {
    open: Atomic<bool>,
    domain: NonNull<bindings::srcu_struct>,
}

// SAFETY: SRCU domains may be used from any thread.
unsafe impl Send for Passage {}
// SAFETY: As above.
unsafe impl Sync for Passage {}

impl Passage {
    /// Makes an open section.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No requirements.
        let domain = unsafe { helpers::pinmap_srcu_new() };
        // INVARIANT: Just made, for us.
        Ok(Self {
            open: Atomic::new(true),
            domain: NonNull::new(domain).ok_or(ENOMEM)?,
        })
    }

    /// Does `what` inside of the section, unless that is closed. May sleep.
    pub(crate) fn while_open<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        // SAFETY: Valid by the type invariants.
        let index = unsafe { helpers::pinmap_srcu_lock(self.domain.as_ptr()) };
        let result = self.open.load(Acquire).then(what);
        // SAFETY: As above; locked just above, by this task.
        unsafe { helpers::pinmap_srcu_unlock(self.domain.as_ptr(), index) };
        result
    }

    /// Closes the section. When this returns, no task is inside any more. Must not be called from
    /// inside.
    pub(crate) fn close(&self) {
        self.open.store(false, Release);
        // Whoever saw it open is inside of a section that began before this.
        // SAFETY: Valid by the type invariants.
        unsafe { helpers::pinmap_srcu_wait(self.domain.as_ptr()) };
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariants, and nobody is inside, since nobody has it any more.
        unsafe { helpers::pinmap_srcu_free(self.domain.as_ptr()) };
    }
}
