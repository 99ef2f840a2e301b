// SPDX-License-Identifier: GPL-2.0
//! The scheduler: puts queues into slots of the device, and takes them out.
//!
//! One thread decides. Interrupts wake it, and it also looks by itself from time to time, since
//! interrupts may get lost; a look is a *pass*. It relies only on the device's registers.
//!
//! A queue that has work and no slot is *pending*: it asks for a slot, and waits for its *turn*.
//! Where there is no free slot, a queue that has had its time is told to leave (UNBIND), and leaves
//! after the packet that runs. A queue in a slot needs a VMID for its context, of which there are
//! few as well. `logic/slots.rs` decides which queue is put in and which one makes room; it sees
//! the device as a [`Room`](super::room).
//!
//! A packet that runs for too long is ended by resetting its engine; a device on which that does
//! not help is given up.

use super::{
    queue::Queue,
    schedule::{Entry, Halt, Schedule, Slot},
};
use crate::{
    gpu::{
        hardware::{Cause, SlotState, Stop},
        Gpu, PATIENCE,
    },
    logic::slots::{Last, Pause, QUANTUM},
    sys::task::{
        clock::{self, MILLISECOND, SECOND},
        coverage::Covered,
        thread::{self, Body},
    },
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};

/// Time until the thread looks again, if there are queues.
const NOW_AND_THEN: u64 = 100 * MILLISECOND;
/// Time until the thread looks again, if there are no queues.
const SELDOM: u64 = 10 * SECOND;
/// How often to look for packets that run for too long.
const WATCH: u64 = SECOND / 2;

impl Gpu {
    /// Wakes the scheduler's thread.
    pub(in crate::gpu) fn wake_scheduler(&self) {
        *self.work_pending.lock() = true;
        self.wakeup.notify_all();
    }

    /// Adds `queue`, which is executed from now on.
    pub(in crate::gpu) fn add(&self, queue: &Arc<Queue>) -> Result {
        let id = queue.id();
        let mut schedule = self.schedule.lock();
        self.check_here()?;
        let entry = Entry::new(queue.clone());
        let place = schedule.entries.get_mut(id as usize).ok_or(ENOSPC)?;
        if place.is_some() {
            return Err(EBUSY); // Cannot be: the id is taken as long as it is here.
        }
        *place = Some(entry);
        schedule.queues = schedule.queues.saturating_add(1);
        if let Some(entry) = self.queues_by_id.lock().get_mut(id as usize) {
            *entry = Some(queue.clone());
        }
        // Last, because the queue may ask for a slot from now on.
        self.hardware.open_queue(id);
        drop(schedule);
        self.wake_scheduler();
        Ok(())
    }

    /// Takes `queue` out. When this returns, the device does nothing for it any more, or is being
    /// removed. Waits for the packet that runs. A device that does not end it is given up in
    /// bounded time.
    pub(in crate::gpu) fn remove(&self, queue: &Arc<Queue>) {
        let limit = self.limits.max_run.saturating_add(4 * PATIENCE);
        if !clock::poll(limit, || self.try_remove(queue)) {
            let _ = self.lose();
            let _ = clock::poll(PATIENCE, || self.try_remove(queue));
        }
    }

    /// Returns whether `queue` is out; if not, tells it to leave.
    pub(in crate::gpu) fn try_remove(&self, queue: &Arc<Queue>) -> bool {
        let id = queue.id();
        let mut schedule = self.schedule.lock();
        let ours = |entry: &&mut Entry| Arc::ptr_eq(&entry.queue, queue);
        let Some(entry) = schedule.entry(id).filter(ours) else {
            return true;
        };
        if !entry.closing {
            entry.closing = true;
            self.hardware.close_queue(id);
            entry.queue.end_service();
        }
        if let Some(slot) = entry.slot.filter(|_| self.check_here().is_ok()) {
            if schedule
                .slot(slot)
                .is_some_and(|slot| slot.leaving.is_none())
            {
                self.begin_unbind(&mut schedule, slot);
                self.wake_scheduler();
            }
            self.look_at(&mut schedule, slot);
        }
        let still_in = schedule.entry(id).is_some_and(|entry| entry.slot.is_some());
        if still_in && self.check_here().is_ok() {
            return false;
        }
        // Faults of this queue must not be taken for those of the next queue with its id.
        self.take_faults(&mut schedule);
        self.hardware.forget_pending(id);
        if let Some(place) = schedule.entries.get_mut(id as usize) {
            *place = None;
        }
        schedule.queues = schedule.queues.saturating_sub(1);
        if let Some(entry) = self.queues_by_id.lock().get_mut(id as usize) {
            *entry = None;
        }
        true
    }

