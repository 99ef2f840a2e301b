// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of translation: the TLB, INVALIDATE, refused accesses.

use crate::rig::{launch, Rig, DATA, HOST, RW};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testgpu::regs;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;
const VA: u64 = 0x7abc_def0_0000;
const MIB: u64 = 1 << 20;

#[test]
fn the_tlb_serves_stale_entries_until_they_are_invalidated() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.map(1, VA, RW | HOST | 0x10_0000);
    rig.run(&mut queue, &[&[regs::FENCE_WRITE, VA, 1]]);
    rig.map(1, VA, RW | HOST | 0x20_0000);
    rig.run(&mut queue, &[&[regs::FENCE_WRITE, VA, 2]]);
    assert_eq!(
        (
            rig.host.bytes.load(0x10_0000),
            rig.host.bytes.load(0x20_0000)
        ),
        (Some(2), Some(0))
    );
    // The leaf and even the root are gone: the translation is still cached.
    rig.unmap(1, VA);
    let root = rig.r(regs::ROOT + 8);
    rig.w(regs::ROOT + 8, 0);
    rig.run(&mut queue, &[&[regs::FENCE_WRITE, VA, 3]]);
    rig.w(regs::ROOT + 8, root);
    // INVALIDATE of other pages and address spaces has no effect.
    rig.invalidate(2, 0, u64::MAX);
    rig.invalidate(1, VA + 4096, u64::MAX);
    rig.invalidate(1, 0, VA - 1);
    rig.run(&mut queue, &[&[regs::FENCE_WRITE, VA, 4]]);
    assert_eq!(rig.host.bytes.load(0x10_0000), Some(4));
    rig.invalidate(1, VA + 100, VA + 100);
    let stop = rig.stop(&mut queue, &[&[regs::FENCE_WRITE, VA, 5]]);
    assert_eq!(stop, (regs::NOT_PRESENT, VA));
    // Entries that are not present are not cached.
    rig.map(1, VA, RW | HOST | 0x20_0000);
    assert_eq!(
        rig.command(queue.slot, regs::COMMAND_RETRY),
        regs::RESULT_OK
    );
    rig.wait_idle(&queue);
    assert_eq!(
        (
            rig.host.bytes.load(0x10_0000),
            rig.host.bytes.load(0x20_0000)
        ),
        (Some(4), Some(5))
    );
}

#[test]
fn permissions_are_cached_too() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    rig.map(1, VA, regs::PTE_READ | HOST);
    assert_eq!(
        rig.stop(
            &mut queue,
            &[&[regs::FENCE_WAIT, VA, 0], &[regs::FENCE_WRITE, VA, 1]]
        ),
        (regs::PERMISSION, VA)
    );
    rig.map(1, VA, RW | HOST);
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.wait_state(&queue, regs::STATE_FAULTED);
    rig.invalidate(regs::INV_ALL, VA, VA);
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.wait_idle(&queue);
    rig.map(1, VA + 4096, regs::PTE_WRITE | HOST);
    let stop = rig.stop(&mut queue, &[&[regs::FENCE_WAIT, VA + 4096, 0]]);
    assert_eq!(stop, (regs::PERMISSION, VA + 4096));
}

#[test]
fn tables_in_host_memory() {
    let rig = Rig::new();
    // Four tables in host memory, one after another.
    let table = 8 * MIB;
    let link = |level: u64| (table + (3 - level) * 4096, (VA >> (12 + 9 * level)) & 511);
    for level in [3, 2, 1] {
        let (base, index) = link(level);
        let next = (base + 4096) | HOST | regs::PTE_VALID;
        rig.host.bytes.store(base + 8 * index, next).unwrap();
    }
    let (base, index) = link(0);
    let leaf = regs::PTE_VALID | regs::PTE_LEAF | regs::PTE_EXECUTE | RW | HOST | 0x5000;
    rig.host.bytes.store(base + 8 * index, leaf).unwrap();
    rig.w(
        regs::ROOT + 8 * 7,
        table | regs::ROOT_HOST | regs::ROOT_ENABLE,
    );
    for (word, value) in [regs::FENCE_WRITE, VA + 0x800, 9].into_iter().enumerate() {
        rig.host
            .bytes
            .store(0x5000 + 8 * word as u64, value)
            .unwrap();
    }
    rig.set_slot(3, regs::SLOT_CONFIG, 3 | (7 << 16) | (BOTH << 24));
    rig.set_slot(3, regs::SLOT_RING, VA);
    rig.set_slot(3, regs::SLOT_SIZE, 1);
    assert_eq!(rig.command(3, regs::COMMAND_BIND), regs::RESULT_OK);
    rig.device().write_doorbell(3 * 4096, 8, 1);
    rig.until("the fence", || rig.host.bytes.load(0x5800) == Some(9));
    assert_eq!(rig.r(regs::WALK_READS), 4);
    assert_eq!(rig.r(regs::NO_SNOOP), 0);
}

#[test]
fn rings_need_the_execute_permission() {
    let rig = Rig::new();
    rig.map(1, crate::rig::RINGS + 5 * 4096, RW | (2 << 20) | (5 * 4096));
    let mut queue = rig.queue(5, BOTH);
    let stop = rig.stop(&mut queue, &[&[regs::NOP]]);
    assert_eq!(stop, (regs::PERMISSION, queue.ring()));
    let info = rig.r(regs::FAULT_ENTRY + regs::FAULT_INFO);
    assert_eq!((info >> 8) & 3, regs::ACCESS_FETCH);
}

