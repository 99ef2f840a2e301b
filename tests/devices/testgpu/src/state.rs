// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the device and how it changes: doorbells, slots, resets. One lock guards all of it.
//! No method blocks.

use crate::fault::{FaultQueue, Reason};
use crate::hardware::Hardware;
use crate::interrupt::Interrupts;
use crate::invalidate::Invalidates;
use crate::paging::Paging;
use crate::posted::Posted;
use crate::program::Held;
use crate::regs;
use crate::slot::{Phase, Slot, Stamp};
use crate::trouble::Knobs;
use std::sync::Arc;
use std::time::Instant;

mod schedule;

pub use schedule::{class_of, copy_kinds, kinds_in, kinds_of, Job, Outcome, Pick};

/// Bit for the control thread, beside the bits of the engine classes to be woken up.
pub const WAKE_CONTROL: u64 = 1 << 2;
/// Likewise for the paging engine.
pub const WAKE_PAGING: u64 = 1 << 3;

const DEFAULT_MAX_RUN: u64 = 2_000_000_000;
const SHORTEST_MAX_RUN: u64 = 1_000_000;
const LONGEST_MAX_RUN: u64 = 60_000_000_000;

/// Extent of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Reset {
    Device,
    Function,
}

/// Bitmap with one bit for each queue.
pub type Bitmap = [u64; regs::BITMAP_WORDS];

fn bit(queue: usize) -> (usize, u64) {
    (queue / 64, 1 << (queue % 64))
}

/// State of the device.
#[derive(Debug)]
pub struct State {
    hardware: Arc<Hardware>,
    /// The slots.
    pub slots: [Slot; regs::SLOT_COUNT],
    doorbells: Box<[u64; regs::QUEUE_COUNT]>,
    bound: Box<[Option<usize>; regs::QUEUE_COUNT]>,
    /// `PENDING`.
    pub pending: Bitmap,
    /// `COMPLETION`.
    pub completion: Bitmap,
    /// `DOORBELL_ENABLE`.
    pub enabled: Bitmap,
    /// `SLOT_EVENT`.
    pub slot_event: u64,
    /// The interrupt registers.
    pub interrupts: Interrupts,
    /// The fault queue.
    pub faults: FaultQueue,
    /// The INVALIDATE registers and what waits there.
    pub invalidates: Invalidates,
    /// The registers of the paging engine and what waits there.
    pub paging: Paging,
    /// The trouble knobs.
    pub knobs: Knobs,
    /// Posted writes (`KNOB_POST_NS`).
    pub posted: Posted,
    /// `SCRATCH`.
    pub scratch: u64,
    max_run: u64,
    /// `ENGINE_RESET`: engines that are still to be reset.
    pub engine_resets: u64,
    /// Reset that is under way.
    pub resetting: Option<Reset>,
    /// Whether the device is closed.
    pub closed: bool,
    /// Bits of the threads to wake up when the lock is released.
    pub wake: u64,
    served: u64,
    /// Number of the last time that a queue of a VMID was served.
    turns: [u64; regs::VMID_COUNT],
}

impl State {
    /// Makes a state with reset values.
    pub fn new(hardware: Arc<Hardware>) -> Self {
        Self {
            hardware,
            slots: std::array::from_fn(|_| Slot::new()),
            doorbells: Box::new([0; regs::QUEUE_COUNT]),
            bound: Box::new([None; regs::QUEUE_COUNT]),
            pending: Bitmap::default(),
            completion: Bitmap::default(),
            enabled: Bitmap::default(),
            slot_event: 0,
            interrupts: Interrupts::default(),
            faults: FaultQueue::default(),
            invalidates: Invalidates::default(),
            paging: Paging::default(),
            knobs: Knobs::default(),
            posted: Posted::default(),
            scratch: 0,
            max_run: DEFAULT_MAX_RUN,
            engine_resets: 0,
            resetting: None,
            closed: false,
            wake: 0,
            served: 0,
            turns: [0; regs::VMID_COUNT],
        }
    }

