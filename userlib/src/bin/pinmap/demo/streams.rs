// SPDX-License-Identifier: MIT OR Apache-2.0
//! What streams are worth: the same chunks one step at a time, and by one stream, two and three.

use std::io::Write;

use pinmap::Gpu;

use super::checks::Checks;
use super::overlap;
use crate::size;
use crate::Result;

/// Columns of the timeline.
const COLUMNS: usize = 72;

/// Measures, and draws what the streams did when.
pub(crate) fn run(gpu: &Gpu, checks: &mut Checks, out: &mut impl Write) -> Result<()> {
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
        return Ok(());
    }
    let result = overlap::pipeline(gpu, overlap::CHUNKS)?;
    let drawn = result.drawn();
    writeln!(
        out,
        "   {} each; > copied in, # worked on, < copied out, in the first {drawn:.0?} by the device's clock",
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
        "   Serial: each step is waited for. A stream does one step at a time, so two take half of what one\n   \
         takes at the least, and three a third."
    )?;
    let (two, three) = (result.ratio(&result.two), result.ratio(&result.three));
    let what = "two streams take at most half of the serial time";
    checks.add(out, two <= 0.5, what)?;
    let what = "three streams take at most 0.45 of it";
    checks.add(out, three <= 0.45, what)
}
