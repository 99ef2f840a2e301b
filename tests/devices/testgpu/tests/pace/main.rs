// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the bus model takes the right time. They are a program of their own and run one at a
//! time, so that nothing disturbs them.

#[allow(dead_code)]
#[path = "../core/rig.rs"]
mod rig;

use rig::{Rig, DATA, VRAM_DATA};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use testgpu::hardware::Settings;
use testgpu::link::Speed;
use testgpu::regs;

const MIB: u64 = 1 << 20;
const VRAM: u64 = VRAM_DATA + 8 * MIB;

static ALONE: Mutex<()> = Mutex::new(());

fn rig() -> Rig {
    let link = Speed {
        bandwidth: 100_000_000,
        latency: 2_000_000,
    };
    let vram_link = Speed {
        bandwidth: 0,
        latency: 0,
    };
    Rig::with(Settings {
        vram: 32 << 20,
        link,
        vram_link,
        ..Settings::default()
    })
}

fn time(rig: &Rig, queue: &mut rig::Queue, packets: &[&[u64]]) -> Duration {
    let start = Instant::now();
    rig.run(queue, packets);
    start.elapsed()
}

/// Returns whether an action takes less than a limit at least once. Other work on the machine only
/// makes it longer.
fn takes_less(limit: Duration, mut what: impl FnMut() -> Duration) -> bool {
    (0..200).any(|_| what() < limit)
}

#[test]
fn bandwidth_and_latency() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = rig();
    // 4 MiB at 100 MB/s, latency once.
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    assert!(takes_less(Duration::from_millis(43 * 3), || {
        let took = time(&rig, &mut queue, &[&[regs::COPY, DATA, VRAM, 4 * MIB]]);
        assert!(took >= Duration::from_millis(43), "{took:?}");
        took
    }));
}

#[test]
fn directions_are_independent_and_engines_share() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = rig();
    let mut a = rig.queue(1, regs::CLASS_COPY);
    let mut b = rig.queue(2, regs::CLASS_COPY);
    let both = |a_packet: &[u64], b_packet: &[u64], a: &mut _, b: &mut _| {
        let start = Instant::now();
        rig.submit(a, &[a_packet]);
        rig.submit(b, &[b_packet]);
        rig.wait_idle(a);
        rig.wait_idle(b);
        start.elapsed()
    };
    let read = [regs::COPY, DATA, VRAM, 4 * MIB];
    let write = [regs::COPY, VRAM + 4 * MIB, DATA + 4 * MIB, 4 * MIB];
    let same = both(&read, &read, &mut a, &mut b);
    assert!(same >= Duration::from_millis(84), "{same:?}");
    // Less than the least time for one after the other.
    assert!(takes_less(Duration::from_millis(84), || {
        let opposite = both(&read, &write, &mut a, &mut b);
        assert!(opposite >= Duration::from_millis(42), "{opposite:?}");
        opposite
    }));
}

/// Tests that paging copies have the pace of packets, and share the link with them.
#[test]
fn paging_copies() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = rig();
    // 4 MiB at 100 MB/s, latency once.
    for (source, target) in [(regs::PAGING_HOST, 8 * MIB), (8 * MIB, regs::PAGING_HOST)] {
        assert!(takes_less(Duration::from_millis(43 * 3), || {
            let start = Instant::now();
            assert_eq!(rig.page(source, target, 4 * MIB), 0);
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(43), "{took:?}");
            took
        }));
    }
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    let start = Instant::now();
    rig.submit(&mut queue, &[&[regs::COPY, DATA, VRAM, 4 * MIB]]);
    rig.page(regs::PAGING_HOST, 8 * MIB, 4 * MIB);
    rig.wait_idle(&queue);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(84), "{took:?}");
    // Within VRAM, which has no limits here.
    assert!(takes_less(Duration::from_millis(43), || {
        let start = Instant::now();
        rig.page(8 * MIB, 12 * MIB, 4 * MIB);
        start.elapsed()
    }));
}

#[test]
fn each_fence_costs_a_latency_and_vram_none() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = rig();
    let fences = [&[regs::FENCE_WRITE, DATA, 1][..]; 10];
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    let took = time(&rig, &mut queue, &fences);
    assert!(took >= Duration::from_millis(20), "{took:?}");
    let fences = [&[regs::FENCE_WRITE, VRAM, 1][..]; 10];
    assert!(takes_less(Duration::from_millis(20), || time(
        &rig, &mut queue, &fences
    )));
}

#[test]
fn speeds_are_registers_too() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = rig();
    assert_eq!(rig.r(regs::LINK_BANDWIDTH), 100_000_000);
    rig.w(regs::LINK_BANDWIDTH, 0);
    rig.w(regs::LINK_LATENCY, 0);
    // With the reset value none of them could be so fast: 4 MiB at 100 MB/s.
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    assert!(takes_less(Duration::from_millis(40), || time(
        &rig,
        &mut queue,
        &[&[regs::COPY, DATA, VRAM, 4 * MIB]]
    )));
    rig.w(regs::VRAM_BANDWIDTH, 5);
    assert_eq!(rig.r(regs::VRAM_BANDWIDTH), 1_000_000);
}

/// Tests that without the bus model the engines move bytes at half the speed of `memmove` or
/// faster. The bytes and places are equal. Only with optimization.
#[cfg(not(debug_assertions))]
#[test]
fn unpaced_copies_are_fast() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    let bytes = 7 * MIB;
    let to = 8 * MIB;
    let busy = || {
        let register = |engine| regs::ENGINE + engine * regs::ENGINE_STRIDE + regs::ENGINE_BUSY_NS;
        rig.r(register(0)) + rig.r(register(1))
    };
    let (mut memory, mut device) = (u64::MAX, u64::MAX);
    for round in 0..500 {
        // Of both times the least of several counts.
        if round >= 20 && device < 2 * memory {
            break;
        }
        let start = Instant::now();
        rig.host
            .bytes
            .copy(0, &rig.host.bytes, to, bytes as usize)
            .unwrap();
        memory = memory.min(start.elapsed().as_nanos() as u64);
        let before = busy();
        rig.run(&mut queue, &[&[regs::COPY, DATA, DATA + to, bytes]]);
        device = device.min(busy() - before);
    }
    println!("{bytes} bytes: memmove {memory} ns, the device {device} ns");
    assert!(
        device < 2 * memory,
        "memmove {memory} ns, the device {device} ns"
    );
}
