// SPDX-License-Identifier: MIT OR Apache-2.0
//! Points: fences with all that reaching them depends on.
//!
//! A queue can wait for fences of other queues: its *dependencies*. If one of those queues stops,
//! the fence that it waits for is never reached, and the waiting queue never goes on, although it
//! has not stopped itself. So a wait looks at the dependencies from time to time.
//!
//! *Raw packets* are those that the program makes itself. A wrong one could store any number to any
//! fence of the context, so that a fence proves nothing. Where memory is given back at a point, and
//! raw packets were submitted, the device itself is asked for the queue's index as well.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::error::{in_time, Error, Operation, Result};

use super::fence::Fence;
use super::handle::{Handle, Stopped};

/// How long to sleep before looking at the dependencies.
const STEP: Duration = Duration::from_millis(250);

/// A point in the work of a queue, with what reaching it depends on.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) fence: Fence,
    /// Fences of other queues that the queue waits for before it reaches the point.
    pub(crate) dependencies: Vec<Fence>,
    /// Memory is given back at this point, and raw packets may have written the fence.
    pub(crate) raw_packets: bool,
}

impl Point {
    /// A point at which no memory is given back.
    pub(crate) fn new(fence: Fence, dependencies: Vec<Fence>) -> Self {
        Self {
            fence,
            dependencies,
            raw_packets: false,
        }
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        self.fence.handle()
    }

    /// Whether memory says that the point is reached. Fails if it never will be.
    pub(crate) fn query(&self) -> Result<bool> {
        if self.fence.is_done() {
            return Ok(true);
        }
        if self.fence.stopped()?.is_some() {
            return Err(self.handle().fail(Operation::Wait, "wait for", Errno::EIO));
        }
        check(&self.fence, &self.dependencies)?;
        Ok(self.fence.is_done())
    }

    /// Whether the point is reached: by the fence and, after raw packets, by the device itself.
    pub(crate) fn is_passed(&self) -> bool {
        let (handle, value) = (self.handle(), self.fence.value());
        self.fence.is_done() && (!self.raw_packets || handle.is_confirmed(value))
    }

    /// Waits until the point is reached, but no longer than `timeout`.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        in_time(self.wait(Some(timeout))?, || {
            self.handle().attempt("wait for")
        })
    }

    /// Waits until the point is reached; without a timeout, for as long as that takes. Returns
    /// false if the time was up first. Fails if the point never will be reached.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let reached = wait(&self.fence, &self.dependencies, timeout)?;
        if reached && self.raw_packets {
            self.handle().confirm(self.fence.value())?;
        }
        Ok(reached)
    }
}

/// Waits for a fence whose queue waits for `dependencies`. Returns false if the time was up first.
/// Fails if the fence never will be reached, also because of a dependency.
pub(super) fn wait(
    fence: &Fence,
    dependencies: &[Fence],
    timeout: Option<Duration>,
) -> Result<bool> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let step = left.map_or(STEP, |left| left.min(STEP));
        if fence.wait_for(Some(step))? {
            return Ok(true);
        }
        check(fence, dependencies)?;
        if left.is_some_and(|left| left <= step) {
            return Ok(false);
        }
    }
}

/// Fails if one of the fences that the queue waits for never will be reached.
fn check(fence: &Fence, dependencies: &[Fence]) -> Result<()> {
    for dependency in dependencies {
        if let Some(stopped) = dependency.stopped()? {
            let cause = "it waits for a queue that has stopped";
            let attempt = fence.handle().attempt("wait for");
            let error = Error::refused(Operation::Wait, attempt, Errno::EIO, cause);
            return Err(match stopped {
                Stopped::Faulted(fault) => error.with_fault(fault),
                Stopped::Destroyed => error,
            });
        }
    }
    Ok(())
}
