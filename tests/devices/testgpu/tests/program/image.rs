// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs for the tests: compiled by clang, and placed in the device's memory.

use crate::rig::{Rig, RW};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use testgpu::regs;

/// VA of the programs, and where they are in VRAM.
pub(crate) const CODE: u64 = 0x5000_0000;
pub(crate) const CODE_VRAM: u64 = 3 << 20;

/// A program.
pub(crate) struct Image {
    bytes: Vec<u8>,
    symbols: BTreeMap<String, u64>,
}

/// Returns a path for a file that no other test uses.
pub(crate) fn scratch(name: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}-{name}", std::process::id()))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(number)
}

impl Image {
    /// Compiles a program in C, of this folder.
    pub(crate) fn c(file: &str, flags: &[&str]) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/c");
        let output = scratch("image");
        let result = Command::new("clang")
            .args([
                "--target=riscv64-unknown-elf",
                "-march=rv64gc",
                "-mabi=lp64d",
            ])
            .args([
                "-mcmodel=medany",
                "-ffreestanding",
                "-nostdlib",
                "-static",
                "-fuse-ld=lld",
            ])
            .args(["-Wall", "-Werror", "-Wl,--no-relax-gp", "-Wl,--entry=0"])
            .arg(format!(
                "-Wl,--image-base={CODE:#x},-zseparate-code,-zmax-page-size=4096"
            ))
            .args(flags)
            .arg(source.join(file))
            .arg("-o")
            .arg(&output)
            .output()
            .expect("clang");
        assert!(
            result.status.success(),
            "{}",
            String::from_utf8_lossy(&result.stderr)
        );
        let elf = std::fs::read(&output).unwrap();
        std::fs::remove_file(&output).unwrap();
        Self::elf(&elf)
    }

    /// Takes a flat image.
    pub(crate) fn flat(words: &[u32]) -> Self {
        Self {
            bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            symbols: BTreeMap::from([("entry".into(), CODE)]),
        }
    }

    fn elf(elf: &[u8]) -> Self {
        let mut bytes = Vec::new();
        let headers = number::<8>(elf, 32) as usize;
        for index in 0..number::<2>(elf, 56) as usize {
            let header = &elf[headers + 56 * index..][..56];
            let (offset, va) = (number::<8>(header, 8) as usize, number::<8>(header, 16));
            let (file, memory) = (number::<8>(header, 32) as usize, number::<8>(header, 40));
            if number::<4>(header, 0) != 1 {
                continue;
            }
            let place = (va - CODE) as usize;
            bytes.resize(bytes.len().max(place + memory as usize), 0);
            bytes[place..place + file].copy_from_slice(&elf[offset..offset + file]);
        }
        let sections = number::<8>(elf, 40) as usize;
        let section = |index: usize| &elf[sections + 64 * index..][..64];
        let content = |section: &[u8]| {
            let (offset, size) = (number::<8>(section, 24), number::<8>(section, 32));
            &elf[offset as usize..(offset + size) as usize]
        };
        let mut symbols = BTreeMap::new();
        for index in 0..number::<2>(elf, 60) as usize {
            if number::<4>(section(index), 4) != 2 {
                continue;
            }
            let names = content(section(number::<4>(section(index), 40) as usize));
            for symbol in content(section(index)).chunks_exact(24) {
                let name = &names[number::<4>(symbol, 0) as usize..];
                let name = name.split(|byte| *byte == 0).next().unwrap();
                let name = String::from_utf8_lossy(name).into_owned();
                symbols.insert(name, number::<8>(symbol, 8));
            }
        }
        Self { bytes, symbols }
    }

    /// Returns the VA of a function or variable.
    pub(crate) fn symbol(&self, name: &str) -> u64 {
        self.symbols[name]
    }

    /// Places the program in VRAM, for address space 1.
    pub(crate) fn load(&self, rig: &Rig) {
        rig.vram().write(CODE_VRAM, &self.bytes).unwrap();
        for page in 0..(self.bytes.len() as u64).div_ceil(regs::PAGE) {
            let leaf = RW | regs::PTE_ATOMIC | regs::PTE_EXECUTE;
            let at = page * regs::PAGE;
            rig.map(1, CODE + at, leaf | (CODE_VRAM + at));
        }
    }
}
