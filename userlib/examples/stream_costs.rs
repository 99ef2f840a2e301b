// SPDX-License-Identifier: MIT OR Apache-2.0
//! What streams cost and what they gain: as a table, or as records for other programs to read.
//!
//! usage: `stream_costs [--json]`

#[path = "overlap/measure.rs"]
#[expect(dead_code, reason = "the example overlap also draws it")]
mod measure;

use std::time::{Duration, Instant};

use pinmap::stream::StreamOptions;
use pinmap::{kernel, Gpu, Packet};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How often something is measured.
const TIMES: usize = 200;
/// Packets that are submitted at once.
const BATCH: usize = 64;
/// How often the overlap is measured, and of how many chunks.
const RUNS: usize = 5;
const CHUNKS: usize = 12;

/// What was measured several times.
struct Record {
    name: &'static str,
    unit: &'static str,
    clock: &'static str,
    /// In order.
    values: Vec<f64>,
}

impl Record {
    fn new(name: &'static str, unit: &'static str, clock: &'static str, values: Vec<f64>) -> Self {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        Self {
            name,
            unit,
            clock,
            values,
        }
    }

    fn times(name: &'static str, clock: &'static str, times: &[Duration]) -> Self {
        let values = times.iter().map(|time| time.as_secs_f64() * 1e9);
        Self::new(name, "ns", clock, values.collect())
    }

    /// The value that so many quarters of the others are below.
    fn quartile(&self, quarters: usize) -> f64 {
        let last = self.values.len().saturating_sub(1);
        self.values.get(last * quarters / 4).copied().unwrap_or(0.0)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = match &arguments.iter().map(|text| &**text).collect::<Vec<_>>()[..] {
        [] => false,
        ["--json"] => true,
        _ => return Err("usage: stream_costs [--json]".into()),
    };
    let gpu = Gpu::find()?;
    let link = gpu.info()?.link;
    let mut records = Vec::new();
    submission(&gpu, &mut records)?;
    record(&gpu, &mut records)?;
    event_wait(&gpu, &mut records)?;
    call(&gpu, &mut records)?;
    if link.bandwidth.is_some() {
        overlap(&gpu, &mut records)?;
    }
    if json {
        print_json(&records);
        return Ok(());
    }
    match link.bandwidth {
        Some(bandwidth) => println!(
            "link: {} MB/s in each direction, {} ns latency",
            bandwidth / 1_000_000,
            link.latency.as_nanos()
        ),
        None => println!("the link has no limit: no overlap is measured"),
    }
    println!(
        "{:<28} {:>12} {:>12} {:>12}  unit",
        "", "median", "lower", "upper"
    );
    for record in &records {
        let [lower, median, upper] = [1, 2, 3].map(|quarters| record.quartile(quarters));
        let Record {
            name, unit, clock, ..
        } = record;
        println!("{name:<28} {median:>12.3} {lower:>12.3} {upper:>12.3}  {unit} ({clock})");
    }
    println!("lower and upper: the quartiles");
    Ok(())
}

/// Names, units and clocks need no escapes.
fn print_json(records: &[Record]) {
    println!("[");
    for (number, record) in records.iter().enumerate() {
        let [q1, median, q3] = [1, 2, 3].map(|quarters| record.quartile(quarters));
        let Record {
            name,
            unit,
            clock,
            values,
        } = record;
        let rounds = values.len();
        let comma = if number + 1 < records.len() { "," } else { "" };
        println!(
            "  {{\"operation\": \"{name}\", \"median\": {median:.3}, \"q1\": {q1:.3}, \"q3\": {q3:.3}, \
             \"unit\": \"{unit}\", \"clock\": \"{clock}\", \"rounds\": {rounds}}}{comma}"
        );
    }
    println!("]");
}

/// What it takes the CPU to submit a packet: alone, and as one of many.
fn submission(gpu: &Gpu, records: &mut Vec<Record>) -> Result<()> {
    let stream = gpu.stream(StreamOptions::new().packets(65536))?;
    let packets = vec![Packet::nop(); BATCH];
    for (name, packets) in [
        ("submit a packet", &packets[..1]),
        ("submit a packet, 64 at once", &packets[..]),
    ] {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let start = Instant::now();
            let pending = stream.submit((), |work, ()| work.packets(packets))?;
            times.push(start.elapsed() / packets.len() as u32);
            drop(pending);
        }
        stream.synchronize()?;
        records.push(Record::times(name, "CPU", &times));
    }
    Ok(())
}

/// What it takes the CPU to record an event, and to have a stream wait for one.
fn record(gpu: &Gpu, records: &mut Vec<Record>) -> Result<()> {
    let options = StreamOptions::new().packets(65536);
    let (stream, other) = (gpu.stream(options)?, gpu.stream(options)?);
    let mut events = Vec::new();
    for _ in 0..TIMES {
        events.push(gpu.event()?);
    }
    let (mut recorded, mut waited) = (Vec::new(), Vec::new());
    // So that there is something to wait for.
    let time = Duration::from_millis(300);
    drop(stream.submit((), |work, ()| work.launch(kernel::Spin { time }))?);
    for event in &events {
        let start = Instant::now();
        stream.record(event)?;
        recorded.push(start.elapsed());
        let start = Instant::now();
        other.wait_event(event)?;
        waited.push(start.elapsed());
    }
    other.synchronize()?;
    records.push(Record::times("record an event", "CPU", &recorded));
    records.push(Record::times("submit a wait", "CPU", &waited));
    Ok(())
}

/// From an event in one stream to what waits for it in another.
fn event_wait(gpu: &Gpu, records: &mut Vec<Record>) -> Result<()> {
    let options = StreamOptions::new();
    let (first, second) = (gpu.stream(options)?, gpu.stream(options)?);
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
    records.push(Record::times("event to who waits for it", "device", &times));
    Ok(())
}

/// A host function, and back to the stream.
fn call(gpu: &Gpu, records: &mut Vec<Record>) -> Result<()> {
    let stream = gpu.stream(StreamOptions::new())?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let start = Instant::now();
        stream.call(|| ())?;
        stream.synchronize()?;
        times.push(start.elapsed());
    }
    records.push(Record::times("host function and back", "CPU", &times));
    Ok(())
}

/// What streams save where the link and the kernels take as long as one another.
fn overlap(gpu: &Gpu, records: &mut Vec<Record>) -> Result<()> {
    let (mut two, mut three) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let result = measure::pipeline(gpu, CHUNKS)?;
        two.push(result.ratio(&result.two));
        three.push(result.ratio(&result.three));
    }
    let unit = "of serial";
    records.push(Record::new("two streams", unit, "device", two));
    records.push(Record::new("three streams", unit, "device", three));
    Ok(())
}
