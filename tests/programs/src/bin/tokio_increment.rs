// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds 1 to numbers, in a task of tokio that does not block its thread.
use pinmap::accelerator::StreamOptions;
use pinmap_testgpu::IncrementF32;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = pinmap_testgpu::find()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let numbers = gpu.alloc_from(&[1.0f32; 1024])?;
    let pending = stream.submit(numbers, |work, numbers| {
        work.launch(IncrementF32 { data: &mut numbers.slice_mut() })
    })?;
    let numbers = pending.await?;
    assert!(numbers.iter().all(|&number| number == 2.0));
    Ok(())
}
