// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pipeline in which streams overlap: chunks are copied in, worked on and copied out, one step at
//! a time, and by one, two and three streams.

use std::time::Duration;

use pinmap::accelerator::{Accelerator, Event, StreamOptions};
use pinmap::{accelerator, Error};
use pinmap_testgpu as testgpu;

/// How long a chunk takes in each direction.
pub const CHUNK: Duration = Duration::from_millis(8);
/// How many chunks there are: enough that the beginning and the end, when not all streams have
/// work, hardly count.
pub const CHUNKS: usize = 32;

/// One of the three steps of a chunk, with the times since the whole pipeline began. A step that
/// waits for an engine has begun.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The kind of step. 0: copying in; 1: working; 2: copying out.
    pub part: usize,
    /// Index of the stream.
    pub lane: usize,
    /// When the step began.
    pub begin: Duration,
    /// When the step ended.
    pub end: Duration,
}

/// A run of the pipeline with some number of streams, by the device's clock.
#[derive(Debug)]
pub struct Run {
    /// Name of the run, to be shown.
    pub name: &'static str,
    /// Number of streams.
    pub streams: usize,
    /// How long the run took.
    pub total: Duration,
    /// All steps of all chunks.
    pub steps: Vec<Step>,
}

/// The runs of the pipeline.
#[derive(Debug)]
pub struct Pipeline {
    /// Length of a chunk in bytes.
    pub chunk: usize,
    /// The run as in a program without streams: each step is waited for before the next one.
    pub serial: Run,
    /// The run with one stream, to which everything is submitted at once.
    pub one: Run,
    /// The run with two streams. Each does one step at a time, so this takes at least half as long
    /// as one stream.
    pub two: Run,
    /// The run with three streams, which takes at least a third as long as one.
    pub three: Run,
}

impl Pipeline {
    /// The time of a run, as a fraction of the serial one.
    pub fn ratio(&self, run: &Run) -> f64 {
        run.total.as_secs_f64() / self.serial.total.as_secs_f64()
    }

    /// All runs, the slowest first.
    pub fn runs(&self) -> [&Run; 4] {
        [&self.serial, &self.one, &self.two, &self.three]
    }

    /// The part of the time that a timeline shows.
    pub fn drawn(&self) -> Duration {
        self.serial.total / 4
    }
}

/// Runs the pipeline one step at a time, and with one, two and three streams.
///
/// # Errors
///
/// The errors of allocating memory, submitting and waiting.
pub fn pipeline(gpu: &Accelerator, chunks: usize) -> Result<Pipeline, Error> {
    let bandwidth = gpu.info()?.link.bandwidth.unwrap_or(1 << 30) as f64;
    let chunk = (bandwidth * CHUNK.as_secs_f64()) as usize / 4096 * 4096;
    let run = |name, streams, wait| run(gpu, name, (streams, wait), (chunk, chunks));
    Ok(Pipeline {
        chunk,
        serial: run("serial", 1, true)?,
        one: run("one stream", 1, false)?,
        two: run("two streams", 2, false)?,
        three: run("three streams", 3, false)?,
    })
}

/// Runs the pipeline once. The streams take turns with the chunks; `wait` waits for each step.
fn run(
    gpu: &Accelerator,
    name: &'static str,
    (streams, wait): (usize, bool),
    (chunk, chunks): (usize, usize),
) -> Result<Run, Error> {
    let input = gpu.device().alloc::<u8>(chunk)?;
    let mut lanes = Vec::new();
    for _ in 0..streams {
        let stream = gpu.stream(StreamOptions::new())?;
        lanes.push((
            stream,
            gpu.alloc_vram::<u8>(chunk)?,
            gpu.device().alloc::<u8>(chunk)?,
        ));
    }
    let marks: Vec<[Event; 4]> = (0..chunks)
        .map(|_| Ok([gpu.event()?, gpu.event()?, gpu.event()?, gpu.event()?]))
        .collect::<Result<_, Error>>()?;
    accelerator::scope(|scope| -> Result<(), Error> {
        let mut lanes: Vec<_> = lanes
            .iter_mut()
            .map(|(stream, local, output)| {
                (
                    &*stream,
                    scope.on(stream),
                    local.slice_mut(),
                    output.slice_mut(),
                )
            })
            .collect();
        for (number, [before, copied, done, out]) in marks.iter().enumerate() {
            let (stream, work, local, output) = &mut lanes[number % streams];
            let end = |event| -> Result<(), Error> {
                stream.record(event)?;
                match wait {
                    true => stream.synchronize(),
                    false => Ok(()),
                }
            };
            stream.record(before)?;
            work.copy(input.slice(), &mut *local)?;
            end(copied)?;
            // The work takes as long as a copy.
            work.launch(testgpu::Spin { time: CHUNK })?;
            end(done)?;
            work.copy(&*local, output)?;
            end(out)?;
        }
        Ok(())
    })?;
    let origin = marks[0][0].time()?;
    let mut steps = Vec::new();
    for (number, marks) in marks.iter().enumerate() {
        for (part, ends) in marks.windows(2).enumerate() {
            steps.push(Step {
                part,
                lane: number % streams,
                begin: ends[0].time()?.saturating_sub(origin),
                end: ends[1].time()?.saturating_sub(origin),
            });
        }
    }
    let total = steps.iter().map(|step| step.end).max().unwrap_or_default();
    Ok(Run {
        name,
        streams,
        total,
        steps,
    })
}

/// Draws what the streams did until some time: a row of `columns` characters for each stream, with
/// `>`, `#` and `<` for copying in, working and copying out.
pub fn timeline(run: &Run, until: Duration, columns: usize) -> Vec<String> {
    let column = |time: Duration| {
        let part = time.as_secs_f64() / until.as_secs_f64();
        ((part * columns as f64) as usize).min(columns - 1)
    };
    let mut rows = vec![vec![b'.'; columns]; run.streams];
    for step in run.steps.iter().filter(|step| step.begin < until) {
        let cells = &mut rows[step.lane][column(step.begin)..=column(step.end)];
        cells.fill(b">#<"[step.part]);
    }
    rows.into_iter()
        .map(|row| String::from_utf8_lossy(&row).into_owned())
        .collect()
}
