// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same work one step at a time, and by one stream, two and three: chunks are copied in, worked on and
//! copied out.

use std::time::Duration;

use pinmap::stream::{self, Event, StreamOptions};
use pinmap::{kernel, Error, Gpu};

/// What one chunk takes in each direction.
pub(crate) const CHUNK: Duration = Duration::from_millis(8);
/// Chunks: so many that the beginning and the end, when not all streams have something to do, hardly count.
pub(crate) const CHUNKS: usize = 32;

/// When one of the three parts of a chunk began and ended, since all of it began. What waits for an
/// engine has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// 0: copied in; 1: worked on; 2: copied out.
    pub(crate) part: usize,
    /// By which stream.
    pub(crate) lane: usize,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

/// What so many streams took, by the device's clock.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) streams: usize,
    pub(crate) total: Duration,
    pub(crate) steps: Vec<Step>,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
    /// As a program without streams does it: each step is waited for before the next is submitted.
    pub(crate) serial: Run,
    /// One stream, to which all is submitted at once.
    pub(crate) one: Run,
    /// Two: each does one of the three parts at a time, so half of what one stream takes is the least.
    pub(crate) two: Run,
    /// Three: all three parts at a time, so a third of that is the least.
    pub(crate) three: Run,
}

impl Pipeline {
    /// What part of the serial time a run took.
    pub(crate) fn ratio(&self, run: &Run) -> f64 {
        run.total.as_secs_f64() / self.serial.total.as_secs_f64()
    }

    /// All of it, the slowest first.
    pub(crate) fn runs(&self) -> [&Run; 4] {
        [&self.serial, &self.one, &self.two, &self.three]
    }

    /// As much of the time as is drawn.
    pub(crate) fn drawn(&self) -> Duration {
        self.serial.total / 4
    }
}

/// Measures it one step at a time, and by one, two and three streams.
pub(crate) fn pipeline(gpu: &Gpu, chunks: usize) -> Result<Pipeline, Error> {
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

/// Has streams take turns with the chunks; perhaps waits for each step.
fn run(
    gpu: &Gpu,
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
    stream::scope(|scope| -> Result<(), Error> {
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
            work.copy(input.slice(), local)?;
            end(copied)?;
            // As long as the copies.
            work.launch(kernel::Spin { time: CHUNK })?;
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

/// What the streams did when, until then: a row for each, in so many columns, with `>`, `#` and `<` for
/// what was copied in, worked on and copied out.
pub(crate) fn timeline(run: &Run, until: Duration, columns: usize) -> Vec<String> {
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
