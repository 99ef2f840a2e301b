// SPDX-License-Identifier: MIT OR Apache-2.0
//! INVALIDATEs that wait, and INVALIDATEs that are done but not acknowledged yet.

use crate::mmu::Scope;
use crate::regs;
use std::collections::VecDeque;
use std::time::Instant;

/// The INVALIDATE registers and the submitted INVALIDATEs.
#[derive(Debug, Default)]
pub struct Invalidates {
    /// `INV_SCOPE`.
    pub scope: u64,
    /// `INV_FIRST`.
    pub first: u64,
    /// `INV_LAST`.
    pub last: u64,
    /// `INV_DONE`.
    pub done: u64,
    waiting: VecDeque<(u64, Scope)>,
    running: Option<u64>,
    finished: VecDeque<(u64, Instant)>,
    hold: u64,
    /// Whether an INVALIDATE has found no room since `hold` was written.
    wanted: bool,
}

impl Invalidates {
    /// Returns `INV_FREE`.
    pub fn free(&self) -> usize {
        let used = self.waiting.len() + self.finished.len() + usize::from(self.running.is_some());
        regs::INVALIDATE_COUNT.saturating_sub(used)
    }

    /// Returns whether every INVALIDATE that was submitted is acknowledged.
    pub fn is_done(&self) -> bool {
        self.free() == regs::INVALIDATE_COUNT
    }

    /// Queues an INVALIDATE with the values of the registers. Returns false if there is no room.
    pub fn submit(&mut self, sequence: u64) -> bool {
        if self.free() == 0 {
            self.wanted = true;
            return false;
        }
        let vmid = self.scope as usize % regs::VMID_COUNT;
        let scope = Scope {
            vmid: (self.scope & regs::INV_ALL == 0).then_some(vmid),
            first: self.first,
            last: self.last,
        };
        self.waiting.push_back((sequence, scope));
        true
    }

    /// Takes the next INVALIDATE, which is to be carried out now.
    pub fn begin(&mut self) -> Option<Scope> {
        let (sequence, scope) = self.waiting.pop_front()?;
        self.running = Some(sequence);
        Some(scope)
    }

    /// Records that the INVALIDATE that was taken is carried out, and will be acknowledged at
    /// `due`.
    pub fn finish(&mut self, due: Instant) {
        if let Some(sequence) = self.running.take() {
            self.finished.push_back((sequence, due));
        }
    }

    /// Returns `KNOB_HOLD`.
    pub fn hold(&self) -> u64 {
        self.hold
    }

    /// Writes `KNOB_HOLD`.
    pub fn set_hold(&mut self, count: u64) {
        self.hold = count.min(regs::INVALIDATE_COUNT as u64 + 1);
        self.wanted = false;
    }

    /// Records that `INV_FREE` was read. Returns whether an acknowledgement may be due because of
    /// that.
    pub fn looked(&mut self) -> bool {
        let changes = self.hold != 0 && !self.wanted && self.free() == 0;
        self.wanted |= changes;
        changes
    }

    /// Returns whether every INVALIDATE that was carried out is acknowledged.
    pub fn is_idle(&self) -> bool {
        self.finished.is_empty()
    }

    /// Returns when the next acknowledgement is due, as far as that is known.
    pub fn due(&self) -> Option<Instant> {
        let next = self.finished.front().map(|(_, due)| *due);
        next.filter(|_| self.hold == 0)
    }

    /// Acknowledges what is due. Returns false if nothing was.
    pub fn acknowledge(&mut self, now: Instant) -> bool {
        let waiting = self.finished.len() as u64 + u64::from(self.wanted);
        if waiting < self.hold {
            return false;
        }
        self.hold = 0;
        let before = self.finished.len();
        while let Some((sequence, due)) = self.finished.front() {
            if *due > now {
                break;
            }
            self.done = *sequence;
            self.finished.pop_front();
        }
        self.finished.len() < before
    }
}
