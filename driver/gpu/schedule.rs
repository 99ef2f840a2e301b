// SPDX-License-Identifier: GPL-2.0
//! Which queues are in the device, and which contexts have a VMID: both there are too few of.

use super::{hardware::Progress, queue::Queue, vm::Vm};
use crate::{logic::turns::Activity, sys::clock};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};

/// A queue that the scheduler knows.
pub(super) struct Entry {
    pub(super) queue: Arc<Queue>,
    pub(super) progress: Progress,
    pub(super) slot: Option<u32>,
    /// To be taken out, and given no slot any more.
    pub(super) closing: bool,
}

/// A slot.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) queue: Option<u32>,
    pub(super) bound_at: u64,
    /// What the queue did when it was looked at last, and since when, by our clock.
    pub(super) seen: (Activity, u64),
    /// UNBIND is on its way, and must be done by then.
    pub(super) leaving: Option<u64>,
    /// The engine that holds its packet is being reset: which one, and by when it must be done.
    pub(super) reset: Option<(u32, u64)>,
}

impl Slot {
    /// With nobody in it.
    pub(super) const FREE: Self = Self {
        queue: None,
        bound_at: 0,
        seen: (Activity::Idle, 0),
        leaving: None,
        reset: None,
    };

    /// What its queue does, and since when.
    pub(super) fn activity(&self) -> (Activity, u64) {
        match self.leaving {
            Some(_) => (Activity::Leaving, self.bound_at),
            None => self.seen,
        }
    }

    /// Whether something is on its way that is to be looked at soon.
    pub(super) fn is_waited_for(&self) -> bool {
        self.leaving.is_some() || self.reset.is_some()
    }
}

/// An address space of the device.
#[derive(Default)]
pub(super) struct Vmid {
    pub(super) vm: Option<Arc<Vm>>,
    pub(super) given_at: u64,
    /// When a queue of it was last in a slot.
    pub(super) used_at: u64,
    /// Its queues are being taken out, to give it to somebody else.
    pub(super) vacating: bool,
}

/// What is where. Queues by id.
pub(super) struct Schedule {
    pub(super) entries: KVec<Option<Entry>>,
    pub(super) slots: KVec<Slot>,
    pub(super) vmids: KVec<Vmid>,
    /// Turns that were given, and times that a queue was put into a slot.
    pub(super) turns: u64,
    pub(super) binds: u64,
    pub(super) queues: u32,
    pub(super) watched_at: u64,
    pub(super) vmid_binds: u64,
    /// Our clock less the device's.
    pub(super) epoch: u64,
}

/// When the context was served last, how urgent the queue is (the less, the more), its turn.
pub(super) type Rank = (u64, u32, u64);

/// Room on its way that somebody who waits may count on, rather than have more made.
pub(super) struct Coming {
    pub(super) slots: usize,
    pub(super) vmids: usize,
    /// Nobody gives a slot up for who asked last, so for none that comes after it in its context either.
    pub(super) none: bool,
    /// Whether it is known what the queues in the slots do.
    pub(super) looked: bool,
}

impl Schedule {
    pub(super) fn new(queues: u32, slots: u32, vmids: u32) -> Result<Self> {
        let mut this = Self {
            entries: KVec::with_capacity(queues as usize, GFP_KERNEL)?,
            slots: KVec::from_elem(Slot::FREE, slots as usize, GFP_KERNEL)?,
            vmids: KVec::with_capacity(vmids as usize, GFP_KERNEL)?,
            turns: 0,
            binds: 0,
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

    pub(super) fn entry(&mut self, queue: u32) -> Option<&mut Entry> {
        self.entries.get_mut(queue as usize)?.as_mut()
    }

    pub(super) fn slot(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }

    /// The queues that are in slots: slot, state of leaving, and queue.
    pub(super) fn bound(&self) -> impl Iterator<Item = (u32, Slot, &Entry)> + '_ {
        (0_u32..).zip(&self.slots).filter_map(|(index, slot)| {
            let queue = slot.queue?;
            let entry = self.entries.get(queue as usize)?.as_ref()?;
            Some((index, *slot, entry))
        })
    }

    pub(super) fn bound_to(&self, vm: &Arc<Vm>) -> usize {
        self.bound()
            .filter(|(_, _, entry)| Arc::ptr_eq(entry.queue.vm(), vm))
            .count()
    }

    /// Who asks for a slot: of the context that was served longest ago, the highest priority, then who has
    /// waited for longest; after `after`. So contexts take turns whatever their queues' priorities and
    /// however many those are.
    pub(super) fn next_turn(&self, after: Option<Rank>) -> Option<(Rank, u32)> {
        self.entries
            .iter()
            .flatten()
            .filter(|entry| !entry.closing && entry.slot.is_none())
            .filter_map(|entry| {
                let queue = &entry.queue;
                let turn = queue.turn.load(Relaxed);
                let urgency = u32::MAX.wrapping_sub(queue.priority());
                let rank = (queue.vm().served.load(Relaxed), urgency, turn);
                (turn != 0).then(|| (rank, queue.id()))
            })
            .filter(|&(rank, _)| after.is_none_or(|after| rank > after))
            .min()
    }

    /// Nobody has a VMID: the device has forgotten all, or reaches nothing any more.
    pub(super) fn forget_vmids(&mut self) {
        for entry in &mut self.vmids {
            if let Some(vm) = entry.vm.take() {
                vm.set_vmid(None);
            }
        }
    }
}
