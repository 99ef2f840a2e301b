// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trouble knobs (section 12 of the manual), except `KNOB_LOSE_INTERRUPTS`, which is in
//! `interrupt`.

use std::time::{Duration, Instant};

/// Longest delay that a knob can add.
const MAX_DELAY: u64 = 10_000_000_000;

/// State of the knobs.
#[derive(Debug, Default)]
pub struct Knobs {
    delay: u64,
    after_unmap: u64,
    /// Write through a dropped translation that is still to be made: its address, and when (`None`:
    /// the INVALIDATE is not acknowledged yet).
    pending: Option<(u64, u64, Option<Instant>)>,
    /// `KNOB_AFTER_RESULT`.
    pub after_result: u64,
    /// `KNOB_AFTER_ADDRESS`.
    pub after_address: u64,
    /// `KNOB_STUCK`.
    pub stuck: u64,
    /// `KNOB_NO_ACK`.
    pub no_ack: u64,
}

impl Knobs {
    /// Returns `KNOB_DELAY_NS`.
    pub fn delay_register(&self) -> u64 {
        self.delay
    }

    /// Writes `KNOB_DELAY_NS`.
    pub fn set_delay(&mut self, nanoseconds: u64) {
        self.delay = nanoseconds.min(MAX_DELAY);
    }

    /// Returns the delay of completions.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// Returns `KNOB_AFTER_UNMAP`.
    pub fn after_unmap(&self) -> u64 {
        self.after_unmap
    }

    /// Writes `KNOB_AFTER_UNMAP`.
    pub fn set_after_unmap(&mut self, nanoseconds: u64) {
        self.after_unmap = nanoseconds.min(MAX_DELAY);
        self.pending = None;
        if nanoseconds != 0 {
            self.after_result = 0;
            self.after_address = 0;
        }
    }

    /// Records that an INVALIDATE dropped a writable translation to `address`.
    pub fn dropped(&mut self, address: u64) {
        if self.after_unmap != 0 {
            self.pending = Some((address, self.after_unmap, None));
            self.after_unmap = 0;
        }
    }

    /// Records that the INVALIDATE was acknowledged.
    pub fn acknowledged(&mut self, now: Instant) {
        if let Some((_, delay, due @ None)) = &mut self.pending {
            *due = Some(now + Duration::from_nanos(*delay));
        }
    }

    /// Returns when the write is due.
    pub fn due(&self) -> Option<Instant> {
        self.pending.and_then(|(_, _, due)| due)
    }

    /// Takes the write if it is due, and returns its bus address.
    pub fn take_write(&mut self, now: Instant) -> Option<u64> {
        if self.due()? > now {
            return None;
        }
        self.pending.take().map(|(address, ..)| address)
    }
}
