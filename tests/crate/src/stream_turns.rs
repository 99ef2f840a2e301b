// SPDX-License-Identifier: MIT OR Apache-2.0
//! More streams than the device holds: all get turns, and none gets one for nothing.

use std::thread;
use std::time::Duration;

use pinmap::accelerator::{Accelerator, Event, Stream, StreamOptions};
use pinmap::Error;
use pinmap_testgpu as testgpu;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::setup::is_slow;
use crate::streams::{spin, stream, until};

/// More streams than the device has slots.
const MANY: usize = 40;

/// Makes streams that have more to do than they will.
fn busy_streams(gpu: &Accelerator, time: Duration) -> Result<Vec<Stream>, Error> {
    let streams: Vec<_> = (0..MANY)
        .map(|_| stream(gpu))
        .collect::<Result<_, Error>>()?;
    for stream in &streams {
        let pending = stream.submit((), |work, ()| {
            (0..30).try_for_each(|_| work.launch(testgpu::Spin { time }))
        })?;
        drop(pending);
    }
    Ok(streams)
}

/// Resets streams with work left, all at once, so that it takes no longer than the running packets.
fn give_up(streams: &[Stream]) -> Result<(), Error> {
    thread::scope(|scope| {
        let resets: Vec<_> = streams
            .iter()
            .map(|stream| scope.spawn(|| stream.reset()))
            .collect();
        let mut ended = resets.into_iter().map(|reset| reset.join());
        ended.try_for_each(|end| end.expect("it does not panic"))
    })
}

/// Packets that engines have executed.
fn executed(gpu: &Accelerator) -> Result<u64, Error> {
    let counters = gpu.counters()?;
    Ok(counters.copied().packets + counters.computed().packets)
}

/// One context has more long kernels than there is room for. Another copies a little now and then,
/// by engines that are idle: it does not wait for those kernels.
pub(crate) fn long_kernels_hold_up_no_other_context() -> Outcome {
    let (long, short) = (gpu()?, gpu()?);
    let binds = long.counters()?.binds + u64::from(long.info()?.slots);
    let load = busy_streams(&long, Duration::from_millis(1900))?;
    until("the slots are taken", || {
        long.counters()
            .is_ok_and(|counters| counters.binds >= binds)
    })?;
    let stream = stream(&short)?;
    let mut memory = short.alloc_vram::<u8>(4096)?;
    let mut waits = Vec::new();
    for _ in 0..5 {
        let binds = long.counters()?.binds;
        let asked = Duration::from_nanos(short.info()?.time);
        let pending = stream.submit(memory, |work, memory| work.fill(memory.slice_mut(), 1))?;
        let done: Event = short.event()?;
        stream.record(&done)?;
        // Without a share it would wait for all of the load.
        stream.synchronize_timeout(Duration::from_secs(60))?;
        memory = pending.wait()?;
        done.synchronize()?;
        waits.push(done.time()?.saturating_sub(asked));
        // It was put in, and then somebody else was in its place.
        until("the slot is taken again", || {
            let counters = long.counters();
            counters.is_ok_and(|counters| counters.binds >= binds + 2)
        })?;
    }
    waits.sort();
    let (median, worst) = (waits[2], waits[4]);
    println!("median wait {median:?}, worst {worst:?}");
    assert!(
        load.iter()
            .all(|stream| stream.query().is_ok_and(|done| !done)),
        "the load has ended too soon"
    );
    give_up(&load)?;
    let limit = if is_slow() { 600 } else { 100 };
    assert!(median < Duration::from_millis(limit), "{median:?}");
    Ok(())
}

/// Any number of urgent streams wait for a stream that is less urgent: it gets on, and so do they.
pub(crate) fn streams_that_wait_keep_nobody_out() -> Outcome {
    let gpu = gpu()?;
    let low = gpu.stream(StreamOptions::new().priority(0))?;
    let urgent: Vec<_> = (0..2 * MANY)
        .map(|_| gpu.stream(StreamOptions::new().packets(64).priority(3)))
        .collect::<Result<_, _>>()?;
    let done = gpu.event()?;
    (0..5).try_for_each(|_| spin(&low, Duration::from_millis(20)))?;
    low.record(&done)?;
    for stream in &urgent {
        stream.wait_event(&done)?;
        spin(stream, Duration::ZERO)?;
    }
    // It gets on, although all wait for it.
    low.synchronize_timeout(Duration::from_secs(200))?;
    for stream in &urgent {
        stream.synchronize_timeout(Duration::from_secs(200))?;
    }
    Ok(())
}

/// While all engines have long kernels, streams that are equal do not put each other out, over and
/// over: nobody would get on by that.
pub(crate) fn equal_streams_do_not_put_each_other_out() -> Outcome {
    let gpu = gpu()?;
    let load = busy_streams(&gpu, Duration::from_millis(300))?;
    // Each stream has had a turn.
    let begun = executed(&gpu)?;
    until("kernels end", || {
        executed(&gpu).is_ok_and(|now| now >= begun + 8)
    })?;
    let (begun, binds) = (executed(&gpu)?, gpu.counters()?.binds);
    until("more kernels end", || {
        executed(&gpu).is_ok_and(|now| now >= begun + 24)
    })?;
    let binds = gpu.counters()?.binds - binds;
    let packets = executed(&gpu)? - begun;
    println!("{binds} times put in for {packets} packets");
    give_up(&load)?;
    assert!(binds <= 3 * packets + 20, "{binds} for {packets} packets");
    Ok(())
}
