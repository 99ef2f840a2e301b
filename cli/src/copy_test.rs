// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap copy-test`: copies memory through the device and back, and checks every byte.

use std::io::Write;
use std::time::Instant;

use pinmap::{Access, Buffer, RegisterOptions, Registration};
use pinmap_samples::edu::Edu;
use pinmap_samples::pins::Pins;

use crate::args::CopyOptions;
use crate::size;
use crate::Result;

/// Runs the test. Fails if anything is wrong.
pub(crate) fn run(options: &CopyOptions, out: &mut impl Write) -> Result<()> {
    let device = match &options.device {
        Some(target) => target.open()?,
        None => Edu::find()?,
    };
    let mut edu = Edu::new(device)?;
    let (major, minor) = edu.version()?;
    writeln!(out, "device: {}, edu {major}.{minor}", edu.device())?;

    let factorial = edu.factorial(10)?;
    if factorial != 3_628_800 {
        return Err(format!("the device says that 10! is {factorial}").into());
    }
    writeln!(out, "interrupt: works, 10! = {factorial}")?;

    let pins = Pins::now();
    let (source, target) = copy(&mut edu, options, out)?;
    let checked = check(&source, "fetched from", pattern)
        .and_then(|()| check(&target, "stored to", pattern_of_copy(options.size)));
    checked.map_err(|wrong| format!("wrong bytes: {wrong}"))?;
    writeln!(out, "bytes checked: {}, all right", options.size)?;
    drop((source, target));
    report_pins(pins, out)
}

/// Has the device fetch one buffer and store it to another. Returns both after releasing them.
fn copy(edu: &mut Edu, options: &CopyOptions, out: &mut impl Write) -> Result<(Buffer, Buffer)> {
    let size = options.size;
    let source = register(edu, options, Access::Read, pattern)?;
    let target = register(edu, options, Access::ReadWrite, |i| !pattern(i))?;
    for (name, memory) in [("source", &source), ("target", &target)] {
        let (addr, device_addr) = (memory.addr(), memory.device_addr()?);
        let equal = if addr as u64 == device_addr {
            "yes"
        } else {
            "no"
        };
        writeln!(
            out,
            "{name}: pointer {addr:#x}, device address {device_addr:#x}, equal: {equal}"
        )?;
    }

    let start = Instant::now();
    for offset in (0..size).step_by(Edu::MEMORY_LEN) {
        let len = Edu::MEMORY_LEN.min(size - offset);
        edu.fetch(source.device_addr()? + offset as u64, 0, len)?;
        edu.store(target.device_addr()? + offset as u64, 0, len)?;
    }
    let pieces = size.div_ceil(Edu::MEMORY_LEN);
    let time = start.elapsed().as_secs_f64();
    writeln!(
        out,
        "moved: {} both ways, in pieces: {pieces}, in {time:.1} s",
        size::format(size as u64)
    )?;
    Ok((source.release()?, target.release()?))
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
    Ok(buffer.register(edu.device(), how)?)
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

fn report_pins(before: Option<Pins>, out: &mut impl Write) -> Result<()> {
    let Some(since) = before.and_then(Pins::settled_since) else {
        return Ok(writeln!(
            out,
            "pinned pages: this kernel does not count them"
        )?);
    };
    let Pins { acquired, released } = since;
    let verdict = if since.balanced() {
        "balanced"
    } else {
        "not balanced"
    };
    writeln!(
        out,
        "pinned pages: {acquired} acquired, {released} released, {verdict}"
    )?;
    if !since.balanced() {
        return Err("pages stayed pinned, unless another program pinned memory meanwhile".into());
    }
    Ok(())
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
