// SPDX-License-Identifier: MIT OR Apache-2.0
//! The doorbell of a queue: a page of registers that tells the device about new packets.

use std::fmt;

use crate::sys::barrier::drain_writes;
use crate::sys::map::Register;

/// A mapped doorbell. Once the device is gone, ringing has no effect; waiting finds that out.
pub(crate) struct Doorbell(Register);

impl Doorbell {
    pub(crate) fn new(register: Register) -> Self {
        Self(register)
    }

    /// Tells the device how many packets were written since the beginning. The device sees those
    /// packets, and whatever else was written before.
    pub(crate) fn ring(&self, written: u64) {
        drain_writes();
        self.0.write(written);
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}
