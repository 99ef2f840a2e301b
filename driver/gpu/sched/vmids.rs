// SPDX-License-Identifier: GPL-2.0
//! VMIDs of contexts. A context gets one when a queue of it is to run, and loses it to another
//! context or when it is closed.

use super::schedule::{Schedule, Vmid};
use crate::{
    gpu::{mmu::vm::Vm, Gpu},
    sys::task::clock,
};
use kernel::{prelude::*, sync::Arc};

impl Gpu {
    /// Gives `vmid`, of which nothing runs, to `vm`. Returns `false` if the device is dead.
    pub(super) fn give_vmid(&self, schedule: &mut Schedule, vmid: u32, vm: &Arc<Vm>) -> bool {
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
            moved: false,
            vacating: false,
        };
        schedule.vmid_binds = schedule.vmid_binds.saturating_add(1);
        true
    }

    /// Takes the VMID of `vm`, which has no queue left. After `Ok` the device has forgotten all of
    /// `vm`.
    pub(in crate::gpu) fn retire(&self, vm: &Arc<Vm>) -> Result {
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
