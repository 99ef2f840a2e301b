// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the function of a scope by `Ok(())`, after a `?`.
use pinmap::{stream, testgpu, Accelerator, QueueOptions, Result, StreamOptions};

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let mut a = gpu.alloc::<f32>(1024)?;
    let s = gpu.stream(StreamOptions::new())?;
    stream::scope(|scope| {
        scope.on(&s).launch(testgpu::IncrementF32 { data: &mut a.slice_mut() })?;
        Ok(())
    })?;
    gpu.queue(QueueOptions::new())?.scope(|scope| {
        scope.launch(testgpu::IncrementF32 { data: &mut a.slice_mut() })?;
        Ok(())
    })?;
    assert_eq!(a[1023], 2.0);
    Ok(())
}
