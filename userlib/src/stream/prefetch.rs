// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving managed memory in the order of a stream.
//!
//! A host function of the crate makes the call to the driver, and the stream waits for it. The
//! driver's own copies wait for no stream, so unlike a host function of the program it may.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{ErrorWith, Operation, Result};
use crate::memory::allocation::Place;
use crate::memory::managed::prefetch::{move_pages, Prefetched};
use crate::queue::point::Point;
use crate::sys::ioctl;
use crate::wait::Wait;

use super::future::Reached;
use super::Stream;

/// Where the host function leaves what became of the memory.
pub(super) type Answer = Arc<Mutex<Option<Result<Prefetched>>>>;

/// Managed memory that moves in the order of a stream.
///
/// Made by [`Managed::prefetch_on`](crate::accelerator::Managed::prefetch_on) and
/// [`Work::prefetch`](super::Work::prefetch). Dropped, the memory moves all the same.
///
/// ```no_run
/// use pinmap::accelerator::{Managed, Place, Stream};
/// # fn f(stream: &Stream, numbers: &mut Managed<f32>) -> pinmap::Result<()> {
/// let moving = stream.scope(|work| work.prefetch(numbers.slice(), Place::Vram))?;
/// println!("{:?}", moving.wait()?);
/// # Ok(()) }
/// ```
pub struct Prefetching {
    point: Point,
    result: Answer,
}

/// A host function that moves whole pages, given as address and length, and where it leaves the
/// result. `keep` is dropped when that is done.
pub(super) fn function(
    device: &Device,
    (addr, len): (usize, usize),
    to: Place,
    keep: impl Send + 'static,
) -> (Box<dyn FnOnce() + Send>, Answer) {
    let result = Arc::new(Mutex::new(None));
    let (device, there) = (device.clone(), Arc::clone(&result));
    let function = Box::new(move || {
        let attempt = || format!("move {len} bytes at {addr:#x} by {device}");
        let moved = move_pages(&device, (addr, len), to, ioctl::prefetch_inside, attempt);
        *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(moved);
        drop(keep);
    });
    (function, result)
}

impl Stream {
    /// Moves whole pages, given as address and length, by a device, in the order of this stream.
    /// `keep` is dropped when that is done.
    pub(crate) fn prefetch(
        &self,
        device: &Device,
        pages: (usize, usize),
        to: Place,
        keep: impl Send + 'static,
    ) -> Result<Prefetching> {
        let (function, result) = function(device, pages, to, keep);
        let point = self.core.call_to(None, function)?;
        Ok(Prefetching::new(point, result))
    }
}

impl Prefetching {
    pub(super) fn new(point: Point, result: Answer) -> Self {
        Self { point, result }
    }

    /// Whether the memory has moved, as far as the program's own memory tells. Makes no system
    /// call.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.point.fence.is_done()
    }

    /// Waits until the memory has moved, and returns what became of it.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::prefetch`](crate::accelerator::Accelerator::prefetch); `EIO`: the
    /// stream has failed before; `EDEADLK`: this is a host function.
    pub fn wait(self) -> Result<Prefetched> {
        self.point.wait(None)?;
        self.take()
    }

    /// Waits as [`wait`](Self::wait) does, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// The value comes back with the error. As for [`wait`](Self::wait); `ETIMEDOUT`: the time was
    /// up first.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Prefetched, ErrorWith<Self>> {
        let reached = self.point.wait_timeout(timeout);
        match reached.and_then(|()| self.take()) {
            Ok(prefetched) => Ok(prefetched),
            Err(error) => Err(ErrorWith { error, value: self }),
        }
    }

    /// Waits as [`wait`](Self::wait) does, without blocking the thread, on any executor.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Managed, Place, Stream};
    /// # async fn f(stream: &Stream, numbers: Managed<f32>) -> pinmap::Result<()> {
    /// let moving = numbers.prefetch_on(stream, Place::Vram)?;
    /// println!("{:?}", moving.wait_async().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn wait_async(self) -> Wait<'static, Prefetched> {
        let reached = Reached::new(self.point.clone());
        Wait::new(async move {
            reached.await?;
            self.take()
        })
    }

    /// Takes the result, which is there.
    fn take(&self) -> Result<Prefetched> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let never = || {
            Err(self
                .point
                .handle()
                .fail(Operation::Wait, "wait for", Errno::EIO))
        };
        result.take().unwrap_or_else(never)
    }
}

impl fmt::Debug for Prefetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Prefetching")
            .field(&self.point.fence)
            .finish()
    }
}
