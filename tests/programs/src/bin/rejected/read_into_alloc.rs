// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a file into pinned memory.
use pinmap::Accelerator;
use std::io::Read;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = Accelerator::find()?;
    let mut a = gpu.alloc::<u8>(4 << 20)?;
    let len = std::fs::File::open("/proc/self/exe")?.read(&mut a)?;
    assert_eq!(&a[..4], b"\x7fELF");
    assert!(len > 4096);
    Ok(())
}
