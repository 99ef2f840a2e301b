// SPDX-License-Identifier: MIT OR Apache-2.0
//! Points in the work of a stream that others can wait for, with the time.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::error::{Error, Operation, Result};
use crate::fence::Fence;
use crate::gpu::Gpu;
use crate::host;
use crate::packet::Packet;
use crate::queue::Full;

use super::core::Core;
use super::shared::{Shared, Slot};

/// A point in the work of a stream, and the device's time when it was reached.
///
/// Made by [`Gpu::event`], recorded by [`Stream::record`](super::Stream::record). As long as it was
/// never recorded it is complete. Dropping it changes nothing for those that wait for it.
pub struct Event {
    gpu: Gpu,
    shared: Arc<Shared>,
    /// Held by who records it, also while the ring is full.
    recording: Mutex<()>,
    recorded: Mutex<Option<Recorded>>,
}

/// What an event stands for.
struct Recorded {
    slot: Slot,
    /// What the slot counts then.
    times: u64,
    fence: Fence,
    /// What the stream was waiting for then.
    needs: Vec<Fence>,
}

impl Gpu {
    /// Makes an event, which was never recorded.
    ///
    /// # Errors
    ///
    /// `EDEADLK`: this is a host function.
    pub fn event(&self) -> Result<Event> {
        host::check(Operation::Stream, || "make an event".to_owned())?;
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
        // Before any lock: who has it may wait for a host function.
        host::check(Operation::Stream, || "record an event".to_owned())?;
        let _one_after_the_other = self
            .recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // What is still to be written, by another stream perhaps, must not be taken for this.
        let mut slot = self.shared.take(device)?;
        let times = slot.next();
        let submitted = (|| {
            let base = self.shared.reach(device, slot.page())?;
            let packets = [
                Packet::timestamp(base + slot.time() as u64),
                Packet::fence_write(base + slot.count() as u64, times),
            ];
            let mut state = core.lock();
            let queue = state.queue_mut();
            queue.submit(2, packets.into_iter(), Full::Wait)?;
            state.point()
        })();
        match submitted {
            Ok((fence, needs)) => {
                let now = Recorded {
                    slot,
                    times,
                    fence,
                    needs,
                };
                let before = self.lock().replace(now);
                if let Some(before) = before {
                    self.shared.give(before.slot, before.fence);
                }
                Ok(())
            }
            Err(error) => {
                // One of the packets may be in the ring.
                let state = core.lock();
                let queue = state.queue();
                let fence = Fence::new(Arc::clone(queue.progress()), queue.written());
                drop(state);
                self.shared.give(slot, fence);
                Err(error)
            }
        }
    }

    pub(super) fn wait_on(&self, core: &Core) -> Result<()> {
        // Also where there is nothing to wait for, so that it does not work by chance.
        host::check(Operation::Stream, || "wait for an event".to_owned())?;
        let (page, count, times, fence, mut needs) = match &*self.lock() {
            Some(recorded) if !recorded.fence.is_done() => (
                Arc::clone(recorded.slot.page()),
                recorded.slot.count() as u64,
                recorded.times,
                recorded.fence.clone(),
                recorded.needs.clone(),
            ),
            _ => return Ok(()),
        };
        let base = core.shared().reach(core.device(), &page)?;
        needs.push(fence.clone());
        let mut state = core.lock();
        if Arc::ptr_eq(fence.progress(), state.queue().progress()) {
            // It comes later anyway.
            return Ok(());
        }
        state.wait_at((base + count, times), &page, &needs)
    }

    /// Whether it is complete. What was done before it is seen then. No system call, unless it is
    /// not.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed before, [`Error::fault`](crate::Error::fault) says why;
    /// `ENODEV`: the device is gone; `EDEADLK`: it is not complete, and this is a host function.
    pub fn query(&self) -> Result<bool> {
        match self.point() {
            None => Ok(true),
            Some((fence, needs)) => fence.query(&needs),
        }
    }

    /// Waits until it is complete, as it is recorded now.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query); `EDEADLK`: this is a host function.
    pub fn synchronize(&self) -> Result<()> {
        self.wait(None).map(drop)
    }

    /// As [`synchronize`](Self::synchronize), but not for longer than this. False: the time was up
    /// first.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait(Some(timeout))
    }

    /// What it stands for now, and what that waits for.
    fn point(&self) -> Option<(Fence, Vec<Fence>)> {
        let recorded = self.lock();
        let recorded = recorded.as_ref()?;
        Some((recorded.fence.clone(), recorded.needs.clone()))
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        match self.point() {
            None => Ok(true),
            Some((fence, needs)) => fence
                .progress()
                .wait_needing(fence.value(), &needs, timeout),
        }
    }

    /// The device's clock when it was reached, since the device was made.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it was never recorded; `EAGAIN`: it is not complete; otherwise as for
    /// [`query`](Self::query).
    pub fn time(&self) -> Result<Duration> {
        let attempt = "tell when an event was";
        let recorded = self.lock();
        let Some(recorded) = &*recorded else {
            let (errno, cause) = (Errno::EINVAL, "it was never recorded");
            return Err(Error::refused(Operation::Stream, attempt, errno, cause));
        };
        if !recorded.fence.query(&recorded.needs)? {
            return Err(Error::new(Operation::Stream, attempt, Errno::EAGAIN));
        }
        recorded.slot.nanos().map(Duration::from_nanos)
    }

    /// The device's time from another event to this one; zero, if that was later. Both are of the
    /// same device, perhaps of different streams and contexts.
    ///
    /// # Errors
    ///
    /// As for [`time`](Self::time), of both; `EINVAL`: they are of different devices.
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
        if let Some(Recorded { slot, fence, .. }) = recorded.take() {
            self.shared.give(slot, fence);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded = self.lock();
        let fence = recorded.as_ref().map(|recorded| &recorded.fence);
        f.debug_struct("Event").field("recorded", &fence).finish()
    }
}
