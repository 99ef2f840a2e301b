// SPDX-License-Identifier: GPL-2.0
//! A gate that tasks wait at while it is closed; only a fatal signal ends the wait.
//!
//! C header: [`include/linux/wait_bit.h`](srctree/include/linux/wait_bit.h).

use crate::sys::helpers;
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Lets every task through while it is open, and makes them wait while it is closed.
pub(crate) struct Gate(Atomic<u32>);

impl Gate {
    /// Makes an open gate.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Makes all tasks wait that come from now on.
    pub(crate) fn close(&self) {
        self.0.store(1, Relaxed);
    }

    /// Lets all tasks through, also those that wait.
    pub(crate) fn open(&self) {
        // SAFETY: The word is valid, and only accessed atomically.
        unsafe { helpers::pinmap_clear_and_wake(self.0.as_ptr()) };
    }

    /// Waits while the gate is closed. Fails with `EINTR` if the task is being killed. Sleeps.
    pub(crate) fn pass(&self) -> Result {
        // SAFETY: The word is valid, and only accessed atomically.
        to_result(unsafe { helpers::pinmap_wait_for_zero(self.0.as_ptr()) }).map_err(|_| EINTR)
    }
}
