// SPDX-License-Identifier: MIT OR Apache-2.0
//! Points in the work of a stream as files, for programs that wait for many.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Operation, Result};
use crate::fence::Fence;
use crate::host::{self, Action};

use super::core::Core;

/// A point in the work of a stream that can be polled: its eventfd ([`AsFd`]) is readable when the
/// point is reached, or never will be. It stays readable; nothing is to be read from it.
///
/// Made by [`Stream::completion`](super::Stream::completion). With it one thread, in an event loop
/// or an async runtime, waits for thousands of streams.
#[must_use = "dropped, nothing is told"]
#[derive(Debug)]
pub struct Completion {
    fence: Fence,
    needs: Vec<Fence>,
    eventfd: Arc<EventFd>,
}

impl Completion {
    pub(super) fn new(core: &Core) -> Result<Self> {
        let attempt = || "have a file tell that a stream is done".to_owned();
        let fail = |errno| Error::new(Operation::Stream, attempt(), errno);
        host::check(Operation::Stream, attempt)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = Arc::new(EventFd::from_flags(flags).map_err(fail)?);
        let (fence, needs) = core.point()?;
        let progress = fence.progress();
        match progress.notify(fence.value(), eventfd.as_fd()) {
            Ok(()) => {}
            Err(errno @ (Errno::ENOSPC | Errno::ENOMEM | Errno::ENOTTY)) => {
                return Err(fail(errno))
            }
            Err(errno) => return Err(progress.fail(Operation::Stream, "wait for", errno)),
        }
        if !needs.is_empty() {
            // If one of them fails, the driver cannot know what that means for this.
            let tell = Action::Tell(Arc::clone(&eventfd));
            host::when(fence.clone(), needs.clone(), tell)?;
        }
        Ok(Self {
            fence,
            needs,
            eventfd,
        })
    }

    /// Whether the point is reached. What was done before is seen then.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed before, [`Error::fault`](crate::Error::fault) says why;
    /// `ENODEV`: the device is gone; `EDEADLK`: it is not reached, and this is a host function.
    pub fn query(&self) -> Result<bool> {
        self.fence.query(&self.needs)
    }

    /// Waits until it is reached; without a timeout, as long as it takes. False: the time was up
    /// first.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let progress = self.fence.progress();
        progress.wait_needing(self.fence.value(), &self.needs, timeout.into())
    }
}

impl AsRawFd for Completion {
    fn as_raw_fd(&self) -> RawFd {
        self.eventfd.as_fd().as_raw_fd()
    }
}

impl AsFd for Completion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
