// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device behind its server, without QEMU: what it is, and DMA that waits for messages.

use std::ops::{Deref, DerefMut};
use testgpu::device::Running;
use testgpu::hardware::Settings;
use testgpu::link::Speed;
use testgpu::regs;
use vfio_user_device::testing::Client;
use vfio_user_device::{number, serve, Mapping, Options};

/// Bus address of the guest's memory.
const BUS: u64 = Client::BUS;
const PAGE: u64 = 4096;
const VRAM_SIZE: u64 = 4 << 20;

/// Client of the server, in QEMU's place.
struct Host {
    client: Client,
    vram: Mapping,
}

impl Deref for Host {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Host {
    fn new() -> Self {
        let free = Speed {
            bandwidth: 0,
            latency: 0,
        };
        let settings = Settings {
            vram: VRAM_SIZE,
            link: free,
            vram_link: free,
            ..Settings::default()
        };
        let options = Options {
            message: true,
            verbose: false,
        };
        let mut client =
            Client::new(move |stream| serve(stream, options, |bus| Running::start(settings, bus)));
        let file = client.region(2).1.unwrap();
        let vram = Mapping::new(file, VRAM_SIZE).unwrap();
        Self { client, vram }
    }

    fn r(&mut self, offset: u64) -> u64 {
        number(&self.read(0, offset, 8).unwrap())
    }

    fn w(&mut self, offset: u64, value: u64) {
        self.write(0, offset, &value.to_le_bytes()).unwrap();
    }

    /// Makes a queue whose ring and tables are in VRAM. VA 0 is the page of the guest's memory.
    fn set_up(&mut self) {
        self.set_master(true);
        let store = |place, value| self.vram.store(place, value).unwrap();
        for level in 0..3_u64 {
            store(level * PAGE, ((level + 1) * PAGE) | regs::PTE_VALID);
        }
        let leaf = regs::PTE_VALID | regs::PTE_LEAF;
        let rw = regs::PTE_READ | regs::PTE_WRITE | regs::PTE_HOST | regs::PTE_SNOOP;
        store(3 * PAGE, BUS | leaf | rw);
        store(3 * PAGE + 8, 0x10_0000 | leaf | regs::PTE_EXECUTE);
        self.w(regs::ROOT, regs::ROOT_ENABLE);
        self.w(regs::DOORBELL_ENABLE, 1);
        self.w(regs::SLOT + regs::SLOT_CONFIG, 3 << 24);
        self.w(regs::SLOT + regs::SLOT_RING, PAGE);
        self.w(regs::SLOT + regs::SLOT_SIZE, 6);
        self.w(regs::SLOT + regs::SLOT_COMMAND, regs::COMMAND_BIND);
    }

    fn submit(&mut self, index: u64, packet: &[u64]) {
        for (word, value) in (0..).zip(packet) {
            let place = 0x10_0000 + index * 64 + 8 * word;
            self.vram.store(place, *value).unwrap();
        }
        self.write(1, 0, &(index + 1).to_le_bytes()).unwrap();
    }

    fn until(&mut self, register: u64, value: u64) {
        self.answer_until(|client| {
            let bytes = client.read(0, register, 8).unwrap();
            number(&bytes) == value
        });
    }

    fn wait_state(&mut self, state: u64) {
        let register = regs::SLOT + regs::SLOT_STATE;
        self.answer_until(|client| {
            let bytes = client.read(0, register, 8).unwrap();
            number(&bytes) & 0xf == state
        });
    }

