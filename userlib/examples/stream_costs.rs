// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures what streams cost and what they gain. Prints a table; with `--json`, also writes one
//! record a line for other programs.
//!
//! usage: `stream_costs [--json FILE]`

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use pinmap::accelerator::{Accelerator, StreamOptions, Work};
use pinmap_samples::overlap::{pipeline, CHUNKS};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How often each case is measured.
const TIMES: usize = 200;
/// Packets that are submitted at once.
const BATCH: usize = 64;
/// How long others are left alone before something is measured.
const REST: Duration = Duration::from_micros(500);
/// How often the overlap is measured.
const RUNS: usize = 5;

/// The times of one way of doing what a case says. The other ways of a case are compared with its
/// first one.
struct Record {
    case: String,
    system: &'static str,
    /// Nanoseconds, in ascending order.
    values: Vec<u64>,
}

impl Record {
    /// `case` names the operation, the size and the kind of object, separated by slashes.
    fn new(case: impl Into<String>, system: &'static str, times: &[Duration]) -> Self {
        let nanos = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut values: Vec<u64> = times.iter().map(nanos).collect();
        values.sort_unstable();
        Self {
            case: case.into(),
            system,
            values,
        }
    }

    /// The quartile with this number.
    fn quartile(&self, quarters: usize) -> u64 {
        let last = self.values.len().saturating_sub(1);
        self.values.get(last * quarters / 4).copied().unwrap_or(0)
    }

    /// The record as JSON. Cases and systems need no escapes.
    fn json(&self) -> String {
        let [q1, median, q3] = [1, 2, 3].map(|quarters| self.quartile(quarters));
        format!(
            "{{\"case\": \"{}/testgpu\", \"system\": \"{}\", \"median_ns\": {median}, \
             \"q1_ns\": {q1}, \"q3_ns\": {q3}, \"rounds\": {}}}",
            self.case,
            self.system,
            self.values.len()
        )
    }
}

/// Leaves others alone for a while, without letting the processor sleep.
fn rest() {
    let start = Instant::now();
    while start.elapsed() < REST {}
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = match &arguments.iter().map(|text| &**text).collect::<Vec<_>>()[..] {
        [] => None,
        ["--json", path] => Some(File::create(path)?),
        _ => return Err("usage: stream_costs [--json FILE]".into()),
    };
    let gpu = pinmap_testgpu::find()?;
    let link = gpu.info()?.link;
    let mut records = Vec::new();
    submission(&gpu, &mut records)?;
    wait(&gpu, &mut records)?;
    record(&gpu, &mut records)?;
    event_wait(&gpu, &mut records)?;
    call(&gpu, &mut records)?;
    match link.bandwidth {
        Some(bandwidth) => {
            println!(
                "link: {} MB/s in each direction, {} ns latency",
                bandwidth / 1_000_000,
                link.latency.as_nanos()
            );
            overlap(&gpu, &mut records)?;
        }
        None => println!("the link has no limit: no overlap is measured"),
    }
    if let Some(mut file) = file {
        for record in &records {
            writeln!(file, "{}", record.json())?;
        }
    }
    println!(
        "{:<34} {:<16} {:>12} {:>12} {:>12} {:>8}",
        "case", "way", "median", "lower", "upper", "x first"
    );
    for record in &records {
        let first = records.iter().find(|first| first.case == record.case);
        let first = first.map_or(1, |first| first.quartile(2).max(1));
        let [lower, median, upper] = [1, 2, 3].map(|quarters| record.quartile(quarters));
        println!(
            "{:<34} {:<16} {median:>12} {lower:>12} {upper:>12} {:>8.2}",
            record.case,
            record.system,
            median as f64 / first as f64
        );
    }
    println!(
        "in ns; lower and upper: the quartiles; stream-event-wait and stream-pipeline by the \
         device's clock"
    );
    Ok(())
}

