// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of atomic accesses.

use crate::rig::{launch, Queue, Rig, DATA, HOST, RW};
use std::time::Duration;
use testgpu::regs;

const BOTH: u64 = regs::CLASS_COPY | regs::CLASS_COMPUTE;
const VA: u64 = 0x7000_0000_0000;
const PAGE: u64 = regs::PAGE;
/// Where the words are, as a bus address and as an offset into VRAM.
const PLACE: u64 = 12 << 20;

fn add(data: u64, count: u64, value: u64, times: u64) -> Vec<u64> {
    launch(regs::KERNEL_ATOMIC_ADD_U64, &[data, count, value, times])
}

/// Enters `pages` pages at VA, in VRAM or in host memory.
fn map(rig: &Rig, pages: u64, host: u64) {
    for page in 0..pages {
        let leaf = RW | regs::PTE_ATOMIC | host | (PLACE + PAGE * page);
        rig.map(1, VA + PAGE * page, leaf);
    }
}

fn word(rig: &Rig, host: u64, offset: u64) -> u64 {
    let memory = if host == 0 {
        rig.vram()
    } else {
        &rig.host.bytes
    };
    memory.load(PLACE + offset).unwrap()
}

fn set(rig: &Rig, host: u64, offset: u64, value: u64) {
    let memory = if host == 0 {
        rig.vram()
    } else {
        &rig.host.bytes
    };
    memory.store(PLACE + offset, value).unwrap();
}

fn info(rig: &Rig) -> u64 {
    let place = (rig.r(regs::FAULT_WRITE) - 1) % regs::FAULT_COUNT as u64;
    rig.r(regs::FAULT_ENTRY + regs::FAULT_STRIDE * place)
}

#[test]
fn adds_to_each_word_and_to_no_other() {
    let rig = Rig::new();
    assert_ne!(rig.r(regs::FEATURES) & regs::FEATURE_ATOMIC, 0);
    let mut queue = rig.queue(1, BOTH);
    for host in [0, HOST] {
        map(&rig, 2, host);
        rig.invalidate(1, 0, u64::MAX);
        for index in 0..1024 {
            set(&rig, host, 8 * index, index);
        }
        rig.run(
            &mut queue,
            &[
                &add(VA + 8, 1022, 5, 3),
                &add(VA + 16, 1, u64::MAX, 1000),
                &add(VA, 0, 1, 1),
                &add(VA, 1, 1, 0),
            ],
        );
        for index in 0..1024 {
            let added = match index {
                0 | 1023 => 0,
                2 => 15_u64.wrapping_sub(1000),
                _ => 15,
            };
            assert_eq!(word(&rig, host, 8 * index), index.wrapping_add(added));
        }
        let engine = |register| -> u64 {
            (0..6)
                .map(|engine| rig.r(regs::ENGINE + engine * regs::ENGINE_STRIDE + register))
                .sum()
        };
        let bytes = 8 * (3 * 1022 + 1000);
        let counters = match host {
            0 => [regs::ENGINE_VRAM_READ, regs::ENGINE_VRAM_WRITTEN],
            _ => [regs::ENGINE_HOST_READ, regs::ENGINE_HOST_WRITTEN],
        };
        assert_eq!(counters.map(engine), [bytes; 2]);
    }
}

