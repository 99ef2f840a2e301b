// SPDX-License-Identifier: MIT OR Apache-2.0
//! Submits more work on memory in flight, to the same stream and to another one.
use pinmap::{testgpu, Accelerator, Result, StreamOptions};

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let a = gpu.alloc::<f32>(1024)?;
    let s = gpu.stream(StreamOptions::new())?;
    let t = gpu.stream(StreamOptions::new())?;
    let p = s.submit(a, |w, a| w.launch(testgpu::IncrementF32 { data: &mut a.slice_mut() }))?;
    let p = p.then(&s, |w, mut a| w.launch(testgpu::IncrementF32 { data: &mut a }))?;
    let p = p.then(&t, |w, mut a| w.launch(testgpu::IncrementF32 { data: &mut a }))?;
    let a = p.wait()?;
    assert!(a.iter().all(|&x| x == 3.0));
    Ok(())
}
