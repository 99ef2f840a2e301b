// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for memory that cannot be shared between threads, with the error in a box that can.
use pinmap::{Accelerator, StreamOptions};
use std::cell::Cell;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let gpu = Accelerator::find()?;
    let s = gpu.stream(StreamOptions::new())?;
    let (a, n) = s
        .submit((gpu.alloc::<f32>(1024)?, Cell::new(7)), |w, (a, _)| w.fill(a, 1.0))?
        .wait()?;
    assert_eq!((a[1023], n.get()), (1.0, 7));
    Ok(())
}
