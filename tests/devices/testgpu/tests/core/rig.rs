// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device on a bus that is a piece of memory, and a small driver for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use testgpu::device::{Device, Running};
use testgpu::hardware::Settings;
use testgpu::link::Speed;
use testgpu::regs;
use vfio_user_device::testing::{wait_until, Memory};
use vfio_user_device::Mapping;

pub(crate) const HOST_SIZE: u64 = 16 << 20;
/// VA of the tests' data in host memory, which is mapped for reading and writing.
pub(crate) const DATA: u64 = 0x1000_0000;
/// VA of the tests' data in VRAM, its second half.
pub(crate) const VRAM_DATA: u64 = 0x2000_0000;
/// VA of the rings, one page for each queue.
pub(crate) const RINGS: u64 = 0x4000_0000;
const RINGS_VRAM: u64 = 2 << 20;
const TABLES_VRAM: u64 = 1 << 20;

pub(crate) const RW: u64 = regs::PTE_READ | regs::PTE_WRITE;
pub(crate) const HOST: u64 = regs::PTE_HOST | regs::PTE_SNOOP;

pub(crate) struct Rig {
    running: Running,
    pub(crate) host: Arc<Memory>,
    tables: AtomicU64,
    sequence: AtomicU64,
    copies: AtomicU64,
}

/// A queue, as its owner sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) id: u64,
    pub(crate) slot: u64,
    pub(crate) config: u64,
    pub(crate) written: u64,
}

impl Queue {
    pub(crate) fn ring(&self) -> u64 {
        RINGS + self.id % 64 * 4096
    }
}

pub(crate) const RING_PACKETS: u64 = 64;

impl Rig {
    /// Makes a rig without the bus model.
    pub(crate) fn new() -> Self {
        let free = Speed {
            bandwidth: 0,
            latency: 0,
        };
        Self::with(Settings {
            vram: 32 << 20,
            link: free,
            vram_link: free,
            ..Settings::default()
        })
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let host = Arc::new(Memory::new(HOST_SIZE, regs::VECTOR_COUNT).unwrap());
        let rig = Self {
            running: Running::start(settings, Arc::<Memory>::clone(&host)).unwrap(),
            host,
            tables: AtomicU64::new(TABLES_VRAM),
            sequence: AtomicU64::new(0),
            copies: AtomicU64::new(0),
        };
        rig.device().hardware().set_master(true);
        rig.set_up();
        rig
    }

    /// Sets the device up as a driver does after a reset.
    pub(crate) fn set_up(&self) {
        self.tables.store(TABLES_VRAM, Ordering::SeqCst);
        self.sequence.store(0, Ordering::SeqCst);
        self.copies.store(0, Ordering::SeqCst);
        self.w(regs::INT_ENABLE, 0x7f);
        for word in 0..16 {
            self.w(regs::DOORBELL_ENABLE + 8 * word, u64::MAX);
        }
        for vmid in 0..3 {
            self.w(regs::ROOT + 8 * vmid, self.table() | regs::ROOT_ENABLE);
            for page in 0..HOST_SIZE / regs::LARGE_PAGE {
                let offset = page * regs::LARGE_PAGE;
                self.map_large(vmid, DATA + offset, RW | HOST | offset);
                if offset >= HOST_SIZE / 2 {
                    self.map_large(vmid, VRAM_DATA + offset, RW | offset);
                }
            }
            for page in 0..64 {
                let execute = regs::PTE_EXECUTE | (RINGS_VRAM + 4096 * page);
                self.map(vmid, RINGS + 4096 * page, execute);
            }
        }
    }

    pub(crate) fn device(&self) -> &Device {
        self.running.device()
    }

    pub(crate) fn r(&self, offset: u64) -> u64 {
        self.device().read_register(offset, 8)
    }

    pub(crate) fn w(&self, offset: u64, value: u64) {
        self.device().write_register(offset, 8, value);
    }

    pub(crate) fn vram(&self) -> &Mapping {
        &self.device().hardware().vram
    }

    fn table(&self) -> u64 {
        let table = self.tables.fetch_add(4096, Ordering::SeqCst);
        assert!(table < RINGS_VRAM, "no room for tables");
        self.vram().write(table, &[0; 4096]).unwrap();
        table
    }

