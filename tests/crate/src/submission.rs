// SPDX-License-Identifier: MIT OR Apache-2.0
//! Submission makes no system call, and costs less than one.

use std::hint::spin_loop;
use std::time::Instant;

use pinmap::accelerator::{Event, Stream, StreamOptions};
use pinmap::{Allocation, Error};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::is_slow;
use crate::syscalls::{self, Phase};

/// Submits work, and tells when.
fn traced(phase: &Phase) -> Outcome {
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new().packets(4096))?;
    let mut memory = gpu.device().alloc::<f32>(1000)?;
    let mut other = gpu.alloc_vram::<f32>(1000)?;
    let mut end = gpu.device().alloc::<u64>(1)?;
    phase.begin()?;
    stream.scope(|work| {
        let (mut data, mut other) = (memory.slice_mut(), other.slice_mut());
        let mut end = end.slice_mut();
        phase.quiet(true);
        for _ in 0..200 {
            work.launch(testgpu::IncrementF32 { data: &mut data })?;
            work.copy(&data, &mut other)?;
            work.batch(|| {
                work.launch(testgpu::IncrementF32 { data: &mut data })?;
                work.fill(&mut other, 0.0)
            })?;
        }
        work.write_value(&mut end, 0, 1)?;
        while end.get(0)? == 0 {
            spin_loop();
        }
        phase.quiet(false);
        Ok::<_, Error>(())
    })?;
    match memory.to_vec().iter().all(|&float| float == 400.0) {
        true => Ok(()),
        false => Err("the results are wrong".into()),
    }
}

/// Makes two streams take turns with memory that is handed over.
fn work_of_streams(
    one: &Stream,
    two: &Stream,
    event: &Event,
    mut floats: Allocation<f32>,
) -> Result<Allocation<f32>, Error> {
    for round in 0..100 {
        let (from, to) = if round % 2 == 0 {
            (one, two)
        } else {
            (two, one)
        };
        let pending = from.submit(floats, |work, floats| {
            let data = &mut floats.slice_mut();
            work.launch(testgpu::IncrementF32 { data })
        })?;
        from.record(event)?;
        to.wait_event(event)?;
        // Waits without sleeping.
        let mut pending = Err(pending);
        floats = loop {
            match pending {
                Ok(floats) => break floats,
                Err(early) if early.is_done() => pending = early.try_into_memory(),
                Err(early) => {
                    spin_loop();
                    pending = Err(early);
                }
            }
        };
    }
    Ok(floats)
}

/// Submits work to two streams, and tells when.
fn traced_streams(phase: &Phase) -> Outcome {
    let gpu = gpu()?;
    let streams = [(); 2].map(|()| gpu.stream(StreamOptions::new().packets(4096)));
    let [one, two] = streams;
    let (one, two, event) = (one?, two?, gpu.event()?);
    let floats = gpu.device().alloc::<f32>(1000)?;
    // Memory that the streams keep for themselves is there then.
    let floats = work_of_streams(&one, &two, &event, floats)?;
    phase.begin()?;
    phase.quiet(true);
    let floats = work_of_streams(&one, &two, &event, floats)?;
    phase.quiet(false);
    match floats.to_vec().iter().all(|&float| float == 200.0) {
        true => Ok(()),
        false => Err("the results of the streams are wrong".into()),
    }
}

pub(crate) fn submission_makes_no_system_call() -> Outcome {
    drop(gpu()?);
    syscalls::check(traced)
}

pub(crate) fn streams_make_no_system_call() -> Outcome {
    drop(gpu()?);
    syscalls::check(traced_streams)
}

/// Packets for each measurement.
const PACKETS: usize = 1024;
/// Measurements of each kind.
const RUNS: usize = 21;

/// Measures the CPU time of one packet, submitted in batches, in nanoseconds.
fn cost(stream: &Stream, batch: usize) -> Result<f64, Error> {
    let nops = [packet::nop()];
    stream.scope(|work| {
        let start = Instant::now();
        for _ in 0..PACKETS / batch {
            work.batch(|| (0..batch).try_for_each(|_| work.raw(&nops)))?;
        }
        let time = start.elapsed();
        // Setting up is not measured, and is the same for both.
        work.stream().synchronize()?;
        Ok(time.as_nanos() as f64 / PACKETS as f64)
    })
}

pub(crate) fn submission_cost() -> Outcome {
    let gpu = gpu()?;
    let options = StreamOptions::new().packets(4096);
    let ring = gpu.stream(options)?;
    let ioctl = gpu.stream(options.system_calls())?;
    let runs = if is_slow() { 3 } else { RUNS };
    for batch in [1, 16, 64] {
        let (mut by_ring, mut by_ioctl) = (Vec::new(), Vec::new());
        // The kinds are measured in turn, and the first of each does not count.
        for run in 0..=runs {
            let costs = (cost(&ring, batch)?, cost(&ioctl, batch)?);
            if run > 0 {
                by_ring.push(costs.0);
                by_ioctl.push(costs.1);
            }
        }
        let [ring, ioctl] = [by_ring, by_ioctl].map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[runs / 2] / 1e3
        });
        println!(
            "batches of {batch}: {ring:.3} µs a packet by the ring, {ioctl:.3} µs by an ioctl \
             (medians of {runs}, {PACKETS} packets each)"
        );
    }
    Ok(())
}
