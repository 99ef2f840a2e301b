// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes the packets COPY and FILL, and the kernels.
//!
//! `progress` counts the bytes of results that are written, or the atomic additions that are made.
//! A packet that faulted resumes there.

use crate::crc;
use crate::fault::{Access, Fault, Reason};
use crate::kernel::Kernel;
use crate::pacer::{Stop, CHUNK};
use crate::port::Port;
use crate::program;
use std::time::{Duration, Instant};

/// Scratch memory of an engine.
#[derive(Debug)]
pub struct Buffers {
    first: Vec<u8>,
    second: Vec<u8>,
    matrix: Vec<f32>,
    units: program::Units,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            first: vec![0; CHUNK],
            second: vec![0; CHUNK],
            matrix: Vec::new(),
            units: program::Units::default(),
        }
    }
}

fn at(va: u64, offset: u64) -> Result<u64, Stop> {
    let fault = Fault::at(Reason::VaRange, u64::MAX, Access::Read);
    va.checked_add(offset).ok_or(fault.into())
}

/// Bytes of the next piece.
fn next(progress: u64, bytes: u64) -> usize {
    bytes.saturating_sub(progress).min(CHUNK as u64) as usize
}

/// Executes COPY.
pub fn copy(
    port: &mut Port<'_>,
    buffers: &mut Buffers,
    (source, destination, bytes): (u64, u64, u64),
    progress: &mut u64,
) -> Result<(), Stop> {
    let operands = (source, destination, bytes);
    port.copy(operands, progress, &mut buffers.first)
}

/// Executes FILL: repeats 8 bytes, beginning at the destination.
pub fn fill(
    port: &mut Port<'_>,
    buffers: &mut Buffers,
    (destination, bytes, pattern): (u64, u64, u64),
    progress: &mut u64,
) -> Result<(), Stop> {
    let phase = (*progress % 8) as u32;
    let pattern = pattern.rotate_right(8 * phase).to_le_bytes();
    for place in buffers.first.chunks_exact_mut(8) {
        place.copy_from_slice(&pattern);
    }
    while *progress < bytes {
        let chunk = &buffers.first[..next(*progress, bytes)];
        port.write(at(destination, *progress)?, chunk, progress)?;
    }
    Ok(())
}

/// Runs a kernel. `held` is the state of a program that stopped.
pub fn run(
    port: &mut Port<'_>,
    buffers: &mut Buffers,
    kernel: Kernel,
    progress: &mut u64,
    held: &mut Option<Box<program::Held>>,
) -> Result<(), Stop> {
    match kernel {
        Kernel::Copy {
            destination,
            source,
            bytes,
        } => copy(port, buffers, (source, destination, bytes), progress),
        Kernel::Fill {
            destination,
            bytes,
            value,
        } => {
            let pattern = (u64::from(value) << 32) | u64::from(value);
            fill(port, buffers, (destination, bytes, pattern), progress)
        }
        Kernel::Increment { data, bytes } => {
            while *progress < bytes {
                let chunk = &mut buffers.first[..next(*progress, bytes)];
                port.read(at(data, *progress)?, chunk)?;
                for element in chunk.chunks_exact_mut(4) {
                    store(element, load(element) + 1.0);
                }
                port.write(at(data, *progress)?, chunk, progress)?;
            }
            Ok(())
        }
        Kernel::Saxpy { x, y, bytes, a } => {
            while *progress < bytes {
                let count = next(*progress, bytes);
                let (xs, ys) = (&mut buffers.first[..count], &mut buffers.second[..count]);
                port.read(at(x, *progress)?, xs)?;
                port.read(at(y, *progress)?, ys)?;
                for (x, y) in xs.chunks_exact(4).zip(ys.chunks_exact_mut(4)) {
                    store(y, a * load(x) + load(y));
                }
                port.write(at(y, *progress)?, ys, progress)?;
            }
            Ok(())
        }
        Kernel::Sum {
            data,
            bytes,
            destination,
        } => {
            let mut sum = 0.0;
            scan(port, buffers, data, bytes, |chunk| {
                for element in chunk.chunks_exact(4) {
                    sum += f64::from(load(element));
                }
            })?;
            finish(port, destination, &(sum as f32).to_le_bytes(), progress)
        }
        Kernel::Histogram {
            data,
            bytes,
            destination,
        } => {
            let mut counts = [0_u32; 256];
            scan(port, buffers, data, bytes, |chunk| {
                for byte in chunk {
                    counts[usize::from(*byte)] += 1;
                }
            })?;
            finish(
                port,
                destination,
                counts.map(u32::to_le_bytes).as_flattened(),
                progress,
            )
        }
        Kernel::Crc {
            data,
            bytes,
            destination,
        } => {
            let mut state = crc::START;
            scan(port, buffers, data, bytes, |chunk| {
                state = crc::update(state, chunk)
            })?;
            finish(
                port,
                destination,
                &crc::finish(state).to_le_bytes(),
                progress,
            )
        }
        Kernel::Matmul { a, b, c, m, n, k } => {
            matmul(port, buffers, (a, b, c), (m, n, k), progress)
        }
        Kernel::Spin { nanoseconds } => {
            let end = Instant::now().checked_add(Duration::from_nanos(nanoseconds));
            // A duration too long to represent is cut off by the run time limit.
            let never = Instant::now() + Duration::from_secs(86400);
            port.pacer.wait_until(end.unwrap_or(never))
        }
        Kernel::Program { descriptor } => {
            program::run(port, &mut buffers.units, descriptor, progress, held)
        }
        Kernel::AtomicAdd {
            data,
            bytes,
            value,
            times,
        } => {
            while *progress < bytes / 8 * times {
                let word = at(data, *progress / times * 8)?;
                port.update(word, 8, |before| Some(before.wrapping_add(value)))?;
                *progress += 1;
            }
            Ok(())
        }
    }
}

