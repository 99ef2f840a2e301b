// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor of a launch (section 17 of the manual).

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use crate::fault::Reason;
use crate::packet::check_alignment;
use crate::regs;

/// Bytes of a descriptor that the device reads.
pub const DESCRIPTOR_SIZE: usize = regs::PROGRAM_REPORT as usize;
/// Bytes of the arguments that go to registers.
pub const REGISTER_BYTES: u64 = 128;
/// Bytes of a save area, and for each thread.
pub(super) const SAVE_HEAD: u64 = 64;
pub(super) const SAVE_THREAD: u64 = 576;

const FLAGS: u64 = regs::PROGRAM_DETERMINISTIC | regs::PROGRAM_CHECK_STACK;
const MOST_THREADS: u64 = 1024;
const MOST_BLOCKS: u64 = 1 << 32;
const MOST_ARGUMENTS: u64 = 4096;

/// A descriptor whose fields are valid, as far as can be judged without reading memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Descriptor {
    pub deterministic: bool,
    pub check_stack: bool,
    pub entry: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub first: u64,
    pub count: u64,
    pub arguments: u64,
    pub arguments_bytes: u64,
    pub stacks: u64,
    pub stack_bytes: u64,
    pub shared: u64,
    pub shared_bytes: u64,
    pub gp: u64,
    pub ring: u64,
    pub save: u64,
    pub save_bytes: u64,
}

/// Takes fields from bytes.
struct Fields<'a>(&'a [u8; DESCRIPTOR_SIZE]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, offset: u64) -> [u8; N] {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..));
        rest.and_then(|rest| rest.first_chunk())
            .copied()
            .unwrap_or([0; N])
    }

    fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.bytes(offset))
    }

    fn sizes(&self, offset: u64) -> [u32; 3] {
        [0, 4, 8].map(|at| u32::from_le_bytes(self.bytes(offset.wrapping_add(at))))
    }
}

fn product(sizes: [u32; 3], most: u64) -> Result<u64, Reason> {
    let mut product = 1_u64;
    for size in sizes {
        product = product.saturating_mul(size.into());
    }
    match product {
        0 => Err(Reason::BadLength),
        product if product > most => Err(Reason::BadLength),
        product => Ok(product),
    }
}

impl Descriptor {
    /// Decodes a descriptor.
    pub fn decode(bytes: &[u8; DESCRIPTOR_SIZE]) -> Result<Self, Reason> {
        let fields = Fields(bytes);
        let flags = fields.word(regs::PROGRAM_FLAGS);
        let end = regs::PROGRAM_SAVE_BYTES.wrapping_add(8);
        let mut unused = bytes.iter().skip(usize::try_from(end).unwrap_or(0));
        if flags & !FLAGS != 0 || unused.any(|byte| *byte != 0) {
            return Err(Reason::BadField);
        }
        let this = Self {
            deterministic: flags & regs::PROGRAM_DETERMINISTIC != 0,
            check_stack: flags & regs::PROGRAM_CHECK_STACK != 0,
            entry: fields.word(regs::PROGRAM_ENTRY),
            grid: fields.sizes(regs::PROGRAM_GRID),
            block: fields.sizes(regs::PROGRAM_BLOCK),
            first: fields.word(regs::PROGRAM_FIRST),
            count: fields.word(regs::PROGRAM_COUNT),
            arguments: fields.word(regs::PROGRAM_ARGUMENTS),
            arguments_bytes: fields.word(regs::PROGRAM_ARGUMENTS_BYTES),
            stacks: fields.word(regs::PROGRAM_STACKS),
            stack_bytes: fields.word(regs::PROGRAM_STACK_BYTES),
            shared: fields.word(regs::PROGRAM_SHARED),
            shared_bytes: fields.word(regs::PROGRAM_SHARED_BYTES),
            gp: fields.word(regs::PROGRAM_GP),
            ring: fields.word(regs::PROGRAM_RING),
            save: fields.word(regs::PROGRAM_SAVE),
            save_bytes: fields.word(regs::PROGRAM_SAVE_BYTES),
        };
        this.check()?;
        Ok(this)
    }

    fn check(&self) -> Result<(), Reason> {
        check_alignment(self.entry, 2)?;
        check_alignment(self.arguments, 8)?;
        check_alignment(self.arguments_bytes | self.stacks | self.stack_bytes, 16)?;
        check_alignment(self.ring | self.save, 64)?;
        let threads = product(self.block, MOST_THREADS)?;
        let blocks = product(self.grid, MOST_BLOCKS)?;
        let end = self.first.checked_add(self.count);
        let is_in_grid = end.is_some_and(|end| end <= blocks);
        let is_saved = self.save == 0 || self.save_bytes >= save_bytes(threads);
        let arguments = self.arguments_bytes == 0
            || (REGISTER_BYTES..=MOST_ARGUMENTS).contains(&self.arguments_bytes);
        let fit = self.stack_arguments() <= self.stack_bytes;
        if !is_in_grid || !is_saved || !arguments || !fit {
            return Err(Reason::BadLength);
        }
        Ok(())
    }

