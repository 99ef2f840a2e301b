// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the accesses and the reset values of registers against the manual's tables.

use crate::rig::{Rig, HOST_SIZE};
use std::sync::Arc;
use testgpu::device::Running;
use testgpu::hardware::Settings;
use testgpu::regs;
use vfio_user_device::testing::Memory;

const MANUAL: &str = include_str!("../../MANUAL.md");

fn number(cell: &str) -> Option<u64> {
    let text = cell.trim().trim_matches('`');
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Register of the manual: name, offset, access, and reset value if the manual has one.
fn table() -> Vec<(&'static str, u64, &'static str, Option<u64>)> {
    let mut rows = Vec::new();
    for line in MANUAL.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let [_, offset, name, access @ ("RO" | "RW" | "W1C" | "C"), reset, ..] = cells[..] {
            let name = name.trim_matches('`');
            let mut offset = number(offset).unwrap();
            if name.starts_with("SLOT_") && name != "SLOT_EVENT" {
                offset += regs::SLOT + 5 * regs::SLOT_STRIDE;
            } else if name.starts_with("ENGINE_") && offset < 0x80 {
                offset += regs::ENGINE + 3 * regs::ENGINE_STRIDE;
            }
            rows.push((name, offset, access, number(reset)));
        }
    }
    assert!(rows.len() > 90, "{}", rows.len());
    rows
}

#[test]
fn reset_values() {
    let host = Memory::new(HOST_SIZE, regs::VECTOR_COUNT).unwrap();
    let running = Running::start(Settings::default(), Arc::new(host)).unwrap();
    for (name, offset, _, reset) in table() {
        let value = running.device().read_register(offset, 8);
        if let Some(reset) = reset {
            assert_eq!(value, reset, "{name}");
        }
        let halves = [0, 4].map(|half| running.device().read_register(offset + half, 4));
        if name != "TIME" {
            assert_eq!(halves[0] | (halves[1] << 32), value, "{name}");
        }
    }
    assert_eq!(
        running.device().read_register(regs::BAD_ACCESSES, 8),
        0,
        "no row is a hole"
    );
}

#[test]
fn read_only_registers_do_not_change_and_the_writes_count() {
    let rig = Rig::new();
    for (name, offset, access, _) in table() {
        if access != "RO" || ["TIME", "BAD_ACCESSES"].contains(&name) {
            continue;
        }
        let (before, bad) = (rig.r(offset), rig.r(regs::BAD_ACCESSES));
        rig.w(offset, !before);
        assert_eq!(
            (rig.r(offset), rig.r(regs::BAD_ACCESSES)),
            (before, bad + 1),
            "{name}"
        );
    }
}

#[test]
fn accesses_that_are_not_allowed() {
    let rig = Rig::new();
    let device = rig.device();
    let start = rig.r(regs::BAD_ACCESSES);
    for (offset, bytes) in [
        (0, 1),
        (0, 2),
        (4, 8),
        (2, 4),
        (1, 8),
        (0, 3),
        (0, 16),
        (0x10000, 8),
        (u64::MAX, 4),
    ] {
        assert_eq!(device.read_register(offset, bytes), u64::MAX);
        device.write_register(offset, bytes, 1);
    }
    assert_eq!(rig.r(regs::BAD_ACCESSES), start + 18);
    for hole in [0x80, 0x130, 0x228, 0xfff8, 0x2078, 0x3000] {
        assert_eq!(rig.r(hole), 0);
        rig.w(hole, 1);
    }
    assert_eq!(rig.r(regs::BAD_ACCESSES), start + 30);
}

#[test]
fn halves() {
    let rig = Rig::new();
    let device = rig.device();
    device.write_register(regs::SCRATCH, 4, 0x1111_2222);
    device.write_register(regs::SCRATCH + 4, 4, 0x3333_4444);
    assert_eq!(rig.r(regs::SCRATCH), 0x3333_4444_1111_2222);
    assert_eq!(device.read_register(regs::SCRATCH + 4, 4), 0x3333_4444);
    device.write_doorbell(45 * 4096, 8, 1);
    device.write_doorbell(5 * 4096, 8, 1);
    device.write_register(regs::PENDING + 4, 4, 1 << 13);
    assert_eq!(rig.r(regs::PENDING), 1 << 5);
    // A command needs its low half.
    let bad = rig.r(regs::BAD_ACCESSES);
    device.write_register(regs::INV_SUBMIT + 4, 4, 1);
    assert_eq!(rig.r(regs::BAD_ACCESSES), bad + 1);
    device.write_register(regs::INV_SUBMIT, 4, 9);
    rig.until("INVALIDATE", || rig.r(regs::INV_DONE) == 9);
}

/// Tests that the device answers, and that a reset restores it, whatever is written anywhere.
#[test]
fn any_writes() {
    let rig = Rig::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..60_000 {
        let offset = random() % 0xa100;
        let bytes = [4, 8, 8, 8, 1][random() as usize % 5];
        let offset = if round % 10 == 0 { offset } else { offset & !7 };
        // All but the knobs that make the device slow, and the bus model.
        if offset >= regs::LINK_BANDWIDTH || offset & !7 == regs::MAX_RUN_NS {
            continue;
        }
        let value = [random(), random() % 5, random() % 0x10000][random() as usize % 3];
        rig.device().write_register(offset, bytes, value);
        rig.device()
            .write_doorbell((random() % (1 << 22)) & !7, 8, value % 70);
        rig.device().read_register(random() % 0x10008, bytes);
    }
    rig.w(regs::RESET, 1);
    rig.until("RESET", || rig.r(regs::RESET) == 0);
    rig.set_up();
    let mut queue = rig.queue(1, regs::CLASS_COPY);
    rig.run(&mut queue, &[&[regs::FENCE_WRITE, crate::rig::DATA, 1]]);
}
