// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overlap of streams: the same chunks by one stream, two and three, as the device's clock saw it.
//!
//! usage: `overlap [CHUNKS]`

mod measure;

use pinmap::Gpu;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chunks = std::env::args()
        .nth(1)
        .map_or(Ok(12), |text| text.parse())?;
    let gpu = Gpu::find()?;
    print(&measure::pipeline(&gpu, chunks)?);
    Ok(())
}

fn print(result: &measure::Pipeline) {
    let all = [&result.serial, &result.two, &result.three];
    println!(
        "{} KiB chunks; > copied in, # worked on, < copied out",
        result.chunk >> 10
    );
    for run in all {
        println!(
            "{} streams: {:.1?}, {:.2} of the serial time",
            run.streams,
            run.total,
            result.ratio(run)
        );
        for row in measure::timeline(run, result.serial.total, 72) {
            println!("  {row}");
        }
    }
}
