// SPDX-License-Identifier: MIT OR Apache-2.0
//! Uses pinned memory as a slice.
use pinmap::Result;

pub(crate) fn main() -> Result<()> {
    let gpu = pinmap::Accelerator::find()?;
    let mut a = gpu.alloc::<f32>(1024)?;
    a.fill(1.0);
    a[0] = 2.0;
    a[1..3].copy_from_slice(&[3.0, 4.0]);
    assert_eq!(a.iter().sum::<f32>(), 2.0 + 3.0 + 4.0 + 1021.0);
    let mut count = 0;
    for x in &a {
        count += usize::from(*x == 1.0);
    }
    assert_eq!(count, 1021);
    let v: Vec<f32> = a.into();
    assert_eq!((v.len(), v[2]), (1024, 4.0));
    Ok(())
}
