// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds 1 to numbers in pinned memory, and reads the results.
use pinmap::accelerator::StreamOptions;
use pinmap_testgpu::IncrementF32;

fn main() -> pinmap::Result<()> {
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = gpu.alloc_from(&[1.0f32; 1024])?;
    stream.scope(|work| work.launch(IncrementF32 { data: &mut numbers.slice_mut() }))?;
    assert!(numbers.iter().all(|&number| number == 2.0));
    Ok(())
}
