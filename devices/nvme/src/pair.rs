// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pair of queues: one for commands, one for completions, and their doorbells.
//!
//! The caller has fewer commands in flight than there are entries, so neither queue is ever full.

use pinmap::{Access, Allocation, Bar, CompletionRing, Device, RegisterArray, Result, WriteOnly};

use crate::entry::{Completion, Entry};
use crate::registers::DOORBELLS;

/// Queues in memory that the controller reaches.
#[derive(Debug)]
pub(crate) struct Pair {
    submissions: Allocation<Entry>,
    completions: CompletionRing<Completion>,
    /// The tail of the one, and the head of the other.
    doorbells: RegisterArray<u32, WriteOnly>,
    /// Where the next command goes.
    tail: usize,
    /// Whether there are commands that the controller was not told of.
    untold: bool,
    /// How many completions it was told that were taken.
    taken: u64,
}

impl Pair {
    /// Makes the pair with a number; its doorbells are `stride` bytes apart.
    pub(crate) fn new(
        device: &Device,
        bar: &Bar,
        stride: usize,
        number: u16,
        entries: u16,
    ) -> Result<Self> {
        let at = DOORBELLS + 2 * usize::from(number) * stride;
        Ok(Self {
            submissions: device.alloc(entries.into())?,
            completions: device.completion_ring(entries.into(), Access::ReadWrite)?,
            doorbells: bar.register_array(at, stride, 2)?,
            tail: 0,
            untold: false,
            taken: 0,
        })
    }

    /// The device addresses of commands and completions.
    pub(crate) fn addresses(&self) -> Result<(u64, u64)> {
        let completions = self.completions.device_addr()?;
        Ok((self.submissions.device_addr(), completions))
    }

    /// Writes the next command. The controller learns of it by [`tell`](Self::tell).
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) -> Result<()> {
        self.submissions.set(self.tail, entry)?;
        self.tail = (self.tail + 1) % self.submissions.len();
        self.untold = true;
        Ok(())
    }

    /// Tells the controller of new commands, if there are any.
    #[inline]
    pub(crate) fn tell(&mut self) {
        if std::mem::take(&mut self.untold) {
            self.ring(0, self.tail);
        }
    }

    /// Takes the next completion. When there is none, or many were taken, the controller is told
    /// how far it is.
    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<Completion>> {
        let completion = self.completions.pop()?;
        let (head, len) = (self.completions.head(), self.completions.len() as u64);
        let untold = head - self.taken;
        if untold != 0 && (completion.is_none() || untold >= len / 2) {
            self.taken = head;
            self.ring(1, (head % len) as usize);
        }
        Ok(completion)
    }

    fn ring(&self, doorbell: usize, value: usize) {
        if let Some(doorbell) = self.doorbells.get(doorbell) {
            doorbell.write(value as u32);
        }
    }
}