    /// Does everything that is to be done now. Returns when to look again.
    fn pass(&self) -> u64 {
        let mut schedule = self.schedule.lock();
        let schedule = &mut *schedule;
        if self.check_here().is_err() {
            return Pause::SHORTEST; // Until we are stopped.
        }
        if schedule.halt == Halt::Asleep {
            return SELDOM;
        }
        self.hardware.acknowledge(Cause::Schedule);
        let events = self.hardware.take_slot_events();
        self.take_faults(schedule);
        let now = clock::now();
        let watch = now.saturating_sub(schedule.watched_at) >= WATCH;
        if watch {
            schedule.watched_at = now;
            self.complete();
            self.look_at_notices();
            self.look_at_services(schedule);
            self.runtime.ask();
        }
        if schedule.halt == Halt::Stopping {
            self.tell_all_to_leave(schedule);
        }
        for slot in 0..self.limits.slots {
            let told = events & 1_u64.wrapping_shl(slot) != 0;
            let Some(&entry) = schedule.slots.get(slot as usize) else {
                break;
            };
            if entry.queue.is_some() && (told || watch || entry.is_waited_for()) {
                self.look_at(schedule, slot);
                let overdue = entry.leaving.is_some_and(|deadline| now > deadline);
                if watch || overdue || entry.reset.is_some() {
                    self.watch(schedule, slot);
                }
            }
        }
        schedule.passes = schedule.passes.saturating_add(1);
        self.note_pending(schedule, None);
        if schedule.halt == Halt::Stopping {
            return Pause::SHORTEST;
        }
        let served = self.serve(schedule);
        schedule.pause.note(served);
        if schedule.slots.iter().any(Slot::is_waited_for) {
            Pause::SHORTEST
        } else if schedule.entries.iter().flatten().any(Entry::asks) {
            schedule.pause.length()
        } else if schedule.queues != 0 {
            NOW_AND_THEN
        } else {
            SELDOM
        }
    }

    /// Has faults on managed memory served, and reports other stopped queues to their owners.
    pub(super) fn take_faults(&self, schedule: &mut Schedule) {
        self.hardware
            .each_fault(&mut |id, stop| self.take_report(schedule, id, stop));
    }

    /// Handles the stop of `queue`: reports it to the owner, and disables the doorbell. A context
    /// with too many faults is held off.
    pub(super) fn stop(&self, queue: &Queue, stop: Stop) {
        if queue.stop(stop) {
            self.hardware.close_queue(queue.id());
            if stop.is_fault {
                self.note_trouble(queue);
            }
        }
    }

    /// Notes that queues which have work and no slot ask for a slot. Leaves out the queues that
    /// were told in pass `but` to leave their slots: if they asked again at once, they would take
    /// turns with each other, and no other queue would get a slot.
    pub(super) fn note_pending(&self, schedule: &mut Schedule, but: Option<u64>) {
        self.hardware.each_pending(&mut |id| {
            let turn = schedule.turns.saturating_add(1);
            match schedule.entry(id) {
                Some(entry) if !entry.closing && entry.queue.stopped().is_none() => {
                    let is_new = but != Some(entry.left_in);
                    if is_new && entry.queue.turn.load(Relaxed) == 0 {
                        entry.queue.turn.store(turn, Relaxed);
                        schedule.turns = turn;
                    }
                }
                _ => self.hardware.forget_pending(id),
            }
        });
    }

    /// Begins to take all queues out of their slots.
    fn tell_all_to_leave(&self, schedule: &mut Schedule) {
        for slot in 0..self.limits.slots {
            let stays = |slot: &Slot| slot.queue.is_some() && slot.leaving.is_none();
            if schedule.slots.get(slot as usize).is_some_and(stays) {
                self.begin_unbind(schedule, slot);
            }
        }
    }

    /// Begins to take the queue out of `slot`.
    pub(super) fn begin_unbind(&self, schedule: &mut Schedule, slot: u32) {
        let limit = self.limits.max_run.saturating_add(PATIENCE);
        if let Some(entry) = schedule.slot(slot) {
            entry.told_at = clock::now();
            entry.leaving = Some(entry.told_at.saturating_add(limit));
            self.hardware.unbind(slot);
        }
    }

