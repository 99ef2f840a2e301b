// SPDX-License-Identifier: MIT OR Apache-2.0
//! Awaits pending work, on an executor that knows nothing of this crate.
use pinmap::{testgpu, Accelerator, Result, StreamOptions};

async fn f() -> Result<()> {
    let gpu = Accelerator::find()?;
    let a = gpu.alloc::<f32>(1024)?;
    let s = gpu.stream(StreamOptions::new())?;
    let a = s
        .submit(a, |w, a| w.launch(testgpu::IncrementF32 { data: &mut a.slice_mut() }))?
        .await?;
    assert!(a.iter().all(|&x| x == 1.0));
    Ok(())
}

pub(crate) fn main() -> Result<()> {
    crate::block_on(f())
}
