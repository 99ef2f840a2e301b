// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a stream is made, and what it does with memory that is not registered.

use std::ops::RangeInclusive;

use crate::gpu::Gpu;
use crate::queue_options::QueueOptions;

/// How a stream is made: its priority, the length of its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    priority: i32,
    queue: QueueOptions,
}

/// What is to be done with memory that no device can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unregistered {
    /// Refuse it.
    Refuse,
    /// Register it until the copy is done, which takes a system call and pins it.
    Register,
}

impl StreamOptions {
    /// Of the lowest priority, with room for 256 packets.
    pub fn new() -> Self {
        Self {
            priority: 0,
            queue: QueueOptions::new(),
        }
    }

    /// How urgent its work is: the higher, the sooner, between packets. Clamped to
    /// [`Gpu::priorities`].
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// How many packets may wait for the device: a power of two, 64 to 65,536. Who submits more
    /// waits. Each takes 64 bytes of pinned memory.
    #[must_use]
    pub fn packets(mut self, packets: u32) -> Self {
        self.queue = self.queue.packets(packets);
        self
    }

    /// The priority that a device makes of it.
    pub(super) fn clamped(self, gpu: &Gpu) -> u32 {
        let priority = u32::try_from(self.priority).unwrap_or(0);
        priority.min(*gpu.priorities().end())
    }

    pub(super) fn queue(self, gpu: &Gpu) -> QueueOptions {
        self.queue.priority(self.clamped(gpu))
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl Gpu {
    /// The priorities that streams can have; the highest is the most urgent.
    pub fn priorities(&self) -> RangeInclusive<u32> {
        0..=self.limits().max_priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_clamped() {
        let gpu = Gpu::fake();
        for (wanted, got) in [
            (i32::MIN, 0),
            (-1, 0),
            (0, 0),
            (2, 2),
            (3, 3),
            (i32::MAX, 3),
        ] {
            assert_eq!(StreamOptions::new().priority(wanted).clamped(&gpu), got);
        }
    }
}
