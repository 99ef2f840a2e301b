// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of a stream, and of copies from and to memory that is not registered.

use std::ops::RangeInclusive;

use crate::device::accelerator::Accelerator;
use crate::queue::options::QueueOptions;

/// Options of a stream: its priority, the length of its ring.
///
/// Passed to [`Accelerator::stream`].
///
/// ```no_run
/// use pinmap::{Accelerator, StreamOptions};
/// # fn f(gpu: &Accelerator) -> pinmap::Result<()> {
/// let most = *gpu.priorities().end();
/// let urgent = gpu.stream(StreamOptions::new().priority(most).packets(1024))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    priority: u32,
    queue: QueueOptions,
}

/// The behaviour of a copy whose memory is not registered.
///
/// ```no_run
/// use pinmap::{stream::Unregistered, Allocation, Stream};
/// # fn f(stream: &Stream, from: &[f32], local: &mut Allocation<f32>) -> pinmap::Result<()> {
/// // Fails with `EPERM`, instead of pinning memory unasked where the device cannot fault.
/// stream.scope(|work| work.copy_from(from, local, Unregistered::Refuse))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unregistered {
    /// The copy is refused.
    Refuse,
    /// The memory is lent to the device as a slice is: see [`Work::slice`](super::Work::slice). If
    /// the device cannot fault, that takes system calls and pins the memory until the copy is done.
    Register,
}

impl StreamOptions {
    /// Options for a stream of the lowest priority with room for 256 packets.
    pub fn new() -> Self {
        Self {
            priority: 0,
            queue: QueueOptions::new(),
        }
    }

    /// Sets the priority. Between packets, the device prefers streams of higher priority. Values
    /// are clamped to [`Accelerator::priorities`].
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how many packets can wait for the device: a power of two from 64 to 65,536. Submitting
    /// more of them waits. Each packet takes 64 bytes of pinned memory.
    #[must_use]
    pub fn packets(mut self, packets: u32) -> Self {
        self.queue = self.queue.packets(packets);
        self
    }

    /// Has slices of ordinary memory registered: see
    /// [`QueueOptions::register_slices`](crate::QueueOptions::register_slices).
    #[must_use]
    pub fn register_slices(mut self) -> Self {
        self.queue = self.queue.register_slices();
        self
    }

    /// Has work submitted by system calls: see
    /// [`QueueOptions::system_calls`](crate::QueueOptions::system_calls).
    #[must_use]
    pub fn system_calls(mut self) -> Self {
        self.queue = self.queue.system_calls();
        self
    }

    /// The priority as the device clamps it.
    pub(super) fn clamped(self, gpu: &Accelerator) -> u32 {
        self.priority.min(*gpu.priorities().end())
    }

    pub(super) fn queue(self, gpu: &Accelerator) -> QueueOptions {
        self.queue.priority(self.clamped(gpu))
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
    fn priorities_are_clamped() {
        let gpu = Accelerator::fake();
        for (wanted, got) in [(0, 0), (2, 2), (3, 3), (u32::MAX, 3)] {
            assert_eq!(StreamOptions::new().priority(wanted).clamped(&gpu), got);
        }
    }
}
