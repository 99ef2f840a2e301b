// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the paging engine.

use crate::rig::{launch, noise, Rig, DATA, HOST_SIZE};
use std::time::{Duration, Instant};
use testgpu::hardware::Settings;
use testgpu::regs;

mod trouble;

const MIB: u64 = 1 << 20;
/// An offset into VRAM that no table and no ring uses.
const VRAM: u64 = 8 * MIB;
/// The engine's bit in masks.
const BIT: u64 = 1 << regs::PAGING_ENGINE;
/// Length of most copies; no multiple of the largest access.
const BYTES: u64 = 25 * regs::PAGE;

fn host(address: u64) -> u64 {
    address | regs::PAGING_HOST
}

fn counter(rig: &Rig, register: u64) -> u64 {
    rig.r(regs::ENGINE + regs::PAGING_ENGINE * regs::ENGINE_STRIDE + register)
}

/// Makes copies take long: 1 MB of host memory a second. They may take a minute.
fn slow_link(rig: &Rig) {
    rig.w(regs::LINK_BANDWIDTH, 1_000_000);
    rig.w(regs::MAX_RUN_NS, 60_000_000_000);
}

/// Tests that the engine copies, between places that nothing else uses.
fn check_works(rig: &Rig) {
    let data = noise(BYTES as usize);
    rig.host_write(12 * MIB, &data);
    rig.host_write(13 * MIB, &vec![0; BYTES as usize]);
    rig.w(regs::PAGING_ERROR, u64::MAX);
    assert_eq!(rig.page(host(12 * MIB), VRAM + 4 * MIB, BYTES), 0);
    assert_eq!(rig.page(VRAM + 4 * MIB, host(13 * MIB), BYTES), 0);
    assert_eq!(rig.host_read(13 * MIB, BYTES as usize), data);
}

#[test]
fn copies_each_way_and_no_byte_more() {
    let rig = Rig::new();
    let data = noise(BYTES as usize);
    let (first, last) = (regs::PAGE, regs::PAGE + BYTES);
    let read = |place: u64, bytes: usize| {
        let mut to = vec![0; bytes];
        match place & regs::PAGING_HOST {
            0 => rig.vram().read(place, &mut to).unwrap(),
            _ => to = rig.host_read(place - regs::PAGING_HOST, bytes),
        }
        to
    };
    rig.host_write(MIB, &data);
    let mut source = host(MIB);
    for base in [VRAM, VRAM + MIB, host(2 * MIB), host(3 * MIB)] {
        let before = read(base, (last + regs::PAGE) as usize);
        assert_eq!(rig.page(source, base + first, BYTES), 0);
        let after = read(base, (last + regs::PAGE) as usize);
        let (first, last) = (first as usize, last as usize);
        assert_eq!(after[first..last], data);
        assert_eq!(after[..first], before[..first]);
        assert_eq!(after[last..], before[last..]);
        source = base + regs::PAGE;
    }
    // The last pages of both memories, and no bytes at all.
    let size = rig.r(regs::VRAM_SIZE);
    assert_eq!(rig.page(host(MIB), size - BYTES, BYTES), 0);
    assert_eq!(rig.page(size - BYTES, host(HOST_SIZE - BYTES), BYTES), 0);
    assert_eq!(rig.host_read(HOST_SIZE - BYTES, BYTES as usize), data);
    assert_eq!(rig.page(host(u64::MAX - 1), u64::MAX - 1, 0), 0);
}

#[test]
fn writes_zeros_and_no_byte_more() {
    let rig = Rig::new();
    assert_ne!(rig.r(regs::FEATURES) & regs::FEATURE_ZEROS, 0);
    let bytes = (BYTES + 2 * regs::PAGE) as usize;
    let data = noise(bytes);
    let mut expected = data.clone();
    expected[regs::PAGE as usize..][..BYTES as usize].fill(0);
    let after = |host: bool| {
        let mut to = vec![0; bytes];
        match host {
            true => to = rig.host_read(MIB, bytes),
            false => rig.vram().read(VRAM, &mut to).unwrap(),
        }
        to
    };
    // The source has no address, and needs none that exists.
    for source in [regs::PAGING_ZEROS, u64::MAX] {
        // What the engine has copied before is not what it writes.
        assert_eq!(rig.page(host(MIB), VRAM + MIB, BYTES), 0);
        let before = counter(&rig, regs::ENGINE_HOST_READ);
        rig.vram().write(VRAM, &data).unwrap();
        assert_eq!(rig.page(source, VRAM + regs::PAGE, BYTES), 0);
        assert!(after(false) == expected);
        rig.host_write(MIB, &data);
        assert_eq!(rig.page(source, host(MIB + regs::PAGE), BYTES), 0);
        assert!(after(true) == expected);
        assert_eq!(counter(&rig, regs::ENGINE_HOST_READ), before);
    }
    let end = rig.r(regs::VRAM_SIZE);
    let beyond = rig.page(regs::PAGING_ZEROS, end - BYTES + regs::PAGE, BYTES);
    assert_eq!(beyond, regs::VRAM_RANGE);
    let odd = rig.page(regs::PAGING_ZEROS, VRAM, BYTES + 1);
    // The first failure is what is told until it is cleared.
    assert_eq!(odd, regs::VRAM_RANGE);
    rig.w(regs::PAGING_ERROR, u64::MAX);
    let odd = rig.page(regs::PAGING_ZEROS, VRAM, BYTES + 1);
    assert_eq!(odd, regs::BAD_ALIGNMENT);
    check_works(&rig);
}

