// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings: a stream from the card that is received without a pause, until the channel is stopped.
//!
//! The list of descriptors has no end, and each has a block of the memory. The core fetches as many
//! descriptors as it has credits, one for each block that is free, and holds the design back when
//! there is none: nothing is overwritten. What it writes for a block says that the block is full.

use std::ops::Range;

use pinmap::{Access, Buffer, Registration};

use crate::channel::{nothing, Channel, MASK, STREAM_MAGIC};
use crate::discovery::Direction;
use crate::error::{Error, Failed, Result};
use crate::list::{close, Entry};
use crate::memory::Memory;
use crate::registers::status;
use crate::transfer::Transfer;

/// Credits that a channel can have.
const CREDITS: usize = 1023;

/// A ring, and the blocks of it that were received, and given back.
pub(crate) struct Ring {
    /// Two words for each block, which the core writes.
    told: Registration<Buffer<u32>>,
    block: usize,
    count: usize,
    taken: usize,
    given: usize,
    /// The core wrote what it does not, and was told to stop.
    pub(crate) is_confused: bool,
}

/// A block of a ring that was received. Returned by [`Channel::poll_block`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The bytes of the memory that have content.
    pub bytes: Range<usize>,
    /// Whether a packet has ended with them.
    pub end_of_packet: bool,
}

impl Ring {
    /// The word that tells of the next block; 0: it is not full.
    pub(crate) fn full(&self) -> pinmap::Result<u32> {
        match self.taken == self.given + self.count {
            true => Ok(0),
            false => self.told.load(8 * (self.taken % self.count)),
        }
    }

    /// Takes the next block, if it is full.
    fn next(&mut self) -> Result<Option<Block>> {
        let (index, first) = (self.taken % self.count, self.full()?);
        let len = self.told.load::<u32>(8 * index + 4)? as usize;
        if first == 0 {
            return Ok(None);
        }
        if first >> 16 != STREAM_MAGIC || len > self.block {
            return Err(Error::Confused);
        }
        self.taken += 1;
        let start = index * self.block;
        Ok(Some(Block {
            bytes: start..start + len,
            end_of_packet: first & 1 != 0,
        }))
    }
}

impl<M: Memory> Channel<M> {
    /// Receives a stream without a pause, into blocks of the memory, until the channel is
    /// [stopped](Self::stop). [`wait`](Self::wait) then returns the memory.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start); [`Error::Invalid`]: the channel is no stream from the card,
    /// or the memory has fewer than two blocks, or more than there are descriptors, or 1,023.
    pub fn receive(&mut self, memory: M, block: usize) -> Result<(), Failed<M>> {
        let transfer = Transfer::new(memory).part(0..block);
        let given = self.give_ring(&transfer, block);
        let given = given.map(|ring| _ = self.ring.insert(ring));
        self.fly(transfer, given.map(|()| u32::MAX))
    }

    fn give_ring(&mut self, transfer: &Transfer<M>, block: usize) -> Result<Ring> {
        self.check(transfer)?;
        let count = transfer.memory.len() / block;
        let most = self.options.descriptors.min(CREDITS);
        if self.info.direction != Direction::C2h || !(2..=most).contains(&count) {
            let words = format!(
                "{} has no ring of {count} blocks, but of 2 to {most}",
                self.info
            );
            return Err(Error::Invalid(words));
        }
        let told = Buffer::new(2 * count)?.register(&self.shared.device, Access::ReadWrite)?;
        let held = self.held.as_mut().ok_or(Error::Busy)?;
        let (back, entries) = (told.device_addr()?, &mut held.entries);
        entries.clear();
        let mut are_blocks = true;
        let mut each = |addr, len| {
            are_blocks &= len == block;
            entries.push(Entry::new(back + 8 * entries.len() as u64, addr, len));
        };
        let bytes = 0..count * block;
        transfer.memory.pieces(bytes, block, &mut each)?;
        if !are_blocks || entries.len() != count {
            let words = "the pieces of the memory are not its blocks";
            return Err(Error::Invalid(words.into()));
        }
        close(entries, held.list.device_addr());
        if self.interrupt.is_some() {
            let mask = self.registers.interrupt_mask();
            mask.write(MASK | status::COMPLETED);
        }
        self.common.credit_set().write(self.info.credit_bit());
        self.launch(0)?;
        self.fetch.credits().write(count as u32);
        Ok(Ring {
            told,
            block,
            count,
            taken: 0,
            given: 0,
            is_confused: false,
        })
    }

    /// Returns the next block of the ring, if it is full; if not, an interrupt comes for it.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll); [`Error::TimedOut`], with the memory: the channel was stopped.
    pub fn poll_block(&mut self) -> Result<Option<Block>, Failed<M>> {
        if let Some(block) = self.next_block()? {
            return Ok(Some(block));
        }
        if self.interrupt.is_some() {
            // What is full from here on interrupts; what was before, is there after a read.
            self.registers.status().write(status::COMPLETED);
        }
        let ended = self.ended()?;
        match (self.next_block()?, ended) {
            // What was received before the end goes first.
            (None, Some(status)) => {
                let (error, memory) = (Error::TimedOut, Some(self.end(status)?.memory));
                Err(Failed { error, memory })
            }
            (block, _) => Ok(block),
        }
    }

    /// Takes the next block, if it is full. A core that does other than it was told is stopped.
    fn next_block(&mut self) -> Result<Option<Block>, Failed<M>> {
        let ring = self.ring.as_mut().ok_or(Failed::without(nothing()))?;
        match ring.next() {
            Err(Error::Confused) if !std::mem::replace(&mut ring.is_confused, true) => self.stop(),
            Err(Error::Confused) => {}
            next => return next.map_err(Failed::without),
        }
        Ok(None)
    }

    /// Gives the oldest block that was received back to the core.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: there is no such block.
    pub fn give_back(&mut self) -> Result<()> {
        let ring = self.ring.as_mut().filter(|ring| ring.given != ring.taken);
        let ring = ring.ok_or(Error::Invalid("no block was received".into()))?;
        ring.told.store(8 * (ring.given % ring.count), 0u32)?;
        ring.given += 1;
        self.fetch.credits().write(1);
        Ok(())
    }

    /// Ends what is special about a ring, and returns it, if there was one.
    pub(crate) fn leave_ring(&mut self) -> Option<Ring> {
        let ring = self.ring.take()?;
        self.common.credit_clear().write(self.info.credit_bit());
        if self.interrupt.is_some() {
            self.registers.interrupt_mask().write(MASK);
        }
        Some(ring)
    }
}