fn load(bytes: &[u8]) -> f32 {
    bytes.try_into().map_or(0.0, f32::from_le_bytes)
}

fn store(bytes: &mut [u8], value: f32) {
    bytes.copy_from_slice(&value.to_le_bytes());
}

/// Reads an operand from its first byte to its last.
fn scan(
    port: &mut Port<'_>,
    buffers: &mut Buffers,
    data: u64,
    bytes: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Stop> {
    let mut done = 0;
    while done < bytes {
        let chunk = &mut buffers.first[..next(done, bytes)];
        port.read(at(data, done)?, chunk)?;
        each(chunk);
        done += chunk.len() as u64;
    }
    Ok(())
}

/// Writes a small result, or the part of it that is still missing.
fn finish(
    port: &mut Port<'_>,
    destination: u64,
    result: &[u8],
    progress: &mut u64,
) -> Result<(), Stop> {
    let done = *progress;
    let rest = usize::try_from(done)
        .ok()
        .and_then(|done| result.get(done..));
    port.write(at(destination, done)?, rest.unwrap_or_default(), progress)
}

fn matmul(
    port: &mut Port<'_>,
    buffers: &mut Buffers,
    (a, b, c): (u64, u64, u64),
    (m, n, k): (usize, usize, usize),
    progress: &mut u64,
) -> Result<(), Stop> {
    let Buffers {
        first,
        second,
        matrix,
        ..
    } = buffers;
    let row_bytes = 4 * n as u64;
    if row_bytes * m as u64 <= *progress {
        return Ok(());
    }
    matrix.clear();
    for row in 0..k as u64 {
        let chunk = &mut first[..4 * n];
        port.read(at(b, row * row_bytes)?, chunk)?;
        matrix.extend(chunk.chunks_exact(4).map(load));
    }
    let mut sums = vec![0.0; n];
    while *progress < row_bytes * m as u64 {
        let (row, skip) = (*progress / row_bytes, *progress % row_bytes);
        let factors = &mut first[..4 * k];
        port.read(at(a, row * 4 * k as u64)?, factors)?;
        sums.fill(0.0);
        for (factor, line) in factors
            .chunks_exact(4)
            .map(load)
            .zip(matrix.chunks_exact(n))
        {
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += factor * value;
            }
        }
        let result = &mut second[..4 * n];
        for (bytes, sum) in result.chunks_exact_mut(4).zip(&sums) {
            store(bytes, *sum);
        }
        port.write(at(c, *progress)?, &result[skip as usize..], progress)?;
    }
    Ok(())
}
