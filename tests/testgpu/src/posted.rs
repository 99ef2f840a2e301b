// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that are on their way (`KNOB_POST_NS`): as on a bus, they arrive in the order in which they were made, and before
//! any read is answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longest time that a write is on its way.
const MAX_DELAY: u64 = 10_000_000_000;

/// A write to BAR 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Write {
    pub is_doorbell: bool,
    pub offset: u64,
    pub bytes: usize,
    pub value: u64,
}

/// The writes that are on their way.
#[derive(Debug, Default)]
pub struct Posted {
    delay: u64,
    /// Each with when it arrives by itself.
    writes: VecDeque<(Instant, Write)>,
}

impl Posted {
    /// `KNOB_POST_NS`.
    pub fn delay(&self) -> u64 {
        self.delay
    }

    /// Writes `KNOB_POST_NS`.
    pub fn set_delay(&mut self, nanoseconds: u64) {
        self.delay = nanoseconds.min(MAX_DELAY);
    }

    /// Sends a write on its way. `false`: it takes no time.
    pub fn post(&mut self, now: Instant, write: Write) -> bool {
        if self.delay != 0 {
            let due = now + Duration::from_nanos(self.delay);
            self.writes.push_back((due, write));
        }
        self.delay != 0
    }

    /// Takes the first of them; `now`: only if it has arrived by then.
    pub fn take(&mut self, now: Option<Instant>) -> Option<Write> {
        let (due, _) = self.writes.front()?;
        if now.is_some_and(|now| *due > now) {
            return None;
        }
        self.writes.pop_front().map(|(_, write)| write)
    }

    /// When the next one arrives.
    pub fn due(&self) -> Option<Instant> {
        self.writes.front().map(|(due, _)| *due)
    }
}
