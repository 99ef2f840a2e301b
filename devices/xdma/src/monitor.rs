// SPDX-License-Identifier: MIT OR Apache-2.0
//! The performance monitor of a channel.

use crate::channel::Channel;
use crate::memory::Memory;
use crate::registers::MONITOR;

/// The values of a channel's performance monitor. Returned by [`Channel::monitor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Monitor {
    /// Cycles of the core's clock in which the channel ran.
    pub cycles: u64,
    /// Beats of the data path in which there was data.
    pub beats: u64,
}

impl<M: Memory> Channel<M> {
    /// Makes the performance monitor count the next transfer.
    pub fn start_monitor(&self) {
        self.registers.monitor().write(MONITOR);
    }

    /// Reads the performance monitor.
    pub fn monitor(&self) -> Monitor {
        let long = |low: u32, high: u32| u64::from(low) | (u64::from(high & 0x3ff) << 32);
        let registers = &self.registers;
        Monitor {
            cycles: long(registers.cycles().read(), registers.cycles_high().read()),
            beats: long(registers.beats().read(), registers.beats_high().read()),
        }
    }
}
