// SPDX-License-Identifier: GPL-2.0
//! Sleep of a device: of the system, or by itself.

use super::Device;
use crate::{
    sys::task::{coverage::Covered, process},
    uapi::{self, pinmap_event},
};
use kernel::{
    device,
    prelude::*,
    sync::{atomic::Full, Arc},
    workqueue::WorkItem,
};

impl Device {
    /// Fails with `EBUSY` if a context has the device stay awake, and names its program in the
    /// kernel's log. Sets aside room for what the owner of a flat device is told afterwards.
    pub(super) fn check_sleep(&self) -> Result {
        for context in self.all_contexts() {
            if context.stays_awake() {
                let dev: &device::Device = self.function.as_ref();
                let mut room = [0; process::NAME];
                let name = context.opener().name(&mut room).unwrap_or("ended");
                let number = context.opener().number();
                dev_notice!(dev, "does not sleep: kept awake by {} ({})\n", name, number);
                return Err(EBUSY);
            }
            if self.backend.is_owner(context.id()) {
                let slot = context.events().reserve()?;
                *self.resuming.lock() = Some((context.events().clone(), slot));
            }
        }
        Ok(())
    }

    /// Puts the device to sleep, if nobody uses it: it comes back by [`wake`](Self::wake). Returns
    /// whether it sleeps.
    pub(super) fn doze(&self) -> bool {
        let is_kept = self.all_contexts().any(|context| context.stays_awake());
        // Those who come and go have a paged device stay awake for a while.
        let is_idle = self.runtime.is_idle() || self.flat().is_ok();
        if is_kept || !is_idle || !self.backend.can_doze(self.runtime.delay()) {
            return false;
        }
        if !self.runtime.close() {
            return false;
        }
        // Who touches its memory or rings a doorbell from now on waits in the page fault.
        self.zap_views();
        if self.backend.doze().is_err() {
            self.runtime.open();
            return false;
        }
        true
    }

    /// Wakes the device.
    pub(super) fn wake(&self) {
        self.backend.wake();
        self.runtime.open();
    }

    /// Goes on after a sleep of the system. The owner of a flat device is told.
    pub(super) fn go_on(&self) {
        self.backend.go_on();
        let told = self.resuming.lock().take();
        if let Some((events, slot)) = told {
            let event = pinmap_event {
                type_: uapi::PINMAP_EVENT_RESUMED,
                ..pinmap_event::default()
            };
            events.push(slot, event);
        }
    }
}

impl WorkItem<1> for Device {
    type Pointer = Arc<Self>;

    /// Wakes the device, unless that was done, or it is not bound any more.
    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        this.bound.while_open(|| {
            if this.sleeps_on.xchg(false, Full) {
                this.backend.resume();
                this.go_on();
            }
        });
    }
}
