// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the constants of the device and the tables of its manual agree.

use std::collections::BTreeMap;
use testgpu::regs;

const MANUAL: &str = include_str!("../MANUAL.md");

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn quoted(cell: &str) -> Option<&str> {
    cell.trim().strip_prefix('`')?.strip_suffix('`')
}

/// Returns the rows of the tables: value, name, the other cells.
fn rows() -> Vec<(u64, &'static str, Vec<&'static str>)> {
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|');
        let value = number(quoted(cells.next()?)?)?;
        let name = quoted(cells.next()?)?;
        Some((value, name, cells.map(str::trim).collect()))
    };
    MANUAL.lines().filter_map(row).collect()
}

#[test]
fn every_constant_is_in_the_manual_and_has_its_value() {
    let mut manual = BTreeMap::new();
    for (value, name, _) in rows() {
        assert_eq!(
            manual.insert(name, value),
            None,
            "{name} is in the manual twice"
        );
    }
    let constants: BTreeMap<_, _> = regs::ALL.iter().copied().collect();
    assert_eq!(constants.len(), regs::ALL.len());
    assert_eq!(manual, constants);
}

#[test]
fn registers_are_aligned_and_do_not_overlap() {
    let mut end = 0;
    let mut registers: Vec<_> = rows()
        .into_iter()
        .filter(|(offset, _, cells)| {
            *offset >= 0x100 && ["RO", "RW", "W1C", "C"].contains(cells.first().unwrap_or(&""))
        })
        .collect();
    registers.sort();
    assert!(registers.len() > 50);
    for (offset, name, _) in registers {
        assert_eq!(offset % 8, 0, "{name}");
        assert!(offset >= end, "{name} overlaps");
        end = offset
            + match name {
                "PENDING" | "COMPLETION" | "DOORBELL_ENABLE" => 8 * regs::BITMAP_WORDS as u64,
                "ROOT" => 8 * regs::VMID_COUNT as u64,
                "DOORBELL_VALUE" => 8 * regs::QUEUE_COUNT as u64,
                "FAULT_ENTRY" => regs::FAULT_STRIDE * regs::FAULT_COUNT as u64,
                _ => 8,
            };
        assert!(end <= regs::BAR0_SIZE, "{name}");
    }
}
