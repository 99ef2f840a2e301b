// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers a `Vec` once, and uses it as an operand.
use pinmap::{testgpu, Accelerator, Result, StreamOptions};

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let s = gpu.stream(StreamOptions::new())?;
    let data = vec![0f32; 100_000];
    let mut reg = gpu.register(data)?;
    for _ in 0..10 {
        s.scope(|work| work.launch(testgpu::IncrementF32 { data: &mut reg.slice_mut() }))?;
    }
    assert!(reg.iter().all(|&x| x == 10.0));
    let data: Vec<f32> = reg.release()?;
    assert_eq!(data[99_999], 10.0);
    Ok(())
}
