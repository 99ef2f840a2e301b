// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that CPU and device use in turn: managed, so that it moves; in host memory, which the
//! device reaches over the bus; and copied to the device's memory and back.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinmap::accelerator::{
    Accelerator, Advice, DeviceSliceMut, Managed, ManagedRange, Place, Stream, StreamOptions,
};
use pinmap_testgpu as testgpu;

/// Any error is told in one sentence.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How many numbers there are: 4 MiB.
pub const COUNT: usize = 1 << 20;
/// How often the movement of pages is looked at.
const INTERVAL: Duration = Duration::from_micros(200);

/// How device and CPU reach the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// The memory is managed, and moves when somebody touches it.
    Managed,
    /// The memory is managed, and the program moves it before each turn.
    Prefetched,
    /// The memory stays on the host, where the device reaches it over the bus.
    ZeroCopy,
    /// The numbers stay on the host, and are copied to the device's memory and back.
    Copied,
}

impl System {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Managed,
        Self::Prefetched,
        Self::ZeroCopy,
        Self::Copied,
    ];
}

/// Work that is done with the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// How many turns each side has.
    pub turns: u16,
    /// How often the device uses all numbers in its turn. The CPU does so once.
    pub uses: u16,
}

impl Load {
    /// The value of each number in the end. It was 0.
    fn result(self) -> f32 {
        f32::from(self.turns) * (f32::from(self.uses) + 1.0)
    }
}

/// How a measurement has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Time by the CPU's clock, for all turns of both sides.
    pub time: Duration,
    /// Whether all numbers are right in the end.
    pub right: bool,
}

/// Lets the device and the CPU add 1 to each number in turn. The numbers are the CPU's before the
/// first turn, and making them is not counted.
///
/// # Errors
///
/// The errors of allocating memory, of moving it, and of submitting.
pub fn measure(gpu: &Accelerator, system: System, load: Load) -> Result<Outcome> {
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = gpu.alloc_managed_apart::<f32>(COUNT)?;
    let mut there = gpu.alloc_vram::<f32>(COUNT)?;
    if matches!(system, System::ZeroCopy | System::Copied) {
        numbers.advise(Advice::new().prefer(Place::Host))?;
    }
    numbers.fill(0.0);
    let start = Instant::now();
    for _ in 0..load.turns {
        match system {
            System::Managed | System::ZeroCopy => {
                increment(&stream, &mut numbers.slice_mut(), load.uses)?;
            }
            System::Prefetched => {
                numbers.prefetch(Place::Vram)?;
                increment(&stream, &mut numbers.slice_mut(), load.uses)?;
                numbers.prefetch(Place::Host)?;
            }
            System::Copied => {
                stream.scope(|work| work.copy(&numbers, &mut there))?;
                increment(&stream, &mut there.slice_mut(), load.uses)?;
                stream.scope(|work| work.copy(&there, &mut numbers))?;
            }
        }
        add_one(&mut numbers);
    }
    let time = start.elapsed();
    let right = numbers.iter().all(|&number| number == load.result());
    Ok(Outcome { time, right })
}

/// The device's turn.
fn increment(stream: &Stream, data: &mut DeviceSliceMut<'_, f32>, uses: u16) -> Result<()> {
    stream.scope(|work| -> pinmap::Result<()> {
        for _ in 0..uses {
            work.launch(testgpu::IncrementF32 { data })?;
        }
        Ok(())
    })?;
    Ok(())
}

/// The CPU's turn.
fn add_one(numbers: &mut [f32]) {
    for number in numbers {
        *number += 1.0;
    }
}

/// How much had moved at some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// The time since the first turn began.
    pub time: Duration,
    /// Bytes that had moved to the device.
    pub there: u64,
    /// Bytes that had come home.
    pub home: u64,
}

/// Watches pages move while device and CPU have the numbers in turn, with some advice. The first
/// and the last of the result are the beginning and the end.
///
/// # Errors
///
/// The errors of allocating memory, of advising, and of submitting.
pub fn watch(gpu: &Accelerator, turns: u16, advice: Advice) -> Result<Vec<Moment>> {
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = gpu.alloc_managed_apart::<f32>(COUNT)?;
    numbers.fill(0.0);
    numbers.advise(advice)?;
    // The same range once more, which is asked while the numbers are in use.
    let range = gpu.manage(&numbers[..])?;
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        let watcher = scope.spawn(|| observe(&range, start, &is_over));
        let worked = take_turns(&stream, &mut numbers, turns);
        is_over.store(true, Ordering::Relaxed);
        let moments = watcher.join().map_err(|_| "the watching thread panicked")?;
        worked?;
        Ok(moments?)
    })
}

fn take_turns(stream: &Stream, numbers: &mut Managed<f32>, turns: u16) -> Result<()> {
    for _ in 0..turns {
        increment(stream, &mut numbers.slice_mut(), 1)?;
        add_one(numbers);
    }
    Ok(())
}

fn observe(
    range: &ManagedRange,
    start: Instant,
    is_over: &AtomicBool,
) -> pinmap::Result<Vec<Moment>> {
    let mut moments = Vec::new();
    loop {
        // Before the last look: it sees all that has happened.
        let last = is_over.load(Ordering::Relaxed);
        let seen = range.statistics()?;
        moments.push(Moment {
            time: start.elapsed(),
            there: seen.in_touched + seen.in_prefetched,
            home: seen.home_touched + seen.home_prefetched + seen.home_evicted,
        });
        if last {
            return Ok(moments);
        }
        thread::sleep(INTERVAL);
    }
}

/// Draws when pages moved, in `columns` characters: `>` to the device, `<` home, `x` both ways
/// within one character, and `.` neither.
pub fn timeline(moments: &[Moment], until: Duration, columns: usize) -> String {
    let mut row = vec![b'.'; columns];
    for pair in moments.windows(2) {
        let [before, after] = pair else { continue };
        let part = after.time.as_secs_f64() / until.as_secs_f64();
        let Some(cell) = row.get_mut((part * columns as f64) as usize) else {
            continue;
        };
        for (moved, mark) in [
            (after.there > before.there, b'>'),
            (after.home > before.home, b'<'),
        ] {
            if moved {
                *cell = if *cell == b'.' || *cell == mark {
                    mark
                } else {
                    b'x'
                };
            }
        }
    }
    String::from_utf8_lossy(&row).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_move_is_drawn_where_it_was() {
        let moment = |millis, there, home| Moment {
            time: Duration::from_millis(millis),
            there,
            home,
        };
        let moments = [
            moment(0, 0, 0),
            moment(11, 5, 0),
            moment(19, 6, 0),
            moment(25, 6, 4),
            moment(31, 7, 4),
            moment(38, 7, 6),
            moment(59, 7, 6),
            // beyond what is drawn
            moment(61, 9, 6),
        ];
        assert_eq!(timeline(&moments, Duration::from_millis(60), 6), ".><x..");
        assert_eq!(timeline(&[], Duration::ZERO, 3), "...");
    }

    #[test]
    fn results_count_both_sides() {
        assert_eq!(Load { turns: 6, uses: 1 }.result(), 12.0);
        assert_eq!(Load { turns: 1, uses: 10 }.result(), 11.0);
    }
}
