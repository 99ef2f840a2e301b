// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test FPGA on a bus of its own.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use testfpga::Fpga;
use vfio_user_device::testing::{wait_until, Memory};
use vfio_user_device::Function;

const RING: u64 = 0x1_0000;
const SOURCE: u64 = 0x2_0000;
const TARGET: u64 = 0x3_0000;

struct Card {
    fpga: Fpga,
    host: Arc<Memory>,
}

impl Card {
    fn new() -> Self {
        let host = Arc::new(Memory::new(1 << 20, 1).unwrap());
        let fpga = Fpga::start(Arc::<Memory>::clone(&host)).unwrap();
        let content: Vec<u8> = (0..0x8000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        host.bytes.write(SOURCE, &content).unwrap();
        Self { fpga, host }
    }

    fn read(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.fpga.read(0, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write(&self, offset: u64, value: u32) {
        self.fpga.write(0, offset, &value.to_le_bytes());
    }

    fn run(&self, ring: u64, length: u32) {
        self.fpga.write(0, 0x10, &ring.to_le_bytes());
        self.write(0x18, length);
        self.write(0x24, 1);
    }

    fn describe(&self, place: u64, source: u64, target: u64, bytes: u32, flags: u32) {
        let at = RING + 32 * place;
        let words = [bytes, flags, 0, 0].map(u32::to_le_bytes).concat();
        let bytes = [source.to_le_bytes(), target.to_le_bytes()].concat();
        self.host.bytes.write(at, &[bytes, words].concat()).unwrap();
    }

    fn status(&self, place: u64) -> u32 {
        let mut bytes = [0; 4];
        let at = RING + 32 * place + 24;
        self.host.bytes.read(at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn memory(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        self.host.bytes.read(at, &mut content).unwrap();
        content
    }

    fn interrupts(&self) -> u64 {
        self.host.vectors[0].load(Ordering::SeqCst)
    }
}

#[test]
fn registers_of_the_fpga() {
    let card = Card::new();
    assert_eq!(card.read(0x00), 0x514b_4b41);
    assert_eq!((card.read(0x04), card.read(0x24)), (0, 0));
    // Other widths and other places.
    let mut bytes = [0; 2];
    card.fpga.read(0, 0, &mut bytes);
    assert_eq!((bytes, card.read(0x28)), ([0xff; 2], u32::MAX));
    card.write(0x00, 5);
    card.write(0x10, 0x40);
    card.write(0x14, 1);
    card.write(0x18, 1 << 20);
    assert_eq!(card.read(0x00), 0x514b_4b41);
    assert_eq!((card.read(0x10), card.read(0x14)), (0x40, 1));
    assert_eq!(card.read(0x18), 65536);
    // While it runs, the ring stays where it is.
    card.write(0x24, 1);
    card.write(0x10, 0x80);
    card.write(0x18, 4);
    assert_eq!((card.read(0x10), card.read(0x18)), (0x40, 65536));
    assert_eq!(card.read(0x04), 1);
    card.fpga.reset();
    assert_eq!(
        (card.read(0x04), card.read(0x10), card.read(0x24)),
        (0, 0, 0)
    );
}

#[test]
fn ring_wraps_and_interrupts_until_acknowledged() {
    let card = Card::new();
    card.run(RING, 4);
    for lap in 0..3_u64 {
        for place in 0..4 {
            let at = lap * 4 + place;
            let flags = u32::from(place == 1);
            card.describe(place, SOURCE + at, TARGET + at * 5000, 5000, flags);
            // A count of all descriptors.
            card.write(0x1c, at as u32 + 1);
            wait_until("the copy", || card.status(place) == 1);
            let expected = card.memory(SOURCE + at, 5000);
            assert!(card.memory(TARGET + at * 5000, 5000) == expected, "{at}");
        }
        wait_until("the place", || card.read(0x08) == 0);
        assert_eq!(card.interrupts(), if lap < 2 { 1 } else { 2 });
        // The second is sent because the first was acknowledged.
        if lap == 1 {
            card.write(0x20, 1);
        }
    }
    assert_eq!(card.memory(TARGET + 12 * 5000, 8), [0; 8]);
}

#[test]
fn refused_accesses_are_told_and_the_ring_goes_on() {
    let card = Card::new();
    let refused = [SOURCE + 0x8000, TARGET + 0x1000];
    card.host.refused.lock().unwrap().extend(refused);
    card.run(RING, 8);
    card.describe(0, SOURCE + 0x8000, TARGET, 1, 0);
    card.describe(1, SOURCE, TARGET, 0x1001, 0);
    // The upper 24 bits of addresses are left out.
    card.describe(2, SOURCE | (1 << 40), TARGET | (0xffff << 48), 16, 0);
    card.describe(3, SOURCE, TARGET + 64, 0, 0);
    card.write(0x1c, 4);
    wait_until("the last copy", || card.status(3) != 0);
    let statuses = [0, 1, 2, 3].map(|place| card.status(place));
    assert_eq!(statuses, [2, 3, 1, 1]);
    assert_eq!(card.memory(TARGET, 0x1000), card.memory(SOURCE, 0x1000));
    wait_until("the place", || card.read(0x08) == 4);
    assert_eq!(card.read(0x04), 1);
}

#[test]
fn ring_that_is_refused_stops_the_engine() {
    let card = Card::new();
    card.host.refused.lock().unwrap().insert(RING);
    card.run(RING, 8);
    card.write(0x1c, 2);
    wait_until("the stop", || card.read(0x04) == 2);
    assert_eq!((card.read(0x08), card.interrupts()), (0, 0));
    // Started again, at place 0.
    card.host.refused.lock().unwrap().clear();
    card.write(0x24, 0);
    card.describe(0, SOURCE, TARGET, 100, 1);
    card.write(0x24, 1);
    assert_eq!((card.read(0x04), card.read(0x1c)), (1, 0));
    card.write(0x1c, 1);
    wait_until("the interrupt", || card.interrupts() == 1);
    assert_eq!((card.status(0), card.read(0x08)), (1, 1));
}

#[test]
fn stopped_engine_ends_its_descriptor_first() {
    let card = Card::new();
    card.describe(0, SOURCE, TARGET, 0x2000, 0);
    card.describe(1, SOURCE, TARGET + 0x4000, 16, 0);
    card.run(RING, 8);
    let gate = card.host.gate.write().unwrap();
    let before = card.host.at_gate.load(Ordering::SeqCst);
    card.write(0x1c, 2);
    wait_until("an access", || {
        card.host.at_gate.load(Ordering::SeqCst) > before
    });
    card.write(0x24, 0);
    assert_eq!((card.read(0x04), card.status(0)), (1, 0));
    drop(gate);
    wait_until("the stop", || card.read(0x04) == 0);
    assert_eq!((card.status(0), card.status(1), card.read(0x08)), (1, 0, 1));
    // A reset meanwhile forgets it.
    card.write(0x24, 1);
    let gate = card.host.gate.write().unwrap();
    let before = card.host.at_gate.load(Ordering::SeqCst);
    card.write(0x1c, 1);
    wait_until("an access", || {
        card.host.at_gate.load(Ordering::SeqCst) > before
    });
    card.fpga.reset();
    drop(gate);
    wait_until("the stop", || card.read(0x04) == 0);
    assert_eq!((card.read(0x08), card.interrupts()), (0, 0));
}
