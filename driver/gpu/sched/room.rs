// SPDX-License-Identifier: GPL-2.0
//! The device and its queues, as `logic/slots.rs` sees them, which decides about slots.

use super::schedule::{Schedule, Slot};
use crate::{
    gpu::{hardware::SlotState, Gpu},
    logic::slots::{self, Activity, Asker, Holder, Last, Room, Served, Space, QUANTUM},
    sys::task::clock,
};
use kernel::sync::atomic::Relaxed;

/// The first VMID that contexts can have.
const FIRST_VMID: usize = 1;

impl Gpu {
    /// Gives slots to queues that ask, as far as there are any, and makes room for the others.
    pub(super) fn serve(&self, schedule: &mut Schedule) -> Served {
        slots::serve(
            &mut View {
                gpu: self,
                schedule,
            },
            QUANTUM,
        )
    }
}

struct View<'a> {
    gpu: &'a Gpu,
    schedule: &'a mut Schedule,
}

impl View<'_> {
    /// Returns what the queue in a slot is doing, and since when, by the driver's clock.
    fn activity(&self, number: u32, slot: &Slot) -> (Activity, u64) {
        let hardware = &self.gpu.hardware;
        let since = || {
            hardware
                .slot_since(number)
                .wrapping_add(self.schedule.epoch)
        };
        match hardware.slot_state(number) {
            Some(SlotState::Idle) => (Activity::Idle, since()),
            Some(SlotState::Waiting | SlotState::Faulted) => (Activity::Waiting, since()),
            Some(SlotState::Ready) => (Activity::Ready, slot.bound_at),
            Some(SlotState::Running) => (Activity::Running, slot.bound_at),
            _ => (Activity::Leaving, slot.bound_at),
        }
    }
}

impl Room for View<'_> {
    fn now(&self) -> u64 {
        clock::now()
    }

    fn askers(&self) -> impl Iterator<Item = Asker> {
        let now = clock::now();
        let entries = self.schedule.entries.iter().flatten();
        entries
            .filter(move |entry| entry.asks() && entry.rests_until <= now)
            .filter(move |entry| entry.queue.vm().held_until.load(Relaxed) <= now)
            .map(|entry| {
                let (queue, vm) = (&entry.queue, entry.queue.vm());
                Asker {
                    queue: queue.id(),
                    context: vm.number,
                    served: vm.served.load(Relaxed),
                    waiters_first: vm.waiters_first.load(Relaxed),
                    priority: queue.priority(),
                    turn: queue.turn.load(Relaxed),
                    last: entry.last,
                }
            })
    }

    fn slots(&self) -> impl Iterator<Item = Option<Holder>> {
        let now = clock::now();
        self.schedule.slots.iter().map(move |slot| {
            let queue = &self.schedule.in_slot(slot)?.queue;
            let (seen, since) = slot.seen;
            Some(Holder {
                context: queue.vm().number,
                priority: queue.priority(),
                activity: slot.leaving.map_or(seen, |_| Activity::Leaving),
                since,
                bound_at: slot.bound_at,
                moved: slot.moved,
                // An engine may just have taken its packet; then leaving takes longer.
                is_quick: seen != Activity::Running
                    && now.saturating_sub(slot.told_at) < QUANTUM.busy,
            })
        })
    }

    fn spaces(&self) -> impl Iterator<Item = Space> {
        let vmids = self.schedule.vmids.iter().skip(FIRST_VMID);
        vmids.map(|entry| Space {
            context: entry.vm.as_ref().map(|vm| vm.number),
            given_at: entry.given_at,
            used_at: entry.used_at,
            moved: entry.moved,
            vacating: entry.vacating,
        })
    }

    fn look(&mut self) {
        let now = clock::now();
        for number in 0..self.gpu.limits.slots {
            let Some(mut slot) = self.schedule.slot(number).copied() else {
                break;
            };
            if slot.queue.is_none() || slot.leaving.is_some() {
                continue;
            }
            slot.seen = self.activity(number, &slot);
            let works = matches!(slot.seen.0, Activity::Ready | Activity::Running);
            // Before the queue's time is over this does not matter.
            if works && !slot.moved && now.saturating_sub(slot.bound_at) >= QUANTUM.busy {
                slot.moved = self.gpu.hardware.slot_progress(number) != slot.began;
            }
            if let Some(place) = self.schedule.slot(number) {
                *place = slot;
            }
        }
    }

    fn evict(&mut self, slot: usize) {
        let (number, pass) = (slot as u32, self.schedule.passes);
        let queue = self.schedule.slot(number).and_then(|slot| slot.queue);
        if let Some(entry) = queue.and_then(|queue| self.schedule.entry(queue)) {
            entry.left_in = pass;
        }
        self.gpu.begin_unbind(self.schedule, number);
        self.gpu.look_at(self.schedule, number);
    }

    fn vacate(&mut self, space: usize, vacating: bool) {
        if let Some(entry) = self
            .schedule
            .vmids
            .get_mut(space.saturating_add(FIRST_VMID))
        {
            entry.vacating = vacating;
        }
    }

    fn bind(&mut self, asker: &Asker, slot: usize, space: usize) -> bool {
        let (gpu, number) = (self.gpu, slot as u32);
        let Some(entry) = self.schedule.entry(asker.queue) else {
            return true;
        };
        let (queue, began) = (entry.queue.clone(), entry.progress);
        if queue.stopped().is_some() {
            queue.turn.store(0, Relaxed);
            return true;
        }
        let vmid = space.saturating_add(FIRST_VMID) as u32;
        let vm = queue.vm();
        if gpu.check_here().is_err()
            || (vm.vmid() != Some(vmid) && !gpu.give_vmid(self.schedule, vmid, vm))
        {
            return false;
        }
        if gpu
            .hardware
            .bind(number, &queue.setup(vmid, began))
            .is_err()
        {
            // The device refuses what its manual allows.
            let _ = gpu.lose();
            return false;
        }
        queue.turn.store(0, Relaxed);
        vm.served.store(gpu.order.lock().advance(), Relaxed);
        vm.waiters_first.store(asker.last != Last::Waited, Relaxed);
        let now = clock::now();
        if let Some(place) = self.schedule.slot(number) {
            *place = Slot {
                queue: Some(asker.queue),
                bound_at: now,
                began,
                seen: (Activity::Ready, now),
                ..Slot::FREE
            };
        }
        if let Some(entry) = self.schedule.entry(asker.queue) {
            entry.slot = Some(number);
        }
        true
    }

    fn note(&mut self) {
        if *self.gpu.work_pending.lock() {
            let pass = self.schedule.passes;
            self.gpu.note_pending(self.schedule, Some(pass));
        }
    }
}
