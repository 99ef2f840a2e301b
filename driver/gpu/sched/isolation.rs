// SPDX-License-Identifier: GPL-2.0
//! Isolation after trouble: holds off contexts whose queues stop by faults again and again.
//!
//! How often is too often the administrator sets, by attributes of the device in sysfs, as for
//! devices of the kernel's uacce framework. A context that is held off is given no slot; what it
//! has in a slot goes on.

use super::queue::Queue;
use crate::{
    gpu::Gpu,
    logic::trouble::Strategy,
    sys::task::clock::{self, MILLISECOND},
};
use kernel::sync::atomic::{Atomic, Relaxed};

/// Faults that a context may have within [`PERIOD`](crate::logic::trouble::PERIOD), until the
/// administrator says otherwise. No sound program has as many.
const LIMIT: u32 = 1000;
/// How long a context is held off, in milliseconds, until the administrator says otherwise.
const HOLD_OFF_MS: u32 = 1000;

/// The limit that the administrator has set, and how often it was applied.
pub(in crate::gpu) struct Isolation {
    limit: Atomic<u32>,
    hold_off_ms: Atomic<u32>,
    times: Atomic<u64>,
}

impl Isolation {
    pub(in crate::gpu) fn new() -> Self {
        Self {
            limit: Atomic::new(LIMIT),
            hold_off_ms: Atomic::new(HOLD_OFF_MS),
            times: Atomic::new(0),
        }
    }

    fn strategy(&self) -> Strategy {
        Strategy {
            limit: self.limit.load(Relaxed),
            hold_off: u64::from(self.hold_off_ms.load(Relaxed)).saturating_mul(MILLISECOND),
        }
    }
}

impl Gpu {
    /// Records that a fault has stopped `queue`. Holds off its context if that was one too many.
    pub(super) fn note_trouble(&self, queue: &Queue) {
        let vm = queue.vm();
        let mut trouble = vm.trouble.lock();
        if trouble.note(clock::now(), self.isolation.strategy()) {
            vm.held_until.store(trouble.held_until(), Relaxed);
            self.isolation.times.fetch_add(1, Relaxed);
        }
    }

    /// How many faults a context may have before it is held off; 0: as many as it likes.
    pub(crate) fn fault_limit(&self) -> u32 {
        self.isolation.limit.load(Relaxed)
    }

    pub(crate) fn set_fault_limit(&self, limit: u32) {
        self.isolation.limit.store(limit, Relaxed);
    }

    /// How long a context is held off, in milliseconds.
    pub(crate) fn hold_off_ms(&self) -> u32 {
        self.isolation.hold_off_ms.load(Relaxed)
    }

    pub(crate) fn set_hold_off_ms(&self, ms: u32) {
        self.isolation.hold_off_ms.store(ms, Relaxed);
    }

    /// How often a context was held off.
    pub(crate) fn times_held_off(&self) -> u64 {
        self.isolation.times.load(Relaxed)
    }

    pub(crate) fn queues(&self) -> u32 {
        self.schedule.lock().queues
    }

    /// Bytes of VRAM that are free.
    pub(crate) fn vram_free(&self) -> u64 {
        self.vram.free()
    }
}
