// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of commands, before anything is begun.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pinmap::Access;

use crate::admin::Shared;
use crate::command::{Command, Opcode, What};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::identify::{Identity, Namespace, Optional};
use crate::memory::Memory;

/// Ranges that dataset management takes.
const RANGES: usize = 256;
/// Blocks of one command: the field for them is 16 bits wide, and has one less.
const BLOCKS: u64 = 1 << 16;

fn invalid<T>(words: impl Into<String>) -> Result<T> {
    Err(Error::Invalid(words.into()))
}

impl<M: Memory> Command<'_, M> {
    /// Checks the command, and makes its entry, but for the identifier and the memory.
    pub(crate) fn entry(&self, controller: &Arc<Shared>, identity: &Identity) -> Result<Entry> {
        let namespace = self.namespace;
        if !Arc::ptr_eq(&namespace.controller, controller) {
            return invalid("the namespace is another controller's");
        }
        let opcode = self.opcode();
        check_opcode(opcode, identity.optional)?;
        let mut words = [0; 6];
        if let Some(blocks) = self.blocks() {
            check_blocks(namespace, &blocks, BLOCKS)?;
            words[0] = blocks.start as u32;
            words[1] = (blocks.start >> 32) as u32;
            words[2] = (blocks.end - blocks.start - 1) as u32;
            words[2] |= u32::from(self.force_unit_access) << 30;
        }
        match &self.what {
            What::Transfer(_, _, memory, bytes) => {
                check_memory(namespace, identity, memory.len(), bytes)?;
                // A context has one file, however many there are of its `Device`.
                if memory.device().as_raw_fd() != controller.device.as_raw_fd() {
                    return invalid(format!("the memory is of {}", memory.device()));
                }
                if opcode == Opcode::Read && memory.access() != Access::ReadWrite {
                    return invalid("the controller may only read this memory (Access::Read)");
                }
            }
            What::Deallocate(ranges) => {
                if ranges.is_empty() || ranges.len() > RANGES {
                    return invalid(format!("{} ranges are not 1 to {RANGES}", ranges.len()));
                }
                for blocks in *ranges {
                    check_blocks(namespace, blocks, u32::MAX.into())?;
                }
                // Bit 2 of the attributes: deallocate.
                words[..2].copy_from_slice(&[ranges.len() as u32 - 1, 1 << 2]);
            }
            What::Blocks(..) | What::Flush => {}
        }
        Ok(Entry {
            opcode: opcode as u8,
            namespace: namespace.id,
            words,
            ..Entry::default()
        })
    }

    /// The blocks that the fields of the command name.
    fn blocks(&self) -> Option<Range<u64>> {
        match &self.what {
            What::Transfer(_, first, _, bytes) => {
                let blocks = bytes.len() as u64 >> self.namespace.shift;
                // If that overflows, it is beyond the end as well.
                Some(*first..first.saturating_add(blocks.max(1)))
            }
            What::Blocks(_, blocks) => Some(blocks.clone()),
            What::Deallocate(_) | What::Flush => None,
        }
    }
}

/// Checks that a controller has a command.
fn check_opcode(opcode: Opcode, optional: Optional) -> Result<()> {
    let (known, name) = match opcode {
        Opcode::Compare => (optional.compare(), "compare"),
        Opcode::WriteZeroes => (optional.write_zeroes(), "write zeroes"),
        Opcode::Deallocate => (optional.deallocate(), "dataset management"),
        Opcode::Verify => (optional.verify(), "verify"),
        Opcode::Flush | Opcode::Write | Opcode::Read => (true, ""),
    };
    match known {
        true => Ok(()),
        false => Err(Error::Unsupported(format!("no command {name}"))),
    }
}

/// Checks a part of memory that has `len` bytes.
fn check_memory(
    namespace: &Namespace,
    identity: &Identity,
    len: usize,
    bytes: &Range<usize>,
) -> Result<()> {
    let (wanted, block) = (bytes.len(), namespace.block_len());
    if bytes.end > len {
        return invalid(format!("the bytes {bytes:?} are not in {len} bytes"));
    }
    if wanted == 0 || wanted % block != 0 {
        return invalid(format!(
            "{wanted} bytes are not whole blocks of {block} bytes"
        ));
    }
    if wanted > identity.max_transfer {
        let most = identity.max_transfer;
        return invalid(format!(
            "{wanted} bytes are more than one command has, {most}"
        ));
    }
    Ok(())
}

/// Checks that blocks are in a namespace, and how many they are.
fn check_blocks(namespace: &Namespace, blocks: &Range<u64>, most: u64) -> Result<()> {
    let Range { start, end } = *blocks;
    if start >= end || end > namespace.blocks {
        let Namespace { id, blocks, .. } = namespace;
        let words = format!("namespace {id} has the blocks 0..{blocks}, not {start}..{end}");
        return invalid(words);
    }
    if end - start > most {
        let blocks = end - start;
        return invalid(format!(
            "{blocks} blocks are more than one command has, {most}"
        ));
    }
    Ok(())
}
