// SPDX-License-Identifier: GPL-2.0
//! Time and delays.
//!
//! C headers: [`include/linux/delay.h`](srctree/include/linux/delay.h),
//! [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h).

use crate::sys::helpers;
use kernel::{bindings, time::Jiffies};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000 * MICROSECOND;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// Nanoseconds of the monotonic clock. May be called in any context.
pub(crate) fn now() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::ktime_get() as u64 }
}

/// Seconds of the wall clock, since 1970.
pub(crate) fn wall_seconds() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::ktime_get_real_seconds() as u64 }
}

/// Converts `ns` nanoseconds to jiffies, rounded up.
pub(crate) fn jiffies(ns: u64) -> Jiffies {
    // SAFETY: No requirements.
    unsafe { helpers::pinmap_ns_to_jiffies(ns) }
}

/// Sleeps for at least `ns` nanoseconds; returns at once if `ns` is 0.
pub(crate) fn rest(ns: u64) {
    if ns != 0 {
        let us = ns.div_ceil(MICROSECOND);
        sleep(us, us.saturating_add(50));
    }
}

/// Sleeps for `least` to `most` microseconds.
fn sleep(least: u64, most: u64) {
    // SAFETY: Callers may sleep, as the documentation demands.
    unsafe {
        bindings::usleep_range_state(
            least as usize,
            most as usize,
            bindings::TASK_UNINTERRUPTIBLE,
        )
    };
}

/// Calls `done` at growing intervals of up to a millisecond, until it returns true or `limit`
/// nanoseconds have passed. Returns what the last call returned. Sleeps uninterruptibly.
pub(crate) fn poll(limit: u64, done: impl FnMut() -> bool) -> bool {
    poll_after(limit, done, |pause, _| pause.saturating_mul(2))
}

/// Like [`poll`], but notices sooner that it is true: the intervals are a sixteenth of the time
/// that has passed. For what many wait for again and again.
pub(crate) fn poll_closely(limit: u64, done: impl FnMut() -> bool) -> bool {
    poll_after(limit, done, |pause, passed| pause.max(passed >> 14))
}

/// Calls `done` at intervals of 10 microseconds at first, and then those that `next` returns for
/// the last one and the nanoseconds that have passed.
fn poll_after(limit: u64, mut done: impl FnMut() -> bool, next: impl Fn(u64, u64) -> u64) -> bool {
    let begin = now();
    let mut pause = 10_u64;
    loop {
        if done() {
            return true;
        }
        let passed = now().saturating_sub(begin);
        if passed >= limit {
            // The CPU may have been late rather than the device, so this asks once more.
            return done();
        }
        sleep(pause, pause.saturating_mul(2));
        pause = next(pause, passed).min(1_000);
    }
}
