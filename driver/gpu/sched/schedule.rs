// SPDX-License-Identifier: GPL-2.0
//! State of the scheduler: the queues in the device, and the contexts that have a VMID.

use super::queue::Queue;
use crate::{
    gpu::{
        hardware::{Progress, SlotState},
        mmu::vm::Vm,
        Gpu,
    },
    logic::slots::{Activity, Last, Pause},
    sys::task::clock,
};
use core::mem;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};

/// A queue that the scheduler knows.
pub(super) struct Entry {
    pub(super) queue: Arc<Queue>,
    pub(super) progress: Progress,
    pub(super) slot: Option<u32>,
    /// Whether the queue is to be taken out and given no slot any more.
    pub(super) closing: bool,
    /// Whether a fault of the queue is being served. Until that is done it executes nothing, in its
    /// slot or outside.
    pub(super) faulting: bool,
    /// How the queue spent its last time in a slot.
    pub(super) last: Last,
    /// How many turns in a row the queue only waited.
    pub(super) waited: u32,
    /// Time before which the queue is given no slot, because it only waited.
    pub(super) rests_until: u64,
    /// Pass in which the queue was told to leave.
    pub(super) left_in: u64,
    /// The write index that was published when the device went to sleep.
    published: u64,
}

impl Entry {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self {
            queue,
            progress: Progress::default(),
            slot: None,
            closing: false,
            faulting: false,
            last: Last::Worked,
            waited: 0,
            rests_until: 0,
            left_in: 0,
            published: 0,
        }
    }

    /// Returns whether the queue asks for a slot.
    pub(super) fn asks(&self) -> bool {
        let can_run = !self.closing && !self.faulting;
        can_run && self.slot.is_none() && self.queue.turn.load(Relaxed) != 0
    }
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) queue: Option<u32>,
    pub(super) bound_at: u64,
    /// How far the queue had come when it was put in, and whether it has executed anything since,
    /// as far as is known.
    pub(super) began: Progress,
    pub(super) moved: bool,
    /// Activity of the queue when it was looked at last, and since when, by the driver's clock.
    pub(super) seen: (Activity, u64),
    /// Time by which a pending UNBIND must be done.
    pub(super) leaving: Option<u64>,
    /// When UNBIND was submitted.
    pub(super) told_at: u64,
    /// Time by which the reset of the engine with its packet must be done.
    pub(super) reset: Option<u64>,
}

impl Slot {
    /// A slot without a queue.
    pub(super) const FREE: Self = Self {
        queue: None,
        bound_at: 0,
        began: Progress { index: 0, part: 0 },
        moved: false,
        seen: (Activity::Idle, 0),
        leaving: None,
        told_at: 0,
        reset: None,
    };

    /// Returns whether a command is pending that has to be looked at soon.
    pub(super) fn is_waited_for(&self) -> bool {
        self.leaving.is_some() || self.reset.is_some()
    }
}

/// An address space of the device.
#[derive(Default)]
pub(super) struct Vmid {
    pub(super) vm: Option<Arc<Vm>>,
    pub(super) given_at: u64,
    /// When a queue of the address space was last in a slot.
    pub(super) used_at: u64,
    /// Whether a queue that was in a slot since then has executed anything.
    pub(super) moved: bool,
    /// Whether its queues are being taken out, to give it to another context.
    pub(super) vacating: bool,
}

/// Whether the device executes queues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::gpu) enum Halt {
    No,
    /// All queues leave their slots, and none is given one.
    Stopping,
    /// The device is off.
    Asleep,
}

/// Slots, VMIDs, and queues by id.
pub(in crate::gpu) struct Schedule {
    pub(super) entries: KVec<Option<Entry>>,
    pub(super) slots: KVec<Slot>,
    pub(super) vmids: KVec<Vmid>,
    pub(super) turns: u64,
    pub(super) passes: u64,
    /// Pause before the next pass while a queue waits for room.
    pub(super) pause: Pause,
    pub(super) queues: u32,
    pub(super) watched_at: u64,
    pub(super) vmid_binds: u64,
    /// Difference between the driver's clock and the device's.
    pub(super) epoch: u64,
    pub(in crate::gpu) halt: Halt,
}

