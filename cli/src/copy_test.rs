// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap copy-test`: copies memory through the device and back, and checks every byte.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pinmap::{Access, Buffer, RegisterOptions, Registration};
use pinmap_samples::edu::Edu;
use pinmap_samples::pins::Pins;
use serde::{Serialize, Serializer};

use crate::args::CopyOptions;
use crate::{progress, size, Result};

/// How often to show how far registering is.
const EVERY: Duration = Duration::from_millis(100);

/// Results of the test.
#[derive(Serialize)]
struct Report {
    /// Path of the node.
    device: PathBuf,
    /// Major and minor version of edu.
    version: (u8, u8),
    /// Result that the device computed, and told by an interrupt.
    factorial_of_10: u32,
    /// Where the memory was.
    source: Place,
    target: Place,
    /// Bytes that were copied, each way, and in how many pieces.
    bytes: usize,
    pieces: usize,
    /// How long that took.
    seconds: f64,
    /// Pages that were pinned and unpinned, if the kernel counts them.
    pages: Option<Pages>,
}

/// The addresses of registered memory.
#[derive(Serialize)]
struct Place {
    addr: Hex,
    device_addr: Hex,
}

#[derive(Serialize)]
struct Pages {
    pinned: u64,
    unpinned: u64,
}

/// An address, as text.
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// Runs the test. Fails if anything is wrong.
pub(crate) fn run(options: &CopyOptions, out: &mut impl Write) -> Result<()> {
    let report = test(options)?;
    if options.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        report.write(out)?;
    }
    match &report.pages {
        Some(pages) if pages.pinned != pages.unpinned => {
            Err("pages stayed pinned, unless another program pinned memory meanwhile".into())
        }
        _ => Ok(()),
    }
}

/// Has the device compute and copy, and checks all of it.
fn test(options: &CopyOptions) -> Result<Report> {
    let device = match &options.device {
        Some(target) => target.open()?,
        None => Edu::find()?,
    };
    let mut edu = Edu::new(device)?;
    let version = edu.version()?;
    let factorial = edu.factorial(10)?;
    if factorial != 3_628_800 {
        return Err(format!("the device says that 10! is {factorial}").into());
    }
    let pins = Pins::now();
    let size = options.size;
    let source = register(&edu, options, Access::Read, pattern)?;
    let target = register(&edu, options, Access::ReadWrite, |i| !pattern(i))?;
    let place = |memory: &Registration| -> Result<Place> {
        Ok(Place {
            addr: Hex(memory.addr() as u64),
            device_addr: Hex(memory.device_addr()?),
        })
    };
    let places = (place(&source)?, place(&target)?);

    let bar = progress::bytes("copying", size as u64);
    let start = Instant::now();
    for offset in (0..size).step_by(Edu::MEMORY_LEN) {
        let len = Edu::MEMORY_LEN.min(size - offset);
        edu.fetch(source.device_addr()? + offset as u64, 0, len)?;
        edu.store(target.device_addr()? + offset as u64, 0, len)?;
        bar.inc(len as u64);
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let (source, target) = (source.release()?, target.release()?);
    check(&source, "fetched from", pattern)
        .and_then(|()| check(&target, "stored to", pattern_of_copy(size)))
        .map_err(|wrong| format!("wrong bytes: {wrong}"))?;
    drop((source, target));
    let pages = pins.and_then(Pins::settled_since).map(|since| Pages {
        pinned: since.acquired,
        unpinned: since.released,
    });
    Ok(Report {
        device: edu.device().path().to_owned(),
        version,
        factorial_of_10: factorial,
        source: places.0,
        target: places.1,
        bytes: size,
        pieces: size.div_ceil(Edu::MEMORY_LEN),
        seconds,
        pages,
    })
}

impl Report {
    fn write(&self, out: &mut impl Write) -> Result<()> {
        let (node, (major, minor)) = (self.device.display(), self.version);
        writeln!(out, "device: {node}, edu {major}.{minor}")?;
        writeln!(out, "interrupt: works, 10! = {}", self.factorial_of_10)?;
        for (name, place) in [("source", &self.source), ("target", &self.target)] {
            let (addr, device_addr) = (place.addr.0, place.device_addr.0);
            let equal = if addr == device_addr { "yes" } else { "no" };
            writeln!(
                out,
                "{name}: pointer {addr:#x}, device address {device_addr:#x}, equal: {equal}"
            )?;
        }
        let (bytes, pieces, seconds) = (self.bytes, self.pieces, self.seconds);
        let size = size::format(bytes as u64);
        writeln!(
            out,
            "moved: {size} both ways, in pieces: {pieces}, in {seconds:.1} s"
        )?;
        writeln!(out, "bytes checked: {bytes}, all right")?;
        let Some(Pages { pinned, unpinned }) = self.pages else {
            return Ok(writeln!(
                out,
                "pinned pages: this kernel does not count them"
            )?);
        };
        let verdict = if pinned == unpinned {
            "balanced"
        } else {
            "not balanced"
        };
        writeln!(
            out,
            "pinned pages: {pinned} acquired, {unpinned} released, {verdict}"
        )?;
        Ok(())
    }
}

fn register(
    edu: &Edu,
    options: &CopyOptions,
    access: Access,
    content: impl Fn(usize) -> u8,
) -> Result<Registration> {
    let mut buffer = Buffer::<u8>::new(options.size)?;
    for (i, byte) in buffer.iter_mut().enumerate() {
        *byte = content(i);
    }
    let mut how = RegisterOptions::new(access).address_bits(options.address_bits);
    if options.identity {
        how = how.identity();
    }
    let bar = progress::bytes("registering", options.size as u64);
    let (device, addr) = (edu.device(), buffer.addr());
    let (done, wait) = mpsc::channel::<()>();
    let registered = thread::scope(|scope| {
        let bar = &bar;
        scope.spawn(move || {
            // It is disconnected when the registration is done.
            while wait.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Ok(Some(memory)) = device.query(addr) {
                    bar.set_position(memory.pinned);
                }
            }
        });
        let registered = buffer.register(device, how);
        drop(done);
        registered
    });
    bar.finish_and_clear();
    Ok(registered?)
}

