// SPDX-License-Identifier: GPL-2.0
//! An operation that many tasks may do at once, even if it sleeps, until it is forbidden for good.
//!
//! This is what drm_dev_enter() does for drivers of DRM.

use kernel::{
    new_srcu,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Release},
        Srcu,
    },
};

/// A gate around an operation, open until it is closed for good. Any number of tasks can be inside
/// at once. They wait neither for each other nor for the task that closes the gate.
#[pin_data]
pub(crate) struct Passage {
    open: Atomic<bool>,
    #[pin]
    inside: Srcu,
}

impl Passage {
    /// Makes an open passage.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            open: Atomic::new(true),
            inside <- new_srcu!("pinmap_passage"),
        }? Error)
    }

    /// Calls `what`, unless the passage is closed. May sleep.
    pub(crate) fn while_open<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        let _inside = self.inside.read_lock();
        self.open.load(Acquire).then(what)
    }

    /// Closes the passage for good. When this returns, no task is inside. Must not be called from
    /// inside.
    pub(crate) fn close(&self) {
        self.open.store(false, Release);
        // Tasks that saw the passage open are in a section that began before this.
        self.inside.synchronize();
    }
}
