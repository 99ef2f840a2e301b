// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the results of random programs with those of QEMU's `qemu-riscv64`, instruction by
//! instruction: those of fixed seeds by checksums that it gave, others by running it.

#![allow(clippy::precedence)]

use crate::image::{scratch, Image, CODE};
use crate::launch::{Launch, FREE};
use crate::random::{table, Program, Random, TABLE};
use crate::rig::{Queue, Rig, DATA, HOST, RW};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use testgpu::regs;

/// Instructions of a program that are looked at.
const STEPS: usize = 4000;
/// VA of the data: table and scratch memory are on two pages each.
const MIDDLE: u64 = ATOMIC + 0x1c00;
/// VA and place in host memory of pages that may be accessed atomically.
const ATOMIC: u64 = 0x3000_0000;
const PLACE: u64 = FREE - DATA;
/// VA of the results.
const RESULTS: u64 = FREE + 0x1_0000;

/// Checksums of what QEMU gave for so many programs each, with the seeds from 1 on: a million
/// instructions. `checksums` prints them.
const EACH: usize = 32;
const KNOWN: [u64; 8] = [
    0x56b1f1c4af6cab3d,
    0xcdfc13fa3ad2e7cb,
    0x1fec4dc3fd231aff,
    0xd1f458235029944c,
    0x55758a751a5e857c,
    0x38eea3eb8314a028,
    0x77a64723f98933f4,
    0x7f79fae2e9296813,
];

struct Case {
    seed: u64,
    table: Vec<u64>,
    program: Program,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            seed,
            table: table(&mut random),
            program: Program::new(&mut random, STEPS),
        }
    }

    fn words(&self) -> Vec<u32> {
        let halves = self.program.halves.chunks(2);
        halves
            .map(|pair| u32::from(pair[0]) | u32::from(*pair.get(1).unwrap_or(&0)) << 16)
            .collect()
    }

    /// Returns table and scratch memory.
    fn data(&self) -> Vec<u8> {
        let words = self.table.iter().chain(&self.table).copied();
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn bytes(&self) -> usize {
        8 * self.program.results.len()
    }

    fn on_device(&self, rig: &Rig, queue: &mut Queue) -> Vec<u8> {
        Image::flat(&self.words()).load(rig);
        for page in (0..4).map(|page| page * regs::PAGE) {
            rig.map(
                1,
                ATOMIC + page,
                RW | regs::PTE_ATOMIC | HOST | (PLACE + page),
            );
        }
        rig.host_write(PLACE + MIDDLE - ATOMIC - TABLE as u64, &self.data());
        Launch::new(CODE, 1, 1)
            .integers(&[MIDDLE, RESULTS])
            .run(rig, queue);
        rig.host_read(RESULTS - DATA, self.bytes())
    }

    /// Runs it as a program of Linux, at the same addresses.
    fn on_qemu(&self) -> Vec<u8> {
        let data_va = MIDDLE - TABLE as u64;
        let start = 0x6000_0000_u64;
        // It calls the program, writes the results to file 1, and exits.
        let load = |register: u32, place: u32| {
            0x3283_u32 & !0xff80 | register << 7 | 3 << 12 | 5 << 15 | place << 20
        };
        let code = [
            0x0000_0297,       // auipc t0, 0
            load(10, 64),      // ld a0, 64(t0)
            load(11, 72),      // ld a1, 72(t0)
            load(6, 80),       // ld t1, 80(t0)
            0x0003_00e7,       // jalr ra, t1
            0x0000_0297,       // auipc t0, 0
            load(11, 72 - 20), // ld a1
            load(12, 88 - 20), // ld a2
            0x0010_0513,       // li a0, 1
            0x0400_0893,       // li a7, 64
            0x0000_0073,       // ecall
            0x0000_0513,       // li a0, 0
            0x05d0_0893,       // li a7, 93
            0x0000_0073,       // ecall
            0,
            0,
        ];
        let mut stub: Vec<u8> = code
            .iter()
            .flat_map(|word: &u32| word.to_le_bytes())
            .collect();
        for word in [MIDDLE, RESULTS, CODE, self.bytes() as u64] {
            stub.extend(word.to_le_bytes());
        }
        let code: Vec<u8> = self
            .words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let segments = [
            (start, stub.len(), stub),
            (CODE, code.len(), code),
            (data_va, 2 * TABLE, self.data()),
            (RESULTS, self.bytes(), Vec::new()),
        ];
        let path = scratch("random");
        std::fs::write(&path, elf(start, &segments)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        let output = Command::new("qemu-riscv64")
            .arg(&path)
            .output()
            .expect("qemu-riscv64");
        assert!(output.status.success(), "seed {}: {output:?}", self.seed);
        std::fs::remove_file(&path).unwrap();
        output.stdout
    }

    /// Compares what the device and QEMU have computed.
    fn compare(&self, device: &[u8], qemu: &[u8]) {
        assert_eq!(device.len(), qemu.len());
        let place = device
            .chunks(8)
            .zip(qemu.chunks(8))
            .position(|(a, b)| a != b);
        let Some(place) = place else { return };
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes[8 * place..][..8].try_into().unwrap());
        let at = self.program.results[place];
        let halves = &self.program.halves[at..at + 2];
        panic!(
            "seed {}, result {place}, instruction {:04x}{:04x} at {:#x}: {:#x} is {:#x} on QEMU",
            self.seed,
            halves[1],
            halves[0],
            CODE + 2 * at as u64,
            number(device),
            number(qemu),
        );
    }
}