/// Measures how long the CPU takes to submit a packet: to a device that is idle, many one after the
/// other, and many at once; in a scope, in a scope with a number behind it that tells the end,
/// which is the least that shows that work is done, and as work with memory that is handed over.
fn submission(gpu: &Accelerator, records: &mut Vec<Record>) -> Result<()> {
    let stream = gpu.stream(StreamOptions::new().packets(65536))?;
    let mut end = gpu.device().alloc::<u64>(1)?;
    let packets = vec![packet::nop(); BATCH];
    let cases = [
        ("stream-submit", 1, 1),
        ("stream-submit-in-a-row", BATCH, 1),
        ("stream-submit-at-once", 1, BATCH),
    ];
    for (case, turns, together) in cases {
        let packets = &packets[..together];
        let mut by_ring = |with_end| {
            stream.scope(|work| {
                let mut end = end.slice_mut();
                let start = Instant::now();
                for _ in 0..turns {
                    work.batch(|| {
                        // SAFETY: They write nothing.
                        unsafe { work.submit_packets(packets)? };
                        if with_end {
                            work.write_value(&mut end, 0, 1)?;
                        }
                        Ok(())
                    })?;
                }
                Ok(start.elapsed())
            })
        };
        let by_stream = || {
            let mut all = Vec::with_capacity(turns);
            let start = Instant::now();
            for _ in 0..turns {
                // SAFETY: They write nothing.
                let work = |work: &Work<'_>, (): &mut ()| unsafe { work.submit_packets(packets) };
                all.push(stream.submit((), work)?);
            }
            let time = start.elapsed();
            all.into_iter().try_for_each(|pending| pending.wait())?;
            Ok(time)
        };
        let mut times = [const { Vec::new() }; 3];
        for round in 0..TIMES {
            for turn in 0..times.len() {
                // Until the device is idle, and what the turn before has caused is over.
                rest();
                let way = (round + turn) % times.len();
                let time: Result<Duration> = match way {
                    0 | 1 => by_ring(way == 1).map_err(Into::into),
                    _ => by_stream(),
                };
                times[way].push(time? / (turns * together) as u32);
            }
        }
        for (way, times) in ["ring", "ring-and-end", "stream"].into_iter().zip(&times) {
            records.push(Record::new(format!("{case}/0KiB/packet"), way, times));
        }
    }
    Ok(())
}

/// Measures how long it takes to submit a packet and to wait until it is done: in a scope, by what
/// a submission hands back, and by the stream.
fn wait(gpu: &Accelerator, records: &mut Vec<Record>) -> Result<()> {
    let stream = gpu.stream(StreamOptions::new())?;
    let packets = [packet::nop()];
    let mut times = [const { Vec::new() }; 3];
    for round in 0..TIMES {
        for turn in 0..times.len() {
            let way = (round + turn) % times.len();
            // SAFETY: It writes nothing.
            let work = |work: &Work<'_>, (): &mut ()| unsafe { work.submit_packets(&packets) };
            let start = Instant::now();
            match way {
                0 => stream.scope(|work| {
                    // SAFETY: It writes nothing.
                    unsafe { work.submit_packets(&packets)? };
                    work.stream().synchronize()
                })?,
                1 => stream.submit((), work)?.wait()?,
                _ => {
                    drop(stream.submit((), work)?);
                    stream.synchronize()?;
                }
            }
            times[way].push(start.elapsed());
        }
    }
    let ways = ["ring", "pending", "synchronize"];
    for (way, times) in ways.into_iter().zip(&times) {
        records.push(Record::new("stream-wait/0KiB/packet", way, times));
    }
    Ok(())
}

