// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device with less memory than it has.

use pinmap::accelerator::Accelerator;
use pinmap::{Allocation, Result};

/// Takes memory of the device until `bytes` are free, or up to 1 MiB more: page tables take a
/// little, too. The rest is free again when what this returns is dropped.
///
/// # Errors
///
/// As for [`Accelerator::alloc_vram`].
pub fn leave(gpu: &Accelerator, bytes: u64) -> Result<Vec<Allocation<u8>>> {
    let mut taken = Vec::new();
    loop {
        // One allocation need not have all of it.
        let more = gpu.info()?.vram_free.saturating_sub(bytes).min(8 << 20);
        if more < 1 << 20 {
            return Ok(taken);
        }
        taken.push(gpu.alloc_vram(more as usize)?);
    }
}
