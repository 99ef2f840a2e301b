// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry of the CPU's page table for an address, as `/proc/self/pagemap` shows it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::unistd::{sysconf, SysconfVar};

/// Returns the length in bytes of a page, which is what pagemap counts, and the driver.
pub fn page() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    // There is no machine without pages.
    size.and_then(|size| size.try_into().ok()).unwrap_or(4096)
}

/// The bit that says that the page is in memory.
pub const PRESENT: u64 = 1 << 63;
/// The bits of the page frame number, which only root can see.
const FRAME: u64 = (1 << 55) - 1;

/// Reads the entry for an address.
///
/// # Errors
///
/// The errors of reading the file.
pub fn entry(addr: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let offset = (addr / page() * bytes.len()) as u64;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The page frame number in an entry, to compare and never to show. `None` if the page is not in
/// memory, or if this user cannot see the number.
pub fn frame(entry: u64) -> Option<u64> {
    Some(entry & FRAME).filter(|&frame| entry & PRESENT != 0 && frame != 0)
}
