// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of what a queue does up to a point: it has passed the point, or has stopped before.
//!
//! A queue that waits for another one, which has stopped, never goes on by itself. So whoever waits
//! for its end poisons it. That takes as long as the packet that runs; a future leaves it to a
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
    /// The outcome of the point, once that is known.
    result: Option<Result<()>>,
    /// Told when a thread has waited for the end.
    waited: Option<Arc<Task>>,
}

impl Ended {
    pub(super) fn new(point: Point) -> Self {
        Self {
            reached: Reached::new(point.clone()),
            point,
            result: None,
            waited: None,
        }
    }
}

impl Future for Ended {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(task) = &self.waited {
            if !task.is_over(context) {
                return Poll::Pending;
            }
            // After a wait this does not wait, whatever came of it.
            return match self.result.take() {
                Some(result) => Poll::Ready(result),
                None => Pin::new(&mut self.reached).poll(context),
            };
        }
        // After raw packets the device itself is asked, for as long as it says no.
        let is_doubtful = self.point.fence.is_done() && !self.point.is_passed();
        if !is_doubtful || inside::is_inside() {
            let result = ready!(Pin::new(&mut self.reached).poll(context));
            if result.is_ok() || inside::is_inside() {
                return Poll::Ready(result);
            }
            self.result = Some(result);
        }
        let (point, task) = (self.point.clone(), Task::new(context));
        self.waited = Some(Arc::clone(&task));
        callbacks::in_background(&task, move || wait_for_end(&point));
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::fence::Fence;
    use crate::queue::handle::Handle;
    use std::sync::mpsc::{channel, Sender};
    use std::sync::Mutex;
    use std::task::{Wake, Waker};
    use std::time::Duration;

    struct Tells(Mutex<Sender<()>>);

    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().expect("no panic").send(());
        }
    }

    /// A fence that a raw packet may have stored is confirmed without blocking the executor.
    #[test]
    fn a_poll_does_not_wait_for_the_device_to_confirm() {
        let handle = Arc::new(Handle::fake_with_index());
        handle.execute(5);
        handle.confirm_fake(0);
        let mut point = Point::new(Fence::new(Arc::clone(&handle), 5), Vec::new());
        point.raw_packets = true;
        let (sender, woken) = channel();
        let waker = Waker::from(Arc::new(Tells(sender.into())));
        let mut context = Context::from_waker(&waker);
        let mut ended = Ended::new(point);
        let (polled, told) = channel();
        std::thread::scope(|threads| {
            let handle = &handle;
            threads.spawn(move || {
                // In the end also if the poll waits for that.
                let _ = told.recv_timeout(Duration::from_secs(10));
                handle.confirm_fake(5);
            });
            let first = Pin::new(&mut ended).poll(&mut context);
            polled.send(()).expect("a thread");
            assert!(first.is_pending());
        });
        woken.recv_timeout(Duration::from_secs(10)).expect("a wake");
        let second = Pin::new(&mut ended).poll(&mut context);
        assert!(matches!(second, Poll::Ready(Ok(()))));
    }
}
