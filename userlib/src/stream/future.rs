// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures of points in the work of streams.
//!
//! The thread that waits for all points of the process ([`callbacks`](super::callbacks)) wakes the
//! task, so these futures need no runtime, and no file descriptor. Dropping one changes nothing for
//! the work, and leaves nothing behind with that thread.

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
    pub(super) fn new(context: &Context<'_>) -> Arc<Self> {
        let task = Self::default();
        task.lock().waker = Some(context.waker().clone());
        Arc::new(task)
    }

    /// Whether the task was told that the wait is over. If not, it will be.
    pub(super) fn is_over(&self, context: &Context<'_>) -> bool {
        let waker = context.waker().clone();
        let mut told = self.lock();
        if told.over {
            return true;
        }
        let before = told.waker.replace(waker);
        drop(told);
        drop(before);
        false
    }

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
    /// There once the waiting thread was asked, with the number of what it was asked.
    task: Option<(Arc<Task>, u64)>,
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
        if let Some((task, _)) = &self.task {
            if !task.is_over(context) {
                return Poll::Pending;
            }
        }
        // Before asking: a point that is lost already may never be told.
        match self.point.query() {
            Ok(false) => {}
            Ok(true) => return Poll::Ready(self.point.wait(None).map(drop)),
            Err(error) => return Poll::Ready(Err(error)),
        }
        let task = Task::new(context);
        match callbacks::when(self.point.clone(), Action::Wake(Arc::clone(&task))) {
            Ok(number) => self.task = Some((task, number)),
            Err(error) => return Poll::Ready(Err(error)),
        }
        Poll::Pending
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        if let Some((task, number)) = self.task.take() {
            // Taken first, and dropped without the lock: a waker is code of the program's.
            let waker = task.lock().waker.take();
            drop(waker);
            // Before forgetting, so that the waiting thread finds that nobody has it.
            drop(task);
            callbacks::forget(&self.point, number);
        }
    }
}
