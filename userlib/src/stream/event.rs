// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: points in the work of a stream that others can wait for, with the time.
//!
//! Recording an event submits two packets, which store the device's clock and a count in a *slot*
//! of [shared](super::shared) memory. Other streams wait on the device until the count is high
//! enough; the CPU waits for the fence of the recording stream.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::error::{check_outside, Error, Operation, Result};
use crate::queue::fence::Fence;
use crate::queue::point::Point;
use crate::queue::WhenFull;
use crate::trace::recorder::Traced;
use crate::wait::Wait;

use super::core::{Core, Kept};
use super::future::Reached;
use super::shared::{Shared, Slot};

/// A point in the work of a stream, and the time of the device when it was reached.
///
/// Made by [`Accelerator::event`], and recorded by [`Stream::record`](super::Stream::record). An
/// event that was never recorded is complete. Dropping an event changes nothing for streams that
/// wait for it.
///
/// ```no_run
/// use pinmap::accelerator::{Accelerator, Stream};
/// # fn f(gpu: &Accelerator, up: &Stream, down: &Stream) -> pinmap::Result<()> {
/// let copied = gpu.event()?;
/// // ... copies on `up` ...
/// up.record(&copied)?;
/// down.wait_event(&copied)?; // the device waits, and not this thread
/// // ... work on `down` ...
/// copied.synchronize()?; // this thread waits
/// # Ok(()) }
/// ```
pub struct Event {
    gpu: Accelerator,
    shared: Arc<Shared>,
    /// Held while recording, which may wait for room in the ring.
    recording: Mutex<()>,
    recorded: Mutex<Option<Recorded>>,
}

/// The last recording of an event.
struct Recorded {
    slot: Slot,
    /// The count in the slot when the event is reached.
    count: u64,
    point: Point,
}