#[test]
fn registers_keep_their_bits_and_a_copy_its_values() {
    let rig = Rig::new();
    rig.w(regs::PAGING_SOURCE, u64::MAX);
    rig.w(regs::PAGING_TARGET, 0xfff0_0000_0123_4ffe);
    rig.w(regs::PAGING_BYTES, u64::MAX);
    let place = regs::PTE_ADDRESS | regs::PAGING_HOST;
    assert_eq!(rig.r(regs::PAGING_SOURCE), place | regs::PAGING_ZEROS);
    assert_eq!(rig.r(regs::PAGING_TARGET), 0x123_4000);
    assert_eq!(rig.r(regs::PAGING_BYTES), u64::MAX);
    rig.device().write_register(regs::PAGING_SOURCE + 4, 4, 5);
    assert_eq!(rig.r(regs::PAGING_SOURCE), (5 << 32) | 0xffff_f003);
    let bad = rig.r(regs::BAD_ACCESSES);
    rig.device().write_register(regs::PAGING_SUBMIT + 4, 4, 1);
    assert_eq!(rig.r(regs::BAD_ACCESSES), bad + 1);
    // What is written after the submission does not change the copy.
    rig.w(regs::KNOB_STUCK, BIT);
    rig.host_write(MIB, &[7; 4096]);
    let sequence = rig.submit_copy(host(MIB), VRAM, regs::PAGE);
    rig.w(regs::PAGING_SOURCE, 0);
    rig.w(regs::PAGING_TARGET, 0);
    rig.w(regs::PAGING_BYTES, 0);
    rig.w(regs::KNOB_STUCK, 0);
    rig.until("the copy", || rig.r(regs::PAGING_DONE) == sequence);
    assert_eq!(rig.vram().load(VRAM), Some(u64::from_le_bytes([7; 8])));
}

#[test]
fn copies_end_in_the_order_of_their_submission() {
    let rig = Rig::new();
    let count = 40;
    rig.host_write(0, &noise(regs::PAGE as usize));
    rig.w(regs::KNOB_STUCK, BIT);
    // Each copies what the one before has copied.
    rig.submit_copy(host(0), VRAM, regs::PAGE);
    for page in 1..count {
        let source = VRAM + (page - 1) * regs::PAGE;
        rig.submit_copy(source, source + regs::PAGE, regs::PAGE);
    }
    rig.until("a busy engine", || rig.r(regs::ENGINE_BUSY) == BIT);
    assert_eq!(rig.r(regs::PAGING_FREE), 64 - count);
    assert_eq!(rig.r(regs::PAGING_DONE), 0);
    let page = |number: u64| rig.vram().load(VRAM + (number - 1) * regs::PAGE).unwrap();
    let expected = rig.host.bytes.load(0).unwrap();
    let mut done = 0;
    rig.w(regs::KNOB_STUCK, 0);
    rig.until("all", || {
        let (before, free) = (done, rig.r(regs::PAGING_FREE));
        done = rig.r(regs::PAGING_DONE);
        assert!(before <= done && free <= 64 - count + done);
        assert!((before + 1..=done).all(|number| page(number) == expected));
        done == count
    });
    assert_eq!(
        (rig.r(regs::PAGING_FREE), rig.r(regs::ENGINE_BUSY)),
        (64, 0)
    );
}

#[test]
fn a_full_queue_refuses() {
    let rig = Rig::new();
    rig.w(regs::KNOB_STUCK, BIT);
    for number in 0..64 {
        assert_eq!(rig.r(regs::PAGING_FREE), 64 - number);
        rig.submit_copy(VRAM, VRAM + MIB, regs::PAGE);
    }
    let bad = rig.r(regs::BAD_ACCESSES);
    rig.w(regs::PAGING_SUBMIT, 1000);
    assert_eq!(
        (rig.r(regs::PAGING_FREE), rig.r(regs::BAD_ACCESSES)),
        (0, bad + 1)
    );
    rig.w(regs::KNOB_STUCK, 0);
    rig.until("all", || rig.r(regs::PAGING_FREE) == 64);
    assert_eq!(
        (rig.r(regs::PAGING_DONE), rig.r(regs::PAGING_ERROR)),
        (64, 0)
    );
    check_works(&rig);
}