    fn entry(&self, vmid: u64, va: u64, level: u32) -> u64 {
        let mut table = self.r(regs::ROOT + 8 * vmid) & regs::PTE_ADDRESS;
        for level in (level + 1..4).rev() {
            let place = table + ((va >> (12 + 9 * level)) & 511) * 8;
            let entry = self.vram().load(place).unwrap();
            table = match entry & regs::PTE_VALID {
                0 => {
                    let new = self.table();
                    self.vram().store(place, new | regs::PTE_VALID).unwrap();
                    new
                }
                _ => entry & regs::PTE_ADDRESS,
            };
        }
        table + ((va >> (12 + 9 * level)) & 511) * 8
    }

    /// Returns the table with the 4 KiB leaf of `va`, as an offset in VRAM.
    pub(crate) fn table_of(&self, vmid: u64, va: u64) -> u64 {
        self.entry(vmid, va, 0) & !0xfff
    }

    /// Returns the offset of a queue's packet in VRAM.
    pub(crate) fn packet_place(&self, queue: &Queue, index: u64) -> u64 {
        RINGS_VRAM + 4096 * (queue.id % 64) + index % RING_PACKETS * 64
    }

    /// Writes the 4 KiB leaf of `va`: address and bits other than valid and leaf.
    pub(crate) fn map(&self, vmid: u64, va: u64, leaf: u64) {
        let entry = self.entry(vmid, va, 0);
        self.vram()
            .store(entry, leaf | regs::PTE_VALID | regs::PTE_LEAF)
            .unwrap();
    }

    pub(crate) fn map_large(&self, vmid: u64, va: u64, leaf: u64) {
        let entry = self.entry(vmid, va, 1);
        self.vram()
            .store(entry, leaf | regs::PTE_VALID | regs::PTE_LEAF)
            .unwrap();
    }

    pub(crate) fn unmap(&self, vmid: u64, va: u64) {
        let entry = self.entry(vmid, va, 0);
        self.vram().store(entry, 0).unwrap();
    }

    pub(crate) fn submit_invalidate(&self, scope: u64, first: u64, last: u64) -> u64 {
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        self.w(regs::INV_SCOPE, scope);
        self.w(regs::INV_FIRST, first);
        self.w(regs::INV_LAST, last);
        self.w(regs::INV_SUBMIT, sequence);
        sequence
    }

    pub(crate) fn invalidate(&self, scope: u64, first: u64, last: u64) {
        let sequence = self.submit_invalidate(scope, first, last);
        self.until("INVALIDATE", || self.r(regs::INV_DONE) >= sequence);
    }

    /// Submits a copy to the paging engine. Returns its sequence number.
    pub(crate) fn submit_copy(&self, source: u64, target: u64, bytes: u64) -> u64 {
        let sequence = self.copies.fetch_add(1, Ordering::SeqCst) + 1;
        self.w(regs::PAGING_SOURCE, source);
        self.w(regs::PAGING_TARGET, target);
        self.w(regs::PAGING_BYTES, bytes);
        self.w(regs::PAGING_SUBMIT, sequence);
        sequence
    }

    /// Has the paging engine make a copy. Returns `PAGING_ERROR`.
    pub(crate) fn page(&self, source: u64, target: u64, bytes: u64) -> u64 {
        let sequence = self.submit_copy(source, target, bytes);
        self.until("a copy", || self.r(regs::PAGING_DONE) >= sequence);
        self.r(regs::PAGING_ERROR)
    }

    /// Waits until a condition is true, which must happen.
    pub(crate) fn until(&self, what: &str, done: impl FnMut() -> bool) {
        wait_until(what, done);
    }

    pub(crate) fn slot(&self, slot: u64, register: u64) -> u64 {
        self.r(regs::SLOT + slot * regs::SLOT_STRIDE + register)
    }

    pub(crate) fn set_slot(&self, slot: u64, register: u64, value: u64) {
        self.w(regs::SLOT + slot * regs::SLOT_STRIDE + register, value);
    }

    pub(crate) fn state(&self, slot: u64) -> u64 {
        self.slot(slot, regs::SLOT_STATE) & 0xf
    }

    pub(crate) fn command(&self, slot: u64, command: u64) -> u64 {
        self.set_slot(slot, regs::SLOT_COMMAND, command);
        (self.slot(slot, regs::SLOT_STATE) >> 8) & 0xff
    }

    /// Binds queue `id` to slot `id`, in address space 1.
    pub(crate) fn queue(&self, id: u64, classes: u64) -> Queue {
        self.queue_with(id, id | (1 << 16) | (classes << 24))
    }

    pub(crate) fn queue_with(&self, id: u64, config: u64) -> Queue {
        let queue = Queue {
            id,
            slot: id % 32,
            config,
            written: 0,
        };
        self.bind(&queue, 0, 0);
        queue
    }

