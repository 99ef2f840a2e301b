// SPDX-License-Identifier: MIT OR Apache-2.0
//! A launch, as a runtime makes it.

use crate::rig::{launch, Queue, Rig, DATA};
use testgpu::regs;

/// Places in the host memory of the tests.
pub(crate) const DESCRIPTOR: u64 = DATA;
pub(crate) const ARGUMENTS: u64 = DATA + 0x1000;
pub(crate) const RING: u64 = DATA + 0x4000;
pub(crate) const RING_BYTES: u64 = 0x4000;
pub(crate) const SAVE: u64 = DATA + 0x1_0000;
pub(crate) const STACKS: u64 = DATA + 0x10_0000;
/// Memory for the data of a test.
pub(crate) const FREE: u64 = DATA + 0x20_0000;

/// The content of a descriptor, and the arguments.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) bytes: [u8; 256],
    pub(crate) arguments: Vec<u64>,
}

impl Launch {
    /// Makes a launch of `blocks` blocks of `threads` threads.
    pub(crate) fn new(entry: u64, blocks: u32, threads: u32) -> Self {
        let mut this = Self {
            bytes: [0; 256],
            arguments: vec![0; 16],
        };
        this.shape([blocks, 1, 1], [threads, 1, 1]);
        this.set(regs::PROGRAM_ENTRY, entry);
        this.set(regs::PROGRAM_COUNT, blocks.into());
        this.set(regs::PROGRAM_ARGUMENTS, ARGUMENTS);
        this.set(regs::PROGRAM_STACKS, STACKS);
        this.set(regs::PROGRAM_STACK_BYTES, 1024);
        this.set(regs::PROGRAM_RING, RING);
        this.set(regs::PROGRAM_SAVE, SAVE);
        this.set(regs::PROGRAM_SAVE_BYTES, 64 + 1024 * 576);
        this
    }

    pub(crate) fn set(&mut self, field: u64, value: u64) {
        self.bytes[field as usize..][..8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn shape(&mut self, grid: [u32; 3], block: [u32; 3]) {
        let sizes: Vec<u8> = [grid, block]
            .as_flattened()
            .iter()
            .flat_map(|size| size.to_le_bytes())
            .collect();
        self.bytes[regs::PROGRAM_GRID as usize..][..24].copy_from_slice(&sizes);
    }

    /// Sets the arguments that go to a0 and on.
    pub(crate) fn integers(mut self, values: &[u64]) -> Self {
        self.arguments[..values.len()].copy_from_slice(values);
        self
    }

    /// Sets the arguments that go to fa0 and on.
    pub(crate) fn floats(mut self, values: &[u64]) -> Self {
        self.arguments[8..8 + values.len()].copy_from_slice(values);
        self
    }

    /// Writes descriptor, arguments and an empty ring, and returns the packet.
    pub(crate) fn packet(&self, rig: &Rig) -> Vec<u64> {
        let mut bytes = self.bytes;
        let length = 8 * self.arguments.len() as u64;
        bytes[regs::PROGRAM_ARGUMENTS_BYTES as usize..][..8].copy_from_slice(&length.to_le_bytes());
        rig.host_write(DESCRIPTOR - DATA, &bytes);
        let arguments: Vec<u8> = self
            .arguments
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        rig.host_write(ARGUMENTS - DATA, &arguments);
        let mut ring = [0_u64; 8];
        ring[regs::RING_BYTES as usize / 8] = RING_BYTES;
        let ring: Vec<u8> = ring.iter().flat_map(|word| word.to_le_bytes()).collect();
        rig.host_write(RING - DATA, &ring);
        launch(regs::KERNEL_PROGRAM, &[DESCRIPTOR])
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, rig: &Rig, queue: &mut Queue) {
        let packet = self.packet(rig);
        rig.submit(queue, &[&packet]);
        rig.until("the launch", || match rig.state(queue.slot) {
            regs::STATE_FAULTED | regs::STATE_ERROR => panic!(
                "stopped with {} at {:#x}: {:#x?}",
                rig.slot(queue.slot, regs::SLOT_ERROR),
                rig.slot(queue.slot, regs::SLOT_FAULT_VA),
                report(rig)
            ),
            state => state == regs::STATE_IDLE,
        });
    }
}

/// Returns 8 bytes of host memory, by their VA.
pub(crate) fn word(rig: &Rig, va: u64) -> u64 {
    rig.host.bytes.load(va - DATA).unwrap()
}

/// Returns the report: code, pc, value, thread, block, instructions, blocks.
pub(crate) fn report(rig: &Rig) -> [u64; 7] {
    let bytes = rig.host_read(DESCRIPTOR - DATA + regs::PROGRAM_REPORT, 56);
    std::array::from_fn(|index| u64::from_le_bytes(bytes[8 * index..][..8].try_into().unwrap()))
}

/// Returns the messages of the ring: thread, block, text.
pub(crate) fn messages(rig: &Rig) -> Vec<(u64, u64, String)> {
    let word = |offset| word(rig, RING + offset);
    let (mut at, end) = (word(regs::RING_READ), word(regs::RING_WRITTEN));
    let mut messages = Vec::new();
    while at < end {
        let field = |index: u64| word(regs::RING_DATA + (at + 8 * index) % RING_BYTES);
        let length = field(0);
        let text = (0..length).map(|index| {
            let place = (at + 32 + index) % RING_BYTES;
            rig.host_read(RING - DATA + regs::RING_DATA + place, 1)[0]
        });
        messages.push((
            field(1),
            field(2),
            String::from_utf8(text.collect()).unwrap(),
        ));
        at += 32 + length.next_multiple_of(32);
    }
    messages
}
