// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has a device work on host memory in place: it adds 1 to 1024 floats of the program, and copies
//! 128 ints from one buffer to another. The two programs are in `samples/src/zero_copy.rs`.
//!
//! ```sh
//! pinmap bind 0000:00:10.0        # once, as root
//! zero_copy
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use pinmap::{Access, Gpu, QueueOptions};
use pinmap_samples::zero_copy as programs;

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::find()?;
    let mut queue = gpu.queue(QueueOptions::new())?;

    // While it is registered, the memory has the same address for the device. Released, it belongs
    // to the program alone again. It never moves.
    let mut memory = programs::floats()?.register(gpu.device(), Access::ReadWrite)?;
    let (addr, device_addr) = (memory.addr(), memory.device_addr()?);
    programs::increment(&mut queue, &mut memory)?;
    let floats = programs::values(&memory.release()?);
    println!(
        "{} floats at {addr:#x}, for the device at {device_addr:#x}: {:?} …",
        floats.len(),
        &floats[..10]
    );
    if (1u16..).zip(&floats).any(|(n, &float)| float != n.into()) {
        return Err("not every float is one more than it was".into());
    }

    let ints = programs::copy(&gpu, &mut queue)?;
    println!("{} ints copied: {:?} …", ints.len(), &ints[..10]);
    if (0..).zip(&ints).any(|(n, &int)| int != n) {
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
