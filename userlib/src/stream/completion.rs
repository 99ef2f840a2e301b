// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completions: points in the work of a stream as files, for programs that wait for many.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{check_outside, Error, Operation, Result};
use crate::queue::point::Point;
use crate::wait::Wait;

use super::callbacks::{self, Action};
use super::core::Core;
use super::future::Reached;

/// A point in the work of a stream that can be polled.
///
/// Made by [`Stream::completion`](super::Stream::completion). Its eventfd ([`AsFd`]) becomes
/// readable when the point is reached, or when it never will be, and stays readable; nothing is to
/// be read from it. With completions, one thread waits for thousands of streams in an event loop or
/// an async runtime.
///
/// ```no_run
/// # fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
/// let completion = stream.completion()?;
/// // ... give the file `completion.as_fd()` to an event loop ...
/// completion.wait()?;
/// # Ok(()) }
/// ```
#[must_use = "dropped, a completion tells nothing"]
#[derive(Debug)]
pub struct Completion {
    point: Point,
    eventfd: Arc<EventFd>,
    /// The question to the thread that waits for streams, if it was asked.
    asked: Option<u64>,
}

impl Completion {
    pub(super) fn new(core: &Core) -> Result<Self> {
        let attempt = || "have a file tell that a stream is done".to_owned();
        let fail = |errno| Error::new(Operation::Stream, attempt(), errno);
        check_outside(Operation::Stream, attempt)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = Arc::new(EventFd::from_flags(flags).map_err(fail)?);
        let point = core.point()?;
        let handle = point.handle();
        match handle.notify(point.fence.value(), eventfd.as_fd()) {
            Ok(()) => {}
            Err(errno @ (Errno::ENOSPC | Errno::ENOMEM)) => return Err(fail(errno)),
            Err(errno) => return Err(handle.fail(Operation::Stream, "wait for", errno)),
        }
        let mut asked = None;
        if !point.dependencies.is_empty() {
            // If one of them stops, the driver does not know what that means for this point.
            let tell = Action::Tell(Arc::clone(&eventfd));
            asked = Some(callbacks::when(point.clone(), tell)?);
        }
        Ok(Self {
            point,
            eventfd,
            asked,
        })
    }

    /// Whether the point is reached. If it is, later reads see what was done before.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed before, and [`Error::fault`](crate::Error::fault) says why;
    /// `ENODEV`: the device is gone; `EDEADLK`: this is a host function, and the point is not
    /// reached.
    pub fn query(&self) -> Result<bool> {
        self.point.query()
    }

    /// Waits until the point is reached, for as long as that takes.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    pub fn wait(&self) -> Result<()> {
        self.point.wait(None).map(drop)
    }

    /// Waits as [`wait`](Self::wait) does, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query); `ETIMEDOUT`: the time was up first.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        self.point.wait_timeout(timeout)
    }

    /// Waits as [`wait`](Self::wait) does, without blocking the thread, on any executor.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    pub fn wait_async(&self) -> Wait<'static, ()> {
        Wait::new(Reached::new(self.point.clone()))
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(number) = self.asked {
            callbacks::forget(&self.point, number);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::fence::Fence;
    use crate::queue::handle::Handle;
    use crate::queue::Queue;

    /// Makes a completion and drops it. Returns how many points were waited for before, between
    /// and after.
    fn waited_for() -> [usize; 3] {
        let mut queue = Queue::fake_with_index();
        let handle = Arc::clone(queue.handle());
        let other = Arc::new(Handle::fake_with_index());
        queue.depend_on(&Fence::new(other, 1));
        let core = Core::fake(queue);
        let outstanding =
            || callbacks::outstanding(|fence| Arc::ptr_eq(fence.handle(), &handle)).len();
        // There is something to wait for.
        core.call(None, Box::new(|| ())).expect("submitted");
        let before = outstanding();
        let completion = Completion::new(&core).expect("made");
        let between = outstanding();
        drop(completion);
        [before, between, outstanding()]
    }

    #[test]
    fn a_dropped_completion_leaves_nothing() {
        // The waiting thread gives up the points of a device that is none, when it comes to them.
        let undisturbed = |[before, between, _]: &[usize; 3]| *between == before + 1;
        let counts = std::iter::repeat_with(waited_for).take(10_000);
        let counts = counts.filter(undisturbed).take(10).collect::<Vec<_>>();
        assert_eq!(counts.len(), 10, "the thread has always been there first");
        for [before, _, after] in counts {
            assert!(after <= before, "{before} before, {after} after");
        }
    }
}
