// SPDX-License-Identifier: GPL-2.0
//! Time: what it is, and letting it pass.
//!
//! C header: [`include/linux/delay.h`](srctree/include/linux/delay.h).

use super::helpers;
use kernel::time::Jiffies;

/// Nanoseconds in a microsecond.
pub(crate) const MICROSECOND: u64 = 1_000;
/// Nanoseconds in a millisecond.
pub(crate) const MILLISECOND: u64 = 1_000 * MICROSECOND;
/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// Nanoseconds since boot, never going back.
pub(crate) fn now() -> u64 {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_now_ns() }
}

/// At least `ns` nanoseconds in jiffies.
pub(crate) fn jiffies(ns: u64) -> Jiffies {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_ns_to_jiffies(ns) }
}

/// Sleeps for at least `ns` nanoseconds, unless that is nothing.
pub(crate) fn rest(ns: u64) {
    if ns != 0 {
        let us = ns.div_ceil(MICROSECOND);
        // SAFETY: May sleep here, as the callers say of themselves.
        unsafe { helpers::pinmap_sleep_us(us as usize, us.saturating_add(50) as usize) };
    }
}

/// Asks again and again, at growing intervals of up to a millisecond, until `done` or `limit`
/// nanoseconds have passed; returns whether it is done. Sleeps, whatever signals come.
pub(crate) fn poll(limit: u64, mut done: impl FnMut() -> bool) -> bool {
    let begin = now();
    let mut pause = 10_u64;
    loop {
        if done() {
            return true;
        }
        if now().saturating_sub(begin) >= limit {
            // It may have been the processor that was late, not the device.
            return done();
        }
        // SAFETY: May sleep here, as the callers say of themselves.
        unsafe { helpers::pinmap_sleep_us(pause as usize, pause.saturating_mul(2) as usize) };
        pause = pause.saturating_mul(2).min(1_000);
    }
}
