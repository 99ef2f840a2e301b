// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for blocks: a namespace makes them, and a queue checks them, before anything is begun,
//! and executes them.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pinmap::{Access, Allocation, Device};

use crate::admin::Shared;
use crate::entry::{entry, Data, Entry};
use crate::error::{demand, Result};
use crate::identify::{Namespace, Optional};
use crate::memory::Memory;
use crate::PAGE;

/// Ranges that dataset management takes.
const RANGES: usize = 256;
/// Blocks of one command: the field for them is 16 bits wide, and has one less.
const BLOCKS: u64 = 1 << 16;

/// A command, with the memory that it is to own. Made by a [`Namespace`], executed by a
/// [`Queue`](crate::Queue), which checks it.
#[derive(Debug)]
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

#[derive(Debug)]
pub(crate) enum What<'n, M> {
    /// With memory, from a block on.
    Transfer(Opcode, u64, M, Range<usize>),
    /// With blocks, or for all.
    Plain(Opcode, Option<Range<u64>>),
    Deallocate(&'n [Range<u64>]),
}

impl Namespace {
    /// Reads blocks, from `block` on, into all of the memory.
    pub fn read<M: Memory>(&self, block: u64, memory: M) -> Command<'_, M> {
        self.transfer(Opcode::Read, block, memory)
    }

    /// Writes all of the memory to blocks, from `block` on.
    pub fn write<M: Memory>(&self, block: u64, memory: M) -> Command<'_, M> {
        self.transfer(Opcode::Write, block, memory)
    }

    /// Compares blocks, from `block` on, with all of the memory. If they differ, the command ends
    /// with a [`Status`](crate::Status) of type 2 and code 0x85.
    pub fn compare<M: Memory>(&self, block: u64, memory: M) -> Command<'_, M> {
        self.transfer(Opcode::Compare, block, memory)
    }

    /// Makes blocks read as zeroes.
    pub fn write_zeroes<M>(&self, blocks: Range<u64>) -> Command<'_, M> {
        self.command(What::Plain(Opcode::WriteZeroes, Some(blocks)))
    }

    /// Reads blocks without memory, to see whether the controller can.
    pub fn verify<M>(&self, blocks: Range<u64>) -> Command<'_, M> {
        self.command(What::Plain(Opcode::Verify, Some(blocks)))
    }

    /// Tells that up to 256 ranges of blocks are not needed any more (dataset management). Until
    /// they are written, they read as the controller likes.
    pub fn deallocate<'n, M>(&'n self, ranges: &'n [Range<u64>]) -> Command<'n, M> {
        self.command(What::Deallocate(ranges))
    }

    /// Makes what was written before survive a loss of power.
    pub fn flush<M>(&self) -> Command<'_, M> {
        self.command(What::Plain(Opcode::Flush, None))
    }

    fn transfer<M: Memory>(&self, opcode: Opcode, block: u64, memory: M) -> Command<'_, M> {
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

    /// The memory of the command.
    pub(crate) fn into_memory(self) -> Option<M> {
        match self.what {
            What::Transfer(_, _, memory, _) => Some(memory),
            _ => None,
        }
    }
}

