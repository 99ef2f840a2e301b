// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has a device work on host memory in place: it adds 1 to 1024 floats that are allocated,
//! registered, and managed, and copies 128 ints from one write-combined buffer to another. The two
//! programs are in `samples/src/zero_copy.rs`.
//!
//! ```sh
//! pinmap bind 0000:00:10.0        # once, as root
//! zero_copy
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use pinmap::accelerator::StreamOptions;
use pinmap_samples::zero_copy as programs;

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;

    let managed = gpu.device().info()?.managed;
    for memory in programs::Memory::ALL {
        if memory == programs::Memory::Managed && !managed {
            continue;
        }
        let work = programs::increment(&gpu, &stream, memory)?;
        println!(
            "{} floats, {}, at {:#x}, for the device at {:#x}, {} bytes pinned: {:?} …",
            work.floats.len(),
            memory.name(),
            work.addr,
            work.device_addr,
            work.pinned,
            &work.floats[..10]
        );
        let mut floats = (1u16..).zip(&work.floats);
        if floats.any(|(n, &float)| float != n.into()) {
            return Err("not every float is one more than it was".into());
        }
    }

    let copied = programs::copy(&gpu, &stream)?;
    let ints = &copied.ints;
    println!(
        "{} ints copied, for the device at {:#x}: {:?} …",
        ints.len(),
        copied.device_addr,
        &ints[..10]
    );
    if (0..).zip(ints).any(|(n, &int)| int != n) {
        return Err("not every int was copied".into());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zero_copy: {error}");
            ExitCode::FAILURE
        }
    }
}
