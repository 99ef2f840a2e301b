// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fences: points in the work of a queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::error::Result;

use super::handle::{Handle, Stopped};

/// A point in the work of a queue. A fence is reached when everything that was submitted before it
/// is done. It keeps the queue's place in the device, which is given up when the queue and all of
/// its fences are dropped.
#[derive(Clone)]
pub(crate) struct Fence {
    handle: Arc<Handle>,
    /// How many packets are executed when it is reached.
    value: u64,
}

impl Fence {
    pub(crate) fn new(handle: Arc<Handle>, value: u64) -> Self {
        Self { handle, value }
    }

    /// Whether the fence is reached, without a system call. If it is, later reads see what the work
    /// before it wrote.
    pub(crate) fn is_done(&self) -> bool {
        self.handle.executed() >= self.value
    }

    /// Waits until the fence is reached. Returns false if the time was up first.
    pub(crate) fn wait_for(&self, timeout: Option<Duration>) -> Result<bool> {
        self.handle.wait(self.value, timeout)
    }

    /// Id of the queue.
    pub(crate) fn queue(&self) -> u64 {
        self.handle.id()
    }

    /// Whether both fences belong to the same queue.
    pub(crate) fn is_same_queue(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Becomes the later one of two fences of the same queue.
    pub(crate) fn advance(&mut self, other: &Self) {
        self.value = self.value.max(other.value);
    }

    /// Returns the operands with which another queue of the same context waits for the fence: a
    /// device address, and the number that must be stored there.
    pub(crate) fn target(&self) -> (u64, u64) {
        (self.handle.executed_addr(), self.value)
    }

    pub(crate) fn device(&self) -> &Device {
        self.handle.device()
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Whether the device does nothing more of what comes before the fence: it is reached, or the
    /// queue was destroyed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_done() || self.handle.is_destroyed()
    }

    /// How many packets are executed when the fence is reached.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// Why the fence will never be reached, if that is so.
    pub(crate) fn stopped(&self) -> Result<Option<Stopped>> {
        if self.is_done() {
            return Ok(None);
        }
        let stopped = self.handle.stopped()?;
        // The queue may have reached it just before it stopped.
        Ok(stopped.filter(|_| !self.is_done()))
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("queue", &self.handle.id())
            .field("value", &self.value)
            .field("done", &self.is_done())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn what_is_done_needs_no_system_call() {
        let handle = Arc::new(Handle::fake());
        let fence = Fence::new(Arc::clone(&handle), 5);
        assert!(!fence.is_done());
        // A system call would fail.
        assert_eq!(
            fence.wait_for(None).expect_err("no driver").errno(),
            Errno::ENOTTY as i32
        );
        handle.execute(5);
        assert!(fence.is_done());
        assert!(fence.wait_for(None).expect("done"));
        assert_eq!(fence.target(), (0xfe_0000, 5));
        let mut later = fence.clone();
        later.advance(&Fence::new(Arc::clone(&handle), 9));
        assert!(later.is_same_queue(&fence) && !later.is_done());
        later.advance(&fence);
        assert_eq!(later.target().1, 9);
        let text = format!("{fence:?}");
        assert!(
            text.contains("queue: 7") && text.contains("done: true"),
            "{text}"
        );
    }

    #[test]
    fn fences_can_be_shared_and_sent() {
        fn check<T: Send + Sync + Clone>() {}
        check::<Fence>();
    }
}
