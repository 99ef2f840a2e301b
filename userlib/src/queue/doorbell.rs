// SPDX-License-Identifier: MIT OR Apache-2.0
//! The doorbell of a queue: a page of registers that tells the device about new packets.
#![allow(unsafe_code)]

use std::fmt;

use memmap2::MmapRaw;

use crate::sys::barrier::drain_writes;

/// A mapped doorbell. Once the device is gone, ringing has no effect; waiting finds that out.
///
/// # Invariants
///
/// The mapping begins with a page, and stays writable as long as the value exists.
pub(crate) struct Doorbell(MmapRaw);

impl Doorbell {
    /// Takes over a mapping, which must be writable and at least a page.
    pub(crate) fn new(map: MmapRaw) -> Self {
        // INVARIANT: mmap() maps whole pages, and nobody else can unmap them.
        Self(map)
    }

    /// Tells the device how many packets were written since the beginning. The device sees those
    /// packets, and whatever else was written before.
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
