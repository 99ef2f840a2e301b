// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part about streams: the same chunks one step at a time, and by one, two and three streams.

use std::io::Write;

use pinmap::accelerator::Accelerator;
use pinmap_samples::overlap::{self, Pipeline};

use super::checks::{note_again, Checks, TRIES};
use super::report::{StepKind, StreamRun, StreamStep, Streams};
use crate::report_json::nanos;
use crate::{size, Result};

/// How many columns the timeline has.
const COLUMNS: usize = 72;

/// Measures, and draws a timeline. Returns nothing if there is nothing to overlap.
pub(crate) fn run(
    gpu: &Accelerator,
    checks: &mut Checks,
    out: &mut impl Write,
) -> Result<Option<Streams>> {
    writeln!(
        out,
        "\n3. {} chunks are copied in, worked on for as long, and copied out:",
        overlap::CHUNKS
    )?;
    if gpu.info()?.link.bandwidth.is_none() {
        writeln!(
            out,
            "   the link has no limit, so there is nothing to overlap"
        )?;
        return Ok(None);
    }
    let mut result = overlap::pipeline(gpu, overlap::CHUNKS)?;
    let mut again = 0;
    while again + 1 < TRIES && !verdicts(&result).iter().all(|(good, _)| *good) {
        result = overlap::pipeline(gpu, overlap::CHUNKS)?;
        again += 1;
    }
    let drawn = result.drawn();
    writeln!(
        out,
        "   {} each; > copied in, # worked on, < copied out, in the first {drawn:.0?} by the \
         device's clock",
        size::format(result.chunk as u64)
    )?;
    for run in result.runs() {
        let (total, ratio) = (run.total.as_secs_f64() * 1e3, result.ratio(run));
        writeln!(
            out,
            "   {}: {total:.0} ms, {ratio:.2} of the serial time",
            run.name
        )?;
        for row in overlap::timeline(run, drawn, COLUMNS) {
            writeln!(out, "     {row}")?;
        }
    }
    writeln!(
        out,
        "   Serial: each step is waited for. A stream does one step at a time, so two take half of \
         what one\n   takes at the least, and three a third."
    )?;
    note_again(out, again)?;
    for (good, what) in verdicts(&result) {
        checks.add_timed(out, good, what)?;
    }
    Ok(Some(report(&result)))
}

fn report(result: &Pipeline) -> Streams {
    let step = |step: &overlap::Step| StreamStep {
        stream: step.lane,
        step: StepKind::ALL[step.part],
        begin_ns: nanos(step.begin),
        end_ns: nanos(step.end),
    };
    let runs = result.runs().map(|run| StreamRun {
        name: run.name,
        streams: run.streams,
        device_ns: nanos(run.total),
        of_serial: result.ratio(run),
        steps: run.steps.iter().map(step).collect(),
    });
    Streams {
        chunks: overlap::CHUNKS,
        chunk_bytes: result.chunk,
        runs: runs.into(),
    }
}

/// Returns each claim that the measurement is to show, and whether it does.
fn verdicts(result: &Pipeline) -> [(bool, &'static str); 2] {
    let (two, three) = (result.ratio(&result.two), result.ratio(&result.three));
    [
        (
            two <= 0.5,
            "two streams take at most half of the serial time",
        ),
        (three < two, "three streams take less than two"),
    ]
}
