// SPDX-License-Identifier: GPL-2.0
//! A gate at which tasks wait; only a fatal signal ends the wait early.
//!
//! C header: [`include/linux/wait_bit.h`](srctree/include/linux/wait_bit.h).

use super::helpers;
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// A gate, open or closed.
pub(crate) struct Gate(Atomic<u32>);

impl Gate {
    /// Makes an open gate.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Closes the gate. Tasks that come from now on wait.
    pub(crate) fn close(&self) {
        self.0.store(1, Relaxed);
    }

    /// Opens the gate and lets all waiting tasks through.
    pub(crate) fn open(&self) {
        // SAFETY: Valid, and only ever accessed atomically.
        unsafe { helpers::pinmap_clear_and_wake(self.0.as_ptr()) };
    }

    /// Waits while the gate is closed. `EINTR`: the task is being killed. Sleeps.
    pub(crate) fn pass(&self) -> Result {
        // SAFETY: As above.
        to_result(unsafe { helpers::pinmap_wait_for_zero(self.0.as_ptr()) }).map_err(|_| EINTR)
    }
}
