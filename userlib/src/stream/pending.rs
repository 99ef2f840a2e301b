// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pending memory: handed over to work in flight, and given back when that is done.

use std::fmt;
use std::future::IntoFuture;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::errno::Errno;

use crate::error::{check_outside, Error, ErrorWith, Operation, Result};
use crate::memory::lent::{Loans, KEPT};
use crate::queue::fence::Fence;
use crate::queue::handle::Handle;
use crate::queue::point::Point;
use crate::sys::inside;
use crate::wait::Wait;

use super::callbacks::{self, Action};
use super::core::Core;
use super::ended::{has_ended, wait_for_end, Ended, LOST};
use super::in_flight::InFlight;
use super::parked::Parked;
use super::work::Work;
use super::Stream;

/// Memory that was handed over to a stream, until the work that was submitted with it is done.
///
/// Made by [`Stream::submit`](super::Stream::submit).
///
/// Dropping a `Pending` returns at once. When the work is done, a thread of this crate drops the
/// memory, under the rules of a [host function](crate::accelerator#host-functions): nothing that is
/// dropped then may wait. If a stream waits for another one that has failed, it is given up. A
/// forgotten `Pending` ([`std::mem::forget`]) keeps the memory until the process ends.
///
/// ```no_run
/// use pinmap::accelerator::Stream;
/// use pinmap_testgpu::IncrementF32;
/// # fn f(stream: &Stream, numbers: Vec<f32>) -> pinmap::Result<()> {
/// let pending = stream.submit(numbers, |work, numbers| {
///     work.launch(IncrementF32 { data: &mut work.slice_mut(numbers)? })
/// })?;
/// // Here nobody has the numbers but the device.
/// let numbers: Vec<f32> = pending.wait()?;
/// # Ok(()) }
/// ```
#[must_use = "dropped, it drops the memory when the work is done"]
pub struct Pending<M: Send + 'static> {
    /// The end of the work; `None` if nothing was submitted.
    point: Option<Point>,
    /// The points of other queues that may not be done with the memory when the last one has
    /// stopped.
    before: Vec<Point>,
    /// The stream of the work.
    core: Weak<Core>,
    /// `None` only after it was taken.
    held: Option<Held<M>>,
}

/// The memory, and what of it is lent to the device.
struct Held<M> {
    /// `None` only after it was taken.
    memory: Option<Parked<M>>,
    loans: Arc<Loans>,
}

impl<M> Held<M> {
    fn into_memory(mut self) -> M {
        // Before the memory, of which it may be a part. An error means that the device is gone.
        let _ = self.loans.end();
        match self.memory.take() {
            Some(memory) => memory.into_inner(),
            None => unreachable!("only this takes it, and that consumes it"),
        }
    }
}

impl<M> Drop for Held<M> {
    fn drop(&mut self) {
        // As in `into_memory`.
        let _ = self.loans.end();
    }
}

/// Memory that is dropped when each of these points is passed, or its queue has stopped.
struct Leaving<M: Send + 'static> {
    points: Vec<Point>,
    held: Option<Held<M>>,
}

impl<M: Send + 'static> Drop for Leaving<M> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        while let Some(point) = self.points.pop() {
            if point.is_passed() {
                continue;
            }
            let points = std::mem::take(&mut self.points);
            let held = Some(held);
            // A drop must not wait, so without a thread the memory stays until the process ends.
            let _ = callbacks::when(point, Action::Drop(Box::new(Leaving { points, held })));
            return;
        }
    }
}

/// Work that is being submitted. If a panic drops it, the part that was submitted becomes pending.
struct Submitting<'a, M: Send + 'static> {
    core: &'a Arc<Core>,
    /// The queue with which the work began.
    handle: Arc<Handle>,
    before: Vec<Point>,
    held: Option<Held<M>>,
}

