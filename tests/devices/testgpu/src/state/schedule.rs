// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses which engine executes which packet, and updates the queue afterwards. Likewise for the
//! copies of the paging engine.

use super::{bit, State, WAKE_CONTROL};
use crate::fault::{Fault, Reason, Victim};
use crate::pacer::Stop;
use crate::packet::PACKET_SIZE;
use crate::paging::Transfer;
use crate::program::Held;
use crate::regs;
use crate::slot::{Phase, Slot, Stamp};
use std::time::{Duration, Instant};

/// A packet to be executed.
#[derive(Debug)]
pub struct Job {
    /// Queue of the packet.
    pub victim: Victim,
    /// VA of the packet.
    pub va: u64,
    /// The queue's engine classes.
    pub classes: u64,
    /// Whether write index and read index are consistent.
    pub valid_index: bool,
    /// How far the packet has come.
    pub progress: u64,
    /// State of a program that stopped.
    pub held: Option<Box<Held>>,
    /// Times of the packet before.
    pub last: Stamp,
    /// How long the packet may run.
    pub max_run: Duration,
}

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet is done.
    Done {
        /// Whether the packet wrote a fence.
        fence: bool,
        /// Whether the packet was INTERRUPT.
        interrupt: bool,
    },
    /// The packet waits for a fence that is not reached.
    Waiting,
    /// The packet needs an engine of another kind.
    Elsewhere(u64),
    /// The packet stopped its queue.
    Stopped(Fault),
    /// The packet was abandoned for a reset.
    Abandoned,
}

/// Next action of an engine.
#[derive(Debug)]
pub enum Pick {
    /// Execute this packet.
    Job(Job),
    /// Wait until woken up, or until the given time.
    Wait(Option<Instant>),
}

/// Returns the class of an engine.
pub fn class_of(engine: usize) -> u64 {
    if engine < regs::COPY_ENGINE_COUNT {
        regs::CLASS_COPY
    } else {
        regs::CLASS_COMPUTE
    }
}

/// Bits of the copy engines that a packet may name; the first engine is the lowest bit.
const ONE_COPY_ENGINE: u64 = 0x100;

/// Returns the class of an engine, and its number within the class.
pub fn kinds_of(engine: usize) -> u64 {
    match class_of(engine) {
        regs::CLASS_COPY => regs::CLASS_COPY | (ONE_COPY_ENGINE << engine),
        class => class,
    }
}

/// Returns which engines can execute a copy, given the packet's flags.
pub fn copy_kinds(flags: u64) -> u64 {
    match flags {
        0 => regs::CLASS_COPY,
        flags => flags * ONE_COPY_ENGINE,
    }
}

/// Returns the kinds of engine that a queue of these classes may use.
pub fn kinds_in(classes: u64) -> u64 {
    match classes & regs::CLASS_COPY {
        0 => classes,
        _ => classes | (ONE_COPY_ENGINE * (regs::COPY_ENGINE_0 | regs::COPY_ENGINE_1)),
    }
}

