// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw packets of the tests.

use pinmap::accelerator::{Packet, Work};
use pinmap::Error;

/// Submits raw packets.
///
/// The packets of these tests let the device write to allocations and registrations of the test, to
/// memory that the device does not reach, or nowhere. None of them writes to a fence.
pub(crate) trait Raw {
    /// Submits packets, and waits if the ring is full.
    #[track_caller]
    fn raw(&self, packets: &[Packet]) -> Result<(), Error>;
}

impl Raw for Work<'_> {
    #[track_caller]
    fn raw(&self, packets: &[Packet]) -> Result<(), Error> {
        // SAFETY: Only atomics and devices access what the packets write, as said above.
        unsafe { self.submit_packets(packets) }
    }
}
