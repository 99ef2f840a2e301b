// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the CPU's page table has for an address, as `/proc/self/pagemap` tells it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a page of the kernel, as pagemap counts them: those of x86.
pub(crate) const PAGE: usize = 4096;
/// The page is in memory.
pub(crate) const PRESENT: u64 = 1 << 63;
/// Bits with the page frame, which only root is shown.
const FRAME: u64 = (1 << 55) - 1;

/// The entry for an address.
pub(crate) fn entry(addr: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let offset = (addr / PAGE * bytes.len()) as u64;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The page frame: to compare, never to be shown. None: it is not in memory, or not for this user
/// to see.
pub(crate) fn frame(entry: u64) -> Option<u64> {
    Some(entry & FRAME).filter(|&frame| entry & PRESENT != 0 && frame != 0)
}
