// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events, which a controller reports by itself, and the logs that it keeps.

use std::fmt;

use crate::error::Status;
use crate::identify::number;

/// The numbers of logs that the controller keeps.
pub(crate) const ERRORS: u8 = 1;
pub(crate) const HEALTH: u8 = 2;

/// Something that a controller reports by itself: a type and a code of the specification, as the
/// result of a completion. Returned by [`Controller::event`](crate::Controller::event).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub(crate) u32);

impl Event {
    /// The type: 0 errors, 1 health, 2 notices, 6 of the commands for blocks, 7 of the vendor.
    pub fn kind(self) -> u8 {
        self.0 as u8 & 7
    }

    /// The code, which the specification calls information.
    pub fn code(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The number of the log that says more.
    pub fn log(self) -> u8 {
        (self.0 >> 16) as u8
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match (self.kind(), self.code()) {
            (0, 0) => "a doorbell was written that no queue has",
            (0, 1) => "a doorbell was written with an invalid value",
            (0, _) => "an error",
            (1, 0) => "the medium is not reliable any more",
            (1, 1) => "a temperature is past its threshold",
            (1, 2) => "few spare blocks are left",
            (2, _) => "a notice",
            _ => "an event",
        };
        write!(f, "{words} (type {}, code {})", self.kind(), self.code())
    }
}

/// How a controller and its medium are. Returned by
/// [`Controller::health`](crate::Controller::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Warnings, as bits: 0 few spare blocks, 1 temperature, 2 reliability, 3 read-only, 4 backup
    /// of volatile memory.
    pub warnings: u8,
    /// Temperature in kelvins.
    pub kelvins: u16,
    /// Spare blocks that are left, in percent.
    pub spare: u8,
    /// Percentage of its life that the vendor thinks is used; can be more than 100.
    pub used: u8,
    /// Number of commands that have read.
    pub reads: u64,
    /// Number of commands that have written.
    pub writes: u64,
    /// Hours that the power was on.
    pub hours: u64,
    /// How often the power went before the controller was shut down.
    pub unsafe_shutdowns: u64,
    /// How often data was not what had been written.
    pub media_errors: u64,
}

impl Health {
    /// Decodes the log.
    pub(crate) fn of(page: &[u8]) -> Self {
        // Numbers of 16 bytes, of which nobody has needed more than 8.
        let count = |at: usize| number(page, at..at + 8);
        Self {
            warnings: page[0],
            kelvins: number(page, 1..3) as u16,
            spare: page[3],
            used: page[5],
            reads: count(64),
            writes: count(80),
            hours: count(128),
            unsafe_shutdowns: count(144),
            media_errors: count(160),
        }
    }
}

/// An entry of the error log. Returned by [`Controller::errors`](crate::Controller::errors).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Logged {
    /// Number of the error, since the controller was made.
    pub number: u64,
    /// The queue of the command, as [`Queue::number`](crate::Queue::number) has it; 0 is the admin
    /// queue.
    pub queue: u16,
    /// How the command has ended.
    pub status: Status,
    /// The first block at fault.
    pub block: u64,
    /// The namespace.
    pub namespace: u32,
}

impl Logged {
    /// Decodes the log, the latest entry first.
    pub(crate) fn all(page: &[u8]) -> Vec<Self> {
        let entry = |entry: &[u8]| Self {
            number: number(entry, 0..8),
            queue: number(entry, 8..10) as u16,
            status: Status(number(entry, 12..14) as u16 >> 1),
            block: number(entry, 16..24),
            namespace: number(entry, 24..28) as u32,
        };
        let entries = page.chunks_exact(64).map(entry);
        entries.take_while(|entry| entry.number != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_types_codes_and_words() {
        let event = Event(0x0001_0100);
        assert_eq!((event.kind(), event.code(), event.log()), (0, 1, 1));
        let words = event.to_string();
        assert!(words.contains("invalid value (type 0, code 1)"), "{words}");
        let words = Event(0x0002_0101).to_string();
        assert!(words.contains("temperature"), "{words}");
    }

    #[test]
    fn logs_are_decoded() {
        let mut page = [0; 512];
        (page[0], page[1], page[2], page[3], page[5]) = (2, 0x43, 1, 100, 7);
        for (at, byte) in [(64, 1), (80, 2), (128, 3), (144, 4), (167, 5)] {
            page[at] = byte;
        }
        let health = Health::of(&page);
        assert_eq!((health.warnings, health.kelvins), (2, 0x143));
        assert_eq!((health.spare, health.used), (100, 7));
        assert_eq!((health.reads, health.writes, health.hours), (1, 2, 3));
        assert_eq!((health.unsafe_shutdowns, health.media_errors), (4, 5 << 56));

        let mut page = [0; 256];
        (page[0], page[8], page[16], page[24]) = (9, 3, 5, 1);
        page[12..14].copy_from_slice(&[0x03, 0x85]);
        let logged = Logged::all(&page);
        let status = Status(0x4281);
        let first = (logged[0].number, logged[0].queue, logged[0].status);
        assert_eq!((logged.len(), first), (1, (9, 3, status)));
        assert_eq!((logged[0].block, logged[0].namespace), (5, 1));
    }
}
