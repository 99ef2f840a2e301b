// SPDX-License-Identifier: MIT OR Apache-2.0
//! What streams are worth: the same chunks by one of them, two and three.

use std::io::Write;

use pinmap::Gpu;

use super::checks::Checks;
use super::overlap;
use crate::size;
use crate::Result;

/// Chunks that are copied in, worked on and copied out.
const CHUNKS: usize = 12;
/// Columns of the timeline.
const COLUMNS: usize = 72;

/// Measures, and draws what the streams did when.
pub(crate) fn run(gpu: &Gpu, checks: &mut Checks, out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "\n3. {CHUNKS} chunks are copied in, worked on for as long, and copied out:"
    )?;
    if gpu.info()?.link.bandwidth.is_none() {
        writeln!(
            out,
            "   the link has no limit, so there is nothing to overlap"
        )?;
        return Ok(());
    }
    let result = overlap::pipeline(gpu, CHUNKS)?;
    writeln!(
        out,
        "   {} each; > copied in, # worked on, < copied out; time by the device's clock",
        size::format(result.chunk as u64)
    )?;
    for run in [&result.serial, &result.two, &result.three] {
        let streams = match run.streams {
            1 => "1 stream".to_owned(),
            count => format!("{count} streams"),
        };
        let (total, ratio) = (run.total.as_secs_f64() * 1e3, result.ratio(run));
        writeln!(
            out,
            "   {streams}: {total:.0} ms, {ratio:.2} of the serial time"
        )?;
        for row in overlap::timeline(run, result.serial.total, COLUMNS) {
            writeln!(out, "     {row}")?;
        }
    }
    let (two, three) = (result.ratio(&result.two), result.ratio(&result.three));
    let what = "two streams take at most 0.6 of it (0.5 is the least for two)";
    checks.add(out, two <= 0.6, what)?;
    let what = "three streams take at most half of it (0.33 is the least for three)";
    checks.add(out, three <= 0.5, what)
}