impl Accelerator {
    /// Makes an event that was never recorded.
    ///
    /// ```no_run
    /// # use pinmap::accelerator::{Accelerator, Stream};
    /// # use pinmap::Result;
    /// # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
    /// let event = gpu.event()?;
    /// stream.record(&event)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EDEADLK`: this is a host function.
    pub fn event(&self) -> Result<Event> {
        check_outside(Operation::Stream, || "make an event".to_owned())?;
        Ok(Event {
            gpu: self.clone(),
            shared: Shared::of(self.device()),
            recording: Mutex::default(),
            recorded: Mutex::default(),
        })
    }
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, Option<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, core: &Core) -> Result<()> {
        let device = core.device();
        if !self.gpu.device().is_same(device) {
            let attempt = "record an event".to_owned();
            let cause = "it belongs to another context than the stream";
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Stream, attempt, errno, cause));
        }
        // Before locking: a thread that holds the lock may wait for a host function.
        check_outside(Operation::Stream, || "record an event".to_owned())?;
        let _one_after_the_other = self
            .recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A new slot each time: an earlier recording, perhaps of another stream, may still be
        // written.
        let mut slot = self.shared.take(device)?;
        let count = slot.next();
        let submitted = (|| {
            let base = self.shared.reach(device, slot.page())?;
            let mut state = core.lock();
            let queue = state.queue_mut();
            let format = queue.format();
            let packets = [
                format.timestamp(base + slot.time_offset() as u64),
                format.fence_write(base + slot.count_offset() as u64, count),
            ];
            queue.put(Traced::Nothing, 2, packets.into_iter(), WhenFull::Wait)?;
            // This publishes all of it at once.
            queue.quiet_point()
        })();
        match submitted {
            Ok(point) => {
                let now = Recorded { slot, count, point };
                let before = self.lock().replace(now);
                if let Some(before) = before {
                    self.shared.give(before.slot, before.point.fence);
                }
                Ok(())
            }
            Err(error) => {
                // One of the packets may be in the ring, so the device may still write the slot.
                let state = core.lock();
                let queue = state.queue();
                let fence = Fence::new(Arc::clone(queue.handle()), queue.written());
                drop(state);
                self.shared.give(slot, fence);
                Err(error)
            }
        }
    }

    pub(super) fn wait_on(&self, core: &Core) -> Result<()> {
        // Even if there is nothing to wait for, so that it does not work by chance.
        check_outside(Operation::Stream, || "wait for an event".to_owned())?;
        let (page, offset, count, point) = match &*self.lock() {
            Some(recorded) if !recorded.point.fence.is_done() => (
                Arc::clone(recorded.slot.page()),
                recorded.slot.count_offset() as u64,
                recorded.count,
                recorded.point.clone(),
            ),
            _ => return Ok(()),
        };
        let base = core.shared().reach(core.device(), &page)?;
        let Point {
            fence,
            mut dependencies,
            ..
        } = point;
        dependencies.push(fence.clone());
        let mut state = core.lock();
        if Arc::ptr_eq(fence.handle(), state.queue().handle()) {
            // What this queue executes next comes after the event anyway.
            return Ok(());
        }
        state.wait_at((base + offset, count), Kept::Page(page), &dependencies)
    }

    /// Whether the event is complete. If it is, this makes no system call, and later reads see what
    /// was done before the event.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed before, and [`Error::fault`](crate::Error::fault) says why;
    /// `ENODEV`: the device is gone; `EDEADLK`: this is a host function, and the event is not
    /// complete.
    pub fn query(&self) -> Result<bool> {
        self.point().map_or(Ok(true), |point| point.query())
    }

    /// Waits until the event is complete, as it was recorded last.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query); `EDEADLK`: this is a host function.
    pub fn synchronize(&self) -> Result<()> {
        self.point()
            .map_or(Ok(()), |point| point.wait(None).map(drop))
    }

    /// Waits as [`synchronize`](Self::synchronize) does, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize); `ETIMEDOUT`: the time was up first.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<()> {
        self.point()
            .map_or(Ok(()), |point| point.wait_timeout(timeout))
    }

    /// Waits as [`synchronize`](Self::synchronize) does, without blocking the thread, on any
    /// executor. A later recording is not waited for.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub fn synchronize_async(&self) -> Wait<'static, ()> {
        let point = self.point();
        Wait::new(async move {
            match point {
                Some(point) => Reached::new(point).await,
                None => Ok(()),
            }
        })
    }

    /// The point of the last recording.
    fn point(&self) -> Option<Point> {
        let recorded = self.lock();
        recorded.as_ref().map(|recorded| recorded.point.clone())
    }

    /// The time of the device's clock when the event was reached. The clock started when the device
    /// did.
    ///
    /// ```no_run
    /// # fn f(event: &pinmap::accelerator::Event) -> pinmap::Result<()> {
    /// event.synchronize()?; // otherwise it may be too early
    /// println!("{:?} after the device's start", event.time()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the event was never recorded; `EAGAIN`: the event is not complete; otherwise as
    /// for [`query`](Self::query).
    pub fn time(&self) -> Result<Duration> {
        let attempt = "tell when an event was";
        let recorded = self.lock();
        let Some(recorded) = &*recorded else {
            let (errno, cause) = (Errno::EINVAL, "it was never recorded");
            return Err(Error::refused(Operation::Stream, attempt, errno, cause));
        };
        if !recorded.point.query()? {
            return Err(Error::new(Operation::Stream, attempt, Errno::EAGAIN));
        }
        recorded.slot.nanos().map(Duration::from_nanos)
    }

    /// The time from another event to this one by the device's clock, or zero if the other one was
    /// later. Both events must belong to the same device; their streams and contexts may differ.
    ///
    /// # Errors
    ///
    /// As for [`time`](Self::time) of either event; `EINVAL`: the events belong to different
    /// devices.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        let (ours, theirs) = (self.gpu.device(), earlier.gpu.device());
        if ours.path() != theirs.path() {
            let attempt = format!("compare events of {ours} and {theirs}");
            let cause = "each device has its own clock";
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Stream, attempt, errno, cause));
        }
        let time = self.time()?;
        Ok(time.saturating_sub(earlier.time()?))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let recorded = self.recorded.get_mut();
        let recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        if let Some(Recorded { slot, point, .. }) = recorded.take() {
            self.shared.give(slot, point.fence);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded = self.lock();
        let fence = recorded.as_ref().map(|recorded| &recorded.point.fence);
        f.debug_struct("Event").field("recorded", &fence).finish()
    }
}
