// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives QEMU's device `edu` from user space: a factorial, and DMA both ways, each with an
//! interrupt. The driver itself is `samples/src/edu.rs`; this is the program that uses it.
//!
//! ```sh
//! pinmap bind 0000:00:10.0        # once, as root
//! edu [0000:00:10.0]
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use pinmap::{Access, Buffer, Device};
use pinmap_samples::edu::Edu;

fn run() -> Result<(), Box<dyn Error>> {
    let device = match std::env::args().nth(1) {
        Some(address) => Device::open_pci(address.parse()?)?,
        None => Edu::find()?,
    };
    let mut edu = Edu::new(device)?;
    let (major, minor) = edu.version()?;
    println!("{}: edu {major}.{minor}, alive", edu.device());

    let number = 10;
    println!("{number}! = {}", edu.factorial(number)?);

    // The message to send, which the device only reads.
    let mut message = Buffer::<u8>::new(Edu::MEMORY_LEN)?;
    for (i, byte) in message.iter_mut().enumerate() {
        *byte = (i * 7) as u8;
    }
    let message = message.register(edu.device(), Access::Read)?;
    println!(
        "memory at {:#x}, for the device at {:#x}",
        message.addr(),
        message.device_addr()?
    );
    edu.fetch(message.device_addr()?, 0, Edu::MEMORY_LEN)?;

    // Memory for the reply, which the device writes.
    let reply = Buffer::<u8>::new(Edu::MEMORY_LEN)?.register(edu.device(), Access::ReadWrite)?;
    edu.store(reply.device_addr()?, 0, Edu::MEMORY_LEN)?;

    // After releasing them, both are slices again.
    let (message, reply) = (message.release()?, reply.release()?);
    if *message != *reply {
        return Err("what came back is not what was sent".into());
    }
    println!("{} bytes there and back: all right", reply.len());
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("edu: {error}");
            ExitCode::FAILURE
        }
    }
}
