// SPDX-License-Identifier: MIT OR Apache-2.0
//! Works on a part, and then on all of it, in one scope.
use pinmap::{stream, testgpu, Accelerator, Result, StreamOptions};

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let mut a = gpu.alloc::<f32>(1024)?;
    let s = gpu.stream(StreamOptions::new())?;
    stream::scope(|scope| {
        let work = scope.on(&s);
        let mut all = a.slice_mut();
        for _ in 0..10 {
            work.launch(testgpu::IncrementF32 { data: &mut all.part(..512)? })?;
            work.launch(testgpu::IncrementF32 { data: &mut all })?;
        }
        Ok(())
    })?;
    assert_eq!((a[0], a[511], a[512], a[1023]), (20.0, 20.0, 10.0, 10.0));
    Ok(())
}
