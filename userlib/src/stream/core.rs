// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a stream that its clones share: the queue, and what belongs to it.
//!
//! A stream keeps one queue until it is reset, and then gets another one. Work, scopes and pending
//! memory remember the id of the queue that they began with, so that after a reset they refuse to
//! go on, instead of doing half of the work.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{check_outside, Error, Operation, Result};
use crate::memory::lent::KEPT;
use crate::queue::fence::Fence;
use crate::queue::handle::{Handle, Owner};
use crate::queue::options::StreamOptions;
use crate::queue::point::Point;
use crate::queue::{Queue, WhenFull};
use crate::trace::recorder::Traced;

use super::callbacks::{self, Action};
use super::relay::Relays;
use super::served::{Serve, Served, Serving};
use super::shared::{Page, Shared};

/// How long a wait for a host function leaves alone what else may have happened.
const STEP: Duration = Duration::from_millis(250);
/// The cause with which a queue is poisoned that is reset without having failed.
const RESET: &str = "the stream was reset";

/// The state that the clones of a stream share.
pub(crate) struct Core {
    gpu: Accelerator,
    options: StreamOptions,
    shared: Arc<Shared>,
    /// Id of the queue.
    id: AtomicU64,
    me: Weak<Self>,
    /// The ways to other devices through host memory.
    relays: Relays,
    state: Served<State>,
}

/// State that submitting changes.
pub(crate) struct State {
    /// `None` only while the stream is being dropped.
    queue: Option<Queue>,
    /// Host functions that were submitted to the queue.
    calls: u64,
    /// Memory that wait packets read, each with the number of packets executed when that is over.
    waits: VecDeque<(u64, Kept)>,
}

/// Memory that a wait packet reads.
pub(super) enum Kept {
    /// A page of slots, in which events are recorded.
    Page(#[expect(dead_code, reason = "it is only kept")] Arc<Page>),
    /// The fence of another queue.
    Fence(#[expect(dead_code, reason = "it is only kept")] Fence),
}

impl State {
    fn new(queue: Queue) -> Self {
        Self {
            queue: Some(queue),
            calls: 0,
            waits: VecDeque::new(),
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        match &self.queue {
            Some(queue) => queue,
            None => unreachable!("nobody has a stream that is being dropped"),
        }
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        match &mut self.queue {
            Some(queue) => queue,
            None => unreachable!("nobody has a stream that is being dropped"),
        }
    }

    /// Has what is submitted next wait until the device finds a number of at least `value` at
    /// `addr`, which is in `kept`. `dependencies` are the fences that this wait is for, its own
    /// last. The device is told of the wait together with what is submitted next, or waited for.
    pub(super) fn wait_at(
        &mut self,
        (addr, value): (u64, u64),
        kept: Kept,
        dependencies: &[Fence],
    ) -> Result<()> {
        let executed = self.queue().handle().executed();
        // They are over in this order.
        while self
            .waits
            .front()
            .is_some_and(|(until, _)| *until <= executed)
        {
            self.waits.pop_front();
        }
        let queue = self.queue_mut();
        queue.forget_reached();
        dependencies.iter().for_each(|fence| queue.depend_on(fence));
        let packet = queue.format().fence_wait(addr, value);
        let what = dependencies
            .last()
            .map_or(Traced::Nothing, Traced::wait_for);
        queue.put(what, 1, std::iter::once(packet), WhenFull::Wait)?;
        let until = queue.written();
        self.waits.push_back((until, kept));
        Ok(())
    }
}

impl Serve for State {
    fn serve(&mut self, wanted: u64) {
        self.queue_mut().interrupt_if(wanted);
    }
}

impl Owner for Core {
    fn interrupt_at(&self, queue: u64, value: u64) {
        // A queue from before a reset is destroyed.
        if self.id() == queue {
            self.state.want(value);
        }
    }
}

/// The end of a scope, for one of its streams.
pub(super) enum Ending {
    /// The work ends at this point.
    At(Point),
    /// There is no such point, and this queue must be destroyed.
    Nowhere(Arc<Handle>, Error),
    /// The stream was reset, which has ended the work.
    Reset(Error),
}

impl Core {
    pub(super) fn new(gpu: &Accelerator, options: StreamOptions) -> Result<Arc<Self>> {
        callbacks::prepare()?;
        let queue = gpu.queue(options)?;
        let shared = Shared::of(gpu.device());
        let core = Self::of(gpu.clone(), options, shared, queue);
        core.shared.join(&core);
        Ok(core)
    }

    fn of(
        gpu: Accelerator,
        options: StreamOptions,
        shared: Arc<Shared>,
        queue: Queue,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            queue.handle().belong_to(me.clone());
            Self {
                gpu,
                options,
                shared,
                id: AtomicU64::new(queue.id()),
                me: me.clone(),
                relays: Relays::default(),
                state: Served::new(State::new(queue)),
            }
        })
    }

    pub(super) fn lock(&self) -> Serving<'_, State> {
        self.state.lock()
    }

