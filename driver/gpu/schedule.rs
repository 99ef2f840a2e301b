// SPDX-License-Identifier: GPL-2.0
//! Which queues are in the device, and which contexts have a VMID: both there are too few of.
//!
//! One thread decides, woken by interrupts and looking by itself from time to time, since those may get
//! lost. It believes nothing but the device's registers. A queue that wants a slot has a *turn*; among
//! those of the highest priority the earliest turn goes first.

use super::{
    hardware::{Progress, SlotState, Stop},
    queue::Queue,
    vm::Vm,
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
const QUANTUM: Quantum = Quantum {
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

/// A queue that the scheduler knows.
struct Entry {
    queue: Arc<Queue>,
    progress: Progress,
    slot: Option<u32>,
    /// To be taken out, and given no slot any more.
    closing: bool,
}

/// A slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    queue: Option<u32>,
    bound_at: u64,
    /// UNBIND is on its way, and must be done by then.
    leaving: Option<u64>,
    /// The engine that holds its packet is being reset: which one, and by when it must be done.
    reset: Option<(u32, u64)>,
}

impl Slot {
    /// Whether something is on its way that is to be looked at soon.
    fn is_waited_for(&self) -> bool {
        self.leaving.is_some() || self.reset.is_some()
    }
}

/// An address space of the device.
#[derive(Default)]
struct Vmid {
    vm: Option<Arc<Vm>>,
    given_at: u64,
    /// When a queue of it was last in a slot.
    used_at: u64,
    /// Its queues are being taken out, to give it to somebody else.
    vacating: bool,
}

/// What is where. Queues by id.
pub(super) struct Schedule {
    entries: KVec<Option<Entry>>,
    slots: KVec<Slot>,
    vmids: KVec<Vmid>,
    turns: u64,
    queues: u32,
    watched_at: u64,
    vmid_binds: u64,
    /// Our clock less the device's.
    epoch: u64,
}

/// Room on its way that somebody who waits may count on, rather than have more made.
struct Coming {
    slots: usize,
    vmids: usize,
}

impl Schedule {
    pub(super) fn new(queues: u32, slots: u32, vmids: u32) -> Result<Self> {
        let mut this = Self {
            entries: KVec::with_capacity(queues as usize, GFP_KERNEL)?,
            slots: KVec::from_elem(Slot::default(), slots as usize, GFP_KERNEL)?,
            vmids: KVec::with_capacity(vmids as usize, GFP_KERNEL)?,
            turns: 0,
            queues: 0,
            watched_at: 0,
            vmid_binds: 0,
            epoch: 0,
        };
        for _ in 0..queues {
            this.entries.push(None, GFP_KERNEL)?;
        }
        for _ in 0..vmids {
            this.vmids.push(Vmid::default(), GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Times that a context was given a VMID.
    pub(super) fn vmid_binds(&self) -> u64 {
        self.vmid_binds
    }

    /// What the device's clock says is so much behind ours.
    pub(super) fn set_epoch(&mut self, device_time: u64) {
        self.epoch = clock::now().wrapping_sub(device_time);
    }

    fn entry(&mut self, queue: u32) -> Option<&mut Entry> {
        self.entries.get_mut(queue as usize)?.as_mut()
    }

    fn slot(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }

    /// The queues that are in slots: slot, state of leaving, and queue.
    fn bound(&self) -> impl Iterator<Item = (u32, Slot, &Entry)> + '_ {
        (0_u32..).zip(&self.slots).filter_map(|(index, slot)| {
            let queue = slot.queue?;
            let entry = self.entries.get(queue as usize)?.as_ref()?;
            Some((index, *slot, entry))
        })
    }

    fn bound_to(&self, vm: &Arc<Vm>) -> usize {
        self.bound()
            .filter(|(_, _, entry)| Arc::ptr_eq(entry.queue.vm(), vm))
            .count()
    }

    /// Who asks for a slot: of the highest priority, who has waited for longest, after `after`.
    fn next_turn(&self, after: Option<(u32, u64)>) -> Option<(u32, u64, u32)> {
        // Sorted by descending priority, then by turn.
        let rank = |priority: u32, turn: u64| (u32::MAX.wrapping_sub(priority), turn);
        let after = after.map(|(priority, turn)| rank(priority, turn));
        self.entries
            .iter()
            .flatten()
            .filter(|entry| !entry.closing && entry.slot.is_none())
            .filter_map(|entry| {
                let turn = entry.queue.turn.load(Relaxed);
                let priority = entry.queue.priority();
                (turn != 0).then(|| (rank(priority, turn), priority, turn, entry.queue.id()))
            })
            .filter(|&(rank, ..)| after.is_none_or(|after| rank > after))
            .min()
            .map(|(_, priority, turn, id)| (priority, turn, id))
    }
}

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

    /// Takes `queue` out. When it returns, the device does nothing for it any more. Waits for the packet
    /// that runs; a device that does not let go of it is given up in bounded time.
    pub(super) fn remove(&self, queue: &Arc<Queue>) {
        let id = queue.id();
        let limit = self.limits.max_run.saturating_add(4 * PATIENCE);
        let is_out = || {
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
        };
        if !clock::poll(limit, is_out) {
            let _ = self.lose();
            let _ = clock::poll(PATIENCE, is_out);
        }
    }

    /// `vm`, of which no queue is left, loses its VMID. When it returns `Ok`, the device has forgotten
    /// all of it.
    pub(super) fn retire(&self, vm: &Arc<Vm>) -> Result {
        let mut schedule = self.schedule.lock();
        if let Some(vmid) = vm.vmid() {
            self.hardware.set_root(vmid, None);
            self.invalidate(vmid, self.limits.addresses)?;
            vm.set_vmid(None);
            if let Some(entry) = schedule.vmids.get_mut(vmid as usize) {
                *entry = Vmid::default();
            }
        }
        drop(schedule);
        vm.retire();
        Ok(())
    }

    /// Everything that is to be done now. Returns when to look again.
    fn pass(&self) -> u64 {
        let mut schedule = self.schedule.lock();
        let schedule = &mut *schedule;
        if self.check_here().is_err() {
            return SOON; // Until we are stopped.
        }
        self.hardware.acknowledge(super::hardware::Cause::Schedule);
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
                entry.queue.stop(stop);
            }
        });
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
    fn begin_unbind(&self, schedule: &mut Schedule, slot: u32) {
        let deadline = self.limits.max_run.saturating_add(PATIENCE);
        if let Some(entry) = schedule.slot(slot) {
            entry.leaving = Some(clock::now().saturating_add(deadline));
            self.hardware.unbind(slot);
        }
    }

    /// What has become of the queue in `slot`; takes it out if it stopped or has left.
    fn look_at(&self, schedule: &mut Schedule, slot: u32) {
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
                entry.queue.stop(stop);
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
        *entry = Slot::default();
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
        let mut coming = Coming {
            slots: schedule
                .slots
                .iter()
                .filter(|slot| slot.leaving.is_some())
                .count(),
            vmids: schedule.vmids.iter().filter(|vmid| vmid.vacating).count(),
        };
        let mut all = true;
        let mut after = None;
        while let Some((priority, turn, id)) = schedule.next_turn(after) {
            after = Some((priority, turn));
            if self.check_here().is_err() {
                return true;
            }
            all &= self.try_bind(schedule, id, &mut coming);
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
        let Some(vmid) = self.take_vmid(schedule, &queue, coming) else {
            return false;
        };
        let Some(slot) = self.take_slot(schedule, &queue, coming) else {
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
        if let Some(entry) = schedule.slot(slot) {
            *entry = Slot {
                queue: Some(id),
                bound_at: clock::now(),
                ..Slot::default()
            };
        }
        if let Some(entry) = schedule.entry(id) {
            entry.slot = Some(slot);
        }
        true
    }

    /// What the queue in `slot` does, and since when, by our clock.
    fn activity(&self, epoch: u64, slot: u32, entry: Slot) -> (Activity, u64) {
        if entry.leaving.is_some() {
            return (Activity::Leaving, entry.bound_at);
        }
        let activity = match self.hardware.slot_state(slot) {
            Some(SlotState::Idle) => Activity::Idle,
            Some(SlotState::Waiting) => Activity::Waiting,
            Some(SlotState::Busy | SlotState::Running) => {
                return (Activity::Busy, entry.bound_at);
            }
            _ => return (Activity::Leaving, entry.bound_at),
        };
        let since = self.hardware.slot_since(slot).wrapping_add(epoch);
        (activity, since)
    }

    /// A free slot for `queue`, made free if somebody has to go.
    fn take_slot(
        &self,
        schedule: &mut Schedule,
        queue: &Queue,
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
        let now = clock::now();
        let victim = {
            let holders = schedule.bound().map(|(slot, entry, bound)| {
                let (activity, since) = self.activity(schedule.epoch, slot, entry);
                Holder {
                    activity,
                    since,
                    held: now.saturating_sub(entry.bound_at),
                    priority: bound.queue.priority(),
                }
            });
            let chosen = turns::choose(holders, queue.priority(), QUANTUM)?;
            schedule.bound().nth(chosen).map(|(slot, ..)| slot)?
        };
        self.begin_unbind(schedule, victim);
        self.look_at(schedule, victim);
        free(schedule)
    }

    /// The VMID of `queue`'s address space, which is given one if somebody has one to spare.
    fn take_vmid(
        &self,
        schedule: &mut Schedule,
        queue: &Queue,
        coming: &mut Coming,
    ) -> Option<u32> {
        let vm = queue.vm();
        if let Some(vmid) = vm.vmid() {
            let is_out = schedule.bound_to(vm) == 0;
            let entry = schedule.vmids.get_mut(vmid as usize)?;
            if entry.vacating && is_out {
                // Whoever it was taken from us for would have been served before us, and is gone.
                entry.vacating = false;
            }
            return (!entry.vacating).then_some(vmid);
        }
        if let Some(vmid) = self.spare_vmid(schedule) {
            return self.give_vmid(schedule, vmid, vm).then_some(vmid);
        }
        if coming.vmids != 0 {
            coming.vmids = coming.vmids.saturating_sub(1);
            return None;
        }
        let vmid = self.choose_vmid(schedule, queue.priority())?;
        let old = schedule.vmids.get_mut(vmid as usize).and_then(|entry| {
            entry.vacating = true;
            entry.vm.clone()
        })?;
        for slot in 0..self.limits.slots {
            let is_its = schedule.bound().any(|(index, entry, bound)| {
                index == slot && entry.leaving.is_none() && Arc::ptr_eq(bound.queue.vm(), &old)
            });
            if is_its {
                self.begin_unbind(schedule, slot);
                self.look_at(schedule, slot);
            }
        }
        if schedule.bound_to(&old) != 0 {
            return None;
        }
        self.give_vmid(schedule, vmid, vm).then_some(vmid)
    }

    /// A VMID that nobody has, or one that was vacated.
    fn spare_vmid(&self, schedule: &Schedule) -> Option<u32> {
        let is_spare = |entry: &Vmid| match &entry.vm {
            None => true,
            Some(vm) => entry.vacating && schedule.bound_to(vm) == 0,
        };
        (0_u32..)
            .zip(&schedule.vmids)
            .skip(1)
            .find(|(_, entry)| is_spare(entry))
            .map(|(vmid, _)| vmid)
    }

    /// Whose VMID is to be taken.
    fn choose_vmid(&self, schedule: &Schedule, priority: u32) -> Option<u32> {
        let now = clock::now();
        let holders = schedule.vmids.iter().skip(1).map(|entry| {
            let mut holder = Holder {
                activity: Activity::Idle,
                since: entry.used_at,
                held: now.saturating_sub(entry.given_at),
                priority: 0,
            };
            if entry.vacating {
                holder.activity = Activity::Leaving;
            }
            for (slot, state, bound) in schedule.bound() {
                let its = entry.vm.as_ref();
                if holder.activity != Activity::Leaving
                    && its.is_some_and(|vm| Arc::ptr_eq(bound.queue.vm(), vm))
                {
                    let (activity, since) = self.activity(schedule.epoch, slot, state);
                    holder.activity = holder.activity.max(activity);
                    holder.since = holder.since.max(since);
                    holder.priority = holder.priority.max(bound.queue.priority());
                }
            }
            holder
        });
        let chosen = turns::choose(holders, priority, QUANTUM)?;
        u32::try_from(chosen).ok()?.checked_add(1)
    }

    /// Gives `vmid`, of which nothing runs, to `vm`. `false`: the device is dead.
    fn give_vmid(&self, schedule: &mut Schedule, vmid: u32, vm: &Arc<Vm>) -> bool {
        let Some(entry) = schedule.vmids.get_mut(vmid as usize) else {
            return false;
        };
        self.hardware.set_root(vmid, Some(vm.root()));
        if self.invalidate(vmid, self.limits.addresses).is_err() {
            return false;
        }
        if let Some(old) = entry.vm.take() {
            old.set_vmid(None);
        }
        vm.set_vmid(Some(vmid));
        let now = clock::now();
        *entry = Vmid {
            vm: Some(vm.clone()),
            given_at: now,
            used_at: now,
            vacating: false,
        };
        schedule.vmid_binds = schedule.vmid_binds.saturating_add(1);
        true
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
