// SPDX-License-Identifier: GPL-2.0
//! Sleep of a device that nobody uses, while the system goes on: runtime power management.
//!
//! The kernel asks whether the device can sleep each time when the time has passed that is set in
//! `power/autosuspend_delay_ms`, if `power/control` says "auto". Whoever is about to use the device
//! says so before, and waits until it is awake.
//!
//! C header: [`include/linux/pm_runtime.h`](srctree/include/linux/pm_runtime.h).

use super::Function;
use crate::{
    logic::usage::{is_asleep, is_busy, ASLEEP, COME, GO},
    sys::{helpers, task::clock::MILLISECOND},
};
use core::ops::Deref;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};

/// Whether a function is asleep, and its users.
pub(crate) struct Runtime {
    function: Function,
    /// See `logic/usage.rs`.
    usage: Atomic<u64>,
    /// The word as it was when it was looked at last.
    seen: Atomic<u64>,
}

/// A use of a function, which is awake until this is dropped.
pub(crate) struct Awake<R: Deref<Target = Runtime>>(R);

impl Runtime {
    pub(crate) fn new(function: &Function) -> Self {
        Self {
            function: function.clone(),
            usage: Atomic::new(0),
            seen: Atomic::new(0),
        }
    }

    /// Begins to use the function, after it was woken if it was asleep. Sleeps. Not called with a
    /// lock that is taken while the function falls asleep or wakes.
    pub(crate) fn wake<R: Deref<Target = Self>>(this: R) -> Awake<R> {
        this.come();
        Awake(this)
    }

    /// Begins to use the function. [`go`](Self::go) ends it.
    pub(crate) fn come(&self) {
        if is_asleep(self.usage.fetch_add(COME, Full)) {
            // SAFETY: The function is valid.
            unsafe { helpers::pinmap_runtime_resume(self.function.as_raw()) };
        }
    }

    /// Ends a use that [`come`](Self::come) began.
    pub(crate) fn go(&self) {
        self.usage.fetch_sub(GO, Release);
    }

    /// Has the kernel ask whether the function can sleep, when it has been idle for long enough.
    pub(crate) fn ask(&self) {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_runtime_ask(self.function.as_raw()) };
    }

    /// Begins the time for which the function has to be idle.
    pub(crate) fn begin_rest(&self) {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_runtime_busy(self.function.as_raw()) };
        self.ask();
    }

    /// How long a function is idle before it sleeps, in nanoseconds.
    pub(crate) fn delay(&self) -> u64 {
        // SAFETY: The function is valid.
        let milliseconds = unsafe { helpers::pinmap_runtime_delay(self.function.as_raw()) };
        u64::from(milliseconds).saturating_mul(MILLISECOND)
    }

    /// Returns whether there was no user since this was called last, nor is one.
    pub(crate) fn is_idle(&self) -> bool {
        let word = self.usage.load(Relaxed);
        let seen = self.seen.load(Relaxed);
        self.seen.store(word, Relaxed);
        !is_busy(word, seen)
    }

    /// Has users wait from now on. Returns false if there is one.
    pub(crate) fn close(&self) -> bool {
        let word = self.usage.load(Acquire);
        !is_busy(word, word) && self.usage.cmpxchg(word, word | ASLEEP, Full).is_ok()
    }

    /// Lets users through again: the function is awake.
    pub(crate) fn open(&self) {
        self.usage.fetch_sub(ASLEEP, Release);
    }
}

impl<R: Deref<Target = Runtime>> Drop for Awake<R> {
    fn drop(&mut self) {
        self.0.go();
    }
}
