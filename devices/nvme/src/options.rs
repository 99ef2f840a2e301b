// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of queues: how many commands, how waits wait, and for how long.

use std::time::Duration;

/// Options of a queue, such as `QueueOptions::new().depth(32).polled()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    pub(crate) depth: u16,
    pub(crate) polled: bool,
    pub(crate) poll_first: Duration,
    pub(crate) timeout: Duration,
    pub(crate) prp: bool,
    pub(crate) in_controller: bool,
}

impl QueueOptions {
    /// Options for 64 commands in flight, each of which may take 30 seconds, and whose ends raise
    /// an interrupt.
    pub fn new() -> Self {
        Self {
            depth: 64,
            polled: false,
            poll_first: Duration::ZERO,
            timeout: Duration::from_secs(30),
            prp: false,
            in_controller: false,
        }
    }

    /// Sets how many commands can be in flight at once.
    #[must_use]
    pub fn depth(mut self, depth: u16) -> Self {
        self.depth = depth;
        self
    }

    /// Makes waits poll, and never sleep. The queue takes no interrupt vector.
    #[must_use]
    pub fn polled(mut self) -> Self {
        self.polled = true;
        self
    }

    /// Makes waits poll for so long before they sleep.
    #[must_use]
    pub fn poll_first(mut self, time: Duration) -> Self {
        self.poll_first = time;
        self
    }

    /// Sets how long a command may take before it is aborted. After as long again, the controller
    /// is reset.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes commands list the pages of their memory (PRP), also where the controller has SGLs.
    #[must_use]
    pub fn prp(mut self) -> Self {
        self.prp = true;
        self
    }

    /// Puts the commands into the controller's own memory (its controller memory buffer), from
    /// where it need not fetch them. Controllers of NVM Express 1.4 can have such memory, of which
    /// each of their queues has the same part.
    #[must_use]
    pub fn in_controller(mut self) -> Self {
        self.in_controller = true;
        self
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}
