// SPDX-License-Identifier: GPL-2.0
//! Sleep of a device: of the system, or by itself.

use super::Device;
use crate::{
    context::Context,
    sys::{
        pci::runtime::{Awake, Runtime},
        task::{clock, coverage::Covered, process},
    },
    uapi::{self, pinmap_event},
};
use kernel::{
    device,
    prelude::*,
    sync::{
        atomic::{Acquire, Full},
        Arc,
    },
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

    /// Has a paged device stay awake during a call, and a flat one as long as `context` is open.
    /// `EINTR`: the task is being killed.
    pub(crate) fn awake(&self, context: &Context) -> Result<Option<Awake<&Runtime>>> {
        if self.flat().is_err() {
            return Runtime::wake(&*self.runtime).map(Some);
        }
        if !context.keeps_awake() {
            self.runtime.keep();
            if context.set_keeps_awake() {
                // Another call was first.
                self.let_go();
            }
        }
        Ok(None)
    }

    /// Has a flat device stay awake no longer for a context, whether it is bound still or not.
    pub(super) fn let_go(&self) {
        let let_go = |bound| self.runtime.let_go(bound);
        self.bound
            .while_open(|| let_go(true))
            .unwrap_or_else(|| let_go(false));
    }

    /// Puts the device to sleep, if nobody uses it: it comes back by [`wake`](Self::wake). Returns
    /// whether it sleeps.
    pub(super) fn doze(&self) -> bool {
        let runtime = &self.runtime;
        if !runtime.may_sleep() || self.sleeps_on.load(Acquire) {
            return false;
        }
        let mut contexts = self.all_contexts().peekable();
        // While it sleeps, memory is unmapped without it.
        if self.function.uses_ats() && contexts.peek().is_some() {
            return false;
        }
        if contexts.any(|context| context.stays_awake()) {
            return false;
        }
        if !self.backend.can_doze(runtime.delay()) || !runtime.close() {
            return false;
        }
        let begin = clock::now();
        // Who touches its memory or rings a doorbell from now on wakes it.
        self.zap_views();
        if self.backend.doze().is_err() {
            runtime.put_off(begin);
            runtime.open();
            return false;
        }
        true
    }

    /// Wakes the device.
    pub(super) fn wake(&self) {
        self.backend.wake();
        self.runtime.open();
    }

    /// Has the device sleep on when the system does not, after a snapshot of it was made. Programs
    /// may go on before the device does, if the snapshot cannot be written: their calls then wait,
    /// and what shows them its memory and its doorbells is taken from them.
    pub(super) fn sleep_on(&self) {
        if !self.sleeps_on.xchg(true, Full) {
            self.runtime.shut();
            if self.flat().is_err() {
                self.zap_views();
            }
        }
    }

    /// Wakes the device if it sleeps on.
    pub(super) fn sleep_no_more(&self) {
        if self.sleeps_on.xchg(false, Full) {
            self.backend.resume();
            self.runtime.open();
            self.go_on();
        }
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
        this.bound.while_open(|| this.sleep_no_more());
    }
}
