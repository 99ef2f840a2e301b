// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of the comparison: the same work on host memory directly, and on a copy in the device's
//! memory.

use std::time::{Duration, Instant};

use pinmap::accelerator::Accelerator;
use pinmap::Allocation;
use pinmap_samples::work::{Times, Work};

use super::checks::TRIES;
use super::report::SizeRow;
use super::table::as_expected;
use crate::Result;

/// The sizes, as powers of four bytes: 4 bytes to 64 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 1..=13;
/// How often the data is used, in the different rows.
pub(crate) const USES: [u32; 2] = [1, 10];
/// After this time each measurement is made only once, so that the demo comes to an end.
const PATIENCE: Duration = Duration::from_secs(25);
/// How many elements the CPU checks at once.
const CHUNK: usize = 1 << 14;

/// The times for one size and one number of uses, in both ways. They are medians.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    pub(crate) uses: u32,
    /// The kernels work on host memory.
    pub(crate) zero_copy: Times,
    /// The kernels work on device memory, and the data is copied there and back.
    pub(crate) copy: Times,
    /// Whether the numbers are right in the end.
    pub(crate) right: bool,
    /// How often the row was measured again, because its times were not as expected.
    pub(crate) again: usize,
}

impl From<&Row> for SizeRow {
    fn from(row: &Row) -> Self {
        Self {
            bytes: row.bytes,
            uses: row.uses,
            zero_copy: row.zero_copy.into(),
            copy: row.copy.into(),
            right: row.right,
        }
    }
}

/// Measures all rows, ordered by uses and then by size.
pub(crate) fn measure(gpu: &Accelerator, started: Instant) -> Result<Vec<Row>> {
    let mut work = Work::new(gpu, elements(*SIZES.end()))?;
    let mut rows = Vec::new();
    for uses in USES {
        for power in SIZES {
            let runs = if started.elapsed() > PATIENCE {
                1
            } else {
                runs(power)
            };
            let mut best = row(&mut work, elements(power), uses, runs)?;
            while best.again + 1 < TRIES && best.right && !as_expected(&best) {
                let again = best.again + 1;
                best = row(&mut work, elements(power), uses, runs)?;
                best.again = again;
            }
            rows.push(best);
        }
    }
    Ok(rows)
}

/// How many floats a power of four bytes holds.
fn elements(power: u32) -> usize {
    4usize.pow(power) / size_of::<f32>()
}

/// How often to measure a size. The number is odd, so that the median is one of the times.
fn runs(power: u32) -> usize {
    match power {
        ..=8 => 101,
        9 | 10 => 25,
        11 => 9,
        12 => 5,
        _ => 3,
    }
}

fn row(work: &mut Work, count: usize, uses: u32, runs: usize) -> Result<Row> {
    let Work { stream, host, .. } = work;
    stream.scope(|work| work.fill(&mut host.slice_mut().part(..count)?, 0.0))?;
    let (mut zero_copy, mut copy) = (Vec::new(), Vec::new());
    // In turns, so that other load on the computer affects both alike. The first run fills the TLB
    // and is not counted.
    for run in 0..=runs {
        let times = [work.zero_copy(count, uses)?, work.copy(count, uses)?];
        if run > 0 {
            zero_copy.push(times[0]);
            copy.push(times[1]);
        }
    }
    let increments = 2 * (runs + 1) * uses as usize;
    Ok(Row {
        bytes: (count * size_of::<f32>()) as u64,
        uses,
        zero_copy: median(&zero_copy),
        copy: median(&copy),
        right: all_are(&work.host, count, increments as f32)?,
        again: 0,
    })
}

/// Whether the first `count` floats all have this value.
fn all_are(host: &Allocation<f32>, count: usize, value: f32) -> Result<bool> {
    let mut chunk = vec![0.0; CHUNK.min(count)];
    for at in (0..count).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(count - at)];
        host.read(at, chunk)?;
        if chunk.iter().any(|&float| float != value) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The medians of both times, each by itself.
fn median(times: &[Times]) -> Times {
    let middle = |time: fn(&Times) -> Duration| {
        let mut all: Vec<_> = times.iter().map(time).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    Times {
        device: middle(|times| times.device),
        wall: middle(|times| times.wall),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_from_a_float_to_64_mib() {
        assert_eq!(elements(*SIZES.start()), 1);
        assert_eq!(elements(*SIZES.end()), 16 << 20);
        for power in SIZES {
            assert_eq!(runs(power) % 2, 1);
        }
    }

    #[test]
    fn the_median_is_of_each_by_itself() {
        let times = [(5, 10), (1, 30), (3, 20)].map(|(device, wall)| Times {
            device: Duration::from_millis(device),
            wall: Duration::from_millis(wall),
        });
        assert_eq!(
            median(&times),
            Times {
                device: Duration::from_millis(3),
                wall: Duration::from_millis(20),
            }
        );
    }
}
