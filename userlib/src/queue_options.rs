// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a queue is made.

use crate::sys;

/// Which engines a queue uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Engines {
    /// The copy engines: it can copy and fill.
    Copy,
    /// The compute engine: it can launch kernels.
    Compute,
    /// Both, for one piece of work after the other.
    #[default]
    Both,
}

impl Engines {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Copy => sys::PINMAP_QUEUE_COPY,
            Self::Compute => sys::PINMAP_QUEUE_COMPUTE,
            Self::Both => sys::PINMAP_QUEUE_COPY | sys::PINMAP_QUEUE_COMPUTE,
        }
    }

    pub(crate) fn include(self, wanted: Self) -> bool {
        self.flags() & wanted.flags() == wanted.flags()
    }
}

/// How a queue is made: its engines, its priority, the length of its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    pub(crate) engines: Engines,
    pub(crate) priority: u32,
    pub(crate) packets: u32,
    pub(crate) system_calls: bool,
}

impl QueueOptions {
    /// For copies and kernels, of the lowest priority, with room for 256 packets.
    pub fn new() -> Self {
        Self {
            engines: Engines::Both,
            priority: 0,
            packets: 256,
            system_calls: false,
        }
    }

    /// Which engines it uses.
    #[must_use]
    pub fn engines(mut self, engines: Engines) -> Self {
        self.engines = engines;
        self
    }

    /// How urgent its work is: 0, the lowest, to
    /// [`GpuInfo::max_priority`](crate::GpuInfo::max_priority). More is taken for that.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// How many packets the ring holds: a power of two, 64 to 65,536. Each piece of work is a
    /// packet, and some are needed to find out what is done.
    #[must_use]
    pub fn packets(mut self, packets: u32) -> Self {
        self.packets = packets;
        self
    }

    /// Submits by a system call each time, in place of the mapped ring and doorbell: slower, but
    /// the device can go away meanwhile without a `SIGBUS`.
    #[must_use]
    pub fn system_calls(mut self) -> Self {
        self.system_calls = true;
        self
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
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
}
