// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posted writes (`KNOB_POST_NS`). As on a bus, they arrive in the order in which they were made,
//! and before any read is answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longest time for which a write is posted.
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

/// The posted writes.
#[derive(Debug, Default)]
pub struct Posted {
    delay: u64,
    /// Writes, each with the time at which it arrives by itself.
    writes: VecDeque<(Instant, Write)>,
}

impl Posted {
    /// Returns `KNOB_POST_NS`.
    pub fn delay(&self) -> u64 {
        self.delay
    }

    /// Writes `KNOB_POST_NS`.
    pub fn set_delay(&mut self, nanoseconds: u64) {
        self.delay = nanoseconds.min(MAX_DELAY);
    }

    /// Posts a write. Returns false if writes are not posted.
    pub fn post(&mut self, now: Instant, write: Write) -> bool {
        if self.delay != 0 {
            let due = now + Duration::from_nanos(self.delay);
            self.writes.push_back((due, write));
        }
        self.delay != 0
    }

    /// Takes the first posted write; with `now`, only if it has arrived by then.
    pub fn take(&mut self, now: Option<Instant>) -> Option<Write> {
        let (due, _) = self.writes.front()?;
        if now.is_some_and(|now| *due > now) {
            return None;
        }
        self.writes.pop_front().map(|(_, write)| write)
    }

    /// Returns when the next posted write arrives.
    pub fn due(&self) -> Option<Instant> {
        self.writes.front().map(|(due, _)| *due)
    }
}
