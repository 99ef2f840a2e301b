// SPDX-License-Identifier: GPL-2.0
//! What the device caches of its page tables, and having it forget that.

use super::{Condition, Gpu, PATIENCE};
use crate::{logic::span::Span, sys::clock};
use kernel::prelude::*;

impl Gpu {
    /// Has the device forget what it caches of `span`. When it returns `Ok` it has, and no access that
    /// was translated before is under way. Waits for the device, however long it takes up to
    /// [`PATIENCE`], since an interrupt may get lost and a signal changes nothing. `EIO`: it did not say
    /// so in time, and is given up.
    pub(super) fn invalidate(&self, vmid: u32, span: Span) -> Result {
        match self.condition() {
            Condition::Running => {}
            // It was reset: it has forgotten everything and translates nothing.
            Condition::Quiet => return Ok(()),
            Condition::Lost => return Err(EIO),
        }
        let sequence = {
            let mut submitted = self.invalidates.lock();
            // There is room but for a device that is far behind, or dead.
            let room = || self.is_over() || self.hardware.invalidate_room() > 0;
            if !clock::poll(PATIENCE, room) {
                drop(submitted);
                return self.lose();
            }
            let sequence = submitted.saturating_add(1);
            self.hardware.invalidate(vmid, span, sequence);
            *submitted = sequence;
            sequence
        };
        let mut is_there = true;
        let done = clock::poll(PATIENCE, || match self.hardware.invalidated() {
            Some(done) => done >= sequence || self.is_over(),
            None => {
                is_there = false;
                true
            }
        });
        match self.condition() {
            Condition::Quiet => Ok(()),
            Condition::Lost => Err(EIO),
            Condition::Running if done && is_there => Ok(()),
            Condition::Running => self.lose(),
        }
    }

    /// Whether waiting for the device is of no use any more.
    fn is_over(&self) -> bool {
        self.condition() != Condition::Running
    }
}
