// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two contexts of the same device, as two programs would have. Both work at the same time, and
//! neither reaches what the other has mapped, although it knows the address.
//!
//! ```sh
//! pinmap bind 0000:00:10.0        # once, as root
//! two_contexts
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use pinmap::accelerator::{Stream, StreamOptions};
use pinmap::{Access, Buffer, Device, Registration};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

/// How many floats each context works on.
const FLOATS: usize = 1 << 18;
/// How often a context adds 1 to each float.
const ROUNDS: u16 = 20;

/// A context with a stream and some memory.
struct Context {
    name: &'static str,
    stream: Stream,
    memory: Registration,
}

impl Context {
    fn new(name: &'static str, device: Device) -> Result<Self, Box<dyn Error>> {
        let gpu = pinmap_testgpu::accelerator(&device)?;
        let stream = gpu.stream(StreamOptions::new())?;
        let memory = Buffer::<u8>::new(4 * FLOATS)?.register(&device, Access::ReadWrite)?;
        println!("{name}: its floats are at {:#x}", memory.device_addr()?);
        Ok(Self {
            name,
            stream,
            memory,
        })
    }

    /// Whether the stream of the context executes packets.
    fn works(&mut self) -> pinmap::Result<bool> {
        let spin = testgpu::Spin {
            time: Duration::ZERO,
        };
        self.stream.scope(|work| work.launch(spin))?;
        self.stream.query()
    }

    /// Adds 1 to each float, [`ROUNDS`] times. Returns whether all floats are right.
    fn work(&mut self) -> pinmap::Result<bool> {
        let memory = &mut self.memory;
        self.stream.scope(|work| {
            let mut data = memory.slice_mut::<f32>()?;
            for _ in 0..ROUNDS {
                work.launch(testgpu::IncrementF32 { data: &mut data })?;
            }
            work.stream().synchronize()?;
            Ok(data.to_vec().iter().all(|&float| float == ROUNDS.into()))
        })
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let first = pinmap_testgpu::find()?.device().clone();
    let second = Device::open(first.path())?;
    let (mut a, mut b) = (Context::new("A", first)?, Context::new("B", second)?);

    // Both work at the same time.
    let (good_a, good_b) = thread::scope(|threads| {
        let other = threads.spawn(|| b.work());
        (a.work(), other.join())
    });
    let good_b = good_b.map_err(|_| "the thread of B panicked")?;
    for (name, good) in [(a.name, good_a?), (b.name, good_b?)] {
        if !good {
            return Err(format!("{name}: not every float is {ROUNDS}").into());
        }
        println!("{name}: {FLOATS} floats, each {ROUNDS} now");
    }

    // B knows the address of A's memory, and tells the device to write there.
    let target = a.memory.device_addr()?;
    let write = packet::fill(target, 4096, 0xbad, 2);
    let written = b.stream.scope(|work| {
        // SAFETY: B's context reaches nothing there, and A's memory is accessed by atomics and
        // devices only, so nothing could go wrong even if it did.
        unsafe { work.submit_packets(&[write]) }
    });
    let Err(error) = written else {
        return Err("B wrote where only A has memory".into());
    };
    let fault = error.fault().ok_or("B's stream stopped without a fault")?;
    println!("B tried to write to A's memory: {fault}");
    if fault.device_addr != Some(target) {
        return Err(error.into());
    }

    // A is not affected and goes on; B resets its stream.
    if a.memory.load::<u32>(0)? != f32::from(ROUNDS).to_bits() {
        return Err("A's memory has changed".into());
    }
    println!("A: nothing has changed; its stream works: {}", a.works()?);
    b.stream.reset()?;
    println!("B: after a reset its stream works: {}", b.works()?);
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("two_contexts: {error}");
            ExitCode::FAILURE
        }
    }
}
