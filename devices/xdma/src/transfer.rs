// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers: what a channel executes, and what comes back.

use std::ops::Range;

use crate::memory::Memory;

/// A transfer, with the memory that it is to own. Executed by a [`Channel`](crate::Channel), which
/// checks it.
#[derive(Debug)]
#[must_use = "a transfer does nothing before a channel has it"]
pub struct Transfer<M> {
    pub(crate) memory: M,
    pub(crate) part: Range<usize>,
    /// The card's address; `None` for a stream.
    pub(crate) at: Option<u64>,
    pub(crate) fixed: bool,
    pub(crate) ends: bool,
}

impl<M: Memory> Transfer<M> {
    /// A transfer of all of the memory: of whole pages, if it is a registered `Buffer`. On a
    /// channel to the card it is read, on one to the host written.
    pub fn new(memory: M) -> Self {
        Self {
            part: 0..memory.len(),
            memory,
            at: None,
            fixed: false,
            ends: true,
        }
    }

    /// Sets the card's address, which a memory-mapped channel needs.
    pub fn at(mut self, address: u64) -> Self {
        self.at = Some(address);
        self
    }

    /// Takes these bytes of the memory, and not all of it.
    pub fn part(mut self, part: Range<usize>) -> Self {
        self.part = part;
        self
    }

    /// Makes each access of the card's side go to the same address, as for a FIFO.
    pub fn fixed(mut self) -> Self {
        self.fixed = true;
        self
    }

    /// Makes a packet on a stream to the card go on with the next transfer.
    pub fn more(mut self) -> Self {
        self.ends = false;
        self
    }
}

/// A transfer that is done.
#[derive(Debug)]
pub struct Done<M> {
    /// The memory of the transfer.
    pub memory: M,
    /// How many bytes were transferred. From a stream these can be fewer than there is memory for.
    pub len: usize,
    /// Whether the packet of a stream has ended with these bytes.
    pub end_of_packet: bool,
}