    pub(crate) fn bind(&self, queue: &Queue, read_index: u64, progress: u64) {
        self.set_slot(queue.slot, regs::SLOT_CONFIG, queue.config);
        self.set_slot(queue.slot, regs::SLOT_RING, queue.ring());
        self.set_slot(
            queue.slot,
            regs::SLOT_SIZE,
            RING_PACKETS.trailing_zeros().into(),
        );
        self.set_slot(queue.slot, regs::SLOT_READ_INDEX, read_index);
        self.set_slot(queue.slot, regs::SLOT_PROGRESS, progress);
        assert_eq!(
            self.command(queue.slot, regs::COMMAND_BIND),
            regs::RESULT_OK
        );
    }

    pub(crate) fn unbind(&self, queue: &Queue) -> (u64, u64) {
        assert_eq!(
            self.command(queue.slot, regs::COMMAND_UNBIND),
            regs::RESULT_OK
        );
        self.until("UNBIND", || self.state(queue.slot) == regs::STATE_FREE);
        (
            self.slot(queue.slot, regs::SLOT_READ_INDEX),
            self.slot(queue.slot, regs::SLOT_PROGRESS),
        )
    }

    pub(crate) fn put(&self, queue: &mut Queue, packet: &[u64]) {
        let place = self.packet_place(queue, queue.written);
        for word in 0..8 {
            let value = packet.get(word as usize).copied().unwrap_or(0);
            self.vram().store(place + 8 * word, value).unwrap();
        }
        queue.written = queue.written.wrapping_add(1);
    }

    pub(crate) fn ring(&self, queue: &Queue) {
        self.device()
            .write_doorbell(queue.id * 4096, 8, queue.written);
    }

    pub(crate) fn submit(&self, queue: &mut Queue, packets: &[&[u64]]) {
        for packet in packets {
            self.put(queue, packet);
        }
        self.ring(queue);
    }

    pub(crate) fn wait_idle(&self, queue: &Queue) {
        self.until("IDLE", || match self.state(queue.slot) {
            regs::STATE_FAULTED | regs::STATE_ERROR => panic!(
                "stopped with {} at {:#x}, packet {}",
                self.slot(queue.slot, regs::SLOT_ERROR),
                self.slot(queue.slot, regs::SLOT_FAULT_VA),
                self.slot(queue.slot, regs::SLOT_READ_INDEX)
            ),
            state => state == regs::STATE_IDLE,
        });
    }

    pub(crate) fn run(&self, queue: &mut Queue, packets: &[&[u64]]) {
        self.submit(queue, packets);
        self.wait_idle(queue);
    }

    pub(crate) fn wait_state(&self, queue: &Queue, state: u64) {
        self.until("a state", || self.state(queue.slot) == state);
    }

    /// Runs packets that must stop the queue. Returns code and VA.
    pub(crate) fn stop(&self, queue: &mut Queue, packets: &[&[u64]]) -> (u64, u64) {
        self.submit(queue, packets);
        self.until("a stop", || {
            [regs::STATE_FAULTED, regs::STATE_ERROR].contains(&self.state(queue.slot))
        });
        (
            self.slot(queue.slot, regs::SLOT_ERROR),
            self.slot(queue.slot, regs::SLOT_FAULT_VA),
        )
    }

    pub(crate) fn host_write(&self, offset: u64, bytes: &[u8]) {
        self.host.bytes.write(offset, bytes).unwrap();
    }

    pub(crate) fn host_read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut to = vec![0; bytes];
        self.host.bytes.read(offset, &mut to).unwrap();
        to
    }

    pub(crate) fn write_f32(&self, offset: u64, values: &[f32]) {
        self.host_write(
            offset,
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<_>>()
                .as_slice(),
        );
    }

    pub(crate) fn read_f32(&self, offset: u64, count: usize) -> Vec<f32> {
        let bytes = self.host_read(offset, 4 * count);
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn interrupts(&self, vector: usize) -> u64 {
        self.host.vectors[vector].load(Ordering::SeqCst)
    }

    pub(crate) fn pending(&self, queue: u64) -> bool {
        (self.r(regs::PENDING + queue / 64 * 8) >> (queue % 64)) & 1 == 1
    }
}

/// Makes a LAUNCH packet.
pub(crate) fn launch(kernel: u64, arguments: &[u64]) -> Vec<u64> {
    [&[regs::LAUNCH | (kernel << 32)], arguments].concat()
}

/// Makes bytes that differ from place to place.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..bytes).map(next).collect()
}
