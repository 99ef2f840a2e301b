// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws what streams do at the same time: the same chunks one step at a time, and by one, two and
//! three streams, by the device's clock.
//!
//! usage: `overlap [CHUNKS]`

use pinmap_samples::overlap::{pipeline, timeline, Pipeline, CHUNKS};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chunks = std::env::args()
        .nth(1)
        .map_or(Ok(CHUNKS), |text| text.parse())?;
    let gpu = pinmap_testgpu::find()?;
    print(&pipeline(&gpu, chunks)?);
    Ok(())
}

fn print(result: &Pipeline) {
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
        for row in timeline(run, drawn, 72) {
            println!("  {row}");
        }
    }
}
