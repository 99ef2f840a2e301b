// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocates other elements than numbers of 8 to 64 bits.
use half::f16;
use pinmap::{Accelerator, Result, StreamOptions};

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let mut a = gpu.alloc::<[f32; 4]>(256)?;
    let mut b = gpu.alloc::<f16>(256)?;
    let c = gpu.alloc::<usize>(256)?;
    let mut d = gpu.alloc::<u128>(256)?;
    a[255] = [1.0, 2.0, 3.0, 4.0];
    d[0] = 1 << 100;
    let mut copy = gpu.alloc_vram::<[f32; 4]>(256)?;
    let mut back = gpu.alloc::<[f32; 4]>(256)?;
    gpu.stream(StreamOptions::new())?.scope(|work| {
        let mut copy = copy.slice_mut();
        work.copy(&a, &mut copy)?;
        work.copy(&copy, &mut back)?;
        work.fill(&mut b, f16::from_f32(0.5))
    })?;
    assert_eq!(back[255], [1.0, 2.0, 3.0, 4.0]);
    assert!(b.iter().all(|&x| x == f16::from_f32(0.5)));
    assert_eq!((c[255], d[0]), (0, 1 << 100));
    Ok(())
}