    /// Waits until the device waits for DMA. Meanwhile its registers can be read.
    fn until_awaited(&mut self) {
        while !self.is_awaited() {
            assert_eq!(self.r(regs::MAGIC), u64::from_le_bytes(*b"TESTGPU1"));
        }
    }
}

#[test]
fn bars_and_identity() {
    let mut host = Host::new();
    for (region, size) in [
        (0, 64 << 10),
        (1, 4 << 20),
        (2, VRAM_SIZE),
        (4, 16 << 10),
        (5, 0),
    ] {
        let (has, file) = host.region(region);
        assert_eq!((has, file.is_some()), (size, region == 2));
    }
    assert_eq!(host.read(7, 0, 4).unwrap(), [0x34, 0x12, 0x57, 0x7e]);
    assert_eq!(host.read(1, 0, 8).unwrap(), [0; 8]);
}

#[test]
fn packets_by_messages() {
    let mut host = Host::new();
    host.set_up();
    host.submit(0, &[regs::FENCE_WRITE, 8, 77]);
    host.wait_state(regs::STATE_IDLE);
    assert_eq!(host.memory.load(8), Some(77));
    assert_eq!((host.asked, host.r(regs::MESSAGE_ACCESSES)), (1, 1));
    host.allow = false;
    host.submit(1, &[regs::FENCE_WRITE, 8, 78]);
    host.wait_state(regs::STATE_FAULTED);
    assert_eq!(host.r(regs::SLOT + regs::SLOT_ERROR), regs::BUS);
    host.allow = true;
    host.w(regs::SLOT + regs::SLOT_COMMAND, regs::COMMAND_RETRY);
    host.wait_state(regs::STATE_IDLE);
    assert_eq!((host.memory.load(8), host.asked), (Some(78), 3));
    host.set_master(false);
    host.submit(2, &[regs::FENCE_WRITE, 8, 79]);
    host.wait_state(regs::STATE_FAULTED);
    assert_eq!(host.asked, 3, "no access without Bus Master");
    host.reset();
    host.until(regs::RESET, 0);
    assert_eq!(host.r(regs::MESSAGE_ACCESSES), 0);
}

#[test]
fn while_dma_waits_for_its_answer_everything_else_is_answered() {
    let mut host = Host::new();
    host.set_up();
    host.submit(0, &[regs::FENCE_WRITE, 8, 1]);
    host.until_awaited();
    host.w(regs::INV_LAST, u64::MAX);
    host.w(regs::INV_SUBMIT, 1);
    host.reset();
    host.set_master(false);
    assert_eq!(host.r(regs::RESET), 1, "it waits for the access");
    host.until(regs::RESET, 0);
    assert_eq!(host.r(regs::SLOT + regs::SLOT_STATE), 0);
}

/// Tests copies of the paging engine by messages: the bytes, the sizes, and that a reset waits for
/// the message that is on its way.
#[test]
fn paging_copies_by_messages() {
    let mut host = Host::new();
    host.set_up();
    let (bytes, vram) = (0x1_1000, 0x20_0000);
    for place in (0..bytes).step_by(8) {
        host.memory.store(place, place ^ 0x1234).unwrap();
    }
    let submit = |host: &mut Host, sequence, source, target| {
        host.w(regs::PAGING_SOURCE, source);
        host.w(regs::PAGING_TARGET, target);
        host.w(regs::PAGING_BYTES, bytes);
        host.w(regs::PAGING_SUBMIT, sequence);
    };
    let guest = BUS | regs::PAGING_HOST;
    submit(&mut host, 1, guest, vram);
    submit(&mut host, 2, vram, guest + 0x2_0000);
    submit(&mut host, 3, guest, guest + 0x4_0000);
    host.until_awaited();
    assert_eq!(host.r(regs::PAGING_DONE), 0);
    host.until(regs::PAGING_DONE, 3);
    assert_eq!(host.r(regs::PAGING_ERROR), 0);
    for place in (0..bytes).step_by(8) {
        for base in [0x2_0000, 0x4_0000] {
            assert_eq!(host.memory.load(base + place), Some(place ^ 0x1234));
        }
    }
    // 32 KiB at most, so three messages for each operand in host memory.
    assert_eq!(host.asked, 12);
    host.allow = false;
    submit(&mut host, 4, guest, vram);
    host.until(regs::PAGING_DONE, 4);
    assert_eq!(host.r(regs::PAGING_ERROR), regs::BUS);
    submit(&mut host, 5, vram, guest);
    host.until_awaited();
    host.w(regs::RESET, 1);
    assert_eq!(host.r(regs::RESET), 1, "it waits for the access");
    host.until(regs::RESET, 0);
    assert_eq!(host.r(regs::PAGING_DONE), 0);
}

#[test]
fn the_end_of_the_connection_while_dma_waits() {
    let mut host = Host::new();
    host.set_up();
    host.submit(0, &[regs::FENCE_WRITE, 8, 1]);
    host.until_awaited();
}
