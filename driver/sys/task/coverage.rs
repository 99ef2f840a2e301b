// SPDX-License-Identifier: GPL-2.0
//! Tells a fuzzer what the driver's own threads execute (Documentation/dev-tools/kcov.rst).
//!
//! Whoever collects remote coverage with the common handle 1 gets it from all of them: there is one
//! fuzzer on a machine. Without KCOV nothing is recorded.

use core::marker::PhantomData;
use kernel::types::NotThreadSafe;

/// Has KCOV record what the current thread executes, until it is dropped. Sleeps.
pub(crate) struct Covered(PhantomData<NotThreadSafe>);

impl Covered {
    /// Begins. The current thread must be one of the driver's own, or a worker or interrupt thread
    /// of the kernel's, and must have no other guard: KCOV would mix up what it counts.
    pub(crate) fn begin() -> Self {
        #[cfg(CONFIG_KCOV)]
        // SAFETY: KCOV checks in which context it is called.
        unsafe {
            crate::sys::helpers::pinmap_kcov_start()
        };
        Self(PhantomData)
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        #[cfg(CONFIG_KCOV)]
        // SAFETY: As above.
        unsafe {
            crate::sys::helpers::pinmap_kcov_stop()
        };
    }
}