impl<M: Memory> Command<'_, M> {
    /// Checks the command, and makes its entry, but for the identifier and the memory.
    pub(crate) fn entry(&self, controller: &Arc<Shared>) -> Result<Entry> {
        let (namespace, identity) = (self.namespace, &controller.identity);
        let is_ours = Arc::ptr_eq(&namespace.controller, controller);
        demand!(Invalid, is_ours => "the namespace is another controller's");
        let mut words = [0; 2];
        let (opcode, blocks) = match &self.what {
            What::Transfer(opcode, first, memory, bytes) => {
                let (len, wanted) = (memory.len(), bytes.len());
                let (block, most) = (namespace.block_len(), identity.max_transfer);
                demand!(Invalid, bytes.end <= len => "the bytes {bytes:?} are not in {len} bytes");
                demand!(Invalid, wanted != 0 && wanted % block == 0 =>
                    "{wanted} bytes are not whole blocks of {block} bytes");
                demand!(Invalid, wanted <= most =>
                    "{wanted} bytes are more than one command has, {most}");
                let device = memory.device();
                // A context has one file, however many there are of its `Device`.
                let is_ours = device.as_raw_fd() == controller.device.as_raw_fd();
                demand!(Invalid, is_ours => "the memory is of {device}");
                let is_enough = *opcode != Opcode::Read || memory.access() == Access::ReadWrite;
                demand!(Invalid, is_enough =>
                    "the controller may only read this memory (Access::Read)");
                let blocks = wanted as u64 >> namespace.shift;
                // If that overflows, it is beyond the end as well.
                (*opcode, Some(*first..first.saturating_add(blocks)))
            }
            What::Plain(opcode, blocks) => (*opcode, blocks.clone()),
            What::Deallocate(ranges) => {
                let count = ranges.len();
                let is_possible = (1..=RANGES).contains(&count);
                demand!(Invalid, is_possible => "{count} ranges are not 1 to {RANGES}");
                for blocks in *ranges {
                    check_blocks(namespace, blocks, u32::MAX.into())?;
                }
                // Bit 2 of the attributes: deallocate.
                words[0] = (count as u64 - 1) | (1 << 34);
                (Opcode::Deallocate, None)
            }
        };
        check_opcode(opcode, identity.optional)?;
        if let Some(blocks) = blocks {
            check_blocks(namespace, &blocks, BLOCKS)?;
            let force = u64::from(self.force_unit_access) << 30;
            words = [blocks.start, (blocks.end - blocks.start - 1) | force];
        }
        Ok(entry(opcode as u8, namespace.id, 0, words))
    }
}

/// A page for each command of a queue: a list of pages, or of ranges.
#[derive(Debug)]
pub(crate) struct Lists(Allocation<u64>);

/// Entries of a list: a page of them.
const LIST: usize = PAGE / size_of::<u64>();

impl Lists {
    pub(crate) fn new(device: &Device, commands: u16) -> Result<Self> {
        Ok(Self(device.alloc(usize::from(commands) * LIST)?))
    }

    /// Puts into an entry where the memory or the ranges of a command are. `index` is that of the
    /// list, which nobody has.
    pub(crate) fn fill<M: Memory>(
        &mut self,
        index: usize,
        command: &Command<'_, M>,
        sgl: Option<u64>,
        entry: &mut Entry,
    ) -> Result<()> {
        let list = index * LIST;
        let list_addr = self.0.device_addr() + (list * size_of::<u64>()) as u64;
        match &command.what {
            What::Transfer(_, _, memory, bytes) => {
                let addr = memory.device_addr()?.wrapping_add(bytes.start as u64);
                match Data::new(addr, bytes.len(), sgl)? {
                    Data::Here(flags, data) => {
                        entry[0] |= flags;
                        entry[3..5].copy_from_slice(&data);
                    }
                    Data::List(first, second, count) => {
                        let mut pages = [0; LIST];
                        for (page, index) in pages.iter_mut().zip(0..count as u64) {
                            *page = second.wrapping_add(index * PAGE as u64);
                        }
                        self.0.write(list, &pages[..count])?;
                        (entry[3], entry[4]) = (first, list_addr);
                    }
                }
            }
            What::Deallocate(ranges) => {
                for (index, blocks) in ranges.iter().enumerate() {
                    let len = blocks.end - blocks.start;
                    self.0.write(list + 2 * index, &[len << 32, blocks.start])?;
                }
                entry[3] = list_addr;
            }
            What::Plain(..) => {}
        }
        Ok(())
    }
}

/// Checks that a controller has a command.
fn check_opcode(opcode: Opcode, optional: Optional) -> Result<()> {
    let (known, name) = match opcode {
        Opcode::Compare => (optional.compare, "compare"),
        Opcode::WriteZeroes => (optional.write_zeroes, "write zeroes"),
        Opcode::Deallocate => (optional.deallocate, "dataset management"),
        Opcode::Verify => (optional.verify, "verify"),
        Opcode::Flush | Opcode::Write | Opcode::Read => (true, ""),
    };
    demand!(Unsupported, known => "no command {name}");
    Ok(())
}

/// Checks that blocks are in a namespace, and how many they are.
fn check_blocks(namespace: &Namespace, blocks: &Range<u64>, most: u64) -> Result<()> {
    let Range { start, end } = *blocks;
    let Namespace { id, blocks, .. } = namespace;
    let are_there = start < end && end <= *blocks;
    demand!(Invalid, are_there => "namespace {id} has the blocks 0..{blocks}, not {start}..{end}");
    let count = end - start;
    demand!(Invalid, count <= most => "{count} blocks are more than one command has, {most}");
    Ok(())
}
