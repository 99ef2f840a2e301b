// SPDX-License-Identifier: GPL-2.0
//! Something that many may do at once, also if it sleeps, until it is forbidden for good.
//!
//! C header: [`include/linux/srcu.h`](srctree/include/linux/srcu.h).

use super::helpers;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Release},
};

/// Open at first. Those who go through neither wait for each other nor for who closes it.
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
    /// An open one.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No requirements.
        let domain = unsafe { helpers::pinmap_srcu_new() };
        // INVARIANT: Just made, for us.
        Ok(Self {
            open: Atomic::new(true),
            domain: NonNull::new(domain).ok_or(ENOMEM)?,
        })
    }

    /// Does `what`, unless it is closed. May sleep.
    pub(crate) fn while_open<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        // SAFETY: Valid by the type invariants.
        let index = unsafe { helpers::pinmap_srcu_lock(self.domain.as_ptr()) };
        let result = self.open.load(Acquire).then(what);
        // SAFETY: As above; locked just above, by this task.
        unsafe { helpers::pinmap_srcu_unlock(self.domain.as_ptr(), index) };
        result
    }

    /// From now on nobody goes through; when it returns, nobody is inside. Not from inside.
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
