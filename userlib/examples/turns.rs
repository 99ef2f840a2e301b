// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU and device in turn on one array, with different advice: where the memory is after each turn,
//! and how much has moved.
//!
//! usage: `turns [TURNS]`
#![forbid(unsafe_code)]

use std::error::Error;

use pinmap::accelerator::{Accelerator, Advice, Managed, Place, Stream, StreamOptions};
use pinmap::inspect::Residency;
use pinmap_testgpu as testgpu;

/// Numbers of the array: 4 MiB.
const COUNT: usize = 1 << 20;

/// Describes where the memory is.
fn describe(residency: &Residency) -> String {
    let sums = residency.sums;
    let mut rules: Vec<_> = residency.runs.iter().map(|run| run.rule.name()).collect();
    rules.sort_unstable();
    rules.dedup();
    format!(
        "{} KiB on the host, {} KiB on the device ({})",
        sums.host >> 10,
        sums.device >> 10,
        rules.join(", ")
    )
}

fn increment(stream: &Stream, numbers: &mut Managed<f32>) -> pinmap::Result<()> {
    stream.scope(|work| {
        work.launch(testgpu::IncrementF32 {
            data: &mut numbers.slice_mut(),
        })
    })
}

/// Lets the device and the CPU add 1 to each number in turn.
fn take_turns(gpu: &Accelerator, turns: u16, advice: Advice) -> Result<(), Box<dyn Error>> {
    let stream = gpu.stream(StreamOptions::new())?;
    // A range of its own, so that the statistics are those of these numbers.
    let mut numbers = gpu.alloc_managed_apart::<f32>(COUNT)?;
    numbers.advise(advice)?;
    println!("advice: {advice}");
    for turn in 1..=turns {
        increment(&stream, &mut numbers)?;
        if turn <= 2 {
            println!("  after the device: {}", describe(&numbers.residency()?));
        }
        for number in numbers.iter_mut() {
            *number += 1.0;
        }
        if turn <= 2 {
            println!("  after the CPU:    {}", describe(&numbers.residency()?));
        }
    }
    if numbers
        .iter()
        .any(|&number| number != 2.0 * f32::from(turns))
    {
        return Err("not every number was added to in every turn".into());
    }
    let statistics = numbers.statistics()?;
    println!(
        "  {} faults of the device, {} of the CPU; {} KiB there, {} KiB home; {} times thrashing",
        statistics.device_faults,
        statistics.host_faults,
        statistics.in_touched >> 10,
        statistics.home_touched >> 10,
        statistics.thrashing,
    );
    // What has happened without a call: memory without advice may thrash. The event goes with it.
    while let Some(event) = gpu.device().try_next_event()? {
        println!("  {event}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let turns = std::env::args().nth(1).map_or(Ok(8), |text| text.parse())?;
    let gpu = pinmap_testgpu::find()?;
    for advice in [
        Advice::new(),
        Advice::new().prefer(Place::Vram),
        Advice::new().prefer(Place::Host),
    ] {
        take_turns(&gpu, turns, advice)?;
    }
    println!("all numbers are right");
    Ok(())
}
