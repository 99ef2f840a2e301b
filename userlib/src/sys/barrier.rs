// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of accesses to memory and to the registers of a device.
//!
//! x86 keeps the order of stores, and that of loads, by itself, except for write-combined memory;
//! elsewhere barrier instructions do.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use super::sync::fence;

/// Orders earlier writes to memory before the write to a register that follows.
pub(crate) fn before_write() {
    // x86 keeps the order of stores by itself; only the compiler must.
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: A barrier has no other effect.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders the read of a register before later reads of memory.
pub(crate) fn after_read() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: A barrier has no other effect.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders all earlier writes before the store that follows and tells the device about them. Writes
/// to write-combined memory are included, for which a release store does not wait.
pub(crate) fn drain_writes() {
    fence(Ordering::SeqCst);
    before_write();
}
