// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hardware slot: the registers of its queue, and its state.

use crate::program::Held;
use crate::regs;
use std::time::{Duration, Instant};

const CONFIG_DEFINED: u64 = 0x3ff | (0xf << 16) | (3 << 24) | (3 << 28);
/// Time from the begin of a fence wait to the first poll of its fence.
const FIRST_POLL: Duration = Duration::from_micros(20);
/// Longest time between two polls of a fence.
const LAST_POLL: Duration = Duration::from_millis(1);

/// State of a slot, apart from whether an engine holds its packet and whether it is being unbound.
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

/// Size of a stamp in memory, in bytes.
pub const STAMP_SIZE: usize = 32;

/// When an engine held a packet that it completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// `TIME` when the engine took the packet.
    pub began: u64,
    /// `TIME` when the packet was done.
    pub ended: u64,
    /// The engine.
    pub engine: usize,
}

impl Stamp {
    /// The stamp of a packet that is not known.
    pub const UNKNOWN: Self = Self {
        began: 0,
        ended: 0,
        engine: 0xff,
    };

    /// Returns the bytes that are stored at this time.
    pub fn bytes(self, now: u64) -> [u8; STAMP_SIZE] {
        let mut bytes = [0; STAMP_SIZE];
        let words = [now, self.began, self.ended, self.engine as u64];
        for (word, to) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
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
    /// State of a program that stopped, or has not gone on yet.
    pub held: Option<Box<Held>>,
    /// Whether that is being saved.
    pub saving: bool,
    /// Result of the last command.
    pub result: u64,
    /// `SLOT_SINCE`.
    pub since: u64,
    /// `SLOT_ERROR`.
    pub error: u64,
    /// `SLOT_FAULT_VA`.
    pub fault_va: u64,
    /// State of the slot.
    pub phase: Phase,
    /// Engine that holds the slot's packet.
    pub engine: Option<usize>,
    /// Whether UNBIND was requested.
    pub unbinding: bool,
    /// When an UNBIND that waits for nothing else completes.
    pub free_at: Option<Instant>,
    /// Times of the packet that was completed last, since the queue was bound.
    pub last: Stamp,
    /// Kinds of engine that can execute the next packet.
    pub wants: u64,
    /// Number of the last time that the slot was served, counted over all slots.
    pub served: u64,
    poll_at: Instant,
    poll_interval: Duration,
}

impl Slot {
    /// Makes a free slot.
    pub fn new() -> Self {
        Self {
            config: 0,
            ring: 0,
            size: 0,
            read_index: 0,
            progress: 0,
            held: None,
            saving: false,
            result: regs::RESULT_OK,
            since: 0,
            error: 0,
            fault_va: 0,
            phase: Phase::Free,
            engine: None,
            unbinding: false,
            free_at: None,
            last: Stamp::UNKNOWN,
            wants: 0,
            served: 0,
            poll_at: Instant::now(),
            poll_interval: FIRST_POLL,
        }
    }

    /// Returns `SLOT_CONFIG`.
    pub fn config(&self) -> u64 {
        self.config
    }

    /// Writes `SLOT_CONFIG`.
    pub fn set_config(&mut self, value: u64) {
        self.config = value & CONFIG_DEFINED;
    }

    /// Returns the id of the queue in the slot.
    pub fn queue(&self) -> usize {
        (self.config & 0x3ff) as usize
    }

    /// Returns the VMID of the queue.
    pub fn vmid(&self) -> usize {
        ((self.config >> 16) & 0xf) as usize
    }

    /// Returns the engine classes of the queue.
    pub fn classes(&self) -> u64 {
        (self.config >> 24) & 3
    }

    /// Returns the priority of the queue.
    pub fn priority(&self) -> u64 {
        (self.config >> 28) & 3
    }

    /// Returns how many packets the ring holds.
    pub fn ring_packets(&self) -> u64 {
        1 << (self.size & 0x1f)
    }

    /// Returns whether ring, size and classes are valid.
    pub fn is_valid(&self) -> bool {
        self.ring % regs::PAGE == 0
            && self.ring < regs::VA_END
            && (1..=16).contains(&self.size)
            && self.classes() != 0
    }

    /// Returns the state's number in `SLOT_STATE`.
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

    /// Returns when an engine of these kinds may take the slot's packet; `None` if that is not
    /// known yet.
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

    /// Records that the fence has not been reached.
    pub fn wait_for_fence(&mut self, now: Instant) {
        self.poll_interval = match self.phase {
            Phase::Waiting => (self.poll_interval * 2).min(LAST_POLL),
            _ => FIRST_POLL,
        };
        self.phase = Phase::Waiting;
        self.poll_at = now + self.poll_interval;
    }

    /// Records that the fence may have been reached.
    pub fn poll_now(&mut self, now: Instant) {
        self.poll_at = now;
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}