/// Measures how long the CPU takes to record an event, and to make a stream wait for one, beside a
/// packet for another stream.
fn record(gpu: &Accelerator, records: &mut Vec<Record>) -> Result<()> {
    let options = StreamOptions::new().packets(65536);
    let [stream, other, beside] = [(); 3].map(|()| gpu.stream(options));
    let (stream, other, beside) = (stream?, other?, beside?);
    let mut events = Vec::new();
    for _ in 0..TIMES {
        events.push(gpu.event()?);
    }
    let (mut put, mut recorded, mut waited) = (Vec::new(), Vec::new(), Vec::new());
    beside.scope(|work| {
        // The events must not be complete before they are waited for, and the stream beside is as
        // busy.
        let time = Duration::from_millis(800);
        drop(stream.submit((), |work, ()| work.launch(testgpu::Spin { time }))?);
        work.launch(testgpu::Spin { time })?;
        for event in &events {
            let start = Instant::now();
            // SAFETY: It writes nothing.
            unsafe { work.submit_packets(&[packet::nop()])? };
            put.push(start.elapsed());
            let start = Instant::now();
            stream.record(event)?;
            recorded.push(start.elapsed());
            let start = Instant::now();
            other.wait_event(event)?;
            waited.push(start.elapsed());
        }
        match events.iter().any(|event| event.query().unwrap_or(true)) {
            true => println!("the events were complete too early: some waits were not submitted"),
            false => other.synchronize()?,
        }
        Ok(())
    })?;
    for (way, times) in [
        ("ring", &put),
        ("record", &recorded),
        ("submit-a-wait", &waited),
    ] {
        records.push(Record::new("stream-event/0KiB/packet", way, times));
    }
    Ok(())
}

/// Measures the time from an event in one stream to the work that waits for it in another.
fn event_wait(gpu: &Accelerator, records: &mut Vec<Record>) -> Result<()> {
    let options = StreamOptions::new();
    let (first, second) = (gpu.stream(options)?, gpu.stream(options)?);
    let (event, after) = (gpu.event()?, gpu.event()?);
    let mut times = Vec::new();
    for _ in 0..TIMES {
        // Long enough that the other stream is waiting.
        let time = Duration::from_micros(300);
        drop(first.submit((), |work, ()| work.launch(testgpu::Spin { time }))?);
        first.record(&event)?;
        second.wait_event(&event)?;
        second.record(&after)?;
        second.synchronize()?;
        times.push(after.elapsed_since(&event)?);
    }
    let case = "stream-event-wait/0KiB/packet";
    records.push(Record::new(case, "another-stream", &times));
    Ok(())
}

/// Measures how long a host function takes, there and back: in an idle stream, and behind a packet.
/// Beside it, the same two threads wake each other by eventfds.
fn call(gpu: &Accelerator, records: &mut Vec<Record>) -> Result<()> {
    let stream = gpu.stream(StreamOptions::new())?;
    let eventfd = || EventFd::new().map(Arc::new);
    let (there, back) = (eventfd()?, eventfd()?);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..TIMES {
        // The thread of host functions reads one, and writes the other.
        let (read, written) = (Arc::clone(&there), Arc::clone(&back));
        stream.call(move || {
            let _ = written.write(1);
            let _ = read.read();
            let _ = written.write(1);
        })?;
        back.read()?;
        // Until it waits.
        rest();
        let start = Instant::now();
        there.write(1)?;
        back.read()?;
        times[0].push(start.elapsed());
        stream.synchronize()?;
        let start = Instant::now();
        stream.call(|| ())?;
        stream.synchronize()?;
        times[1].push(start.elapsed());
        let start = Instant::now();
        // SAFETY: It writes nothing.
        let nop = |work: &Work<'_>, (): &mut ()| unsafe { work.submit_packets(&[packet::nop()]) };
        drop(stream.submit((), nop)?);
        stream.call(|| ())?;
        stream.synchronize()?;
        times[2].push(start.elapsed());
    }
    let ways = ["eventfd", "there-and-back", "behind-a-packet"];
    for (way, times) in ways.into_iter().zip(&times) {
        records.push(Record::new("stream-call/0KiB/packet", way, times));
    }
    Ok(())
}

/// Measures the time that streams save when copies and kernels take equally long.
fn overlap(gpu: &Accelerator, records: &mut Vec<Record>) -> Result<()> {
    let mut all = [const { Vec::new() }; 4];
    let mut size = 0;
    for _ in 0..RUNS {
        let result = pipeline(gpu, CHUNKS)?;
        size = result.chunk * CHUNKS;
        for (times, run) in all.iter_mut().zip(result.runs()) {
            times.push(run.total);
        }
    }
    let ways = ["serial", "one-stream", "two-streams", "three-streams"];
    for (way, times) in ways.into_iter().zip(&all) {
        let case = format!("stream-pipeline/{}KiB/gpu", size >> 10);
        records.push(Record::new(case, way, times));
    }
    Ok(())
}
