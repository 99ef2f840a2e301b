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

use pinmap::{Accelerator, QueueOptions};
use pinmap_samples::zero_copy as programs;

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = Accelerator::find()?;
    let mut queue = gpu.queue(QueueOptions::new())?;

    // A `Vec` as any other. A device that can fault reaches it because all of the program's
    // addresses are managed, which is the only call that is needed; for any other device the crate
    // registers the memory as long as the work takes.
    let managed = gpu.device().info()?.managed;
    let _all = managed.then(|| gpu.manage_all()).transpose()?;
    let mut floats = programs::floats();
    let work = programs::increment(&mut queue, &mut floats)?;
    println!(
        "{} floats at {:#x}, for the device at {:#x}: {:?} …",
        floats.len(),
        work.addr,
        work.device_addr,
        &floats[..10]
    );
    println!("the memory was {}", programs::describe(work.reach));
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
