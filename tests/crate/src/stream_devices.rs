// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of two devices, for a machine that has two with queues.

use std::time::Duration;

use nix::libc;
use pinmap::accelerator::{Accelerator, Stream, StreamOptions};
use pinmap::{Access, Buffer, Device, Kind, RegisterOptions};
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::raw::Raw;
use crate::setup::PAGE;
use crate::streams::{spin, stream};

/// The second device with queues, and its context.
pub(crate) fn second(first: &Accelerator) -> Result<Accelerator, Box<dyn std::error::Error>> {
    for node in Device::list()? {
        if node.path == first.device().path() {
            continue;
        }
        let device = Device::open(&node.path)?;
        if device.kind()? == Kind::Paged {
            return Ok(pinmap_testgpu::accelerator(&device)?);
        }
    }
    skip("there is only one device with queues")
}

/// A number goes from word to word, by two devices in turns. Each waits for the other's event, and
/// is late: a device that does not wait copies a word too soon. No device begins before all of it
/// was submitted.
pub(crate) fn streams_of_two_gpus_wait_for_each_other() -> Outcome {
    const STEPS: u64 = 60;
    let one = gpu()?;
    let two = second(&one)?;
    let options = RegisterOptions::new(Access::ReadWrite).portable();
    let mut buffer = Buffer::<u8>::new(PAGE)?;
    buffer[..8].copy_from_slice(&7u64.to_le_bytes());
    let memory = buffer.register(one.device(), options)?;
    let there = two.device().query(memory.addr())?.ok_or("not found")?;
    let there = there.device_addr.ok_or("not mapped")?;
    // All packets fit into the rings.
    let options = StreamOptions::new().packets(1024);
    let lanes: [(&Accelerator, Stream, u64); 2] = [
        (&one, one.stream(options)?, memory.device_addr()?),
        (&two, two.stream(options)?, there),
    ];
    let gate = one.device().alloc::<u64>(1)?;
    let addr = gate.device_addr();
    let shut = lanes[0]
        .1
        .submit(gate, |work, _| work.raw(&[packet::fence_wait(addr, 1)]))?;
    // Each event is recorded again, and waited for again.
    let events = [one.event()?, two.event()?];
    for step in 0..STEPS {
        let mine = (step % 2) as usize;
        let (_, stream, addr) = &lanes[mine];
        stream.wait_event(&events[1 - mine])?;
        spin(stream, Duration::from_millis(2))?;
        let (from, to) = (addr + 8 * step, addr + 8 * (step + 1));
        let copy = [packet::copy(from, to, 8)];
        drop(stream.submit((), |work, ()| work.raw(&copy))?);
        stream.record(&events[mine])?;
    }
    let last = &lanes[(STEPS - 1) as usize % 2].1;
    assert!(
        !shut.query()? && !last.query()?,
        "nobody has opened the gate"
    );
    let open = [packet::fence_write(addr, 1)];
    drop(stream(&one)?.submit((), |work, ()| work.raw(&open))?);
    last.synchronize()?;
    assert!(events[0].query()? && events[1].query()?);
    for (gpu, stream, _) in &lanes {
        stream.synchronize()?;
        gpu.device().synchronize()?;
    }
    // Each device has a clock of its own.
    let error = events[1].elapsed_since(&events[0]).expect_err("two clocks");
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    let memory = memory.release()?;
    for word in memory[..8 * STEPS as usize + 8].chunks(8) {
        assert_eq!(word, 7u64.to_le_bytes());
    }
    Ok(())
}

/// A failure on one device is told to a stream of the other that waits for it.
pub(crate) fn failure_is_told_to_a_stream_of_another_of_two_gpus() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let (failing, waiting) = (stream(&one)?, stream(&two)?);
    let event = one.event()?;
    drop(failing.submit((), |work, ()| work.raw(&[packet::copy(0x10, 0x20, 8)]))?);
    failing.record(&event)?;
    waiting.wait_event(&event)?;
    let error = waiting.synchronize().expect_err("what it waits for failed");
    let addr = error.fault().and_then(|fault| fault.device_addr);
    assert_eq!(addr, Some(0x10), "{error}");
    waiting.reset()?;
    spin(&waiting, Duration::ZERO)?;
    Ok(waiting.synchronize()?)
}