/// Tests that an atomic access needs all rights, and that its fault tells what it was.
#[test]
fn a_leaf_without_the_bit_faults() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    let all = RW | regs::PTE_ATOMIC;
    for lacking in [regs::PTE_ATOMIC, regs::PTE_WRITE, regs::PTE_READ, all] {
        rig.map(1, VA, (all & !lacking) | HOST | PLACE);
        if lacking == all {
            rig.unmap(1, VA);
        }
        rig.invalidate(1, 0, u64::MAX);
        set(&rig, HOST, 8, 7);
        let code = match lacking == all {
            true => regs::NOT_PRESENT,
            false => regs::PERMISSION,
        };
        let stop = rig.stop(&mut queue, &[&add(VA + 8, 1, 1, 2)]);
        assert_eq!(stop, (code, VA + 8));
        assert_eq!((info(&rig) >> 8) & 3, regs::ACCESS_ATOMIC);
        assert_eq!((info(&rig) >> 16) & 0xff, code);
        assert_eq!(word(&rig, HOST, 8), 7);
        rig.map(1, VA, all | HOST | PLACE);
        rig.invalidate(1, 0, u64::MAX);
        rig.command(queue.slot, regs::COMMAND_RETRY);
        rig.wait_idle(&queue);
        assert_eq!(word(&rig, HOST, 8), 9);
    }
    // The bit permits nothing else.
    rig.map(1, VA, regs::PTE_ATOMIC | HOST | PLACE);
    rig.invalidate(1, 0, u64::MAX);
    for (packet, access) in [
        ([regs::COPY, DATA, VA, 8], regs::ACCESS_WRITE),
        ([regs::COPY, VA, DATA, 8], regs::ACCESS_READ),
    ] {
        let mut queue = rig.queue(2 + access, BOTH);
        assert_eq!(rig.stop(&mut queue, &[&packet]), (regs::PERMISSION, VA));
        assert_eq!((info(&rig) >> 8) & 3, access);
    }
}

/// Tests that each addition is made once, wherever a fault comes: between words, between the
/// additions to a word, with the write refused after the read, and over UNBIND and BIND.
#[test]
fn each_addition_is_made_once() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, BOTH);
    let (pages, words) = (4, 4 * 512);
    rig.submit(&mut queue, &[&add(VA, words, 3, 2)]);
    for page in 0..pages {
        rig.wait_state(&queue, regs::STATE_FAULTED);
        assert_eq!(rig.slot(queue.slot, regs::SLOT_FAULT_VA), VA + PAGE * page);
        let leaf = RW | regs::PTE_ATOMIC | HOST | (PLACE + PAGE * page);
        rig.map(1, VA + PAGE * page, leaf);
        if page == 2 {
            let (index, progress) = rig.unbind(&queue);
            rig.bind(&queue, index, progress);
        } else {
            rig.command(queue.slot, regs::COMMAND_RETRY);
        }
    }
    rig.wait_idle(&queue);
    assert!((0..words).all(|index| word(&rig, HOST, 8 * index) == 6));

    // In the middle of a word's additions.
    rig.w(regs::LINK_BANDWIDTH, 1_000_000);
    let times = 100_000;
    rig.submit(&mut queue, &[&add(VA, 1, 1, times)]);
    rig.until("the first additions", || word(&rig, HOST, 0) > 6);
    rig.unmap(1, VA);
    rig.invalidate(1, VA, VA);
    rig.wait_state(&queue, regs::STATE_FAULTED);
    let made = word(&rig, HOST, 0) - 6;
    assert!(0 < made && made < times, "{made}");
    rig.w(regs::LINK_BANDWIDTH, 0);
    rig.host.refused.lock().unwrap().insert(PLACE);
    map(&rig, 1, HOST);
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.until("a refusal", || rig.r(regs::FAULTS) == pages + 2);
    rig.wait_state(&queue, regs::STATE_FAULTED);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_ERROR), regs::BUS);
    assert_eq!((info(&rig) >> 8) & 3, regs::ACCESS_ATOMIC);
    assert_eq!(word(&rig, HOST, 0) - 6, made);
    rig.host.refused.lock().unwrap().clear();
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.wait_idle(&queue);
    assert_eq!(word(&rig, HOST, 0), 6 + times);
}

/// Tests that additions of several engines to one word are all there, though accesses to host
/// memory are slow.
#[test]
fn engines_lose_nothing() {
    let rig = Rig::new();
    for (host, times) in [(0, 20_000), (HOST, 100)] {
        map(&rig, 1, host);
        rig.invalidate(1, 0, u64::MAX);
        set(&rig, host, 0, 0);
        if host != 0 {
            *rig.host.slow.lock().unwrap() = Duration::from_micros(200);
        }
        let mut queues: Vec<Queue> = (1..5)
            .map(|id| rig.queue(if host == 0 { id } else { 10 + id }, BOTH))
            .collect();
        for queue in &mut queues {
            rig.submit(queue, &[&add(VA, 1, 1, times)]);
        }
        for queue in &queues {
            rig.wait_idle(queue);
        }
        assert_eq!(word(&rig, host, 0), 4 * times);
    }
}
