// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of a queue.

use crate::sys::bindings as abi;

/// The engines that a queue uses.
///
/// ```no_run
/// use pinmap::{Engines, QueueOptions};
/// # fn f(gpu: &pinmap::Accelerator) -> pinmap::Result<()> {
/// // A queue for copies alone, which refuses kernels.
/// let mut copies = gpu.queue(QueueOptions::new().engines(Engines::Copy))?;
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
    /// All engines. The queue still executes one piece of work after the other.
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

/// Options of a queue: its engines, its priority, the length of its ring.
///
/// Passed to [`Accelerator::queue`](crate::Accelerator::queue).
///
/// ```no_run
/// use pinmap::QueueOptions;
/// # fn f(gpu: &pinmap::Accelerator) -> pinmap::Result<()> {
/// let most = gpu.info()?.max_priority;
/// let mut urgent = gpu.queue(QueueOptions::new().priority(most).packets(1024))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    pub(crate) engines: Engines,
    pub(crate) priority: u32,
    pub(crate) packets: u32,
    pub(crate) system_calls: bool,
    pub(crate) registers: bool,
}

impl QueueOptions {
    /// Options for a queue with all engines, the lowest priority, and room for 256 packets.
    pub fn new() -> Self {
        Self {
            engines: Engines::Both,
            priority: 0,
            packets: 256,
            system_calls: false,
            registers: false,
        }
    }

    /// Sets the engines that the queue uses.
    #[must_use]
    pub fn engines(mut self, engines: Engines) -> Self {
        self.engines = engines;
        self
    }

    /// Sets the priority, from 0, the lowest, to
    /// [`AcceleratorInfo::max_priority`](crate::AcceleratorInfo::max_priority). Higher values count
    /// as the highest.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how many packets the ring holds: a power of two from 64 to 65,536. Each piece of work
    /// takes a packet, and twelve are for finding out what is done: so a ring of 1,024 packets
    /// takes 1,012 pieces of work before the device has done any.
    #[must_use]
    pub fn packets(mut self, packets: u32) -> Self {
        self.packets = packets;
        self
    }

    /// Submits by system calls instead of the mapped ring and doorbell. That is slower, and finds
    /// out at once that the queue has stopped or that the device is gone.
    #[must_use]
    pub fn system_calls(mut self) -> Self {
        self.system_calls = true;
        self
    }

    /// Has slices of ordinary memory ([`QueueScope::slice`](crate::QueueScope::slice)) registered
    /// for as long as the work takes, also on a device that could fault. Each slice then takes
    /// system calls and is pinned, and no packet waits for a page.
    ///
    /// ```no_run
    /// use pinmap::QueueOptions;
    /// # fn f(gpu: &pinmap::Accelerator) -> pinmap::Result<()> {
    /// // No kernel of this queue ever waits for a page.
    /// let mut queue = gpu.queue(QueueOptions::new().register_slices())?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn register_slices(mut self) -> Self {
        self.registers = true;
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
