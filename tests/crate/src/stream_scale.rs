// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many streams, and much work for one.

use std::time::{Duration, Instant};

use pinmap::accelerator::{Accelerator, Stream, StreamOptions};
use pinmap::{accelerator, Device, Error};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::knobs::Knobs;
use crate::raw::Raw;
use crate::setup::is_slow;
use crate::streams::stream;

/// Bytes of memory that this process has.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no resident size")?.parse()?;
    Ok(pages << 12)
}

pub(crate) fn million_packets_in_bounded_memory() -> Outcome {
    const BATCH: usize = 1000;
    let count = if is_slow() { 100_000 } else { 1_000_000 };
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new().packets(4096))?;
    let packets = vec![packet::nop(); BATCH];
    let before = gpu.counters()?;
    let (memory, start) = (resident()?, Instant::now());
    for _ in 0..count / BATCH {
        drop(stream.submit((), |work, ()| work.raw(&packets))?);
    }
    stream.synchronize()?;
    let (more, took) = (resident()?.saturating_sub(memory), start.elapsed());
    let after = gpu.counters()?;
    let executed = after.copied().packets + after.computed().packets
        - before.copied().packets
        - before.computed().packets;
    assert!(executed >= count as u64, "{executed}");
    assert!(more < 1 << 20, "{more} bytes more");
    println!("{count} packets in {took:.1?}, {more} bytes more than before");
    Ok(())
}

/// Does something with each stream of a context, all at once.
fn all_at_once(gpu: &Accelerator, count: usize) -> Outcome {
    let options = StreamOptions::new().packets(64);
    let start = Instant::now();
    let streams: Vec<Stream> = (0..count)
        .map(|_| gpu.stream(options))
        .collect::<Result<_, _>>()?;
    let made = start.elapsed();
    let mut memory = gpu.device().alloc::<u32>(count)?;
    let mut rest = memory.slice_mut();
    accelerator::scope(|scope| -> Result<(), Error> {
        for (number, stream) in (0u32..).zip(&streams) {
            let (mut one, others) = rest.split_at(1)?;
            rest = others;
            let work = scope.on(stream);
            work.fill(&mut one, number)?;
            work.launch(testgpu::Spin {
                time: Duration::from_micros(100),
            })?;
            work.launch(testgpu::Fill {
                to: &mut one,
                value: number + 1,
            })?;
        }
        Ok(())
    })?;
    assert!((1u32..)
        .zip(memory.to_vec())
        .all(|(wanted, number)| number == wanted));
    let worked = start.elapsed();
    drop(streams);
    println!(
        "{count} streams: made after {made:.1?}, done after {worked:.1?}, dropped after {:.1?}",
        start.elapsed()
    );
    Ok(())
}

/// One program has more streams than its share, and thirty times as many as the device holds at
/// once.
pub(crate) fn thousand_streams_of_one_program() -> Outcome {
    let gpu = gpu()?;
    all_at_once(&gpu, 1000)
}

/// As many streams as the device notes in one word of a register begin at once, and none is seen
/// before the last: a word of ones says that, and not that the device is gone.
pub(crate) fn streams_that_begin_all_at_once_are_all_seen() -> Outcome {
    const COUNT: usize = 192;
    let gpu = gpu()?;
    let knobs = Knobs::of(&gpu)?;
    let streams: Vec<Stream> = (0..COUNT)
        .map(|_| gpu.stream(StreamOptions::new().packets(64)))
        .collect::<Result<_, _>>()?;
    for _ in 0..5 {
        // The driver looks by itself only now and then.
        knobs.lose_interrupts(2 * COUNT as u64);
        for stream in &streams {
            drop(stream.submit((), |work, ()| work.raw(&[packet::nop()]))?);
        }
        knobs.lose_interrupts(0);
        for stream in &streams {
            stream.synchronize_timeout(Duration::from_secs(10))?;
        }
    }
    Ok(())
}

pub(crate) fn streams_of_one_program_leave_others_their_share() -> Outcome {
    let gpu = gpu()?;
    let mut streams = Vec::new();
    while let Ok(stream) = gpu.stream(StreamOptions::new().packets(64)) {
        streams.push(stream);
        assert!(streams.len() <= 1024);
    }
    assert!(streams.len() >= 1000, "{}", streams.len());
    let other = pinmap_testgpu::accelerator(&Device::open(gpu.device().path())?)?;
    all_at_once(&other, 16)
}

pub(crate) fn thousand_streams_of_twenty_programs() -> Outcome {
    let first = gpu()?;
    let path = first.device().path().to_owned();
    std::thread::scope(|threads| {
        let run = || -> Result<(), String> {
            let device = Device::open(&path).map_err(|error| error.to_string())?;
            let gpu = pinmap_testgpu::accelerator(&device).map_err(|error| error.to_string())?;
            all_at_once(&gpu, 50).map_err(|error| error.to_string())
        };
        let threads: Vec<_> = (0..20).map(|_| threads.spawn(run)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    Ok(())
}

pub(crate) fn stream_is_used_by_two_threads() -> Outcome {
    const TIMES: u32 = 2000;
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let event = gpu.event()?;
    let mut memory = gpu.device().alloc::<f32>(200)?;
    let (mut one, mut two) = memory.slice_mut().split_at(100)?;
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        std::thread::scope(|threads| {
            let halves = [&mut one, &mut two].map(|data| {
                let (work, stream, event) = (&work, &stream, &event);
                threads.spawn(move || -> Result<(), Error> {
                    for number in 0..TIMES {
                        work.launch(testgpu::IncrementF32 { data: &mut *data })?;
                        match number % 16 {
                            0 => stream.record(event)?,
                            5 => stream.wait_event(event)?,
                            9 => drop(stream.query()?),
                            13 if number % 256 == 13 => stream.synchronize()?,
                            _ => {}
                        }
                    }
                    Ok(())
                })
            });
            halves.into_iter().try_for_each(|half| match half.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    })?;
    assert!(memory.to_vec().iter().all(|&number| number == TIMES as f32));
    Ok(())
}
