// SPDX-License-Identifier: GPL-2.0
//! Tests that the driver's numbers of the test GPU are those of the device's manual.

use std::collections::BTreeMap;

const DRIVER: &str = include_str!("../../backend/testgpu/regs.rs");
const MANUAL: &str = include_str!("../../../tests/devices/testgpu/MANUAL.md");

fn number(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the constants of the driver: `NAME = value;`, some with a type.
fn constants() -> BTreeMap<&'static str, u64> {
    let constant = |line: &'static str| {
        let (name, value) = line.trim().strip_suffix(';')?.split_once(" = ")?;
        let name = name.split(':').next()?.rsplit(' ').next()?;
        Some((name, number(value)?))
    };
    let all: Vec<_> = DRIVER.lines().filter_map(constant).collect();
    let map: BTreeMap<_, _> = all.iter().copied().collect();
    assert_eq!(all.len(), map.len(), "a name is there twice");
    map
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(|cell| cell.trim()).collect())
}

/// Returns the rows of the manual's tables: `value` and `name`.
fn rows() -> BTreeMap<&'static str, u64> {
    let quoted = |cell: &'static str| cell.strip_prefix('`')?.strip_suffix('`');
    let row = |line| {
        let cells = cells(line)?;
        let value = number(quoted(cells.first()?)?)?;
        Some((quoted(cells.get(1)?)?, value))
    };
    MANUAL.lines().filter_map(row).collect()
}

/// Returns the numbers that the manual states in its text, by the names of the constants.
fn said_otherwise() -> BTreeMap<&'static str, u64> {
    let row = |begin: &str| {
        let found = MANUAL.lines().find(|line| line.starts_with(begin));
        let cells = found.and_then(cells);
        cells.unwrap_or_else(|| panic!("no row begins with {begin:?}"))
    };
    let (vendor, rest) = row("| Vendor, device |")[1].split_once(", ").unwrap();
    let device = rest.split(':').next().unwrap();
    let bar = |number: u64, what: &str| {
        let row = row(&format!("| {number} |"));
        assert!(row[3].contains(what), "BAR {number}: {row:?}");
        number
    };
    let magic = row("| `0x0000` | `MAGIC` |");
    let version = row("| `0x0008` | `VERSION` |");
    let entry = row("| `0x0800` | `FAULT_ENTRY` |");
    let engine = row("| `0x58` | `SLOT_ENGINE` |");
    BTreeMap::from([
        ("VENDOR", number(vendor).unwrap()),
        ("DEVICE", number(device).unwrap()),
        ("BAR_REGISTERS", bar(0, "egisters")),
        ("BAR_DOORBELLS", bar(1, "oorbells")),
        ("BAR_VRAM", bar(2, "VRAM")),
        ("MAGIC_VALUE", number(magic[3].trim_matches('`')).unwrap()),
        (
            "VERSION_MAJOR",
            number(version[3].trim_matches('`')).unwrap() >> 16,
        ),
        ("NO_ENGINE", number(engine[3].trim_matches('`')).unwrap()),
        ("FAULT_STRIDE", {
            let after = entry[4].split("stride ").nth(1).unwrap();
            number(
                after
                    .split(|letter: char| !letter.is_ascii_digit())
                    .next()
                    .unwrap(),
            )
            .unwrap()
        }),
    ])
}

#[test]
fn every_number_of_the_driver_is_that_of_the_manual() {
    let (constants, rows, otherwise) = (constants(), rows(), said_otherwise());
    assert!(constants.len() > 100, "{constants:?}");
    for (name, value) in constants {
        let manual = rows.get(name).or_else(|| otherwise.get(name));
        assert_eq!(manual, Some(&value), "{name}");
    }
}

/// Tests that every constant is seen; one that is not seen would not be compared.
#[test]
fn no_number_is_overlooked() {
    let written = DRIVER
        .lines()
        .filter(|line| line.contains(" = ") && line.ends_with(';') && !line.contains('$'))
        .count();
    assert_eq!(constants().len(), written);
}
