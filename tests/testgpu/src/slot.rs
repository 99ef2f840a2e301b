// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hardware slot: the registers of the queue in it, and what it is doing.

use crate::regs;
use std::time::{Duration, Instant};

const CONFIG_DEFINED: u64 = 0x3ff | (0xf << 16) | (3 << 24) | (3 << 28);
/// How long after a fence wait began its fence is read again.
const FIRST_POLL: Duration = Duration::from_micros(20);
/// How long it is at most until it is read again.
const LAST_POLL: Duration = Duration::from_millis(1);

/// What a slot does, apart from whether an engine holds it and whether it is being unbound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Phase {
    Free,
    Idle,
    Ready,
    Waiting,
    Faulted,
    Error,
}

/// A slot.
#[derive(Debug)]
pub struct Slot {
    config: u64,
    /// `SLOT_RING`.
    pub ring: u64,
    /// `SLOT_SIZE`.
    pub size: u64,
    /// `SLOT_READ_INDEX`.
    pub read_index: u64,
    /// `SLOT_PROGRESS`.
    pub progress: u64,
    /// What became of the last command.
    pub result: u64,
    /// `SLOT_SINCE`.
    pub since: u64,
    /// `SLOT_ERROR`.
    pub error: u64,
    /// `SLOT_FAULT_VA`.
    pub fault_va: u64,
    /// What it does.
    pub phase: Phase,
    /// The engine that holds it.
    pub engine: Option<usize>,
    /// UNBIND was asked for.
    pub unbinding: bool,
    /// When UNBIND, which has nothing left to wait for, completes.
    pub free_at: Option<Instant>,
    /// The kinds of engine that can go on with it.
    pub wants: u64,
    /// When it was served last, as a count of all times.
    pub served: u64,
    poll_at: Instant,
    poll_interval: Duration,
}

impl Slot {
    /// A free slot.
    pub fn new() -> Self {
        Self {
            config: 0,
            ring: 0,
            size: 0,
            read_index: 0,
            progress: 0,
            result: regs::RESULT_OK,
            since: 0,
            error: 0,
            fault_va: 0,
            phase: Phase::Free,
            engine: None,
            unbinding: false,
            free_at: None,
            wants: 0,
            served: 0,
            poll_at: Instant::now(),
            poll_interval: FIRST_POLL,
        }
    }

    /// `SLOT_CONFIG`.
    pub fn config(&self) -> u64 {
        self.config
    }

    /// Writes `SLOT_CONFIG`.
    pub fn set_config(&mut self, value: u64) {
        self.config = value & CONFIG_DEFINED;
    }

    /// The queue in it.
    pub fn queue(&self) -> usize {
        (self.config & 0x3ff) as usize
    }

    /// Its address space.
    pub fn vmid(&self) -> usize {
        ((self.config >> 16) & 0xf) as usize
    }

    /// Its engine classes.
    pub fn classes(&self) -> u64 {
        (self.config >> 24) & 3
    }

    /// Its priority.
    pub fn priority(&self) -> u64 {
        (self.config >> 28) & 3
    }

    /// Packets of its ring.
    pub fn ring_packets(&self) -> u64 {
        1 << (self.size & 0x1f)
    }

    /// Whether ring, size and classes can be used.
    pub fn is_valid(&self) -> bool {
        self.ring % regs::PAGE == 0
            && self.ring < regs::VA_END
            && (1..=16).contains(&self.size)
            && self.classes() != 0
    }

    /// What `SLOT_STATE` calls it.
    pub fn state(&self) -> u64 {
        match self.phase {
            Phase::Free => regs::STATE_FREE,
            _ if self.unbinding => regs::STATE_UNBINDING,
            Phase::Waiting => regs::STATE_WAITING,
            _ if self.engine.is_some() => regs::STATE_RUNNING,
            Phase::Idle => regs::STATE_IDLE,
            Phase::Ready => regs::STATE_READY,
            Phase::Faulted => regs::STATE_FAULTED,
            Phase::Error => regs::STATE_ERROR,
        }
    }

    /// When an engine of these kinds may take it; `None` if that is not to be foreseen.
    pub fn runnable_at(&self, kinds: u64, now: Instant) -> Option<Instant> {
        if self.engine.is_some() || self.unbinding || self.wants & kinds == 0 {
            return None;
        }
        match self.phase {
            Phase::Ready => Some(now),
            Phase::Waiting => Some(self.poll_at),
            _ => None,
        }
    }

    /// Its fence has not been reached.
    pub fn wait_for_fence(&mut self, now: Instant) {
        self.poll_interval = match self.phase {
            Phase::Waiting => (self.poll_interval * 2).min(LAST_POLL),
            _ => FIRST_POLL,
        };
        self.phase = Phase::Waiting;
        self.poll_at = now + self.poll_interval;
    }

    /// Its fence may have been reached.
    pub fn poll_now(&mut self, now: Instant) {
        self.poll_at = now;
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}