/// The byte at an offset. No two pages are the same, and no page equals a shifted one.
fn pattern(offset: usize) -> u8 {
    let mixed = (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// The byte at an offset of the target: the copy, and behind it what was there before.
fn pattern_of_copy(size: usize) -> impl Fn(usize) -> u8 {
    move |offset| {
        if offset < size {
            pattern(offset)
        } else {
            !pattern(offset)
        }
    }
}

/// Compares every byte.
fn check(memory: &[u8], what: &str, content: impl Fn(usize) -> u8) -> Result<(), String> {
    let mut wrong = memory
        .iter()
        .enumerate()
        .filter(|&(i, &byte)| byte != content(i));
    let Some((offset, byte)) = wrong.next() else {
        return Ok(());
    };
    let (expected, all) = (content(offset), 1 + wrong.count());
    Err(format!(
        "the memory {what} has {byte:#04x} in place of {expected:#04x} at offset {offset:#x}, and \
         {all} wrong of {}",
        memory.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_shifts_of_the_pattern_differ() {
        let pages: Vec<Vec<u8>> = (0..64)
            .map(|page| (0..4096).map(|i| pattern(page * 4096 + i)).collect())
            .collect();
        for (i, page) in pages.iter().enumerate() {
            assert!(!pages[..i].contains(page));
            let shifted: Vec<u8> = (1..4097).map(|j| pattern(i * 4096 + j)).collect();
            assert_ne!(*page, shifted);
        }
    }

    #[test]
    fn every_byte_is_checked() {
        let mut memory: Vec<u8> = (0..8192).map(pattern_of_copy(5000)).collect();
        assert_eq!(check(&memory, "x", pattern_of_copy(5000)), Ok(()));
        assert!(check(&memory, "x", pattern).is_err());
        memory[4999] ^= 1;
        memory[8191] ^= 1;
        let error = check(&memory, "stored to", pattern_of_copy(5000)).expect_err("wrong");
        assert!(
            error.contains("stored to") && error.contains("0x1387"),
            "{error}"
        );
        assert!(error.contains("2 wrong of 8192"), "{error}");
    }
}