    /// Returns the hardware.
    pub fn hardware(&self) -> &Arc<Hardware> {
        &self.hardware
    }

    /// Raises an interrupt cause.
    pub fn raise(&mut self, cause: u64) {
        self.interrupts.raise(cause, &self.hardware);
    }

    /// Returns `MAX_RUN_NS`.
    pub fn max_run(&self) -> u64 {
        self.max_run
    }

    /// Writes `MAX_RUN_NS`.
    pub fn set_max_run(&mut self, nanoseconds: u64) {
        self.max_run = nanoseconds.clamp(SHORTEST_MAX_RUN, LONGEST_MAX_RUN);
    }

    /// Returns `DOORBELL_VALUE` of a queue.
    pub fn write_index(&self, queue: usize) -> u64 {
        self.doorbells[queue]
    }

    /// Writes `DOORBELL_VALUE`.
    pub fn set_write_index(&mut self, queue: usize, value: u64) {
        self.doorbells[queue] = value;
    }

    /// Handles a store to a doorbell. Returns false if the doorbell is disabled.
    pub fn ring(&mut self, queue: usize, value: u64) -> bool {
        let (word, bit) = bit(queue);
        if self.enabled[word] & bit == 0 || self.resetting.is_some() {
            return false;
        }
        self.doorbells[queue] = value;
        match self.bound[queue] {
            None => self.set_pending(queue),
            Some(slot) => self.change(slot, |slot, _| {
                if slot.phase == Phase::Idle && slot.read_index != value {
                    slot.phase = Phase::Ready;
                }
            }),
        }
        true
    }

    fn set_pending(&mut self, queue: usize) {
        let (word, bit) = bit(queue);
        self.pending[word] |= bit;
        self.raise(regs::INT_PENDING);
    }

    /// Changes a slot. Records the time if its state changes, and wakes up the engines that can
    /// execute its packet.
    fn change(&mut self, slot: usize, change: impl FnOnce(&mut Slot, Instant)) {
        let now = Instant::now();
        let slot = &mut self.slots[slot];
        let before = slot.state();
        change(slot, now);
        if slot.state() != before {
            slot.since = self.hardware.now();
        }
        if slot.engine.is_none() && !slot.unbinding && slot.phase == Phase::Ready {
            self.wake |= slot.wants;
        }
    }

    /// Carries out a slot's command and stores its result. Returns the engines that must abandon
    /// their packets.
    pub fn command(&mut self, number: usize, command: u64) -> u64 {
        let slot = &self.slots[number];
        let mut abandoned = 0;
        let result = match (command, slot.state()) {
            (regs::COMMAND_BIND, regs::STATE_FREE) => self.bind(number),
            (regs::COMMAND_UNBIND, state)
                if state != regs::STATE_FREE && state != regs::STATE_UNBINDING =>
            {
                self.unbind(number);
                regs::RESULT_OK
            }
            (regs::COMMAND_RETRY, regs::STATE_FAULTED) => {
                self.change(number, |slot, _| {
                    slot.error = 0;
                    slot.fault_va = 0;
                    slot.wants = slot.classes();
                    slot.phase = Phase::Ready;
                });
                regs::RESULT_OK
            }
            (regs::COMMAND_CANCEL, regs::STATE_FAULTED) => {
                self.change(number, |slot, _| {
                    slot.held = None;
                    slot.error = Reason::Cancelled.code();
                    slot.phase = Phase::Error;
                });
                regs::RESULT_OK
            }
            (regs::COMMAND_RESET, _) => match slot.engine {
                Some(engine) => {
                    abandoned = self.reset_engines(1 << engine);
                    regs::RESULT_OK
                }
                None => regs::RESULT_BAD_STATE,
            },
            _ => regs::RESULT_BAD_STATE,
        };
        self.slots[number].result = result;
        abandoned
    }