#[test]
fn each_error_ends_its_copy_and_no_other() {
    let rig = Rig::new();
    let size = rig.r(regs::VRAM_SIZE);
    rig.host.refused.lock().unwrap().insert(5 * MIB);
    let too_wide = host(regs::PTE_ADDRESS);
    for (source, target, bytes, code) in [
        (size - regs::PAGE, host(0), 2 * regs::PAGE, regs::VRAM_RANGE),
        (host(0), size, regs::PAGE, regs::VRAM_RANGE),
        (host(0), regs::PTE_ADDRESS, regs::PAGE, regs::VRAM_RANGE),
        (host(5 * MIB), VRAM, regs::PAGE, regs::BUS),
        (VRAM, host(5 * MIB - 20 * regs::PAGE), BYTES, regs::BUS),
        (host(HOST_SIZE), VRAM, regs::PAGE, regs::BUS),
        (VRAM, too_wide, 2 * regs::PAGE, regs::BUS),
        (too_wide, VRAM, 2 * regs::PAGE, regs::BUS),
        (host(0), VRAM, 64 * MIB + regs::PAGE, regs::BAD_LENGTH),
        (host(0), VRAM, u64::MAX, regs::BAD_LENGTH),
        (host(0), VRAM, regs::PAGE + 8, regs::BAD_ALIGNMENT),
        (host(0), VRAM, 1, regs::BAD_ALIGNMENT),
    ] {
        let packets = counter(&rig, regs::ENGINE_PACKETS);
        assert_eq!(
            rig.page(source, target, bytes),
            code,
            "{source:#x} {target:#x} {bytes:#x}"
        );
        assert_eq!(counter(&rig, regs::ENGINE_PACKETS), packets);
        check_works(&rig);
    }
    assert_eq!((rig.r(regs::FAULTS), rig.r(regs::FAULT_WRITE)), (0, 0));
}

#[test]
fn copies_that_take_too_long_are_ended() {
    let rig = Rig::new();
    slow_link(&rig);
    rig.w(regs::MAX_RUN_NS, 50_000_000);
    // The second begins when the first has ended, and has its full time.
    let start = Instant::now();
    rig.submit_copy(host(0), VRAM, 4 * MIB);
    assert_eq!(rig.page(VRAM, host(4 * MIB), 4 * MIB), regs::TIMEOUT);
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert_eq!(counter(&rig, regs::ENGINE_PACKETS), 0);
    rig.w(regs::LINK_BANDWIDTH, 0);
    rig.w(regs::MAX_RUN_NS, 2_000_000_000);
    check_works(&rig);
}

#[test]
fn the_first_error_stays_until_it_is_cleared() {
    let rig = Rig::new();
    let size = rig.r(regs::VRAM_SIZE);
    assert_eq!(rig.page(size, VRAM, regs::PAGE), regs::VRAM_RANGE);
    assert_eq!(rig.page(VRAM, VRAM + MIB, regs::PAGE), regs::VRAM_RANGE);
    assert_eq!(rig.page(VRAM, VRAM + MIB, 5), regs::VRAM_RANGE);
    rig.w(regs::PAGING_ERROR, 0);
    assert_eq!(rig.r(regs::PAGING_ERROR), regs::VRAM_RANGE);
    rig.w(regs::PAGING_ERROR, 1);
    assert_eq!(rig.r(regs::PAGING_ERROR), regs::VRAM_RANGE - 1);
    rig.w(regs::PAGING_ERROR, regs::VRAM_RANGE);
    assert_eq!(rig.r(regs::PAGING_ERROR), 0);
    assert_eq!(rig.page(VRAM, VRAM + MIB, regs::PAGE), 0);
    assert_eq!(rig.page(VRAM, VRAM + MIB, 5), regs::BAD_ALIGNMENT);
}

#[test]
fn without_bus_master_only_vram_is_reached() {
    let rig = Rig::new();
    rig.device().hardware().set_master(false);
    for (source, target) in [(host(0), VRAM), (VRAM, host(0)), (host(0), host(MIB))] {
        assert_eq!(rig.page(source, target, BYTES), regs::BUS);
        rig.w(regs::PAGING_ERROR, u64::MAX);
    }
    assert_eq!(rig.r(regs::BUS_ERRORS), 3);
    assert_eq!(rig.page(VRAM, VRAM + MIB, BYTES), 0);
    rig.device().hardware().set_master(true);
    check_works(&rig);
}