#[test]
fn invalidate_waits_for_accesses_in_flight() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.map(1, VA, RW | HOST | 0x10_0000);
    let accesses = || rig.host.at_gate.load(Ordering::SeqCst);
    let before = accesses();
    let closed = rig.host.gate.write().unwrap();
    rig.submit(&mut queue, &[&[regs::FENCE_WRITE, VA, 1]]);
    rig.until("the access", || accesses() > before);
    rig.unmap(1, VA);
    let sequence = rig.submit_invalidate(1, VA, VA);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        assert!(rig.r(regs::INV_DONE) < sequence, "it does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rig.host.bytes.load(0x10_0000), Some(0));
    drop(closed);
    rig.until("INVALIDATE", || rig.r(regs::INV_DONE) >= sequence);
    assert_eq!(rig.host.bytes.load(0x10_0000), Some(1));
}

#[test]
fn no_write_after_the_acknowledgement() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    for round in 0..50 {
        rig.map(1, VA, RW | HOST | 0x10_0000);
        let copies: Vec<_> = (0..32)
            .map(|_| [regs::COPY, DATA + MIB + round, VA, 4000])
            .collect();
        let copies: Vec<&[u64]> = copies.iter().map(|copy| &copy[..]).collect();
        rig.submit(&mut queue, &copies);
        rig.until("a write", || rig.r(regs::TLB_HITS) > 0);
        rig.unmap(1, VA);
        rig.invalidate(1, VA, VA);
        rig.host_write(0x10_0000, &[0x55; 4096]);
        rig.until("the end", || {
            [regs::STATE_IDLE, regs::STATE_FAULTED].contains(&rig.state(queue.slot))
        });
        assert!(rig.host_read(0x10_0000, 4096) == [0x55; 4096]);
        rig.map(1, VA, RW | HOST | 0x10_0000);
        rig.command(queue.slot, regs::COMMAND_RETRY);
        rig.wait_idle(&queue);
    }
}

#[test]
fn addresses_that_cannot_be() {
    let rig = Rig::new();
    let end = rig.r(regs::VRAM_SIZE);
    rig.map(1, VA, RW | end);
    rig.map(1, VA + 4096, RW | HOST | (1 << 30));
    rig.map(1, VA + 8192, RW | HOST | (1 << 8));
    let last = (1 << 48) - 4096;
    rig.map(1, last, RW);
    let code = |id, packet: &[u64]| rig.stop(&mut rig.queue(id, BOTH), &[packet]);
    assert_eq!(code(1, &[regs::FENCE_WRITE, VA, 1]), (regs::VRAM_RANGE, VA));
    assert_eq!(
        code(2, &[regs::FENCE_WRITE, VA + 4096, 1]),
        (regs::BUS, VA + 4096)
    );
    assert_eq!(
        code(3, &[regs::FENCE_WRITE, VA + 8192, 1]),
        (regs::RESERVED_BIT, VA + 8192)
    );
    assert_eq!(
        code(4, &[regs::FENCE_WRITE, 1 << 48, 1]),
        (regs::VA_RANGE, 1 << 48)
    );
    assert_eq!(
        code(5, &[regs::FENCE_WRITE, 1 << 20, 1]),
        (regs::NOT_PRESENT, 1 << 20)
    );
    assert_eq!(
        code(6, &[regs::FILL, last + 1, 4096, 1]),
        (regs::VA_RANGE, 1 << 48)
    );
    assert_eq!(
        code(7, &[regs::FILL, u64::MAX - 1, 4096, 1]).0,
        regs::VA_RANGE
    );
    assert_eq!(
        code(8, &launch(regs::KERNEL_SUM_F32, &[u64::MAX - 3, 5, DATA])).0,
        regs::VA_RANGE
    );
    let mut queue = rig.queue_with(9, 9 | (5 << 16) | (BOTH << 24));
    assert_eq!(
        rig.stop(&mut queue, &[&[regs::NOP]]),
        (regs::ROOT_DISABLED, queue.ring())
    );
    let levels: Vec<_> = (0..9)
        .map(|i| (rig.r(regs::FAULT_ENTRY + 32 * i) >> 12) & 7)
        .collect();
    assert_eq!(levels, [4, 4, 0, 4, 1, 4, 4, 4, 4]);
}

#[test]
fn a_refused_page_in_the_middle_is_found() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.host.refused.lock().unwrap().insert(0x10_3000);
    let stop = rig.stop(&mut queue, &[&[regs::FILL, DATA + 0x10_0010, 0x8000, 7]]);
    assert_eq!(stop, (regs::BUS, DATA + 0x10_3000));
    assert_eq!(rig.host_read(0x10_2fff, 2), [7, 0]);
    assert!(rig.r(regs::BUS_ERRORS) > 0);
    rig.host.refused.lock().unwrap().clear();
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.wait_idle(&queue);
    assert_eq!(rig.host_read(0x10_0010, 0x8000), [7; 0x8000]);
}

#[test]
fn without_bus_master_there_is_no_access_to_host_memory() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.device().hardware().set_master(false);
    assert_eq!(rig.r(regs::BUS_MASTER), 0);
    rig.run(
        &mut queue,
        &[&[regs::FILL, crate::rig::VRAM_DATA + (8 << 20), 4096, 1]],
    );
    assert_eq!(
        rig.stop(&mut queue, &[&[regs::FILL, DATA, 4096, 1]]),
        (regs::BUS, DATA)
    );
    assert_eq!(rig.host_read(0, 4096), [0; 4096]);
}