impl State {
    /// Returns the next packet for an engine.
    pub fn pick(&mut self, engine: usize) -> Pick {
        if self.resetting.is_some() {
            return Pick::Wait(None);
        }
        let now = Instant::now();
        let (class, kinds) = (class_of(engine), kinds_of(engine));
        let mut best: Option<usize> = None;
        let mut next: Option<Instant> = None;
        let mut others = false;
        for (number, slot) in self.slots.iter().enumerate() {
            let Some(at) = slot.runnable_at(kinds, now) else {
                continue;
            };
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
                continue;
            }
            // VMIDs take turns. Priorities count within a VMID.
            let turns = &self.turns;
            let rank = |slot: &Slot| {
                let waits = u64::MAX - turns[slot.vmid()];
                (waits, slot.priority(), u64::MAX - slot.served)
            };
            others |= best.is_some();
            if best.is_none_or(|best| rank(slot) > rank(&self.slots[best])) {
                best = Some(number);
            }
        }
        let Some(number) = best else {
            return Pick::Wait(next);
        };
        if others || next.is_some() {
            // Another engine must look after them, because this one is busy now.
            self.wake |= class;
        }
        self.served += 1;
        let served = self.served;
        let vmid = self.slots[number].vmid();
        self.turns[vmid] = served;
        let stuck = self.knobs.stuck & (1 << engine) != 0;
        self.change(number, |slot, _| {
            slot.engine = Some(engine);
            slot.served = served;
            if stuck {
                slot.phase = Phase::Ready;
            }
        });
        let held = self.slots[number].held.take();
        Pick::Job(Job {
            held,
            ..self.job(number)
        })
    }

    fn job(&self, number: usize) -> Job {
        let slot = &self.slots[number];
        let packets = slot.ring_packets();
        let ahead = self.doorbells[slot.queue()].wrapping_sub(slot.read_index);
        Job {
            victim: Victim {
                slot: number,
                queue: slot.queue(),
                vmid: slot.vmid(),
                index: slot.read_index,
                opcode: 0,
            },
            // below 2^48 + 2^22: the ring may reach beyond the end, which faults
            va: slot.ring + (slot.read_index & (packets - 1)) * PACKET_SIZE as u64,
            classes: slot.classes(),
            valid_index: (1..=packets).contains(&ahead),
            progress: slot.progress,
            held: None,
            last: slot.last,
            max_run: Duration::from_nanos(self.max_run),
        }
    }

    /// Handles the outcome of a packet.
    pub fn complete(
        &mut self,
        stamp: Stamp,
        job: &Job,
        opcode: u8,
        (progress, held): (u64, Option<Box<Held>>),
        outcome: Outcome,
    ) {
        let number = job.victim.slot;
        let engine = stamp.engine;
        let write_index = self.doorbells[job.victim.queue];
        let lost = self.engine_resets & (1 << engine) != 0;
        let fault = match outcome {
            Outcome::Stopped(fault) => Some(fault),
            Outcome::Abandoned if lost => Some(Fault::error(Reason::EngineLost)),
            _ => None,
        };
        self.change(number, |slot, now| {
            slot.engine = None;
            slot.progress = progress;
            slot.held = held;
            match outcome {
                Outcome::Done { .. } => {
                    slot.read_index = slot.read_index.wrapping_add(1);
                    slot.progress = 0;
                    slot.last = stamp;
                    slot.wants = slot.classes();
                    slot.phase = match slot.read_index == write_index {
                        true => Phase::Idle,
                        false => Phase::Ready,
                    };
                }
                Outcome::Waiting => slot.wait_for_fence(now),
                Outcome::Elsewhere(wants) => {
                    slot.wants = wants;
                    slot.phase = Phase::Ready;
                }
                Outcome::Stopped(_) | Outcome::Abandoned => {}
            }
            if let Some(fault) = fault {
                slot.error = fault.reason.code();
                slot.fault_va = fault.va;
                slot.phase = match fault.reason.can_be_retried() {
                    true => Phase::Faulted,
                    false => Phase::Error,
                };
            }
        });
        if let Outcome::Done { fence: true, .. } = outcome {
            self.poll_fences();
        }
        if let Outcome::Done {
            interrupt: true, ..
        } = outcome
        {
            let (word, bit) = bit(job.victim.queue);
            self.completion[word] |= bit;
            self.raise(regs::INT_COMPLETION);
        }
        if let Some(fault) = fault {
            self.report(
                Victim {
                    opcode,
                    ..job.victim
                },
                &fault,
            );
        }
        if self.slots[number].unbinding {
            self.stop_for_unbind(number);
        }
        self.let_go(engine);
    }

    /// Records that an engine holds nothing any more, for which a reset may have waited.
    fn let_go(&mut self, engine: usize) {
        let bit = 1 << engine;
        if self.engine_resets & bit != 0 {
            self.engine_resets &= !bit;
            self.raise(regs::INT_RESET);
        }
        if self.resetting.is_some() {
            self.wake |= WAKE_CONTROL;
        }
    }

    /// Returns the next copy for the paging engine, and how long it may take.
    pub fn begin_copy(&mut self) -> Option<(Transfer, Duration)> {
        if self.resetting.is_some() {
            return None;
        }
        let transfer = self.paging.begin()?;
        Some((transfer, Duration::from_nanos(self.max_run)))
    }

    /// Handles the outcome of a copy of the paging engine.
    pub fn complete_copy(&mut self, outcome: Result<(), Stop>) {
        let engine = regs::PAGING_ENGINE as usize;
        let result = match outcome {
            Ok(()) => Some(Ok(())),
            Err(Stop::Fault(fault)) => Some(Err(fault.reason)),
            Err(Stop::Abandoned) if self.engine_resets & (1 << engine) != 0 => {
                Some(Err(Reason::EngineLost))
            }
            // The whole device is reset, and forgets the copy.
            Err(Stop::Abandoned) => None,
        };
        let due = Instant::now() + self.knobs.delay();
        self.paging.finish(result, due);
        if self.end_copies().is_some() {
            self.wake |= WAKE_CONTROL;
        }
        self.let_go(engine);
    }

    /// Ends each copy of the paging engine that is due. Returns when the next one is due.
    pub fn end_copies(&mut self) -> Option<Instant> {
        if self.knobs.no_ack & regs::NO_ACK_PAGING != 0 {
            return None;
        }
        if self.paging.end(Instant::now()) {
            self.raise(regs::INT_PAGING);
        }
        self.paging.due()
    }

    fn report(&mut self, victim: Victim, fault: &Fault) {
        self.hardware.counters.add(regs::FAULTS, 1);
        self.faults.push(victim.entry(fault, self.hardware.now()));
        self.slot_event |= 1 << victim.slot;
        self.raise(regs::INT_FAULT | regs::INT_SLOT);
    }

    fn poll_fences(&mut self) {
        let now = Instant::now();
        for slot in &mut self.slots {
            if slot.phase == Phase::Waiting {
                slot.poll_now(now);
                self.wake |= slot.wants;
            }
        }
    }
}