impl<M: Send + 'static> Submitting<'_, M> {
    /// Publishes the work.
    fn end(&mut self) -> Option<Pending<M>> {
        let held = self.held.take()?;
        let mut raw_packets = false;
        let published = self.core.lock_of(self.handle.id()).and_then(|mut state| {
            let queue = state.queue_mut();
            queue.release();
            raw_packets = queue.has_raw_packets();
            queue.quiet_point_for_memory()
        });
        // If publishing fails, or the stream was reset, the point is never reached: waiting for it
        // tells why.
        let never = |_| Point {
            raw_packets,
            ..Point::new(Fence::new(Arc::clone(&self.handle), u64::MAX), Vec::new())
        };
        Some(Pending {
            point: Some(published.unwrap_or_else(never)),
            before: std::mem::take(&mut self.before),
            core: Arc::downgrade(self.core),
            held: Some(held),
        })
    }
}

impl<M: Send + 'static> Drop for Submitting<'_, M> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl<M: Send + 'static> Pending<M> {
    pub(super) fn new<F>(core: &Arc<Core>, memory: M, work: F) -> Result<Self, ErrorWith<Self>>
    where
        F: for<'w> FnOnce(&Work<'w>, &'w mut M) -> Result<()>,
    {
        let held = Held {
            memory: Some(Parked::new(memory)),
            loans: Arc::default(),
        };
        // Before locking: a thread that holds the lock may wait for a host function.
        let begun = check_outside(Operation::Submit, || "submit work".to_owned())
            .and_then(|()| core.begin());
        let handle = match begun {
            Ok(handle) => handle,
            Err(error) => {
                let nothing = Self {
                    point: None,
                    before: Vec::new(),
                    core: Arc::downgrade(core),
                    held: Some(held),
                };
                return Err(ErrorWith::new(error, nothing));
            }
        };
        let (result, pending) = Self::submit(core, handle, Vec::new(), held, work);
        match result {
            Ok(()) => Ok(pending),
            Err(error) => Err(ErrorWith::new(error, pending)),
        }
    }

    /// Runs a function that submits work on memory, which begins with this queue of the stream and
    /// was in flight up to the points `before`. Returns what came of the function, and the memory
    /// with all that was submitted.
    fn submit<F>(
        core: &Arc<Core>,
        handle: Arc<Handle>,
        before: Vec<Point>,
        held: Held<M>,
        work: F,
    ) -> (Result<()>, Self)
    where
        F: for<'w> FnOnce(&Work<'w>, &'w mut M) -> Result<()>,
    {
        let scope = Work::new(core, handle.id(), &held.loans);
        let mut submitting = Submitting {
            core,
            handle,
            before,
            held: Some(held),
        };
        let held = submitting.held.as_mut();
        let memory = held.and_then(|held| held.memory.as_mut());
        let result = memory.map_or(Ok(()), |memory| work(&scope, memory.get_mut()));
        match submitting.end() {
            Some(pending) => (result, pending),
            None => unreachable!("only `end` takes it"),
        }
    }

    /// Submits more work on the same memory, to the same stream or to another one, which then waits
    /// on the device for what was submitted before. Returns at once. The function gets device
    /// slices of the memory, because the CPU must not refer to it while it is in flight.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// use pinmap::Result;
    /// use pinmap_testgpu::IncrementF32;
    /// # fn f(first: &Stream, second: &Stream, numbers: Pinned<f32>) -> Result<Pinned<f32>> {
    /// let pending = first.submit(numbers, |work, numbers| work.fill(numbers, 1.0))?;
    /// let pending = pending.then(second, |work, mut numbers| {
    ///     work.launch(IncrementF32 { data: &mut numbers })
    /// })?;
    /// Ok(pending.wait()?)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The `Pending` comes back with the error, and waits for what was submitted. The error of the
    /// function; `EINVAL`: the stream belongs to another context; otherwise as for
    /// [`Stream::submit`].
    pub fn then<F>(self, stream: &Stream, work: F) -> Result<Self, ErrorWith<Self>>
    where
        M: InFlight,
        F: for<'w> FnOnce(&Work<'w>, M::Slices<'w>) -> Result<()>,
    {
        let core = stream.core();
        let begun = check_outside(Operation::Submit, || "submit work".to_owned())
            .and_then(|()| core.begin_behind(self.point.as_ref(), &self.core));
        let handle = match begun {
            Ok(handle) => handle,
            Err(error) => return Err(ErrorWith { error, value: self }),
        };
        let mut before = self;
        let Some(held) = before.held.take() else {
            unreachable!("only what consumes the value takes it");
        };
        let mut points = std::mem::take(&mut before.before);
        points.extend(before.point.take());
        points.retain(|point| !point.is_passed());
        let (result, pending) = Self::submit(core, handle, points, held, |scope, memory| {
            work(scope, memory.slices())
        });
        match result {
            Ok(()) => Ok(pending),
            Err(error) => Err(ErrorWith {
                error,
                value: pending,
            }),
        }
    }

    /// Whether the work is done, as far as memory tells. Makes no system call, and does not find
    /// out whether the work ever will be done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let point = self.point.as_ref();
        point.is_none_or(|point| point.fence.is_done())
    }

    /// Whether the work is done.
    ///
    /// ```no_run
    /// # fn f(pending: pinmap::accelerator::Pending<Vec<f32>>) -> pinmap::Result<()> {
    /// while !pending.query()? {
    ///     std::thread::yield_now(); // or something useful
    /// }
    /// let numbers = pending.wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, and [`Error::fault`](crate::Error::fault) says why; `ENODEV`:
    /// the device is gone; `EDEADLK`: this is a host function, and the work is not done.
    pub fn query(&self) -> Result<bool> {
        self.point.as_ref().map_or(Ok(true), Point::query)
    }

    /// Waits until the work is done, and gives the memory back. After a failure, too, it waits for
    /// other streams that had the memory [before](Self::then).
    ///
    /// ```no_run
    /// # fn f(pending: pinmap::accelerator::Pending<Vec<f32>>) -> pinmap::Result<()> {
    /// match pending.wait() {
    ///     Ok(numbers) => println!("{}", numbers[0]),
    ///     Err(failed) => {
    ///         println!("{}", failed.error);
    ///         // The memory is not lost.
    ///         let numbers = failed.value.try_into_memory();
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The `Pending` comes back with the error.
    ///
    /// `EIO`: the stream has failed, and [`Error::fault`](crate::Error::fault) says why; or the
    /// stream was reset before the work was done; or memory of [`Work::slice_mut`] could not be
    /// released, as for [`scope()`](crate::accelerator::scope()). `ENODEV`: the device is gone.
    /// After these, [`try_into_memory`](Self::try_into_memory) gives the memory back. `EDEADLK`:
    /// this is a host function.
    pub fn wait(self) -> Result<M, ErrorWith<Self>> {
        let reached = self.wait_for_point(None);
        if !inside::is_inside() {
            // Other streams, which had the memory before, may go on after a failure of the last.
            self.before.iter().for_each(wait_for_end);
        }
        self.waited(reached.map(drop))
    }

    /// Waits for the end of the work. Returns false if the time was up first.
    fn wait_for_point(&self, timeout: Option<Duration>) -> Result<bool> {
        let point = self.point.as_ref();
        point.map_or(Ok(true), |point| point.wait(timeout))
    }

    /// Gives the memory back after a wait that was not ended by the time.
    fn waited(self, reached: Result<()>) -> Result<M, ErrorWith<Self>> {
        let Some(point) = &self.point else {
            return Ok(self.into_memory());
        };
        let handle = point.handle();
        match reached {
            Ok(()) => match self.release() {
                // The last queue has waited for the others.
                Ok(()) if self.before.iter().all(has_ended) => Ok(self.into_memory()),
                Ok(()) => {
                    let error = handle.fail(Operation::Wait, "wait for", Errno::EIO);
                    Err(ErrorWith { error, value: self })
                }
                Err(error) => {
                    handle.poison(KEPT);
                    Err(ErrorWith { error, value: self })
                }
            },
            Err(error) => {
                if !inside::is_inside() && handle.stopped().is_ok_and(|stop| stop.is_none()) {
                    // It has not stopped itself, but waits for a queue that has.
                    handle.poison(LOST);
                }
                Err(ErrorWith { error, value: self })
            }
        }
    }

    /// Waits for the work as [`wait`](Self::wait) does, but no longer than `timeout`. After a
    /// failure it does not wait for other streams that had the memory [before](Self::then).
    ///
    /// ```no_run
    /// use pinmap::ErrorKind;
    /// use std::time::Duration;
    /// # fn f(pending: pinmap::accelerator::Pending<Vec<f32>>) -> pinmap::Result<()> {
    /// let mut pending = pending;
    /// let numbers = loop {
    ///     match pending.wait_timeout(Duration::from_secs(1)) {
    ///         Ok(numbers) => break numbers,
    ///         Err(late) if late.error.kind() == ErrorKind::TimedOut => pending = late.value,
    ///         Err(failed) => return Err(failed.error),
    ///     }
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait); `ETIMEDOUT`: the time was up first. The `Pending` that comes
    /// back can be waited for again. It may be that [`try_into_memory`](Self::try_into_memory)
    /// gives the memory back only after that.
    pub fn wait_timeout(self, timeout: Duration) -> Result<M, ErrorWith<Self>> {
        let reached = self.wait_for_point(Some(timeout));
        if let (Ok(false), Some(point)) = (&reached, &self.point) {
            let attempt = point.handle().attempt("wait for");
            let error = Error::new(Operation::Wait, attempt, Errno::ETIMEDOUT);
            return Err(ErrorWith { error, value: self });
        }
        self.waited(reached.map(drop))
    }

    /// Gives the memory back if the device does nothing with it any more, because the work is done
    /// or the stream has failed, and any other stream that had the memory [before](Self::then) is
    /// done with it. Does not wait. Inside a host function, a failure is not noticed.
    ///
    /// # Errors
    ///
    /// The `Pending` itself, if the device may still use the memory.
    pub fn try_into_memory(self) -> Result<M, Self> {
        if self.point.iter().chain(&self.before).all(has_ended) {
            Ok(self.into_memory())
        } else {
            Err(self)
        }
    }

    /// Ends the loans of the work, which is done.
    fn release(&self) -> Result<()> {
        self.held.as_ref().map_or(Ok(()), |held| held.loans.end())
    }

    fn into_memory(mut self) -> M {
        match self.held.take() {
            Some(held) => held.into_memory(),
            None => unreachable!("only this takes it, and that consumes it"),
        }
    }
}

