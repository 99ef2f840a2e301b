// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures of points in the work of streams.
//!
//! The thread that waits for all points of the process ([`callbacks`](super::callbacks)) wakes the
//! task, so these futures need no runtime, and no file descriptor. Dropping one changes nothing for
//! the work.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::Result;
use crate::queue::point::Point;
use crate::sys::sync::{Mutex, MutexGuard};

use super::callbacks::{self, Action};

/// The task that waits, and whether it was told.
#[derive(Debug, Default)]
pub(super) struct Task(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    waker: Option<Waker>,
    /// The point was reached, or is lost.
    over: bool,
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the task that the wait is over.
    pub(super) fn wake(&self) {
        let waker = {
            let mut told = self.lock();
            told.over = true;
            told.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A future that is ready when a point is reached, or never will be.
#[derive(Debug)]
pub(super) struct Reached {
    point: Point,
    /// There once the waiting thread was asked.
    task: Option<Arc<Task>>,
}

impl Reached {
    pub(super) fn new(point: Point) -> Self {
        Self { point, task: None }
    }
}

impl Future for Reached {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.point.fence.is_done() {
            return Poll::Ready(self.point.wait(None).map(drop));
        }
        if let Some(task) = &self.task {
            let mut told = task.lock();
            if !told.over {
                told.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        // Before asking: a point that is lost already may never be told.
        match self.point.query() {
            Ok(false) => {}
            Ok(true) => return Poll::Ready(self.point.wait(None).map(drop)),
            Err(error) => return Poll::Ready(Err(error)),
        }
        let task = Arc::<Task>::default();
        task.lock().waker = Some(context.waker().clone());
        if let Err(error) = callbacks::when(self.point.clone(), Action::Wake(Arc::clone(&task))) {
            return Poll::Ready(Err(error));
        }
        self.task = Some(task);
        Poll::Pending
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.lock().waker = None;
        }
    }
}
