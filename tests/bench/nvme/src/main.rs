// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bench of pinmap-nvme beside the kernel's driver with io_uring, on the same controller.
//!
//! usage: `bench-nvme ROUNDS` and `bench-nvme --count`, as root in `scripts/vm --device nvme`.
//! Each round gives the controller to pinmap, measures, gives it to the kernel's driver, and
//! measures again. Prints a table of medians. With `--count`, in a virtual machine whose clocks
//! count instructions, it counts those of one command, and fails if pinmap takes more than half.
//!
//! io_uring has what makes it quick: direct I/O, registered buffers, a registered file, and for
//! `polled` a ring that polls (`IORING_SETUP_IOPOLL`) on a polled queue of the driver.

mod disk;
#[path = "../../../nvme/src/kernel.rs"]
mod kernel;
mod systems;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use disk::Owner;
use systems::{Reader, Wait};

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Bytes of a read.
const SIZES: [usize; 4] = [512, 4 << 10, 64 << 10, 1 << 20];

/// Reads in flight, for the rate.
const DEPTH: usize = 32;

/// Bytes of the namespace that are read, which begin with a pattern.
pub(crate) const PART: u64 = 32 << 20;

/// A kind of read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    wait: Wait,
    depth: usize,
    len: usize,
}

/// Nanoseconds, or instructions, of pinmap, and of io_uring.
type Samples = BTreeMap<Case, [Vec<u64>; 2]>;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let rounds = argument.as_deref().map(str::parse);
    let result = match (argument.as_deref(), rounds) {
        (Some("--count"), _) => count(),
        (_, Some(Ok(rounds @ 1..))) => time(rounds),
        _ => Err("usage: bench-nvme ROUNDS | bench-nvme --count".into()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench-nvme: {error}");
            ExitCode::FAILURE
        }
    }
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn print(samples: &Samples, unit: &str) {
    println!(
        "{unit:<36} {:>12} {:>12} {:>8}",
        "pinmap", "io_uring", "ratio"
    );
    for (Case { wait, depth, len }, [ours, theirs]) in samples {
        let name = format!("{wait:?}, {depth} at a time, {len} bytes");
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = theirs as f64 / ours.max(1) as f64;
        println!("{name:<36} {ours:>12} {theirs:>12} {ratio:>8.2}");
    }
}

/// Has each system measure in each round.
fn each_round(rounds: usize, mut measure: impl FnMut(usize, &Owner) -> Result<()>) -> Result<()> {
    let disk = disk::Disk::find()?;
    for _ in 0..rounds {
        for system in 0..2 {
            let owner = disk.give(system == 0)?;
            measure(system, &owner)?;
        }
    }
    disk.give(true)?;
    Ok(())
}

fn time(rounds: usize) -> Result<ExitCode> {
    let mut samples = Samples::new();
    each_round(rounds, |system, owner| {
        for wait in [Wait::Poll, Wait::Interrupt] {
            for len in SIZES {
                let mut reader = owner.reader(wait, len, DEPTH)?;
                let few = if len < 1 << 20 { 256 } else { 32 };
                for (depth, reads) in [(1, few), (DEPTH, 4 * few)] {
                    reads_of(&mut *reader, len, depth, depth)?;
                    let start = Instant::now();
                    reads_of(&mut *reader, len, depth, reads)?;
                    let each = start.elapsed().as_nanos() as u64 / reads as u64;
                    let case = Case { wait, depth, len };
                    samples.entry(case).or_default()[system].push(each);
                }
            }
        }
        Ok(())
    })?;
    print(&samples, "nanoseconds for each read");
    Ok(ExitCode::SUCCESS)
}

/// Reads, `depth` at a time, from places that are spread over the part.
fn reads_of(reader: &mut dyn Reader, len: usize, depth: usize, reads: usize) -> Result<()> {
    let places = PART / len as u64;
    let (mut begun, mut parts) = (0, 0);
    while parts < reads * reader.parts() {
        let in_flight = begun - parts / reader.parts();
        let room = (depth - in_flight).min(reads - begun);
        for _ in 0..room {
            reader.begin(begun as u64 * 7 % places * len as u64)?;
            begun += 1;
        }
        reader.submit()?;
        parts += reader.wait()?;
    }
    Ok(())
}

/// Reads whose instructions are counted.
const COUNTED: u64 = 64;

fn count() -> Result<ExitCode> {
    let mut samples = Samples::new();
    let empty = median(&(0..COUNTED).map(|_| counted(|| ()).1).collect::<Vec<_>>());
    each_round(1, |system, owner| {
        // The kernel has a thread submit what takes more than one command.
        for len in SIZES.into_iter().filter(|len| *len < 1 << 20) {
            let (wait, depth) = (Wait::Poll, 1);
            let case = Case { wait, depth, len };
            let mut reader = owner.reader(wait, len, depth)?;
            for turn in 0..COUNTED {
                let offset = turn * len as u64 % PART;
                let (begun, mut counts) = counted(|| {
                    reader.begin(offset)?;
                    reader.submit()
                });
                begun?;
                // The looks that find something count. The others do not: there are as many as the
                // disk is slow.
                let (mut parts, mut calls) = (0, 1);
                while parts < reader.parts() {
                    let (done, looking) = counted(|| reader.poll());
                    match done? {
                        0 => std::thread::sleep(Duration::from_micros(100)),
                        done => {
                            parts += done;
                            counts += looking;
                            calls += 1;
                        }
                    }
                }
                if !reader.is_right(offset)? {
                    return Err(format!("{len} bytes at {offset} are wrong").into());
                }
                let each = counts.saturating_sub(calls * empty);
                samples.entry(case).or_default()[system].push(each);
            }
        }
        Ok(())
    })?;
    print(&samples, "instructions for each read");
    let more = samples
        .values()
        .any(|[ours, theirs]| 2 * median(ours) > median(theirs));
    Ok(ExitCode::from(u8::from(more)))
}

fn counted<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed().as_nanos() as u64)
}
