// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overlap of streams: the same chunks one step at a time, and by one stream, two and three, as the
//! device's clock saw it.
//!
//! usage: `overlap [CHUNKS]`

mod measure;

use pinmap::Gpu;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chunks = std::env::args()
        .nth(1)
        .map_or(Ok(measure::CHUNKS), |text| text.parse())?;
    let gpu = Gpu::find()?;
    print(&measure::pipeline(&gpu, chunks)?);
    Ok(())
}

fn print(result: &measure::Pipeline) {
    let drawn = result.drawn();
    println!(
        "{} KiB chunks; > copied in, # worked on, < copied out, in the first {drawn:.0?}",
        result.chunk >> 10
    );
    for run in result.runs() {
        println!(
            "{}: {:.0?}, {:.2} of the serial time",
            run.name,
            run.total,
            result.ratio(run)
        );
        for row in measure::timeline(run, drawn, 72) {
            println!("  {row}");
        }
    }
}