impl Schedule {
    pub(in crate::gpu) fn new(queues: u32, slots: u32, vmids: u32) -> Result<Self> {
        let mut this = Self {
            entries: KVec::with_capacity(queues as usize, GFP_KERNEL)?,
            slots: KVec::from_elem(Slot::FREE, slots as usize, GFP_KERNEL)?,
            vmids: KVec::with_capacity(vmids as usize, GFP_KERNEL)?,
            turns: 0,
            passes: 0,
            pause: Pause::default(),
            queues: 0,
            watched_at: 0,
            vmid_binds: 0,
            epoch: 0,
            halt: Halt::No,
        };
        for _ in 0..queues {
            this.entries.push(None, GFP_KERNEL)?;
        }
        for _ in 0..vmids {
            this.vmids.push(Vmid::default(), GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Returns how often a context was given a VMID.
    pub(in crate::gpu) fn vmid_binds(&self) -> u64 {
        self.vmid_binds
    }

    /// Sets the difference between the clocks, from the device's time now.
    pub(in crate::gpu) fn set_epoch(&mut self, device_time: u64) {
        self.epoch = clock::now().wrapping_sub(device_time);
    }

    /// Whether no queue is in a slot.
    pub(in crate::gpu) fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.queue.is_none())
    }

    /// Whether all queues are idle, and those in slots have been for `delay` nanoseconds. Another
    /// one has not worked since it left, or it would ask for a slot.
    pub(in crate::gpu) fn is_idle(&self, gpu: &Gpu, delay: u64) -> bool {
        let hardware = &gpu.hardware;
        let now = hardware.time();
        // The eventfds are of fences that somebody else may write.
        let waits = |entry: &Entry| entry.faulting || entry.asks() || entry.queue.has_notices();
        !self.entries.iter().flatten().any(waits)
            && (0..gpu.limits.slots)
                .zip(&self.slots)
                .all(|(number, slot)| {
                    let idle_for = || now.saturating_sub(hardware.slot_since(number));
                    let is_idle = || hardware.slot_state(number) == Some(SlotState::Idle);
                    slot.queue.is_none() || is_idle() && idle_for() >= delay
                })
    }

    /// Whether any queue, none of which is in a slot, has packets to execute or eventfds to signal.
    pub(in crate::gpu) fn has_work(&self, gpu: &Gpu) -> bool {
        self.with_doorbells().any(|entry| {
            let published = gpu.hardware.published(entry.queue.id());
            entry.faulting || published != entry.progress.index || entry.queue.has_notices()
        })
    }

    /// Notes what the device knows of queues, none of which is in a slot: it is going to forget it.
    pub(in crate::gpu) fn save(&mut self, gpu: &Gpu) {
        gpu.take_faults(self);
        for entry in self.entries.iter_mut().flatten() {
            entry.published = gpu.hardware.published(entry.queue.id());
        }
        self.halt = Halt::Asleep;
    }

    /// Enables the doorbells of a device that has forgotten everything, and was prepared.
    pub(in crate::gpu) fn open_doorbells(&self, gpu: &Gpu) {
        for entry in self.with_doorbells() {
            gpu.hardware.open_queue(entry.queue.id());
        }
    }

    /// Publishes the write indices of which the device knows nothing any more.
    pub(in crate::gpu) fn ring_doorbells(&self, gpu: &Gpu) {
        for entry in self.with_doorbells() {
            let id = entry.queue.id();
            if entry.published > gpu.hardware.published(id) {
                gpu.hardware.publish(id, entry.published);
            }
        }
    }

    fn with_doorbells(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.entries.iter().flatten();
        entries.filter(|entry| !entry.closing && entry.queue.stopped().is_none())
    }

    pub(super) fn entry(&mut self, queue: u32) -> Option<&mut Entry> {
        self.entries.get_mut(queue as usize)?.as_mut()
    }

    pub(super) fn slot(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }

    pub(super) fn in_slot(&self, slot: &Slot) -> Option<&Entry> {
        self.entries.get(slot.queue? as usize)?.as_ref()
    }

    /// Takes the VMIDs of all contexts. The device must have forgotten everything, or reach nothing
    /// any more.
    pub(in crate::gpu) fn forget_vmids(&mut self) {
        for entry in &mut self.vmids {
            if let Some(vm) = mem::take(entry).vm {
                vm.set_vmid(None);
            }
        }
    }
}
