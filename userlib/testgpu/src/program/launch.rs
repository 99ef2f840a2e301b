// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches of kernels: the descriptor (section 17 of the device's manual) and its memory.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use pinmap::accelerator::{FaultCode, Kernel, Operands, Packet, Pinned, Work};
use pinmap::{Allocation, Result};

use crate::packet::{self, Format};

use super::arguments::Arguments;
use super::error::{ProgramError, Trap};
use super::ring::{self, Message};
use super::Loaded;

/// Number of the kernel that runs a program.
const KERNEL_PROGRAM: u32 = 11;
/// Threads of a block.
const MOST_THREADS: u64 = 1024;
/// Blocks of a grid.
const MOST_BLOCKS: u64 = 1 << 32;
/// Bytes of the stack of a thread, unless the grid says otherwise.
const STACK: usize = 4096;
/// Flags: the clock counts instructions, and sp stays in the stack of the thread.
const DETERMINISTIC: u64 = 1;
const CHECK_STACK: u64 = 2;
/// Bytes of the descriptor, and of the arguments behind it.
const DESCRIPTOR: usize = 256;
const ARGUMENTS: usize = 4096;
const RING: usize = DESCRIPTOR + ARGUMENTS;
/// Bytes of a save area, and more for each thread.
const SAVE: usize = 64;
const SAVE_THREAD: usize = 576;

/// Fields of the descriptor.
mod field {
    pub(super) const FLAGS: usize = 0x00;
    pub(super) const ENTRY: usize = 0x08;
    pub(super) const GRID: usize = 0x10;
    pub(super) const BLOCK: usize = 0x1c;
    pub(super) const COUNT: usize = 0x30;
    pub(super) const ARGUMENTS: usize = 0x38;
    pub(super) const ARGUMENTS_BYTES: usize = 0x40;
    pub(super) const STACKS: usize = 0x48;
    pub(super) const STACK_BYTES: usize = 0x50;
    pub(super) const SHARED: usize = 0x58;
    pub(super) const SHARED_BYTES: usize = 0x60;
    pub(super) const RING: usize = 0x70;
    pub(super) const SAVE: usize = 0x78;
    pub(super) const SAVE_BYTES: usize = 0x80;
    pub(super) const REPORT: usize = 0xc0;
}

/// The code in a report that the device has not written.
const UNWRITTEN: u64 = u64::MAX;

/// A number of blocks or threads in x, y and z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim(pub [u32; 3]);

impl From<u32> for Dim {
    fn from(x: u32) -> Self {
        Self([x, 1, 1])
    }
}

impl From<(u32, u32)> for Dim {
    fn from((x, y): (u32, u32)) -> Self {
        Self([x, y, 1])
    }
}

impl From<(u32, u32, u32)> for Dim {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self([x, y, z])
    }
}

impl Dim {
    /// The product, if it is from 1 to `most`.
    fn count(self, most: u64) -> Option<u64> {
        let all = self.0.into_iter().map(u64::from);
        let count = all.into_iter().try_fold(1u64, u64::checked_mul)?;
        (1..=most).contains(&count).then_some(count)
    }
}

/// The blocks and threads of a launch, and what these have.
///
/// ```
/// use pinmap_testgpu::program::Grid;
///
/// // 8 × 8 blocks of 16 × 16 threads, with a tile for each block.
/// let grid = Grid::new((8, 8), (16, 16)).shared_bytes(16 * 16 * 4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    blocks: Dim,
    threads: Dim,
    shared: usize,
    stack: Option<usize>,
    print: usize,
    deterministic: bool,
}

impl Grid {
    /// So many blocks of so many threads. Each thread has a stack of 4 KiB, or 8 KiB for a kernel
    /// in Rust, and what the threads print may have 64 KiB.
    pub fn new(blocks: impl Into<Dim>, threads: impl Into<Dim>) -> Self {
        Self {
            blocks: blocks.into(),
            threads: threads.into(),
            shared: 0,
            stack: None,
            print: 1 << 16,
            deterministic: false,
        }
    }