    fn bind(&mut self, number: usize) -> u64 {
        let slot = &self.slots[number];
        let queue = slot.queue();
        if !slot.is_valid() {
            return regs::RESULT_BAD_CONFIG;
        }
        if self.bound[queue].is_some() {
            return regs::RESULT_BOUND;
        }
        self.bound[queue] = Some(number);
        let (word, bit) = bit(queue);
        self.pending[word] &= !bit;
        self.hardware.counters.add(regs::BINDS, 1);
        let write_index = self.doorbells[queue];
        self.change(number, |slot, _| {
            slot.error = 0;
            slot.fault_va = 0;
            slot.last = Stamp::UNKNOWN;
            slot.wants = slot.classes();
            slot.phase = match slot.read_index == write_index {
                true => Phase::Idle,
                false => Phase::Ready,
            };
        });
        regs::RESULT_OK
    }

    fn unbind(&mut self, number: usize) {
        self.change(number, |slot, _| slot.unbinding = true);
        if self.slots[number].engine.is_none() {
            self.stop_for_unbind(number);
        }
    }

    /// Records that nothing runs any more in a slot that is being unbound.
    fn stop_for_unbind(&mut self, number: usize) {
        self.slots[number].free_at = Some(Instant::now() + self.knobs.delay());
        self.finish_unbinds();
        self.wake |= WAKE_CONTROL;
    }

    /// Completes each UNBIND that is due. Returns when the next one is due.
    pub fn finish_unbinds(&mut self) -> Option<Instant> {
        if self.knobs.no_ack & regs::NO_ACK_UNBIND != 0 {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for number in 0..self.slots.len() {
            if self.slots[number].saving || self.slots[number].held.is_some() {
                continue;
            }
            match self.slots[number].free_at {
                Some(due) if due <= now => self.free(number),
                Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
                None => {}
            }
        }
        next
    }

    /// Returns a slot that is being unbound and holds the state of a program, its VMID, and this
    /// state, to be saved.
    pub fn begin_save(&mut self) -> Option<(usize, usize, Box<Held>)> {
        let wanted = |slot: &Slot| slot.free_at.is_some() && slot.held.is_some();
        let number = self.slots.iter().position(wanted)?;
        let slot = &mut self.slots[number];
        slot.saving = true;
        Some((number, slot.vmid(), slot.held.take()?))
    }

    /// Records that the state of a slot's program is saved or lost.
    pub fn end_save(&mut self, number: usize, progress: u64) {
        let slot = &mut self.slots[number];
        (slot.saving, slot.progress) = (false, progress);
    }

    fn free(&mut self, number: usize) {
        let slot = &self.slots[number];
        let (queue, phase, read_index) = (slot.queue(), slot.phase, slot.read_index);
        self.change(number, |slot, _| {
            slot.phase = Phase::Free;
            slot.unbinding = false;
            slot.free_at = None;
        });
        self.bound[queue] = None;
        self.hardware.counters.add(regs::UNBINDS, 1);
        if phase != Phase::Error && self.doorbells[queue] != read_index {
            self.set_pending(queue);
        }
        self.slot_event |= 1 << number;
        self.raise(regs::INT_SLOT);
    }

    /// Returns the engines that hold a packet or a copy.
    pub fn busy(&self) -> u64 {
        self.slots
            .iter()
            .filter_map(|slot| slot.engine)
            .fold(0, |mask, engine| mask | (1 << engine))
            | (u64::from(self.paging.is_busy()) << regs::PAGING_ENGINE)
    }

    /// Requests that engines be reset. Returns those that must abandon what they hold.
    pub fn reset_engines(&mut self, mask: u64) -> u64 {
        let mask = mask & ((1 << regs::ENGINE_COUNT) - 1);
        self.knobs.stuck &= !mask;
        let busy = mask & self.busy();
        self.engine_resets |= busy;
        if mask & !busy != 0 {
            self.raise(regs::INT_RESET);
        }
        busy
    }

    /// Restores the reset values. No engine may hold anything.
    pub fn reset(&mut self) {
        *self = Self {
            resetting: self.resetting,
            closed: self.closed,
            ..Self::new(Arc::clone(&self.hardware))
        };
    }
}
