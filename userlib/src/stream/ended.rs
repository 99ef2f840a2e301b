// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of what a queue does up to a point: it has passed the point, or has stopped before.
//!
//! A queue that waits for another one, which has stopped, never goes on by itself. So it is poisoned
//! by whoever waits for its end. That takes as long as the packet that runs; a future leaves it to a
//! thread of the crate.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use nix::errno::Errno;

use crate::error::Result;
use crate::queue::point::Point;
use crate::sys::inside;

use super::callbacks;
use super::future::{Reached, Task};

/// The cause with which a queue is poisoned that waits for one that has failed.
pub(super) const LOST: &str = "work that it waits for cannot be done";

/// Whether a queue has nothing more to do up to a point: it has passed it, or has stopped.
pub(super) fn has_ended(point: &Point) -> bool {
    let has_stopped = || match point.handle().stopped() {
        Ok(stop) => stop.is_some(),
        // A device that is gone does nothing any more. Other errors say nothing about it.
        Err(error) => error.errno() == Errno::ENODEV as i32,
    };
    point.is_passed() || has_stopped()
}

/// Waits until a queue has nothing more to do up to a point.
pub(super) fn wait_for_end(point: &Point) {
    if point.wait(None).is_err() {
        give_up(point);
    }
}

/// Makes a queue do nothing more up to a point that never will be reached.
fn give_up(point: &Point) {
    if !has_ended(point) {
        // It has not stopped itself, but waits for a queue that has.
        point.handle().poison(LOST);
    }
}

/// A future that is ready when a queue has nothing more to do up to a point. It tells whether the
/// point was reached. In a host function it is ready at once, as everything there that would wait.
#[derive(Debug)]
pub(super) struct Ended {
    point: Point,
    reached: Reached,
    /// What came of the point, once that is known.
    result: Option<Result<()>>,
    /// Told when the queue was given up, which a thread does.
    given_up: Option<Arc<Task>>,
}

impl Ended {
    pub(super) fn new(point: Point) -> Self {
        Self {
            reached: Reached::new(point.clone()),
            point,
            result: None,
            given_up: None,
        }
    }
}

impl Future for Ended {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &self.given_up {
            Some(task) if !task.is_over(context) => return Poll::Pending,
            Some(_) => {}
            None => {
                let result = ready!(Pin::new(&mut self.reached).poll(context));
                if result.is_ok() || inside::is_inside() {
                    return Poll::Ready(result);
                }
                let (point, task) = (self.point.clone(), Task::new(context));
                self.result = Some(result);
                self.given_up = Some(Arc::clone(&task));
                callbacks::in_background(&task, move || give_up(&point));
                return Poll::Pending;
            }
        }
        Poll::Ready(self.result.take().unwrap_or(Ok(())))
    }
}
