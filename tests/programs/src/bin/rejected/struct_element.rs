// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocates memory for structs.
use pinmap::{Accelerator, Result, StreamOptions};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Descriptor {
    source: u64,
    target: u64,
    len: u32,
    flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct Record {
    key: u32,
    value: f32,
}

pinmap::element!(bytemuck: Descriptor);
pinmap::element!(zerocopy: Record);

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let ring = gpu.device().alloc::<Descriptor>(256)?;
    assert_eq!(ring.get(255)?.flags, 0);
    let from = gpu.alloc_from(&[Record { key: 1, value: 2.5 }; 9])?;
    let mut to = gpu.alloc::<Record>(9)?;
    gpu.stream(StreamOptions::new())?.scope(|work| work.copy(&from, &mut to))?;
    assert_eq!(to[..], from[..]);
    Ok(())
}
