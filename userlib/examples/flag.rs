// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flags between the CPU and a device that is at work: the device waits for the CPU in the middle
//! of what was submitted, and tells how far it is, by numbers in memory that both can reach.
//!
//! usage: `flag [ROUNDS]`
#![forbid(unsafe_code)]

use std::error::Error;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use pinmap::accelerator::{Advice, Place, StreamOptions};
use pinmap_testgpu as testgpu;

/// The flags, by their indices.
const GO: usize = 0;
const DONE: usize = 1;

/// Nothing here takes that long: something is wrong then.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(16), |text| text.parse::<u64>())?;
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut flags = gpu.alloc_managed::<u64>(2)?;
    let mut numbers = gpu.alloc_managed::<f32>(1024)?;
    // Both sides look at them all the time. So they stay where they are.
    flags.advise(Advice::new().prefer(Place::Host))?;
    let start = Instant::now();
    stream.try_scope(|work| -> Result<(), Box<dyn Error>> {
        let (mut flags, mut numbers) = (flags.slice_mut(), numbers.slice_mut());
        // All of it is submitted before the device may begin.
        for round in 1..=rounds {
            work.wait_value(&flags, GO, round)?;
            work.launch(testgpu::IncrementF32 { data: &mut numbers })?;
            work.write_value(&mut flags, DONE, round)?;
        }
        for round in 1..=rounds {
            if flags.get(DONE)? >= round {
                let told = flags.get(DONE);
                return Err(format!("round {round} came before its flag: {told:?}").into());
            }
            flags.set(GO, round)?;
            while flags.get(DONE)? < round {
                if start.elapsed() > LIMIT {
                    return Err(format!("round {round} does not end").into());
                }
                spin_loop();
            }
            // The device waits for the next flag, and its work of this round is to be seen.
            if numbers.get(1023)? != round as f32 {
                return Err(format!("round {round} is not to be seen").into());
            }
        }
        Ok(())
    })?;
    let each = start.elapsed() / u32::try_from(rounds.max(1))?;
    println!("{rounds} rounds between CPU and device, {each:.1?} each");
    println!("the flags: {:?}", &flags[..]);
    if numbers.iter().any(|&number| number != rounds as f32) {
        return Err("not every number was added to in every round".into());
    }
    println!("all numbers are right");
    Ok(())
}
