// SPDX-License-Identifier: MIT OR Apache-2.0
//! What streams cost and what they gain, as numbers: one a line, `name value unit`, for other
//! programs to read.
//!
//! usage: `stream_costs`

#[path = "overlap/measure.rs"]
#[expect(dead_code, reason = "the example overlap also draws it")]
mod measure;

use std::time::{Duration, Instant};

use pinmap::stream::StreamOptions;
use pinmap::{kernel, Gpu, Packet, Result};

/// How often something is measured.
const TIMES: usize = 200;
/// Packets that are submitted at once.
const BATCH: usize = 64;

fn main() -> Result<()> {
    let gpu = Gpu::find()?;
    let [one, many] = submission(&gpu)?;
    line("submit_one_packet", nanos(one), "ns");
    line("submit_packet_in_batch", nanos(many), "ns");
    line("record_event", nanos(record(&gpu)?), "ns");
    line("event_wait_across_streams", nanos(event_wait(&gpu)?), "ns");
    line("host_function_round_trip", nanos(call(&gpu)?), "ns");
    if gpu.info()?.link.bandwidth.is_some() {
        let result = measure::pipeline(&gpu, 12)?;
        line(
            "overlap_two_streams",
            result.ratio(&result.two),
            "of serial",
        );
        line(
            "overlap_three_streams",
            result.ratio(&result.three),
            "of serial",
        );
    }
    Ok(())
}

fn line(name: &str, value: f64, unit: &str) {
    println!("{name} {value:.3} {unit}");
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// What it takes the CPU to submit a packet: alone, and as one of many. By the CPU's clock.
fn submission(gpu: &Gpu) -> Result<[Duration; 2]> {
    let stream = gpu.stream(StreamOptions::new().packets(65536))?;
    let packets = vec![Packet::nop(); BATCH];
    let mut results = [Duration::ZERO; 2];
    for (packets, result) in [&packets[..1], &packets[..]].into_iter().zip(&mut results) {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let start = Instant::now();
            let pending = stream.submit((), |work, ()| work.packets(packets))?;
            times.push(start.elapsed() / packets.len() as u32);
            drop(pending);
        }
        stream.synchronize()?;
        *result = median(times);
    }
    Ok(results)
}

/// What it takes the CPU to record an event. By the CPU's clock.
fn record(gpu: &Gpu) -> Result<Duration> {
    let stream = gpu.stream(StreamOptions::new().packets(65536))?;
    let events = (0..TIMES)
        .map(|_| gpu.event())
        .collect::<Result<Vec<_>>>()?;
    let mut times = Vec::new();
    for event in &events {
        let start = Instant::now();
        stream.record(event)?;
        times.push(start.elapsed());
    }
    stream.synchronize()?;
    Ok(median(times))
}

/// From an event in one stream to what waits for it in another. By the device's clock.
fn event_wait(gpu: &Gpu) -> Result<Duration> {
    let (first, second) = (
        gpu.stream(StreamOptions::new())?,
        gpu.stream(StreamOptions::new())?,
    );
    let (event, after) = (gpu.event()?, gpu.event()?);
    let mut times = Vec::new();
    for _ in 0..TIMES {
        // Long enough for the other one to be waiting.
        let time = Duration::from_micros(300);
        drop(first.submit((), |work, ()| work.launch(kernel::Spin { time }))?);
        first.record(&event)?;
        second.wait_event(&event)?;
        second.record(&after)?;
        second.synchronize()?;
        times.push(after.elapsed_since(&event)?);
    }
    Ok(median(times))
}

/// A host function, and back to the stream. By the CPU's clock.
fn call(gpu: &Gpu) -> Result<Duration> {
    let stream = gpu.stream(StreamOptions::new())?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let start = Instant::now();
        stream.call(|| ())?;
        stream.synchronize()?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}
