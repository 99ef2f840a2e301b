// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for blocks: what a namespace makes, and a queue executes.

use std::fmt;
use std::ops::Range;

use crate::identify::Namespace;

/// A command, with the memory that it is to own. Made by a [`Namespace`], executed by a
/// [`Queue`](crate::Queue), which checks it.
///
/// ```no_run
/// use pinmap::Registration;
/// use pinmap_nvme::{Namespace, Queue};
/// # fn f(
/// #     queue: &mut Queue<Registration>, namespace: &Namespace, memory: Registration,
/// # ) -> Result<(), pinmap_nvme::Error> {
/// // The second page of the memory, to block 100, past all caches.
/// queue.submit(namespace.write(100, memory).part(4096..8192).force_unit_access())?;
/// let done = queue.wait()?;
/// # Ok(()) }
/// ```
#[must_use = "a command does nothing before a queue has it"]
pub struct Command<'n, M> {
    pub(crate) namespace: &'n Namespace,
    pub(crate) what: What<'n, M>,
    pub(crate) force_unit_access: bool,
}

/// Opcodes of the commands for blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    Flush = 0x00,
    Write = 0x01,
    Read = 0x02,
    Compare = 0x05,
    WriteZeroes = 0x08,
    Deallocate = 0x09,
    Verify = 0x0c,
}

pub(crate) enum What<'n, M> {
    /// With memory, from a block on.
    Transfer(Opcode, u64, M, Range<usize>),
    Blocks(Opcode, Range<u64>),
    Deallocate(&'n [Range<u64>]),
    Flush,
}

impl Namespace {
    /// Reads blocks, from `block` on, into all of the memory.
    pub fn read<M: crate::Memory>(&self, block: u64, memory: M) -> Command<'_, M> {
        self.transfer(Opcode::Read, block, memory)
    }

    /// Writes all of the memory to blocks, from `block` on.
    pub fn write<M: crate::Memory>(&self, block: u64, memory: M) -> Command<'_, M> {
        self.transfer(Opcode::Write, block, memory)
    }

    /// Compares blocks, from `block` on, with all of the memory. If they differ, the command ends
    /// with a [`Status`](crate::Status) of type 2 and code 0x85.
    pub fn compare<M: crate::Memory>(&self, block: u64, memory: M) -> Command<'_, M> {
        self.transfer(Opcode::Compare, block, memory)
    }

    /// Makes blocks read as zeroes.
    pub fn write_zeroes<M>(&self, blocks: Range<u64>) -> Command<'_, M> {
        self.command(What::Blocks(Opcode::WriteZeroes, blocks))
    }

    /// Reads blocks without memory, to see whether the controller can.
    pub fn verify<M>(&self, blocks: Range<u64>) -> Command<'_, M> {
        self.command(What::Blocks(Opcode::Verify, blocks))
    }

    /// Tells that up to 256 ranges of blocks are not needed any more (dataset management). Until
    /// they are written, they read as the controller likes.
    pub fn deallocate<'n, M>(&'n self, ranges: &'n [Range<u64>]) -> Command<'n, M> {
        self.command(What::Deallocate(ranges))
    }

    /// Makes what was written before survive a loss of power.
    pub fn flush<M>(&self) -> Command<'_, M> {
        self.command(What::Flush)
    }

    fn transfer<M: crate::Memory>(&self, opcode: Opcode, block: u64, memory: M) -> Command<'_, M> {
        let bytes = 0..memory.len();
        self.command(What::Transfer(opcode, block, memory, bytes))
    }

    fn command<'n, M>(&'n self, what: What<'n, M>) -> Command<'n, M> {
        Command {
            namespace: self,
            what,
            force_unit_access: false,
        }
    }
}

impl<M> Command<'_, M> {
    /// Takes these bytes of the memory, and not all of it.
    pub fn part(mut self, part: Range<usize>) -> Self {
        if let What::Transfer(_, _, _, bytes) = &mut self.what {
            *bytes = part;
        }
        self
    }

    /// Has the command bypass caches that lose their contents without power.
    pub fn force_unit_access(mut self) -> Self {
        self.force_unit_access = true;
        self
    }

    pub(crate) fn opcode(&self) -> Opcode {
        match self.what {
            What::Transfer(opcode, ..) | What::Blocks(opcode, _) => opcode,
            What::Deallocate(_) => Opcode::Deallocate,
            What::Flush => Opcode::Flush,
        }
    }

    /// The memory of the command.
    pub(crate) fn into_memory(self) -> Option<M> {
        match self.what {
            What::Transfer(_, _, memory, _) => Some(memory),
            _ => None,
        }
    }
}

impl<M> fmt::Debug for Command<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut command = f.debug_tuple("Command");
        command.field(&self.opcode());
        match &self.what {
            What::Transfer(_, block, _, bytes) => command.field(block).field(bytes),
            What::Blocks(_, blocks) => command.field(blocks),
            What::Deallocate(ranges) => command.field(ranges),
            What::Flush => &mut command,
        };
        command.finish()
    }
}
