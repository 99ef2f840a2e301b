// SPDX-License-Identifier: GPL-2.0
//! Waiting that nothing but a fatal signal cuts short.
//!
//! C header: [`include/linux/wait_bit.h`](srctree/include/linux/wait_bit.h).

use super::helpers;
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Lets everybody through, or has them wait.
pub(crate) struct Gate(Atomic<u32>);

impl Gate {
    /// An open one.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Whoever comes from now on has to wait.
    pub(crate) fn close(&self) {
        self.0.store(1, Relaxed);
    }

    /// Lets everybody through.
    pub(crate) fn open(&self) {
        // SAFETY: Valid, and only ever accessed atomically.
        unsafe { helpers::pinmap_clear_and_wake(self.0.as_ptr()) };
    }

    /// Waits as long as it is closed. `EINTR`: the task is being killed. Sleeps.
    pub(crate) fn pass(&self) -> Result {
        // SAFETY: As above.
        to_result(unsafe { helpers::pinmap_wait_for_zero(self.0.as_ptr()) }).map_err(|_| EINTR)
    }
}
