// SPDX-License-Identifier: GPL-2.0
//! Who has a VMID: it is given when a queue is to run, and taken from those that can best spare it.

use super::{
    queue::Queue,
    schedule::{Coming, Schedule, Vmid},
    scheduler::QUANTUM,
    vm::Vm,
    Gpu,
};
use crate::{
    logic::turns::{self, Activity, Holder},
    sys::clock,
};
use kernel::{prelude::*, sync::Arc};

impl Gpu {
    /// The VMID of `queue`'s address space, which is given one if somebody has one to spare.
    pub(super) fn take_vmid(
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
        self.look_around(schedule, coming);
        let vmid = Self::choose_vmid(schedule)?;
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

    /// Whose VMID is to be taken. Between contexts priorities say nothing.
    fn choose_vmid(schedule: &Schedule) -> Option<u32> {
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
            for (_, slot, bound) in schedule.bound() {
                let its = entry.vm.as_ref();
                if holder.activity != Activity::Leaving
                    && its.is_some_and(|vm| Arc::ptr_eq(bound.queue.vm(), vm))
                {
                    let (activity, since) = slot.activity();
                    holder.activity = holder.activity.max(activity);
                    holder.since = holder.since.max(since);
                }
            }
            holder
        });
        let chosen = turns::choose(holders, 0, QUANTUM)?;
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

    /// `vm`, of which no queue is left, loses its VMID. When it returns `Ok`, the device has forgotten
    /// all of it.
    pub(super) fn retire(&self, vm: &Arc<Vm>) -> Result {
        let mut schedule = self.schedule.lock();
        if let Some(vmid) = vm.vmid() {
            self.hardware.set_root(vmid, None);
            let forgotten = self.invalidate(vmid, self.limits.addresses);
            vm.set_vmid(None);
            if let Some(entry) = schedule.vmids.get_mut(vmid as usize) {
                *entry = Vmid::default();
            }
            forgotten?;
        }
        drop(schedule);
        vm.retire();
        Ok(())
    }
}
