// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes buffers of what the program has.
use pinmap::{Buffer, Result};

pub(crate) fn main() -> Result<()> {
    let b: Buffer = Buffer::from(vec![7u8; 4096]);
    let c: Buffer = vec![8u8; 100].into();
    let d: Buffer<f32> = Buffer::new(1024)?;
    let r: &[u8] = b.as_ref();
    assert_eq!((r.len(), r[4095]), (4096, 7));
    assert_eq!((c.len(), c[99]), (100, 8));
    assert_eq!((d.len(), d[1023]), (1024, 0.0));
    Ok(())
}