    /// Sets the length of the memory that the threads of a block share.
    pub fn shared_bytes(mut self, bytes: usize) -> Self {
        self.shared = bytes;
        self
    }

    /// Sets the length of the stack of a thread, which is rounded up to a multiple of 16. A kernel
    /// in Rust has at least 8 KiB.
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack = Some(bytes);
        self
    }

    /// Sets what a kernel in Rust has: memory that the threads of a block share, and a stack in
    /// which a panic has room, and a float that is printed, which takes 3.5 KiB at most.
    #[doc(hidden)]
    pub fn for_rust(mut self, shared: usize) -> Self {
        self.shared = shared;
        self.stack = self.stack.max(Some(2 * STACK));
        self
    }

    /// Sets the room for what the threads print, which is rounded up to a power of two: each
    /// message takes 32 bytes and its text, rounded up to a multiple of 32.
    pub fn print_bytes(mut self, bytes: usize) -> Self {
        self.print = bytes;
        self
    }

    /// Has the clock count instructions, so that each launch sees the same times.
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }
}

/// Launches of a kernel with a grid: its memory on the device.
///
/// Made by [`Program::kernel`](super::Program::kernel). It is borrowed until the work is done, so
/// there is one launch at a time; for several at the same time there are several of it.
pub struct Launcher {
    program: Arc<Loaded>,
    kernel: usize,
    /// The descriptor, the arguments, the print ring, and the save area, which is pinned as the
    /// device wants it.
    memory: Pinned<u8>,
    /// Length of the ring, with its head.
    ring: usize,
    /// The words of a panic in the last launch, once they were taken from the ring.
    panic: Option<String>,
    /// The stacks, and what the threads of a block share. Only the device uses them.
    _local: Allocation<u8>,
}

impl Launcher {
    pub(super) fn new(
        program: &Arc<Loaded>,
        kernel: usize,
        grid: Grid,
    ) -> Result<Self, ProgramError> {
        let refuse = |what: String| Err(ProgramError::Refused(format!("no device has {what}")));
        let Some(threads) = grid.threads.count(MOST_THREADS) else {
            return refuse(format!(
                "blocks of {:?} threads: there are 1 to 1024",
                grid.threads.0
            ));
        };
        let Some(blocks) = grid.blocks.count(MOST_BLOCKS) else {
            return refuse(format!(
                "a grid of {:?} blocks: there are 1 to 2^32",
                grid.blocks.0
            ));
        };
        let threads = threads as usize;
        let stack = grid
            .stack
            .unwrap_or(STACK)
            .max(16)
            .checked_next_multiple_of(16);
        let stacks = stack.and_then(|stack| stack.checked_mul(threads));
        let local = stacks.and_then(|stacks| stacks.checked_add(grid.shared));
        let (Some(stack), Some(stacks), Some(local)) = (stack, stacks, local) else {
            return refuse("so much memory".to_owned());
        };
        let Some(print) = grid
            .print
            .max(64)
            .checked_next_power_of_two()
            .filter(|&bytes| bytes <= 1 << 30)
        else {
            return refuse("a print ring of more than 1 GiB".to_owned());
        };
        let ring = ring::HEAD + print;
        let save = SAVE + SAVE_THREAD * threads;
        let gpu = program.gpu();
        let mut memory = gpu.alloc::<u8>(RING + ring + save)?;
        let local = gpu.alloc_vram::<u8>(local)?;
        let (addr, stacks_addr) = (memory.addr() as u64, local.device_addr());
        let mut put = |at: usize, value: u64| put_at(&mut memory, at, value);
        put(
            field::FLAGS,
            (u64::from(grid.deterministic) * DETERMINISTIC) | CHECK_STACK,
        );
        put(field::ENTRY, program.base() + program.symbol(kernel).addr);
        put(field::COUNT, blocks);
        put(field::ARGUMENTS, addr + DESCRIPTOR as u64);
        put(field::STACKS, stacks_addr);
        put(field::STACK_BYTES, stack as u64);
        put(field::SHARED, stacks_addr + stacks as u64);
        put(field::SHARED_BYTES, grid.shared as u64);
        put(field::RING, addr + RING as u64);
        put(field::SAVE, addr + (RING + ring) as u64);
        put(field::SAVE_BYTES, save as u64);
        for (at, dim) in [(field::GRID, grid.blocks), (field::BLOCK, grid.threads)] {
            for (number, to) in dim.0.iter().zip(memory[at..].chunks_exact_mut(4)) {
                to.copy_from_slice(&number.to_le_bytes());
            }
        }
        ring::clear(&mut memory[RING..][..ring]);
        Ok(Self {
            program: Arc::clone(program),
            kernel,
            memory,
            ring,
            panic: None,
            _local: local,
        })
    }

