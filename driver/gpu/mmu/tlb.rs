// SPDX-License-Identifier: GPL-2.0
//! Invalidation of the device's TLB.

use crate::{
    gpu::{Condition, Gpu, PATIENCE},
    logic::span::Span,
    sys::task::clock,
};
use kernel::{
    prelude::*,
    sync::atomic::{Acquire, Release},
};

impl Gpu {
    /// Makes the device forget what it caches of `span`. After `Ok` it has done so, and no access
    /// that was translated before is under way. Waits up to [`PATIENCE`]; no signal ends the wait.
    /// `EIO`: the device did not confirm in time and is given up.
    pub(in crate::gpu) fn invalidate(&self, vmid: u32, span: Span) -> Result {
        match self.begin_invalidate(vmid, span)? {
            Some(sequence) => self.await_invalidate(sequence),
            None => Ok(()),
        }
    }

    /// Like [`invalidate`](Self::invalidate), but does not give the device up.
    pub(super) fn try_invalidate(&self, vmid: u32, span: Span) -> Result {
        match self.submit_invalidate(vmid, span)? {
            Some(sequence) if !self.is_carried_out(sequence)? => Err(EIO),
            _ => Ok(()),
        }
    }

    /// Tells the device to forget what it caches of `span`. Returns the number of the command, for
    /// [`await_invalidate`](Self::await_invalidate), or `None` if the device has forgotten it
    /// already. Waits only while the device has no room for another command. `EIO`: the device is
    /// given up.
    pub(super) fn begin_invalidate(&self, vmid: u32, span: Span) -> Result<Option<u64>> {
        let submitted = self.submit_invalidate(vmid, span);
        if submitted.is_err() && self.condition() != Condition::Lost {
            return self.lose().map(|()| None);
        }
        submitted
    }

    /// Does what [`begin_invalidate`](Self::begin_invalidate) does, but does not give the device
    /// up. `EIO`: it has no room, or was given up before.
    fn submit_invalidate(&self, vmid: u32, span: Span) -> Result<Option<u64>> {
        match self.condition() {
            Condition::Running => {}
            // The device was reset: it has forgotten everything and translates nothing.
            Condition::Quiet => return Ok(None),
            Condition::Lost => return Err(EIO),
        }
        let mut submitted = self.invalidates.lock();
        if submitted.off {
            return Ok(None);
        }
        // There is room, unless the device is far behind or dead.
        let room = || self.is_over() || self.hardware.invalidate_room() > 0;
        if !clock::poll(PATIENCE, room) {
            return Err(EIO);
        }
        let sequence = submitted.last.saturating_add(1);
        self.hardware.invalidate(vmid, span, sequence);
        submitted.last = sequence;
        Ok(Some(sequence))
    }

    /// Waits until the device has carried out the command `sequence` of
    /// [`begin_invalidate`](Self::begin_invalidate), for up to [`PATIENCE`]; no signal ends the
    /// wait. After `Ok` no access that was translated before is under way. `EIO`: the device did
    /// not confirm in time and is given up.
    pub(super) fn await_invalidate(&self, sequence: u64) -> Result {
        if self.is_carried_out(sequence)? {
            Ok(())
        } else {
            self.lose()
        }
    }

    /// Waits as [`await_invalidate`](Self::await_invalidate) does. Returns whether the device has
    /// confirmed in time. `EIO`: it was given up.
    fn is_carried_out(&self, sequence: u64) -> Result<bool> {
        let mut is_there = true;
        let done = clock::poll(PATIENCE, || match self.hardware.invalidated() {
            Some(done) => done >= sequence || self.is_over() || self.has_forgotten(sequence),
            None => {
                is_there = self.has_forgotten(sequence);
                true
            }
        });
        match self.condition() {
            Condition::Quiet => Ok(true),
            Condition::Lost => Err(EIO),
            Condition::Running => Ok(done && is_there),
        }
    }

    /// Whether the device was reset after the command `sequence`, to sleep: it has forgotten
    /// everything.
    fn has_forgotten(&self, sequence: u64) -> bool {
        self.forgotten.load(Acquire) >= sequence
    }

    /// Resets the device. Until [`end_off`](Self::end_off) it is off: commands are not submitted,
    /// and those that are pending count as carried out.
    pub(in crate::gpu) fn reset_to_sleep(&self) -> Result {
        let mut submitted = self.invalidates.lock();
        let result = self.reset();
        submitted.off = true;
        self.forgotten.store(submitted.last, Release);
        result
    }

    /// Has the device forget by commands again.
    pub(in crate::gpu) fn end_off(&self) {
        self.invalidates.lock().off = false;
    }

    /// Returns whether waiting for the device is useless.
    pub(in crate::gpu) fn is_over(&self) -> bool {
        self.condition() != Condition::Running
    }
}
