// SPDX-License-Identifier: MIT OR Apache-2.0
//! Submission makes no system call, and costs less than one.

use std::hint::spin_loop;
use std::time::Instant;

use pinmap::stream::{Event, StreamOptions};
use pinmap::testgpu::packet;
use pinmap::{testgpu, Allocation, Error, Queue, QueueOptions, Stream};

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::is_slow;
use crate::syscalls::{self, Phase};

/// Submits work, and tells when.
fn traced(phase: &Phase) -> Outcome {
    let gpu = gpu()?;
    let mut queue = gpu.queue(QueueOptions::new().packets(4096))?;
    let mut memory = gpu.device().alloc::<f32>(1000)?;
    let mut other = gpu.alloc_vram::<f32>(1000)?;
    phase.begin()?;
    queue.scope(|scope| {
        let (mut data, mut other) = (memory.slice_mut(), other.slice_mut());
        phase.quiet(true);
        for _ in 0..200 {
            scope.launch(testgpu::IncrementF32 { data: &mut data })?;
            scope.copy(&data, &mut other)?;
            let batch = scope.batch();
            scope.launch(testgpu::IncrementF32 { data: &mut data })?;
            scope.fill(&mut other, 0.0)?;
            drop(batch);
        }
        let fence = scope.fence()?;
        while !fence.is_done() {
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
fn cost(queue: &mut Queue, batch: usize) -> Result<f64, Error> {
    let nops = [packet::nop()];
    queue.scope(|scope| {
        let start = Instant::now();
        for _ in 0..PACKETS / batch {
            let held = scope.batch();
            for _ in 0..batch {
                scope.raw(&nops)?;
            }
            held.publish()?;
        }
        let time = start.elapsed();
        // Setting up is not measured, and is the same for both.
        scope.wait()?;
        Ok(time.as_nanos() as f64 / PACKETS as f64)
    })
}

pub(crate) fn submission_cost() -> Outcome {
    let gpu = gpu()?;
    let options = QueueOptions::new().packets(4096);
    let mut ring = gpu.queue(options)?;
    let mut ioctl = gpu.queue(options.system_calls())?;
    let runs = if is_slow() { 3 } else { RUNS };
    for batch in [1, 16, 64] {
        let (mut by_ring, mut by_ioctl) = (Vec::new(), Vec::new());
        // The kinds are measured in turn, and the first of each does not count.
        for run in 0..=runs {
            let costs = (cost(&mut ring, batch)?, cost(&mut ioctl, batch)?);
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