/// Makes a program for Linux, of segments with address, size, and content.
fn elf(entry: u64, segments: &[(u64, usize, Vec<u8>)]) -> Vec<u8> {
    let page = regs::PAGE as usize;
    let mut file = vec![0; page];
    let mut headers: Vec<u8> = Vec::new();
    for (va, size, content) in segments {
        let offset = file.len() + (*va as usize % page);
        file.resize(offset, 0);
        file.extend(content);
        file.resize(file.len().next_multiple_of(page), 0);
        headers.extend([1_u32, 7].map(u32::to_le_bytes).as_flattened());
        let fields = [
            offset as u64,
            *va,
            *va,
            content.len() as u64,
            *size as u64,
            regs::PAGE,
        ];
        headers.extend(fields.map(u64::to_le_bytes).as_flattened());
    }
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    head.extend([2_u16, 243].map(u16::to_le_bytes).as_flattened());
    head.extend(1_u32.to_le_bytes());
    head.extend([entry, 64, 0].map(u64::to_le_bytes).as_flattened());
    head.extend(5_u32.to_le_bytes());
    head.extend(
        [64_u16, 56, segments.len() as u16, 64, 0, 0]
            .map(u16::to_le_bytes)
            .as_flattened(),
    );
    head.extend(headers);
    file[..head.len()].copy_from_slice(&head);
    file
}

/// Returns the checksums of so many programs each.
fn checksums(mut results: impl FnMut(&Case) -> Vec<u8>) -> [u64; KNOWN.len()] {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let mut seeds = 1..;
    [(); KNOWN.len()].map(|()| {
        let cases = seeds.by_ref().take(EACH).map(Case::new);
        cases.fold(0xcbf2_9ce4_8422_2325, |sum, case| {
            results(&case).iter().fold(sum, step)
        })
    })
}

#[test]
fn results_are_those_that_qemu_gave() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COMPUTE);
    let found = checksums(|case| case.on_device(&rig, &mut queue));
    assert_eq!(found, KNOWN);
}

/// Prints what QEMU gives.
#[test]
#[ignore = "needs qemu-riscv64"]
fn what_qemu_gives() {
    println!("{:#x?}", checksums(Case::on_qemu));
}

/// Compares a million instructions, or `PROGRAM_STEPS`, of programs with other seeds each time, or
/// from `PROGRAM_SEED` on.
#[test]
#[ignore = "needs qemu-riscv64"]
fn results_are_those_of_qemu() {
    let rig = Rig::new();
    let mut queue = rig.queue(1, regs::CLASS_COMPUTE);
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = variable("PROGRAM_SEED").unwrap_or(time | 1);
    let steps = variable("PROGRAM_STEPS").unwrap_or(1_000_000);
    let mut results = 0;
    for case in (seed..)
        .take((steps as usize).div_ceil(STEPS))
        .map(Case::new)
    {
        let device = case.on_device(&rig, &mut queue);
        case.compare(&device, &case.on_qemu());
        results += case.program.results.len();
    }
    println!("{steps} instructions from seed {seed} on, {results} results: all equal");
}