    /// Submits a launch.
    ///
    /// # Errors
    ///
    /// As for [`Work::launch`]; `EINVAL`: the program was loaded by another context than that of
    /// the stream; there are more than 7 slices, more than 4096 bytes of arguments, or more shared
    /// memory in them than the grid has.
    ///
    /// # Safety
    ///
    /// The crate knows nothing of what is in the program. By its parameters the kernel must take
    /// these arguments: their number, their order, and the type of each. Until the work is done it
    /// may access elements of the slices, but write only those of slices that were added by
    /// [`Arguments::write`], besides its own variables, stacks and shared memory. Anything else is
    /// as for [`Work::submit_packets`].
    #[track_caller]
    pub unsafe fn launch<'w>(
        &'w mut self,
        work: &Work<'w>,
        arguments: Arguments<'w, '_>,
    ) -> Result<()> {
        work.launch(Launch {
            launcher: self,
            arguments,
        })
    }

    /// Ends a launch that is done, or failed with this result: prints what its threads printed, and
    /// says where the kernel stopped, if it did. With several launches in a scope each is ended;
    /// the result is that of the scope for one of them, and `Ok` for the others.
    ///
    /// The messages go to the standard output, in the order in which they were printed, except
    /// those that were [taken](Self::messages) before. Where there was no room for some, the
    /// standard error says for how many.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Stopped`]: the device reports that this launch stopped, whatever the result
    /// is; or else the error of the result.
    pub fn finish<T>(&mut self, result: Result<T>) -> Result<T, ProgramError> {
        let (messages, dropped) = self.take();
        let mut out = io::stdout().lock();
        // As for `printf` in C, nobody is told if the output is closed.
        let all = messages.iter().map(|message| out.write_all(&message.text));
        let _ = all.fold(Ok(()), io::Result::and).and_then(|()| out.flush());
        if dropped != 0 {
            let kernel = self.program.symbol(self.kernel).short();
            eprintln!("there was no room for {dropped} messages of kernel {kernel}");
        }
        match self.trap() {
            Some(trap) => Err(ProgramError::Stopped(result.err(), trap)),
            None => result.map_err(ProgramError::Pinmap),
        }
    }

    /// Takes what the threads of launches that are done printed, in this order.
    pub fn messages(&mut self) -> Vec<Message> {
        self.take().0
    }

    fn take(&mut self) -> (Vec<Message>, u64) {
        let (messages, dropped) = ring::take(self.ring());
        if self.stopped() == Some(FaultCode::Aborted) {
            let panic = ring::panic(&messages, self.report(4), self.report(3));
            self.panic = panic.or(self.panic.take());
        }
        (messages, dropped)
    }

    /// How many instructions the last launch has executed, when it is done.
    pub fn instructions(&self) -> u64 {
        self.report(5)
    }

    fn ring(&mut self) -> &mut [u8] {
        &mut self.memory[RING..][..self.ring]
    }

    /// A word of the report: code, pc, value, thread, block, instructions, blocks.
    fn report(&self, word: usize) -> u64 {
        number_at(&self.memory, field::REPORT + 8 * word)
    }

    /// The code with which the last launch stopped, if it did and has not been ended.
    fn stopped(&self) -> Option<FaultCode> {
        let code = self.report(0);
        // CAST: The device's codes have fewer than 32 bits.
        (![0, UNWRITTEN].contains(&code)).then(|| FaultCode::from(code as u32))
    }

    /// Takes where the last launch stopped, if it did.
    fn trap(&mut self) -> Option<Trap> {
        let code = self.stopped()?;
        put_at(&mut self.memory, field::REPORT, 0);
        let pc = self.report(1);
        Some(Trap {
            code,
            kernel: self.program.symbol(self.kernel).short().to_owned(),
            pc,
            function: self.program.locate(pc),
            value: self.report(2),
            thread: self.report(3),
            block: self.report(4),
            panic: self.panic.take(),
        })
    }
}