#[test]
fn the_interrupt() {
    let rig = Rig::new();
    rig.page(host(0), VRAM, regs::PAGE);
    assert_eq!(
        (rig.interrupts(6), rig.r(regs::INT_STATUS)),
        (1, regs::INT_PAGING)
    );
    rig.page(host(0), VRAM, regs::PAGE);
    assert_eq!(rig.interrupts(6), 1);
    rig.w(regs::INT_STATUS, regs::INT_PAGING);
    // A copy that fails ends too.
    rig.page(host(0), VRAM, 1);
    assert_eq!(
        (rig.interrupts(6), rig.r(regs::INT_STATUS)),
        (2, regs::INT_PAGING)
    );
    rig.w(regs::INT_ENABLE, 0);
    rig.w(regs::INT_STATUS, regs::INT_PAGING);
    rig.page(host(0), VRAM, regs::PAGE);
    assert_eq!(
        (rig.interrupts(6), rig.r(regs::INT_STATUS)),
        (2, regs::INT_PAGING)
    );
    rig.w(regs::INT_ENABLE, regs::INT_PAGING);
    assert_eq!(rig.interrupts(6), 3);
}

#[test]
fn it_works_while_packets_hold_all_other_engines() {
    let rig = Rig::new();
    // The copy engines run no kernels: there the packets are stuck.
    rig.w(regs::KNOB_STUCK, 0b11);
    rig.w(regs::MAX_RUN_NS, 60_000_000_000);
    for id in 0..6 {
        let class = if id < 2 {
            regs::CLASS_COPY
        } else {
            regs::CLASS_COMPUTE
        };
        let mut queue = rig.queue(id, class);
        match class {
            regs::CLASS_COPY => rig.submit(&mut queue, &[&[regs::COPY, DATA, DATA + MIB, 8]]),
            _ => rig.submit(&mut queue, &[&launch(regs::KERNEL_SPIN, &[u64::MAX])]),
        }
    }
    rig.until("all busy", || rig.r(regs::ENGINE_BUSY) == 0b11_1111);
    check_works(&rig);
    // It needs no page table either.
    for vmid in 0..16 {
        rig.w(regs::ROOT + 8 * vmid, 0);
    }
    check_works(&rig);
    assert_eq!(rig.r(regs::ENGINE_BUSY) & 0b11_1111, 0b11_1111);
}

#[test]
fn counters() {
    let rig = Rig::new();
    let walks = rig.r(regs::TLB_MISSES) + rig.r(regs::TLB_HITS) + rig.r(regs::FETCHES);
    rig.page(host(0), VRAM, 3 * regs::PAGE);
    rig.page(VRAM, VRAM + MIB, 5 * regs::PAGE);
    rig.page(VRAM, host(0), 9 * regs::PAGE);
    let pages = |register| counter(&rig, register) / regs::PAGE;
    assert_eq!(pages(regs::ENGINE_HOST_READ), 3);
    assert_eq!(pages(regs::ENGINE_HOST_WRITTEN), 9);
    assert_eq!(pages(regs::ENGINE_VRAM_READ), 14);
    assert_eq!(pages(regs::ENGINE_VRAM_WRITTEN), 8);
    assert_eq!(counter(&rig, regs::ENGINE_PACKETS), 3);
    rig.until("idle", || rig.r(regs::ENGINE_BUSY) == 0);
    let busy = counter(&rig, regs::ENGINE_BUSY_NS);
    assert!(busy > 0);
    slow_link(&rig);
    rig.page(VRAM, host(0), 5 * regs::PAGE);
    assert!(counter(&rig, regs::ENGINE_BUSY_NS) - busy >= 20_000_000);
    assert_eq!(
        rig.r(regs::TLB_MISSES) + rig.r(regs::TLB_HITS) + rig.r(regs::FETCHES),
        walks
    );
}

/// Asked once, the device has the answer, unless that takes more than a second.
#[test]
fn prompt_device_is_asked_once() {
    let rig = Rig::with(Settings {
        vram: 32 * MIB,
        prompt: true,
        ..Settings::default()
    });
    slow_link(&rig);
    for _ in 0..3 {
        let first = rig.submit_copy(host(MIB), VRAM, BYTES);
        let last = rig.submit_copy(VRAM, host(2 * MIB), BYTES);
        assert_eq!((first + 1, rig.r(regs::PAGING_DONE)), (last, last));
        let invalidate = rig.submit_invalidate(1, 0, u64::MAX);
        assert_eq!(rig.r(regs::INV_DONE), invalidate);
    }
    rig.w(regs::KNOB_STUCK, BIT);
    let stuck = rig.submit_copy(host(MIB), VRAM, BYTES);
    let begin = Instant::now();
    assert_eq!(rig.r(regs::PAGING_DONE), stuck - 1);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    rig.w(regs::KNOB_STUCK, 0);
    assert_eq!(rig.r(regs::PAGING_DONE), stuck);
}