    /// Looks at the queue in `slot`, and takes it out if it has stopped or left.
    pub(super) fn look_at(&self, schedule: &mut Schedule, slot: u32) {
        let Some(mut state) = self.hardware.slot_state(slot) else {
            let _ = self.lose();
            return;
        };
        // The queue of faults tells more than the slot; and what it says about this slot is to be
        // known before another queue can be there.
        if matches!(
            state,
            SlotState::Faulted | SlotState::Failed | SlotState::Free
        ) {
            self.take_faults(schedule);
        }
        if state == SlotState::Faulted && self.keeps_fault(schedule, slot) {
            return;
        }
        if matches!(state, SlotState::Faulted | SlotState::Failed) {
            let stop = self.hardware.slot_stop(slot);
            if let Some(entry) = schedule
                .slot(slot)
                .and_then(|slot| slot.queue)
                .and_then(|queue| schedule.entry(queue))
            {
                self.stop(&entry.queue, stop);
            }
            self.begin_unbind(schedule, slot);
            state = self.hardware.slot_state(slot).unwrap_or(SlotState::Failed);
        }
        if state != SlotState::Free {
            return;
        }
        let progress = self.hardware.slot_progress(slot);
        let Some(entry) = schedule.slot(slot) else {
            return;
        };
        let was = *entry;
        *entry = Slot::FREE;
        let (now, moved) = (clock::now(), progress != was.began);
        let mut vmid = None;
        if let Some(entry) = was.queue.and_then(|queue| schedule.entry(queue)) {
            entry.slot = None;
            entry.progress = progress;
            entry.last = match entry.faulting {
                // It waits for the driver, which is no reason to let it wait longer.
                true => Last::Worked,
                false => Last::of(was.seen.0, moved),
            };
            if entry.last == Last::Waited {
                entry.waited = entry.waited.saturating_add(1);
                entry.rests_until = now.saturating_add(QUANTUM.rest(entry.waited));
            } else {
                entry.waited = 0;
            }
            vmid = entry.queue.vm().vmid();
        }
        if let Some(vmid) = vmid.and_then(|vmid| schedule.vmids.get_mut(vmid as usize)) {
            vmid.used_at = now;
            vmid.moved |= moved;
        }
    }

    /// Ends a packet that runs for too long, because its engine is stuck. The reset of the engine
    /// is begun here, and later passes check it, so that other queues do not wait. If the reset
    /// does not help, the device is given up.
    fn watch(&self, schedule: &mut Schedule, slot: u32) {
        let Some(entry) = schedule.slot(slot).copied() else {
            return;
        };
        if entry.queue.is_none() {
            return;
        }
        let now = clock::now();
        if let Some(deadline) = entry.reset {
            if !self.hardware.is_held(slot) {
                if let Some(entry) = schedule.slot(slot) {
                    entry.reset = None;
                    // The queue may leave from now on.
                    if entry.leaving.is_some() {
                        entry.leaving = Some(now.saturating_add(PATIENCE));
                    }
                }
                self.look_at(schedule, slot);
            } else if now > deadline {
                let _ = self.lose();
            }
            return;
        }
        let overdue = entry.leaving.is_some_and(|deadline| now > deadline);
        let runs = self.hardware.slot_state(slot) == Some(SlotState::Running) && {
            let since = self.hardware.slot_since(slot);
            let limit = self.limits.max_run.saturating_add(PATIENCE / 2);
            self.hardware.time().saturating_sub(since) > limit
        };
        if !overdue && !runs {
            return;
        }
        // Reset only an engine that holds the packet now. One that is done with it may have the
        // packet of another queue.
        if self.hardware.reset_engine(slot) {
            if let Some(entry) = schedule.slot(slot) {
                entry.reset = Some(now.saturating_add(PATIENCE));
            }
            return;
        }
        self.look_at(schedule, slot);
        let stays = schedule.slot(slot).is_some_and(|slot| slot.queue.is_some());
        if overdue && stays {
            let _ = self.lose();
        }
    }

    /// Returns how far `queue` has come, and why it stopped.
    pub(crate) fn progress(&self, queue: &Arc<Queue>) -> (u64, Option<Stop>) {
        let mut schedule = self.schedule.lock();
        let entry = schedule.entry(queue.id());
        let index = match entry.filter(|entry| Arc::ptr_eq(&entry.queue, queue)) {
            Some(Entry {
                slot: Some(slot), ..
            }) => self.hardware.slot_progress(*slot).index,
            Some(entry) => entry.progress.index,
            None => 0,
        };
        drop(schedule);
        (index, queue.stopped())
    }
}

impl Body for Gpu {
    fn run(&self) {
        while !thread::should_stop() {
            let covered = Covered::begin();
            #[cfg(pinmap_mirror)]
            self.settle();
            let pause = self.pass();
            drop(covered);
            let mut pending = self.work_pending.lock();
            if !*pending && !thread::should_stop() {
                // No signal reaches a kernel thread. Stopping the thread wakes it.
                let _ = self
                    .wakeup
                    .wait_interruptible_timeout(&mut pending, clock::jiffies(pause));
            }
            *pending = false;
        }
    }
}
