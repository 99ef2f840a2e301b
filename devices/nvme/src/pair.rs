// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pair of queues: one for commands, one for completions, and their doorbells.
//!
//! The caller has fewer commands in flight than there are entries, so neither queue is ever full.

use pinmap::{Access, Allocation, Bar, CompletionRing, RegisterArray, Result, WriteOnly};

use crate::admin::Shared;
use crate::entry::{Completion, Entry};
use crate::registers::DOORBELLS;

/// Where commands are: in memory, or in the controller.
#[derive(Debug)]
enum Submissions {
    Here(Allocation<Entry>),
    There(Bar),
}

/// Queues in memory that the controller reaches.
#[derive(Debug)]
pub(crate) struct Pair {
    submissions: Submissions,
    /// The device address of the commands.
    addr: u64,
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
    /// Makes the pair with a number, whose commands are in memory, or at a place in the controller.
    pub(crate) fn new(
        shared: &Shared,
        number: u16,
        entries: u16,
        place: Option<(Bar, u64)>,
    ) -> Result<Self> {
        let (device, stride) = (&shared.device, shared.capabilities.stride);
        let at = DOORBELLS + 2 * usize::from(number) * stride;
        let (submissions, addr) = match place {
            Some((bar, addr)) => (Submissions::There(bar), addr),
            None => {
                let memory = device.alloc(entries.into())?;
                let addr = memory.device_addr();
                (Submissions::Here(memory), addr)
            }
        };
        Ok(Self {
            submissions,
            addr,
            completions: device.completion_ring(entries.into(), Access::ReadWrite)?,
            doorbells: shared.bar.register_array(at, stride, 2)?,
            tail: 0,
            untold: false,
            taken: 0,
        })
    }

    /// The device addresses of commands and completions.
    pub(crate) fn addresses(&self) -> Result<(u64, u64)> {
        Ok((self.addr, self.completions.device_addr()?))
    }

    /// Writes the next command. The controller learns of it by [`tell`](Self::tell).
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) -> Result<()> {
        match &mut self.submissions {
            Submissions::Here(memory) => memory.set(self.tail, entry)?,
            Submissions::There(bar) => {
                bar.write_slice(self.tail * size_of::<Entry>(), &entry)?;
                // The doorbell must not overtake it.
                bar.flush();
            }
        }
        self.tail = (self.tail + 1) % self.completions.len();
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