    /// Locks the state, unless the stream was reset since it had this queue.
    pub(super) fn lock_of(&self, queue: u64) -> Result<Serving<'_, State>> {
        let state = self.lock();
        if state.queue().id() == queue {
            return Ok(state);
        }
        let attempt = format!("submit to queue {queue} of {}", self.device());
        Err(Error::refused(
            Operation::Submit,
            attempt,
            Errno::EIO,
            RESET,
        ))
    }

    /// Fails inside a host function. To be called before locking: a thread that holds the lock may
    /// wait for that function.
    fn check_outside(&self) -> Result<()> {
        check_outside(Operation::Submit, || format!("use stream {}", self.id()))
    }

    /// Begins to submit work, which is published when the queue is unheld. Returns its handle.
    pub(super) fn begin(&self) -> Result<Arc<Handle>> {
        let mut state = self.lock();
        let queue = state.queue_mut();
        queue.handle().check(Operation::Submit, "add to")?;
        queue.hold();
        Ok(Arc::clone(queue.handle()))
    }

    /// Begins to submit work as [`begin`](Self::begin) does, behind a point of this stream or
    /// another one of the same context. `before` is that stream, if there still is one.
    pub(super) fn begin_behind(
        &self,
        point: Option<&Point>,
        before: &Weak<Self>,
    ) -> Result<Arc<Handle>> {
        let Some(point) = point else {
            return self.begin();
        };
        let fence = &point.fence;
        if !fence.device().is_same(self.device()) {
            let attempt = format!("submit to stream {}", self.id());
            let cause = "the work before it belongs to another context";
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Submit, attempt, errno, cause));
        }
        let handle = self.begin()?;
        if fence.is_done() || Arc::ptr_eq(fence.handle(), &handle) {
            return Ok(handle);
        }
        let first = before.upgrade();
        let waited = match first.filter(|first| first.id() == fence.queue()) {
            // By a slot, which stays when that stream is reset or dropped.
            Some(first) => self.gpu.event().and_then(|event| {
                event.record(&first)?;
                event.wait_on(self)
            }),
            None => self.wait_for_remains(point, &handle),
        };
        if waited.is_err() {
            if let Ok(mut state) = self.lock_of(handle.id()) {
                let _ = state.queue_mut().unhold();
            }
        }
        waited.map(|()| handle)
    }

    /// Waits on the device for a point of a stream that was dropped, by the fence of its queue.
    fn wait_for_remains(&self, point: &Point, handle: &Handle) -> Result<()> {
        let fence = &point.fence;
        fence.handle().keep();
        // From here on it is kept if it is not reached yet.
        if fence.is_done() {
            return Ok(());
        }
        let mut dependencies = point.dependencies.clone();
        dependencies.push(fence.clone());
        let mut state = self.lock_of(handle.id())?;
        state.wait_at(fence.target(), Kept::Fence(fence.clone()), &dependencies)
    }

    /// Id of the queue.
    pub(super) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    pub(super) fn accelerator(&self) -> &Accelerator {
        &self.gpu
    }

    pub(super) fn device(&self) -> &Device {
        self.gpu.device()
    }

    pub(super) fn options(&self) -> StreamOptions {
        self.options
    }

    pub(super) fn relays(&self) -> &Relays {
        &self.relays
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The point behind everything that was submitted.
    pub(super) fn point(&self) -> Result<Point> {
        self.check_outside()?;
        let mut state = self.lock();
        let queue = state.queue_mut();
        queue.handle().check(Operation::Submit, "add to")?;
        queue.point()
    }

    pub(super) fn query(&self) -> Result<bool> {
        let Some(mut state) = self.state.try_lock() else {
            // Another thread is submitting.
            return Ok(false);
        };
        let point = state.queue_mut().point()?;
        drop(state);
        point.query()
    }

    /// Begins to end a scope in which the stream had this queue: publishes the point to wait for.
    pub(super) fn begin_finish(&self, queue: u64) -> Ending {
        match self.lock_of(queue) {
            Ok(mut state) => match state.queue_mut().point_for_memory() {
                Ok(point) => Ending::At(point),
                Err(error) => Ending::Nowhere(Arc::clone(state.queue().handle()), error),
            },
            Err(error) => Ending::Reset(error),
        }
    }

    /// Ends a scope: when this returns, the device does nothing more of what was submitted. If that
    /// cannot be waited for, or takes longer than `patience`, the queue is destroyed.
    pub(super) fn finish(&self, ending: Ending, patience: Option<Duration>) -> Result<()> {
        let point = match ending {
            Ending::At(point) => point,
            Ending::Nowhere(handle, error) => {
                handle.destroy()?;
                return Err(error);
            }
            Ending::Reset(error) => return Err(error),
        };
        let waited = match patience {
            Some(patience) => point.wait_timeout(patience),
            None => point.wait(None).map(drop),
        };
        waited.or_else(|error| {
            point.handle().destroy()?;
            Err(error)
        })
    }

    /// Poisons a queue whose memory could not be released, unless the stream was reset since it had
    /// this queue.
    pub(super) fn give_up(&self, queue: u64) {
        let handle = match self.lock_of(queue) {
            Ok(state) => Arc::clone(state.queue().handle()),
            Err(_) => return,
        };
        handle.poison(KEPT);
    }

    /// Waits for everything that was submitted, but no longer than `timeout`. Returns false if the
    /// time was up first.
    pub(super) fn synchronize(&self, timeout: Option<Duration>) -> Result<bool> {
        self.check_outside()?;
        let start = Instant::now();
        let mut state = self.lock();
        let queue = state.queue_mut();
        queue.handle().check(Operation::Submit, "add to")?;
        let point = match queue.awaited_calls() {
            // A host function was submitted last. It knows first that it has run, and everything
            // before it was done then.
            Some(calls) => {
                let handle = Arc::clone(queue.handle());
                drop(state);
                let step = timeout.map_or(STEP, |timeout| timeout.min(STEP));
                if handle.wait_for_call(calls, step) {
                    return Ok(true);
                }
                self.point()?
            }
            None => queue.point()?,
        };
        point.wait(timeout.map(|timeout| timeout.saturating_sub(start.elapsed())))
    }

    /// Submits a host function. Fails if the stream was reset since it had this queue.
    pub(super) fn call(
        &self,
        queue: Option<u64>,
        function: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        self.submit_call(queue, function, |_| Ok(()))
    }

    /// Submits a host function as [`call`](Self::call) does, and returns the point behind it.
    pub(super) fn call_to(
        &self,
        queue: Option<u64>,
        function: Box<dyn FnOnce() + Send>,
    ) -> Result<Point> {
        self.submit_call(queue, function, Queue::point)
    }

    fn submit_call<T>(
        &self,
        queue: Option<u64>,
        function: Box<dyn FnOnce() + Send>,
        behind: impl FnOnce(&mut Queue) -> Result<T>,
    ) -> Result<T> {
        self.check_outside()?;
        let mut state = match queue {
            Some(queue) => self.lock_of(queue)?,
            None => self.lock(),
        };
        let calls = state.calls + 1;
        let queue = state.queue_mut();
        queue.handle().check(Operation::Submit, "add to")?;
        let point = queue.point()?;
        queue.await_calls(calls)?;
        state.calls = calls;
        let behind = behind(state.queue_mut());
        // Unlocked first: a failure drops the function, which may use the stream.
        drop(state);
        callbacks::call_at(point, calls, function)?;
        behind
    }

    pub(super) fn reset(&self) -> Result<()> {
        check_outside(Operation::Stream, || "reset a stream".to_owned())?;
        let mut state = self.lock();
        let queue = self.gpu.queue(self.options)?;
        let handle = state.queue().handle();
        if matches!(handle.stopped(), Ok(None)) {
            handle.poison(RESET);
        }
        handle.destroy()?;
        self.id.store(queue.id(), Ordering::Relaxed);
        queue.handle().belong_to(self.me.clone());
        *state = State::new(queue);
        self.state.forget();
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let waits = std::mem::take(&mut state.waits);
        let Some(mut queue) = state.queue.take() else {
            return;
        };
        let point = queue.point_for_memory();
        let remains = Remains {
            queue,
            _waits: waits,
            _relays: std::mem::take(&mut self.relays),
            _shared: Arc::clone(&self.shared),
        };
        let Ok(point) = point else { return };
        if point.is_passed() {
            return;
        }
        // A drop must not wait, so without a thread the queue stays until the process ends.
        let _ = callbacks::when(point, Action::Drop(Box::new(remains)));
    }
}

/// The parts of a dropped stream that are kept while the device still works for it.
struct Remains {
    queue: Queue,
    _waits: VecDeque<(u64, Kept)>,
    _relays: Relays,
    _shared: Arc<Shared>,
}

impl Drop for Remains {
    fn drop(&mut self) {
        let handle = self.queue.handle();
        // Not left to the handle, which events may keep; unless another queue reads its fence.
        if !handle.is_kept() {
            let _ = handle.destroy();
        }
    }
}

#[cfg(test)]
impl Core {
    /// A stream without a driver.
    pub(super) fn fake(queue: Queue) -> Arc<Self> {
        let (gpu, options) = (Accelerator::fake(), StreamOptions::new());
        Self::of(gpu, options, Arc::default(), queue)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", self.device())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