pub(super) fn number_at(memory: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| memory[at + i]))
}

fn put_at(memory: &mut [u8], at: usize, value: u64) {
    memory[at..][..8].copy_from_slice(&value.to_le_bytes());
}

struct Launch<'w, 'r> {
    launcher: &'w mut Launcher,
    arguments: Arguments<'w, 'r>,
}

// SAFETY: What the program accesses, who launches it promises. The memory of the launcher is
// borrowed for `'w`.
unsafe impl<'w> Kernel<'w> for Launch<'w, '_> {
    type Format = Format;
    const NAME: &'static str = "a program";

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        operands.require_context("the kernel", &self.launcher.memory.slice())?;
        let memory = &mut self.launcher.memory[..RING];
        let shared = number_at(memory, field::SHARED);
        // CAST: It was a `usize`.
        let shared_bytes = number_at(memory, field::SHARED_BYTES) as usize;
        let words = self.arguments.place(operands, shared, shared_bytes)?;
        for (number, &word) in words.iter().enumerate() {
            put_at(memory, DESCRIPTOR + 8 * number, word);
        }
        put_at(memory, field::ARGUMENTS_BYTES, 8 * words.len() as u64);
        put_at(memory, field::REPORT, UNWRITTEN);
        self.launcher.panic = None;
        let descriptor = self.launcher.memory.addr() as u64;
        Ok(packet::launch(
            KERNEL_PROGRAM,
            [descriptor, 0, 0, 0, 0, 0, 0],
        ))
    }
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher")
            .field("kernel", &self.program.symbol(self.kernel).name)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_manual() {
        let manual = crate::manual();
        for (flag, name) in [
            (DETERMINISTIC, "DETERMINISTIC"),
            (CHECK_STACK, "CHECK_STACK"),
        ] {
            let row = format!("| `{flag:#04x}` | `PROGRAM_{name}` |");
            assert!(manual.contains(&row), "{row}");
        }
        let number = format!("| `{KERNEL_PROGRAM}` | `KERNEL_PROGRAM` |");
        assert!(manual.contains(&number), "{number}");
        for (offset, name) in [
            (field::FLAGS, "PROGRAM_FLAGS"),
            (field::ENTRY, "PROGRAM_ENTRY"),
            (field::GRID, "PROGRAM_GRID"),
            (field::BLOCK, "PROGRAM_BLOCK"),
            (field::COUNT, "PROGRAM_COUNT"),
            (field::ARGUMENTS, "PROGRAM_ARGUMENTS"),
            (field::ARGUMENTS_BYTES, "PROGRAM_ARGUMENTS_BYTES"),
            (field::STACKS, "PROGRAM_STACKS"),
            (field::STACK_BYTES, "PROGRAM_STACK_BYTES"),
            (field::SHARED, "PROGRAM_SHARED"),
            (field::SHARED_BYTES, "PROGRAM_SHARED_BYTES"),
            (field::RING, "PROGRAM_RING"),
            (field::SAVE, "PROGRAM_SAVE"),
            (field::SAVE_BYTES, "PROGRAM_SAVE_BYTES"),
            (field::REPORT, "PROGRAM_REPORT"),
        ] {
            let row = format!("| `{offset:#04x}` | `{name}` |");
            assert!(manual.contains(&row), "{row}");
        }
    }

    #[test]
    fn products_are_limited() {
        assert_eq!(Dim::from((32, 32)).count(1024), Some(1024));
        assert_eq!(Dim::from((33, 32)).count(1024), None);
        assert_eq!(Dim::from((3, 0, 5)).count(1024), None);
        assert_eq!(Dim([u32::MAX; 3]).count(MOST_BLOCKS), None);
    }
}
