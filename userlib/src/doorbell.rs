// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page by which a queue is told that there is work.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::{fence, Ordering};

use memmap2::MmapRaw;

use crate::bar::before_write;

/// All that was written is on its way to the device before what is stored next, by which the device is told:
/// also writes to write-combined memory, which a release store does not wait for.
pub(crate) fn drain_writes() {
    fence(Ordering::SeqCst);
    before_write();
}

/// A mapped doorbell. Once the device is gone, nobody hears it: who waits then finds out.
///
/// # Invariants
///
/// Begins with a page and is mapped writable as long as it exists.
pub(crate) struct Doorbell(MmapRaw);

impl Doorbell {
    /// Takes a mapping that is writable and at least a page.
    pub(crate) fn new(map: MmapRaw) -> Self {
        // INVARIANT: mmap() maps whole pages, and nobody else can unmap them.
        Self(map)
    }

    /// Publishes how many packets were written. The device sees them, and whatever else was written
    /// before.
    pub(crate) fn ring(&self, written: u64) {
        drain_writes();
        let at = self.0.as_mut_ptr().cast::<u64>();
        // SAFETY: Mapped, writable and aligned by the invariant. A device's registers are outside
        // of the memory model.
        unsafe { at.write_volatile(written.to_le()) };
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}
