// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small driver of the device: tables in VRAM, one queue, host memory at IOVAs.

use crate::vfio::{Function, Vector, Window};
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};
use testgpu::regs;

/// Device VA of the ring.
const RING: u64 = 0x10_0000;
/// Offset of the ring in VRAM.
const RING_VRAM: u64 = 0x20_0000;
const RING_PACKETS: u64 = 64;
const FIRST_TABLE: u64 = 0x10_0000;
const VMID: u64 = 1;
const QUEUE: u64 = 7;
const SLOT: u64 = 3;

/// Bits of a leaf for host memory: readable, writable, coherent.
pub(crate) const HOST: u64 = regs::PTE_READ | regs::PTE_WRITE | regs::PTE_HOST | regs::PTE_SNOOP;
pub(crate) const VRAM: u64 = regs::PTE_READ | regs::PTE_WRITE;

pub(crate) struct Gpu {
    pub(crate) function: Function,
    pub(crate) vram: Window,
    pub(crate) vectors: Vec<Vector>,
    registers: Window,
    doorbells: Window,
    next_table: Cell<u64>,
    written: Cell<u64>,
    sequence: Cell<u64>,
}

impl Gpu {
    pub(crate) fn new(function: Function) -> io::Result<Self> {
        function.set_master(true)?;
        Ok(Self {
            registers: function.bar(0)?,
            doorbells: function.bar(1)?,
            vram: function.bar(2)?,
            vectors: function.enable_vectors()?,
            function,
            next_table: Cell::new(FIRST_TABLE),
            written: Cell::new(0),
            sequence: Cell::new(0),
        })
    }

    pub(crate) fn r(&self, offset: u64) -> u64 {
        self.registers.read(offset)
    }

    pub(crate) fn w(&self, offset: u64, value: u64) {
        self.registers.write(offset, value);
    }

    pub(crate) fn wait(&self, what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !done() {
            if start.elapsed() > Duration::from_secs(30) {
                return Err(format!("{what} does not come"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Makes a fresh device: reset, with a page table and a bound queue, without a bus model.
    pub(crate) fn set_up(&self) -> Result<(), String> {
        self.w(regs::RESET, 1);
        self.wait("RESET", || self.r(regs::RESET) == 0)?;
        self.next_table.set(FIRST_TABLE);
        self.written.set(0);
        self.sequence.set(0);
        self.w(regs::LINK_BANDWIDTH, 0);
        self.w(regs::LINK_LATENCY, 0);
        self.w(regs::INT_ENABLE, 0x3f);
        for vector in &self.vectors {
            vector.count();
        }
        let root = self.table();
        self.w(regs::ROOT + 8 * VMID, root | regs::ROOT_ENABLE);
        self.map(RING, RING_VRAM | regs::PTE_EXECUTE);
        self.w(regs::DOORBELL_ENABLE, 1 << QUEUE);
        let classes = regs::CLASS_COPY | regs::CLASS_COMPUTE;
        self.set_slot(regs::SLOT_CONFIG, QUEUE | (VMID << 16) | (classes << 24));
        self.set_slot(regs::SLOT_RING, RING);
        self.set_slot(regs::SLOT_SIZE, RING_PACKETS.trailing_zeros().into());
        self.set_slot(regs::SLOT_COMMAND, regs::COMMAND_BIND);
        match self.slot(regs::SLOT_STATE) {
            regs::STATE_IDLE => Ok(()),
            state => Err(format!("BIND gives state {state:#x}")),
        }
    }

    pub(crate) fn slot(&self, register: u64) -> u64 {
        self.r(regs::SLOT + SLOT * regs::SLOT_STRIDE + register)
    }

    pub(crate) fn set_slot(&self, register: u64, value: u64) {
        self.w(regs::SLOT + SLOT * regs::SLOT_STRIDE + register, value);
    }

    pub(crate) fn state(&self) -> u64 {
        self.slot(regs::SLOT_STATE) & 0xf
    }

    fn table(&self) -> u64 {
        let table = self.next_table.get();
        assert!(table < RING_VRAM, "no room for tables");
        self.next_table.set(table + regs::PAGE);
        for entry in 0..512 {
            self.vram.write(table + 8 * entry, 0_u64);
        }
        table
    }

    /// Writes the leaf of a page: address and bits, or 0.
    pub(crate) fn map(&self, va: u64, leaf: u64) {
        let mut table = self.r(regs::ROOT + 8 * VMID) & regs::PTE_ADDRESS;
        for shift in [39, 30, 21] {
            let place = table + ((va >> shift) & 511) * 8;
            let entry: u64 = self.vram.read(place);
            table = match entry & regs::PTE_VALID {
                0 => {
                    let new = self.table();
                    self.vram.write(place, new | regs::PTE_VALID);
                    new
                }
                _ => entry & regs::PTE_ADDRESS,
            };
        }
        let entry = match leaf {
            0 => 0,
            leaf => leaf | regs::PTE_VALID | regs::PTE_LEAF,
        };
        self.vram.write(table + ((va >> 12) & 511) * 8, entry);
    }

    pub(crate) fn map_range(&self, va: u64, leaf: u64, bytes: u64) {
        for offset in (0..bytes).step_by(regs::PAGE as usize) {
            self.map(va + offset, leaf + offset);
        }
    }

    pub(crate) fn invalidate(&self) -> Result<(), String> {
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        self.w(regs::INV_SCOPE, VMID);
        self.w(regs::INV_FIRST, 0);
        self.w(regs::INV_LAST, u64::MAX);
        self.w(regs::INV_SUBMIT, sequence);
        self.wait("INVALIDATE", || self.r(regs::INV_DONE) == sequence)
    }

    pub(crate) fn submit(&self, packets: &[&[u64]]) {
        for packet in packets {
            let place = RING_VRAM + self.written.get() % RING_PACKETS * 64;
            for word in 0..8 {
                let value = packet.get(word).copied().unwrap_or(0);
                self.vram.write(place + 8 * word as u64, value);
            }
            self.written.set(self.written.get() + 1);
        }
        self.doorbells.write(QUEUE * regs::PAGE, self.written.get());
    }

    /// Runs packets and waits for their end.
    pub(crate) fn run(&self, packets: &[&[u64]]) -> Result<(), String> {
        self.submit(packets);
        self.finish()
    }

    pub(crate) fn finish(&self) -> Result<(), String> {
        let mut state = regs::STATE_READY;
        self.wait("IDLE", || {
            state = self.state();
            ![regs::STATE_READY, regs::STATE_RUNNING, regs::STATE_WAITING].contains(&state)
        })?;
        match state {
            regs::STATE_IDLE => Ok(()),
            _ => Err(format!(
                "the queue stopped with {} at {:#x}",
                self.slot(regs::SLOT_ERROR),
                self.slot(regs::SLOT_FAULT_VA)
            )),
        }
    }

    /// Runs packets that must stop the queue, and returns the code and the VA.
    pub(crate) fn stop(&self, packets: &[&[u64]]) -> Result<(u64, u64), String> {
        self.submit(packets);
        self.wait("a stop", || {
            [regs::STATE_FAULTED, regs::STATE_ERROR].contains(&self.state())
        })?;
        Ok((self.slot(regs::SLOT_ERROR), self.slot(regs::SLOT_FAULT_VA)))
    }

    /// Executes the packet that stopped once more.
    pub(crate) fn retry(&self) -> Result<(), String> {
        self.set_slot(regs::SLOT_COMMAND, regs::COMMAND_RETRY);
        self.finish()
    }
}
