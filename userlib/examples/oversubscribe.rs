// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stencil over memory three times as large as that of the device, which nobody copies: blocks
//! move to the device when it touches them, and make room for others. Checks the result.
//!
//! Each number becomes itself plus a half of its left and of its right neighbour, from one array to
//! another: first with nothing but faults, then with what the next chunk needs prefetched.
//!
//! usage: `oversubscribe [TIMES [MIB]]`: so many times the memory of the device (3), of which so
//! many MiB are left to be used (all of it)
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;

use pinmap::accelerator::{self, Managed, Place, Stream, StreamOptions};
use pinmap_samples::room::leave;
use pinmap_testgpu as testgpu;

/// Numbers of a chunk: 2 MiB, as one page of the device.
const CHUNK: usize = (2 << 20) / 4;

/// The number at an index, so that every sum below is exact.
fn number(index: usize) -> f32 {
    (index % 1021) as f32
}

/// Returns what a number becomes, given its neighbours; those behind the ends are 0.
fn expected(index: usize, count: usize) -> f32 {
    let left = index.checked_sub(1).map_or(0.0, number);
    let right = if index + 1 < count {
        number(index + 1)
    } else {
        0.0
    };
    number(index) + 0.5 * left + 0.5 * right
}

/// Runs the stencil, a chunk at a time. With hints, what a chunk needs is moved to the device
/// before it is touched.
fn stencil(
    stream: &Stream,
    from: &Managed<f32>,
    to: &mut Managed<f32>,
    hints: bool,
) -> Result<(), Box<dyn Error>> {
    let count = from.len();
    accelerator::scope(|scope| -> pinmap::Result<()> {
        let work = scope.on(stream);
        let from = from.slice();
        let mut rest = to.slice_mut();
        let mut start = 0;
        while start < count {
            let end = (start + CHUNK).min(count);
            let (mut to, behind) = rest.split_at(end - start)?;
            rest = behind;
            if hints {
                work.prefetch(from.part(start..end)?, Place::Vram)?;
                work.prefetch(&to, Place::Vram)?;
            }
            work.copy(from.part(start..end)?, &mut to)?;
            // The neighbours: the first number has none at its left, the last one none at its
            // right.
            let first = usize::from(start == 0);
            let (edge, mut inner) = to.split_at(first)?;
            let x = from.part(start + first - 1..end - 1)?;
            work.launch(testgpu::Saxpy {
                a: 0.5,
                x,
                y: &mut inner,
            })?;
            let last = usize::from(end == count);
            let inner = inner.part(..end - start - first - last)?;
            let x = from.part(start + first + 1..end + 1 - last)?;
            work.launch(testgpu::Saxpy {
                a: 0.5,
                x,
                y: &mut { inner },
            })?;
            if first == 1 {
                let x = from.part(1..2)?;
                work.launch(testgpu::Saxpy {
                    a: 0.5,
                    x,
                    y: &mut { edge },
                })?;
            }
            start = end;
        }
        Ok(())
    })?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let times = numbers.next().unwrap_or(Ok(3))?;
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let room = match numbers.next().transpose()? {
        Some(mib) => mib << 20,
        None => gpu.info()?.vram_free,
    };
    let _taken = leave(&gpu, room)?;
    // Two arrays, which together are so many times as large.
    let bytes = usize::try_from(times * room)?;
    let count = bytes / 2 / 4;
    println!(
        "{} MiB in two arrays, on a device with {} MiB",
        bytes >> 20,
        room >> 20
    );
    let mut from = gpu.alloc_managed::<f32>(count)?;
    let mut to = gpu.alloc_managed::<f32>(count)?;
    for (index, place) in from.iter_mut().enumerate() {
        *place = number(index);
    }
    for (hints, how) in [(false, "by faults"), (true, "prefetched")] {
        let before = from.statistics()?;
        let start = Instant::now();
        stencil(&stream, &from, &mut to, hints)?;
        let time = start.elapsed();
        let after = from.statistics()?;
        println!(
            "{how}: {time:.1?}, {} faults, {} MiB touched in, {} MiB prefetched in, {} MiB evicted",
            after.device_faults - before.device_faults,
            (after.in_touched - before.in_touched) >> 20,
            (after.in_prefetched - before.in_prefetched) >> 20,
            (after.home_evicted - before.home_evicted) >> 20,
        );
        let sums = to.residency()?.sums;
        println!(
            "  the result: {} MiB on the host, {} MiB on the device",
            sums.host >> 20,
            sums.device >> 20
        );
        // Brings home what is on the device.
        let wrong = (0..count).find(|&index| to[index] != expected(index, count));
        if let Some(index) = wrong {
            let (is, should) = (to[index], expected(index, count));
            return Err(format!("number {index} is {is} and should be {should}").into());
        }
        println!("  all {count} numbers are right");
        // The next pass writes all of it: nothing of this one needs to move again.
        to.discard();
    }
    Ok(())
}
