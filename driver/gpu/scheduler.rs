// SPDX-License-Identifier: GPL-2.0
//! The scheduler: puts queues into the device and takes them out.
//!
//! One thread decides, woken by interrupts and looking by itself from time to time, since those may get
//! lost. It believes nothing but the device's registers. A queue that wants a slot has a *turn*. Contexts
//! are served in turn; of a context's queues those of the highest priority, the earliest turn first.

use super::{
    hardware::{Cause, Progress, SlotState, Stop},
    queue::Queue,
    schedule::{Coming, Entry, Schedule, Slot},
    Gpu, PATIENCE,
};
use crate::{
    logic::turns::{self, Activity, Holder, Quantum},
    sys::{
        clock::{self, MILLISECOND, SECOND},
        thread::{self, Body},
    },
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};

/// How long somebody keeps a slot or a VMID that others want.
pub(super) const QUANTUM: Quantum = Quantum {
    busy: 10 * MILLISECOND,
    waiting: 2 * MILLISECOND,
};
/// When to look again, without an interrupt: while somebody waits for room,
const SOON: u64 = 3 * MILLISECOND;
/// while there are queues,
const NOW_AND_THEN: u64 = 100 * MILLISECOND;
/// and otherwise.
const SELDOM: u64 = 10 * SECOND;
/// How often to look for packets that run for too long.
const WATCH: u64 = SECOND / 2;

impl Gpu {
    /// Wakes the thread.
    pub(super) fn ring_bell(&self) {
        *self.bell.lock() = true;
        self.rung.notify_all();
    }

    /// From now on `queue` is executed.
    pub(super) fn add(&self, queue: &Arc<Queue>) -> Result {
        let id = queue.id();
        let mut schedule = self.schedule.lock();
        self.check_here()?;
        let entry = Entry {
            queue: queue.clone(),
            progress: Progress::default(),
            slot: None,
            closing: false,
        };
        let place = schedule.entries.get_mut(id as usize).ok_or(ENOSPC)?;
        if place.is_some() {
            return Err(EBUSY); // Cannot be: the id is taken as long as it is here.
        }
        *place = Some(entry);
        schedule.queues = schedule.queues.saturating_add(1);
        if let Some(known) = self.known.lock().get_mut(id as usize) {
            *known = Some(queue.clone());
        }
        // Last: from now on it may ask for a slot.
        self.hardware.open_queue(id);
        drop(schedule);
        self.ring_bell();
        Ok(())
    }

    /// Takes `queue` out. When it returns, the device does nothing for it any more, or is being taken away.
    /// Waits for the packet that runs; a device that does not let go of it is given up in bounded time.
    pub(super) fn remove(&self, queue: &Arc<Queue>) {
        let limit = self.limits.max_run.saturating_add(4 * PATIENCE);
        if !clock::poll(limit, || self.try_remove(queue)) {
            let _ = self.lose();
            let _ = clock::poll(PATIENCE, || self.try_remove(queue));
        }
    }

    /// Whether `queue` is out; if not, it is told to leave.
    pub(super) fn try_remove(&self, queue: &Arc<Queue>) -> bool {
        let id = queue.id();
        let mut schedule = self.schedule.lock();
        let ours = |entry: &&mut Entry| Arc::ptr_eq(&entry.queue, queue);
        let Some(entry) = schedule.entry(id).filter(ours) else {
            return true;
        };
        if !entry.closing {
            entry.closing = true;
            self.hardware.close_queue(id);
        }
        if let Some(slot) = entry.slot.filter(|_| self.check_here().is_ok()) {
            if schedule
                .slot(slot)
                .is_some_and(|slot| slot.leaving.is_none())
            {
                self.begin_unbind(&mut schedule, slot);
                self.ring_bell();
            }
            self.look_at(&mut schedule, slot);
        }
        let still_in = schedule.entry(id).is_some_and(|entry| entry.slot.is_some());
        if still_in && self.check_here().is_ok() {
            return false;
        }
        // What it left in the fault queue must not be taken for its successor's.
        self.take_faults(&mut schedule);
        self.hardware.forget_pending(id);
        if let Some(place) = schedule.entries.get_mut(id as usize) {
            *place = None;
        }
        schedule.queues = schedule.queues.saturating_sub(1);
        if let Some(known) = self.known.lock().get_mut(id as usize) {
            *known = None;
        }
        true
    }

