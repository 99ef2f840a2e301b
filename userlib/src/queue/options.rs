// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of a stream, and of the queue that it has.

use std::ops::RangeInclusive;

use crate::device::accelerator::Accelerator;
use crate::stream::blocking::launch_blocking;
use crate::sys::bindings as abi;

/// The engines that a stream uses.
///
/// ```no_run
/// use pinmap::accelerator::{Engines, StreamOptions};
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// // A stream for copies alone, which refuses kernels.
/// let copies = gpu.stream(StreamOptions::new().engines(Engines::Copy))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Engines {
    /// The copy engines, for copies and fills.
    Copy,
    /// The compute engine, for kernels.
    Compute,
    /// All engines. The stream still executes one piece of work after the other.
    #[default]
    Both,
}

impl Engines {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Copy => abi::PINMAP_QUEUE_COPY,
            Self::Compute => abi::PINMAP_QUEUE_COMPUTE,
            Self::Both => abi::PINMAP_QUEUE_COPY | abi::PINMAP_QUEUE_COMPUTE,
        }
    }

    pub(crate) fn include(self, wanted: Self) -> bool {
        self.flags() & wanted.flags() == wanted.flags()
    }
}

/// Options of a stream: its engines, its priority, the length of its ring.
///
/// Passed to [`Accelerator::stream`].
///
/// ```no_run
/// use pinmap::accelerator::{Accelerator, StreamOptions};
/// # fn f(gpu: &Accelerator) -> pinmap::Result<()> {
/// let most = *gpu.priorities().end();
/// let urgent = gpu.stream(StreamOptions::new().priority(most).packets(1024))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    pub(crate) engines: Engines,
    pub(crate) priority: u32,
    pub(crate) packets: u32,
    pub(crate) system_calls: bool,
    pub(crate) registers: bool,
    pub(crate) blocking: bool,
}

impl StreamOptions {
    /// Options for a stream of the lowest priority, with all engines and room for 256 packets.
    pub fn new() -> Self {
        Self {
            engines: Engines::Both,
            priority: 0,
            packets: 256,
            system_calls: false,
            registers: false,
            blocking: launch_blocking(),
        }
    }

    /// Sets the engines that the stream uses.
    #[must_use]
    pub fn engines(mut self, engines: Engines) -> Self {
        self.engines = engines;
        self
    }

    /// Sets the priority. Between packets, the device prefers streams of higher priority. Values
    /// are clamped to [`Accelerator::priorities`].
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how many packets the ring holds: a power of two from 64 to 65,536. Each piece of work
    /// takes a packet, and twelve are for finding out what is done: so a ring of 1,024 packets
    /// takes 1,012 pieces of work before the device has done any. Submitting more waits. Each
    /// packet takes 64 bytes of pinned memory.
    #[must_use]
    pub fn packets(mut self, packets: u32) -> Self {
        self.packets = packets;
        self
    }

    /// Submits by system calls instead of the mapped ring and doorbell. That is slower, and finds
    /// out at once that the stream has failed or that the device is gone.
    #[must_use]
    pub fn system_calls(mut self) -> Self {
        self.system_calls = true;
        self
    }

    /// Registers slices of ordinary memory ([`Work::slice`](crate::accelerator::Work::slice)) for
    /// as long as the work takes, also on a device that could fault. Each slice then takes system
    /// calls and is pinned, and no packet waits for a page.
    #[must_use]
    pub fn register_slices(mut self) -> Self {
        self.registers = true;
        self
    }

    /// Has each submission wait until its work is done, or not, whatever the environment says
    /// ([`launch_blocking`](crate::accelerator::launch_blocking)). If the work fails, the
    /// submission does, and the error has the line of the program that submitted it. Copies, fills,
    /// kernels, moves, packets and stored values wait. Events, host functions and waits for values,
    /// which may be for what the program does next, do not. Work behind a wait for a value that the
    /// program would store afterwards never ends.
    #[must_use]
    pub fn blocking(mut self, blocking: bool) -> Self {
        self.blocking = blocking;
        self
    }

    /// The priority as the device clamps it.
    pub(crate) fn clamped(self, gpu: &Accelerator) -> u32 {
        self.priority.min(*gpu.priorities().end())
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl Accelerator {
    /// The priorities that streams can have. The highest is the most urgent.
    pub fn priorities(&self) -> RangeInclusive<u32> {
        0..=self.limits().max_priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_told_apart() {
        use Engines::{Both, Compute, Copy};
        for (has, wants, good) in [
            (Both, Copy, true),
            (Both, Compute, true),
            (Copy, Copy, true),
            (Copy, Compute, false),
            (Compute, Copy, false),
        ] {
            assert_eq!(has.include(wants), good);
        }
    }
    #[test]
    fn priorities_are_clamped() {
        let gpu = Accelerator::fake();
        for (wanted, got) in [(0, 0), (2, 2), (3, 3), (u32::MAX, 3)] {
            assert_eq!(StreamOptions::new().priority(wanted).clamped(&gpu), got);
        }
    }
}
