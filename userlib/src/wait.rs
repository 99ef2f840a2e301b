// SPDX-License-Identifier: MIT OR Apache-2.0
//! The future that all waits of the crate return.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::{Error, Result};

/// A future that waits for a device without blocking the thread, on any executor.
///
/// Returned by the methods whose names end with `_async`, and by a
/// [`Pending`](crate::accelerator::Pending) that is awaited. Dropping it ends the wait, and neither
/// an event is lost nor the work that it has waited for. What it owns is dropped: the memory of a
/// `Pending` when the work is done, or what a prefetch would have told.
///
/// ```no_run
/// use pinmap::accelerator::Stream;
/// use pinmap::Wait;
///
/// /// A job of a scheduler of the program's own.
/// struct Job {
///     done: Wait<'static, ()>,
/// }
///
/// fn job(stream: &Stream) -> Job {
///     Job { done: stream.synchronize_async() }
/// }
/// ```
#[must_use = "futures do nothing unless they are awaited"]
pub struct Wait<'a, T, E = Error>(Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>);

impl<'a, T, E> Wait<'a, T, E> {
    pub(crate) fn new(future: impl Future<Output = Result<T, E>> + Send + 'a) -> Self {
        Self(Box::pin(future))
    }
}

impl<T, E> Future for Wait<'_, T, E> {
    type Output = Result<T, E>;

    /// # Panics
    ///
    /// The future was ready before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<T, E> fmt::Debug for Wait<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wait")
    }
}