    /// Everything that is to be done now. Returns when to look again.
    fn pass(&self) -> u64 {
        let mut schedule = self.schedule.lock();
        let schedule = &mut *schedule;
        if self.check_here().is_err() {
            return SOON; // Until we are stopped.
        }
        self.hardware.acknowledge(Cause::Schedule);
        let events = self.hardware.take_slot_events();
        self.take_faults(schedule);
        let now = clock::now();
        let watch = now.saturating_sub(schedule.watched_at) >= WATCH;
        if watch {
            schedule.watched_at = now;
            // Who waits by an eventfd does not look for itself.
            self.complete();
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
        self.note_pending(schedule);
        let all_served = self.serve(schedule);
        let waiting = schedule.slots.iter().any(Slot::is_waited_for);
        if !all_served || waiting {
            SOON
        } else if schedule.queues != 0 {
            NOW_AND_THEN
        } else {
            SELDOM
        }
    }

    /// Tells those whose queues stopped.
    fn take_faults(&self, schedule: &mut Schedule) {
        self.hardware.each_fault(&mut |id, stop| {
            if let Some(entry) = schedule.entry(id) {
                self.stop(&entry.queue, stop);
            }
        });
    }

    /// `queue` stopped: its owner is told, and its doorbell is not heard any more.
    fn stop(&self, queue: &Queue, stop: Stop) {
        if queue.stop(stop) {
            self.hardware.close_queue(queue.id());
        }
    }

    /// Gives a turn to those that have work and no slot.
    fn note_pending(&self, schedule: &mut Schedule) {
        self.hardware.each_pending(&mut |id| {
            let turn = schedule.turns.saturating_add(1);
            match schedule.entry(id) {
                Some(entry) if !entry.closing && entry.queue.stopped().is_none() => {
                    if entry.queue.turn.load(Relaxed) == 0 {
                        entry.queue.turn.store(turn, Relaxed);
                        schedule.turns = turn;
                    }
                }
                _ => self.hardware.forget_pending(id),
            }
        });
    }

    /// Begins to take the queue out of `slot`.
    pub(super) fn begin_unbind(&self, schedule: &mut Schedule, slot: u32) {
        let deadline = self.limits.max_run.saturating_add(PATIENCE);
        if let Some(entry) = schedule.slot(slot) {
            entry.leaving = Some(clock::now().saturating_add(deadline));
            self.hardware.unbind(slot);
        }
    }

    /// What has become of the queue in `slot`; takes it out if it stopped or has left.
    pub(super) fn look_at(&self, schedule: &mut Schedule, slot: u32) {
        let Some(mut state) = self.hardware.slot_state(slot) else {
            let _ = self.lose();
            return;
        };
        if state == SlotState::Stopped {
            // The fault queue tells more, and has told already unless it was full.
            self.take_faults(schedule);
            let stop = self.hardware.slot_stop(slot);
            if let Some(entry) = schedule
                .slot(slot)
                .and_then(|slot| slot.queue)
                .and_then(|queue| schedule.entry(queue))
            {
                self.stop(&entry.queue, stop);
            }
            self.begin_unbind(schedule, slot);
            state = self.hardware.slot_state(slot).unwrap_or(SlotState::Stopped);
        }
        if state != SlotState::Free {
            return;
        }
        let progress = self.hardware.slot_progress(slot);
        let Some(entry) = schedule.slot(slot) else {
            return;
        };
        let queue = entry.queue.take();
        *entry = Slot::FREE;
        let mut vmid = None;
        if let Some(entry) = queue.and_then(|queue| schedule.entry(queue)) {
            entry.slot = None;
            entry.progress = progress;
            vmid = entry.queue.vm().vmid();
        }
        if let Some(vmid) = vmid.and_then(|vmid| schedule.vmids.get_mut(vmid as usize)) {
            vmid.used_at = clock::now();
        }
    }

    /// Ends a packet that runs for longer than it may: its engine is stuck. If that does not help, the
    /// device is given up. The engine's reset is begun here, and looked after by the passes that follow:
    /// other queues are not to wait for it.
    fn watch(&self, schedule: &mut Schedule, slot: u32) {
        let Some(entry) = schedule.slot(slot).copied() else {
            return;
        };
        if entry.queue.is_none() {
            return;
        }
        let now = clock::now();
        if let Some((engine, deadline)) = entry.reset {
            if self.hardware.is_engine_reset(engine) {
                if let Some(entry) = schedule.slot(slot) {
                    entry.reset = None;
                    // It may leave from now on.
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
        let Some(engine) = self.hardware.slot_engine(slot) else {
            if overdue {
                let _ = self.lose();
            }
            return;
        };
        self.hardware.reset_engine(engine);
        if let Some(entry) = schedule.slot(slot) {
            entry.reset = Some((engine, now.saturating_add(PATIENCE)));
        }
    }

    /// Gives slots to those that ask, as far as there are any, and has room made for the others. Returns
    /// whether all got one.
    fn serve(&self, schedule: &mut Schedule) -> bool {
        if schedule.next_turn(None).is_none() {
            return true;
        }
        let mut coming = Coming {
            slots: schedule
                .slots
                .iter()
                .filter(|slot| slot.leaving.is_some())
                .count(),
            vmids: schedule.vmids.iter().filter(|vmid| vmid.vacating).count(),
            none: false,
            looked: false,
        };
        let (mut all, mut after) = (true, None);
        let begun = schedule.binds;
        while let Some((rank, id)) = schedule.next_turn(after) {
            after = Some(rank);
            if self.check_here().is_err() {
                return true;
            }
            let before = schedule.binds;
            if before.saturating_sub(begun) >= schedule.slots.len() as u64 {
                return false; // There is more to do than this.
            }
            coming.none = false;
            all &= self.try_bind(schedule, id, &mut coming);
            // Each takes its time, and whoever asked meanwhile may be more urgent than those that are left.
            if schedule.binds != before && *self.bell.lock() {
                self.note_pending(schedule);
            }
            // Those that were never served have one rank for all their contexts.
            if coming.none && rank.0 != 0 {
                after = Some((rank.0, u32::MAX, u64::MAX));
            }
        }
        all
    }

    /// Puts a queue into a slot. `false`: not yet.
    fn try_bind(&self, schedule: &mut Schedule, id: u32, coming: &mut Coming) -> bool {
        let Some(entry) = schedule.entry(id) else {
            return true;
        };
        let (queue, progress) = (entry.queue.clone(), entry.progress);
        if queue.stopped().is_some() {
            queue.turn.store(0, Relaxed);
            return true;
        }
        // The slot first: a VMID is taken from somebody only for a queue that can be put in at once.
        let Some(slot) = self.take_slot(schedule, &queue, coming) else {
            return false;
        };
        let Some(vmid) = self.take_vmid(schedule, &queue, coming) else {
            return false;
        };
        if self
            .hardware
            .bind(slot, &queue.setup(vmid, progress))
            .is_err()
        {
            // The device does not take what is valid by its manual.
            let _ = self.lose();
            return false;
        }
        queue.turn.store(0, Relaxed);
        schedule.binds = schedule.binds.saturating_add(1);
        queue.vm().served.store(schedule.binds, Relaxed);
        if let Some(entry) = schedule.slot(slot) {
            let now = clock::now();
            *entry = Slot {
                queue: Some(id),
                bound_at: now,
                seen: (Activity::Busy, now),
                ..Slot::FREE
            };
        }
        if let Some(entry) = schedule.entry(id) {
            entry.slot = Some(slot);
        }
        true
    }

    /// Looks at what the queues in the slots do, once for all that somebody has to make way for.
    pub(super) fn look_around(&self, schedule: &mut Schedule, coming: &mut Coming) {
        if coming.looked {
            return;
        }
        coming.looked = true;
        for (slot, entry) in (0_u32..).zip(&mut schedule.slots) {
            if entry.queue.is_none() {
                continue;
            }
            entry.seen = match self.hardware.slot_state(slot) {
                Some(SlotState::Busy | SlotState::Running) => (Activity::Busy, entry.bound_at),
                Some(state @ (SlotState::Idle | SlotState::Waiting)) => {
                    let since = self.hardware.slot_since(slot);
                    let activity = if state == SlotState::Idle {
                        Activity::Idle
                    } else {
                        Activity::Waiting
                    };
                    (activity, since.wrapping_add(schedule.epoch))
                }
                _ => (Activity::Leaving, entry.bound_at),
            };
        }
    }

    /// A free slot for `queue`, made free if somebody has to go.
    fn take_slot(
        &self,
        schedule: &mut Schedule,
        queue: &Arc<Queue>,
        coming: &mut Coming,
    ) -> Option<u32> {
        let free = |schedule: &Schedule| {
            let index = schedule.slots.iter().position(|slot| slot.queue.is_none());
            index.map(|index| index as u32)
        };
        if let Some(slot) = free(schedule) {
            return Some(slot);
        }
        if coming.slots != 0 {
            coming.slots = coming.slots.saturating_sub(1);
            return None;
        }
        self.look_around(schedule, coming);
        let now = clock::now();
        let victim = {
            let holders = schedule.bound().map(|(_, entry, bound)| {
                let (activity, since) = entry.activity();
                // Between contexts priorities say nothing.
                let ours = Arc::ptr_eq(bound.queue.vm(), queue.vm());
                let rival = if ours { &bound.queue } else { queue };
                Holder {
                    activity,
                    since,
                    held: now.saturating_sub(entry.bound_at),
                    priority: rival.priority(),
                }
            });
            let chosen = turns::choose(holders, queue.priority(), QUANTUM);
            let victim = chosen.and_then(|chosen| schedule.bound().nth(chosen));
            coming.none = victim.is_none();
            victim.map(|(slot, ..)| slot)?
        };
        self.begin_unbind(schedule, victim);
        self.look_at(schedule, victim);
        free(schedule)
    }

    /// How far `queue` has come, and why it stopped.
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
            let pause = self.pass();
            let mut bell = self.bell.lock();
            if !*bell && !thread::should_stop() {
                // No signal reaches a kernel thread. Whoever stops it wakes it.
                let _ = self
                    .rung
                    .wait_interruptible_timeout(&mut bell, clock::jiffies(pause));
            }
            *bell = false;
        }
    }
}
