// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device with queues: host memory used in place against copies, submission by the ring against
//! the ioctl, and copies in both directions at once. Its link is a model; which one it is, is told
//! with the figures.

use std::time::Instant;

use pinmap::accelerator::{Accelerator, StreamOptions};
use pinmap::Allocation;
use pinmap_samples::work::Work;
use pinmap_testgpu::packet;

use crate::{Bench, Result};

const SIZES: [(&str, usize); 3] = [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("16MiB", 16 << 20)];
/// Packets submitted for one measurement.
const PACKETS: usize = 1024;

pub(crate) fn measure(bench: &Bench, gpu: &Accelerator) -> Result<()> {
    let info = gpu.info()?;
    eprintln!(
        "bench-crate: the link is {:?}, the device's memory {:?}",
        info.link, info.vram
    );
    for (size, bytes) in SIZES {
        let count = bytes / size_of::<f32>();
        let mut work = Work::new(gpu, count)?;
        for (operation, uses) in [("use-once", 1), ("use-10-times", 10)] {
            let systems = ["zero-copy", "explicit-copy"];
            bench.compare(operation, size, "gpu", systems, |system| {
                let times = match system {
                    0 => work.zero_copy(count, uses)?,
                    _ => work.copy(count, uses)?,
                };
                Ok(times.device.as_nanos() as u64)
            })?;
        }
    }
    submission(bench, gpu)?;
    both_directions(bench, gpu)
}

/// The processor's time for a packet, alone or sixteen at a time.
fn submission(bench: &Bench, gpu: &Accelerator) -> Result<()> {
    let options = StreamOptions::new().packets(4096);
    let streams = [gpu.stream(options)?, gpu.stream(options.system_calls())?];
    for (operation, together) in [("submit", 1), ("submit-16", 16)] {
        bench.compare(operation, "0KiB", "packet", ["ring", "ioctl"], |system| {
            let nops = [packet::nop()];
            let time = streams[system].scope(|work| {
                let start = Instant::now();
                for _ in 0..PACKETS / together {
                    work.batch(|| {
                        // SAFETY: They write nothing.
                        (0..together).try_for_each(|_| unsafe { work.submit_packets(&nops) })
                    })?;
                }
                let time = start.elapsed();
                // Setting up is not measured, and is the same for both.
                work.stream().synchronize()?;
                Ok::<_, pinmap::Error>(time)
            })?;
            Ok((time / PACKETS as u32).as_nanos() as u64)
        })?;
    }
    Ok(())
}

/// Copies to the device, from it, one after the other, and at once by two queues.
fn both_directions(bench: &Bench, gpu: &Accelerator) -> Result<()> {
    let floats = (16 << 20) / size_of::<f32>();
    let streams = [
        gpu.stream(StreamOptions::new())?,
        gpu.stream(StreamOptions::new())?,
    ];
    let mut host: [Allocation<f32>; 2] = [gpu.device().alloc(floats)?, gpu.device().alloc(floats)?];
    let mut vram: [Allocation<f32>; 2] = [gpu.alloc_vram(floats)?, gpu.alloc_vram(floats)?];
    let systems = ["up", "down", "one-after-the-other", "at-once"];
    bench.compare("copy", "16MiB", "gpu", systems, |system| {
        let [first, second] = &streams;
        let ([from, back], [there, of]) = (&mut host, &mut vram);
        let (from, mut back) = (from.slice_mut(), back.slice_mut());
        let (mut there, of) = (there.slice_mut(), of.slice_mut());
        let start = Instant::now();
        first.scope(|up| {
            if system != 1 {
                up.copy(&from, &mut there)?;
            }
            if system == 2 {
                first.synchronize()?;
            }
            if system != 0 {
                second.scope(|down| down.copy(&of, &mut back))?;
            }
            Ok(())
        })?;
        Ok(start.elapsed().as_nanos() as u64)
    })
}
