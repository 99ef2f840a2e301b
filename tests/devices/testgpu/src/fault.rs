// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reasons for which a queue stops, and the fault queue in which the driver finds them.

use crate::regs;
use std::collections::VecDeque;

/// Codes of faults and errors (section 7 of the manual).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reason {
    NotPresent = regs::NOT_PRESENT as u8,
    Permission = regs::PERMISSION as u8,
    ReservedBit = regs::RESERVED_BIT as u8,
    RootDisabled = regs::ROOT_DISABLED as u8,
    VaRange = regs::VA_RANGE as u8,
    Bus = regs::BUS as u8,
    VramRange = regs::VRAM_RANGE as u8,
    BadOpcode = regs::BAD_OPCODE as u8,
    BadField = regs::BAD_FIELD as u8,
    BadAlignment = regs::BAD_ALIGNMENT as u8,
    BadLength = regs::BAD_LENGTH as u8,
    BadKernel = regs::BAD_KERNEL as u8,
    BadClass = regs::BAD_CLASS as u8,
    BadIndex = regs::BAD_INDEX as u8,
    IllegalInstruction = regs::ILLEGAL_INSTRUCTION as u8,
    Misaligned = regs::MISALIGNED as u8,
    Breakpoint = regs::BREAKPOINT as u8,
    BadCall = regs::BAD_CALL as u8,
    Aborted = regs::ABORTED as u8,
    StateLost = regs::STATE_LOST as u8,
    StackOverflow = regs::STACK_OVERFLOW as u8,
    Timeout = regs::TIMEOUT as u8,
    Cancelled = regs::CANCELLED as u8,
    EngineLost = regs::ENGINE_LOST as u8,
}

impl Reason {
    /// Number of the code.
    pub fn code(self) -> u64 {
        u64::from(self as u8)
    }

    /// Whether the packet can be executed again after the driver has handled the fault.
    pub fn can_be_retried(self) -> bool {
        self.code() <= regs::VRAM_RANGE
    }
}

/// Kind of access that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Access {
    Read = regs::ACCESS_READ as u8,
    Write = regs::ACCESS_WRITE as u8,
    Fetch = regs::ACCESS_FETCH as u8,
    Atomic = regs::ACCESS_ATOMIC as u8,
}

/// Level of a fault that is not the walk's: the walk succeeded, or none was made.
pub const NO_LEVEL: u8 = 4;

/// Description of why and where a queue stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Code of the fault or error.
    pub reason: Reason,
    /// Address that could not be accessed; 0 if the code has no address.
    pub va: u64,
    /// Kind of access that was made there.
    pub access: Access,
    /// The level at which the walk failed, or [`NO_LEVEL`].
    pub level: u8,
}

impl Fault {
    /// Makes a stop that has no address.
    pub fn error(reason: Reason) -> Self {
        Self::at(reason, 0, Access::Read)
    }

    /// Makes a stop at an address; the walk of the page table succeeded.
    pub fn at(reason: Reason, va: u64, access: Access) -> Self {
        Self {
            reason,
            va,
            access,
            level: NO_LEVEL,
        }
    }
}

/// An entry of the fault queue: the four words that its registers show.
pub type Entry = [u64; 4];

/// The queue that stopped, and where it was.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// Hardware slot of the queue.
    pub slot: usize,
    /// Id of the queue.
    pub queue: usize,
    /// VMID of the queue.
    pub vmid: usize,
    /// Index of the packet.
    pub index: u64,
    /// Opcode of the packet, 0 if it was not fetched.
    pub opcode: u8,
}

impl Victim {
    /// Makes the entry for a fault of this queue at time `now`.
    pub fn entry(&self, fault: &Fault, now: u64) -> Entry {
        let fields = [
            (self.vmid as u64, 0),
            (fault.access as u64, 8),
            (fault.level.into(), 12),
            (fault.reason.code(), 16),
            (self.slot as u64, 24),
            (self.queue as u64, 32),
            (self.opcode.into(), 48),
        ];
        let info = fields
            .iter()
            .fold(0, |info, (value, shift)| info | (value << shift));
        [info, fault.va, self.index, now]
    }
}

/// The fault queue.
#[derive(Debug, Default)]
pub struct FaultQueue {
    /// Entries that were not taken yet, and taken ones whose place was not used again: at most
    /// [`regs::FAULT_COUNT`], newest last.
    entries: VecDeque<Entry>,
    written: u64,
    taken: u64,
    dropped: u64,
}

impl FaultQueue {
    /// Adds an entry, or counts it as dropped.
    pub fn push(&mut self, entry: Entry) {
        if self.written - self.taken == regs::FAULT_COUNT as u64 {
            self.dropped += 1;
            return;
        }
        if self.entries.len() == regs::FAULT_COUNT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
        self.written += 1;
    }

    /// Number of entries written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Number of entries that the driver has taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of entries that were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Records that the driver has taken entries up to `index`. Returns false if that is
    /// impossible.
    pub fn take(&mut self, index: u64) -> bool {
        let valid = (self.taken..=self.written).contains(&index);
        if valid {
            self.taken = index;
        }
        valid
    }

    /// Returns the entry in a place of the queue; zeros if there never was one.
    pub fn place(&self, place: usize) -> Entry {
        let count = regs::FAULT_COUNT as u64;
        // the newest entry whose index is `place` modulo the size
        let age = self.written.wrapping_sub(1).wrapping_sub(place as u64) % count;
        let position = (self.entries.len() as u64)
            .checked_sub(age + 1)
            .and_then(|position| usize::try_from(position).ok());
        position
            .and_then(|position| self.entries.get(position).copied())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_in_their_places() {
        let mut queue = FaultQueue::default();
        assert_eq!(queue.place(0), [0; 4]);
        for i in 0..200 {
            queue.push([i, 0, 0, 0]);
            assert_eq!(queue.place(i as usize % 64), [i, 0, 0, 0]);
            assert!(queue.take(i + 1));
        }
        assert_eq!(queue.place(0)[0], 192);
        assert_eq!(queue.place(7)[0], 199);
        assert_eq!(queue.place(8)[0], 136);
        assert_eq!((queue.written(), queue.dropped()), (200, 0));
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let mut queue = FaultQueue::default();
        for i in 0..70 {
            queue.push([i, 0, 0, 0]);
        }
        assert_eq!((queue.written(), queue.dropped()), (64, 6));
        assert_eq!(queue.place(63)[0], 63);
        assert!(!queue.take(65));
        assert!(queue.take(1));
        assert!(!queue.take(0));
        queue.push([99, 0, 0, 0]);
        assert_eq!(queue.place(0)[0], 99);
    }
}