    /// Threads of a block.
    pub fn threads(&self) -> u64 {
        self.block
            .iter()
            .fold(1, |product, size| product.wrapping_mul((*size).into()))
    }

    /// Bytes of arguments that go to the stack.
    pub fn stack_arguments(&self) -> u64 {
        self.arguments_bytes.saturating_sub(REGISTER_BYTES)
    }

    /// Returns where sp of a thread points at first.
    pub fn stack(&self, thread: u64) -> u64 {
        let end = self.stack_bytes.wrapping_mul(thread.wrapping_add(1));
        self.stacks
            .wrapping_add(end)
            .wrapping_sub(self.stack_arguments())
    }

    /// Whether sp of a thread can be this.
    pub fn is_stack(&self, thread: u64, sp: u64) -> bool {
        let begin = self
            .stacks
            .wrapping_add(self.stack_bytes.wrapping_mul(thread));
        !self.check_stack || sp.wrapping_sub(begin) <= self.stack_bytes
    }
}

/// Returns how long a save area has to be for blocks of so many threads.
pub fn save_bytes(threads: u64) -> u64 {
    SAVE_HEAD.saturating_add(SAVE_THREAD.saturating_mul(threads))
}

/// Splits a number into coordinates in something of this size.
pub(super) fn coordinates(number: u64, size: [u32; 3]) -> [u64; 3] {
    let [x, y, _] = size.map(u64::from);
    let row = number.checked_div(x).unwrap_or(0);
    [
        number.checked_rem(x).unwrap_or(0),
        row.checked_rem(y).unwrap_or(0),
        row.checked_div(y).unwrap_or(0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(change: impl FnOnce(&mut [u64; 24])) -> [u8; DESCRIPTOR_SIZE] {
        let mut words = [0; 24];
        words[1] = 0x1000;
        // Grid 5, 3, 2; block 4, 2, 1.
        words[2] = 5 | (3 << 32);
        words[3] = 2 | (4 << 32);
        words[4] = 2 | (1 << 32);
        words[6] = 30;
        change(&mut words);
        let mut bytes = [0; DESCRIPTOR_SIZE];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn fields_and_their_limits() {
        let descriptor = Descriptor::decode(&bytes(|_| ())).unwrap();
        assert_eq!((descriptor.grid, descriptor.block), ([5, 3, 2], [4, 2, 1]));
        assert_eq!(descriptor.threads(), 8);
        assert_eq!(coordinates(29, descriptor.grid), [4, 2, 1]);
        let checked = Descriptor {
            check_stack: true,
            stacks: 0x1000,
            stack_bytes: 64,
            ..descriptor
        };
        let stack = [0x107f, 0x1080, 0x10c0, 0x10c1, 0].map(|sp| checked.is_stack(2, sp));
        assert_eq!(stack, [false, true, true, false, false]);
        assert!(descriptor.is_stack(2, 0));
        let refused = |word: usize, value, reason| {
            let bytes = bytes(|words| words[word] = value);
            assert_eq!(Descriptor::decode(&bytes), Err(reason), "{word} {value:#x}");
        };
        refused(0, 4, Reason::BadField);
        refused(1, 3, Reason::BadAlignment);
        refused(2, 5, Reason::BadLength);
        refused(2, u64::MAX, Reason::BadLength);
        refused(4, 1025 | (1 << 32), Reason::BadLength);
        refused(5, 1, Reason::BadLength);
        refused(5, u64::MAX, Reason::BadLength);
        refused(7, 4, Reason::BadAlignment);
        refused(8, 112, Reason::BadLength);
        refused(8, 144, Reason::BadLength);
        refused(8, 4112, Reason::BadLength);
        refused(9, 8, Reason::BadAlignment);
        refused(14, 32, Reason::BadAlignment);
        refused(15, 64, Reason::BadLength);
        refused(17, 1, Reason::BadField);
        refused(23, 1 << 63, Reason::BadField);
        let full = bytes(|words| (words[15], words[16]) = (64, save_bytes(8)));
        assert!(Descriptor::decode(&full).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes(words: [u64; 24], small: bool) {
            let bytes = bytes(|place| {
                *place = words.map(|word| if small { word >> 60 } else { word });
                (place[0], place[1]) = (words[0] & 1, words[1] & !1);
                place[17..].fill(0);
            });
            if let Ok(descriptor) = Descriptor::decode(&bytes) {
                prop_assert!((1..=1024).contains(&descriptor.threads()));
                let _ = descriptor.stack(descriptor.threads());
            }
        }
    }
}
