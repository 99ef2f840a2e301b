// SPDX-License-Identifier: GPL-2.0
//! `READ_ONCE()` and `WRITE_ONCE()` of atomics.
//!
//! [`Atomic::load()`] and [`Atomic::store()`] call a C function for these. A volatile access is the
//! same, as in C, and is compiled in place. Only what is read or written in every registration
//! needs it.
//!
//! C header: [`include/asm-generic/rwonce.h`](srctree/include/asm-generic/rwonce.h).

use kernel::sync::atomic::{Atomic, AtomicType};

/// Relaxed accesses without a call.
pub(crate) trait Once<T> {
    /// Loads the value, as [`Atomic::load(Relaxed)`](Atomic::load) does.
    fn read_once(&self) -> T;

    /// Stores a value, as [`Atomic::store(_, Relaxed)`](Atomic::store) does.
    fn write_once(&self, value: T);
}

impl<T: AtomicType> Once<T> for Atomic<T> {
    #[inline(always)]
    fn read_once(&self) -> T {
        // SAFETY: The pointer is valid and aligned. All other accesses are atomic ones, and in the
        // kernel's memory model a volatile access does not race with them.
        unsafe { self.as_ptr().read_volatile() }
    }

    #[inline(always)]
    fn write_once(&self, value: T) {
        // SAFETY: As above.
        unsafe { self.as_ptr().write_volatile(value) }
    }
}
