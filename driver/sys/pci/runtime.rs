// SPDX-License-Identifier: GPL-2.0
//! Sleep of a device that nobody uses, while the system goes on: runtime power management.
//!
//! The kernel asks whether the device can sleep each time when the time has passed that is set in
//! `power/autosuspend_delay_ms`, if `power/control` says "auto". A flat device is kept awake by
//! [`keep`](Runtime::keep), and the kernel does not ask. Of a paged device there are many short
//! uses, which are counted here, because they must cost little.
//!
//! C header: [`include/linux/pm_runtime.h`](srctree/include/linux/pm_runtime.h).

use super::Function;
use crate::{
    logic::usage::{is_asleep, is_busy, users, ASLEEP, COME, GO},
    sys::{
        helpers,
        task::{
            clock::{self, MILLISECOND},
            gate::Gate,
        },
    },
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    sync::atomic::{Acquire, Atomic, Full, Relaxed, Release},
};

/// How long nothing is tried after it was tried in vain, as a multiple of what that took.
const PAUSE: u64 = 16;

/// Whether a function is asleep, and its users.
pub(crate) struct Runtime {
    function: Function,
    /// See `logic/usage.rs`.
    usage: Atomic<u64>,
    /// The word as it was when it was looked at last.
    seen: Atomic<u64>,
    /// Closed while the function is asleep.
    awake: Gate,
    /// The time before which nothing is tried.
    not_before: Atomic<u64>,
}

/// A use of a function, which is awake until this is dropped.
pub(crate) struct Awake<R: Deref<Target = Runtime>>(R);

impl<R: Deref<Target = Runtime>> Drop for Awake<R> {
    fn drop(&mut self) {
        self.0.usage.fetch_sub(GO, Release);
    }
}

impl Runtime {
    pub(crate) fn new(function: &Function) -> Self {
        Self {
            function: function.clone(),
            usage: Atomic::new(0),
            seen: Atomic::new(0),
            awake: Gate::new(),
            not_before: Atomic::new(0),
        }
    }

    fn come<R: Deref<Target = Self>>(this: R) -> (Awake<R>, bool) {
        let word = this.usage.fetch_add(COME, Full);
        (Awake(this), !is_asleep(word))
    }

    /// Begins to use the function. Wakes it if it is asleep, and waits for that: `EINTR`, the task
    /// is being killed. Not called with a lock that is taken while the function falls asleep or
    /// wakes, nor with the mmap lock.
    pub(crate) fn wake<R: Deref<Target = Self>>(this: R) -> Result<Awake<R>> {
        let (awake, mut is_awake) = Self::come(this);
        while !is_awake {
            awake.0.ask_to_wake();
            awake.0.awake.pass()?;
            is_awake = !is_asleep(awake.0.usage.load(Acquire));
        }
        Ok(awake)
    }

    /// Begins to use the function, as [`wake`](Self::wake) does, but no signal ends the wait.
    pub(crate) fn wake_now(&self) -> Awake<&Self> {
        let (awake, is_awake) = Self::come(self);
        if !is_awake {
            // SAFETY: The function is valid.
            unsafe { helpers::pinmap_runtime_resume(self.function.as_raw()) };
        }
        awake
    }

    /// Begins to use the function, unless it is asleep. Waits for nothing.
    pub(crate) fn use_if_awake(&self) -> Option<Awake<&Self>> {
        let (awake, is_awake) = Self::come(self);
        is_awake.then_some(awake)
    }

    /// Has the function wake soon. May be called in any context.
    pub(crate) fn ask_to_wake(&self) {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_runtime_request_resume(self.function.as_raw()) };
    }

    /// Has the function stay awake. Sleeps.
    pub(crate) fn keep(&self) {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_runtime_keep(self.function.as_raw()) };
    }

    /// Undoes [`keep`](Self::keep). `bound`: the function is bound, and so may sleep after a while.
    pub(crate) fn let_go(&self, bound: bool) {
        // SAFETY: The function is valid, and was kept awake.
        unsafe { helpers::pinmap_runtime_let_go(self.function.as_raw(), bound) };
    }

    /// Has the kernel ask whether the function can sleep, when it has been idle for long enough.
    pub(crate) fn ask(&self) {
        // SAFETY: The function is valid.
        unsafe { helpers::pinmap_runtime_ask(self.function.as_raw()) };
    }

    /// How long a function is idle before it sleeps, in nanoseconds.
    pub(crate) fn delay(&self) -> u64 {
        // SAFETY: The function is valid.
        let milliseconds = unsafe { helpers::pinmap_runtime_delay(self.function.as_raw()) };
        u64::from(milliseconds).saturating_mul(MILLISECOND)
    }

    /// Returns whether there was no user since this was called last, nor is one, and what was tried
    /// in vain may be tried again.
    pub(crate) fn may_sleep(&self) -> bool {
        let word = self.usage.load(Relaxed);
        let seen = self.seen.load(Relaxed);
        self.seen.store(word, Relaxed);
        !is_busy(word, seen) && clock::now() >= self.not_before.load(Relaxed)
    }

    /// Has users wait from now on. Returns false if there is one.
    pub(crate) fn close(&self) -> bool {
        let word = self.usage.load(Acquire);
        let closed = !is_busy(word, word) && self.usage.cmpxchg(word, word | ASLEEP, Full).is_ok();
        if closed {
            self.awake.close();
        }
        closed
    }

    /// Has users wait from now on, whether there are some or not.
    pub(crate) fn shut(&self) {
        self.usage.fetch_add(ASLEEP, Full);
        self.awake.close();
    }

    /// Whether somebody waits for the function to wake.
    pub(crate) fn is_wanted(&self) -> bool {
        users(self.usage.load(Acquire)) != 0
    }

    /// Lets users through again: the function is awake.
    pub(crate) fn open(&self) {
        self.usage.fetch_sub(ASLEEP, Release);
        self.awake.open();
    }

    /// Has nothing be tried for a while, after what began at `begin` was tried in vain.
    pub(crate) fn put_off(&self, begin: u64) {
        let now = clock::now();
        let pause = now.saturating_sub(begin).saturating_mul(PAUSE);
        self.not_before.store(now.saturating_add(pause), Relaxed);
    }
}