impl<M: Send + 'static> IntoFuture for Pending<M> {
    type Output = Result<M, ErrorWith<Self>>;
    type IntoFuture = Wait<'static, M, ErrorWith<Self>>;

    /// Waits as [`wait`](Self::wait) does, also after a failure, without blocking the thread, on
    /// any executor. Dropped, the future drops the memory when the work is done, as a `Pending`
    /// does.
    ///
    /// ```no_run
    /// # use pinmap::accelerator::{Pinned, Stream};
    /// # use pinmap::Result;
    /// # async fn f(stream: &Stream, numbers: Pinned<f32>) -> Result<()> {
    /// let numbers = stream.submit(numbers, |work, numbers| work.fill(numbers, 1.0))?.await?;
    /// assert_eq!(numbers[0], 1.0);
    /// # Ok(()) }
    /// ```
    fn into_future(self) -> Self::IntoFuture {
        Wait::new(async move {
            let mut result = Ok(());
            if let Some(point) = &self.point {
                result = Ended::new(point.clone()).await;
            }
            // Other streams, which had the memory before, may go on after a failure of the last.
            for point in &self.before {
                if result.is_ok() || inside::is_inside() {
                    break;
                }
                let _ = Ended::new(point.clone()).await;
            }
            self.waited(result)
        })
    }
}

impl<M: Send + 'static> Drop for Pending<M> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // Unless there is nothing to keep, the device may know the memory: from the loans, and by a
        // slice of raw parts or a raw packet also from its address.
        let is_empty = size_of::<M>() == 0 && !std::mem::needs_drop::<M>();
        if is_empty && held.loans.is_empty() {
            return;
        }
        // The last one is waited for first, because it waits for the others.
        let mut points = std::mem::take(&mut self.before);
        points.extend(self.point.take());
        drop(Leaving {
            points,
            held: Some(held),
        });
    }
}

impl<M: Send + 'static> fmt::Debug for Pending<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.point.as_ref().map(|point| &point.fence);
        f.debug_tuple("Pending").field(&fence).finish()
    }
}

#[cfg(test)]
mod tests;
