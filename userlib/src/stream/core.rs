// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the clones of a stream share: its queue, and what goes with that.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::fence::Fence;
use crate::gpu::Gpu;
use crate::host::{self, Action};
use crate::packet::Packet;
use crate::queue::{Full, Queue};

use super::options::StreamOptions;
use super::shared::{Page, Shared};

/// Why a stream does nothing more whose memory the device has kept.
pub(super) const KEPT: &str = "memory of it could not be taken back from the device";
/// Why work of a stream is not done that had not failed.
const RESET: &str = "the stream was reset";

/// A stream.
pub(crate) struct Core {
    gpu: Gpu,
    options: StreamOptions,
    shared: Arc<Shared>,
    /// Of its queue.
    id: AtomicU64,
    state: Mutex<State>,
}

/// What changes when something is submitted.
pub(crate) struct State {
    /// None only while it is dropped.
    queue: Option<Queue>,
    /// Host functions of the queue so far.
    calls: u64,
    /// Pages that packets wait at, and how many packets are executed when they no longer do.
    waits: Vec<(u64, Arc<Page>)>,
}

impl State {
    fn new(queue: Queue) -> Self {
        Self {
            queue: Some(queue),
            calls: 0,
            waits: Vec::new(),
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        match &self.queue {
            Some(queue) => queue,
            None => unreachable!("nobody has it any more once it is dropped"),
        }
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        match &mut self.queue {
            Some(queue) => queue,
            None => unreachable!("nobody has it any more once it is dropped"),
        }
    }

    /// The point behind all that was submitted.
    pub(super) fn mark(&mut self) -> Result<Fence> {
        let queue = self.queue_mut();
        let value = queue.mark()?;
        Ok(Fence::new(Arc::clone(queue.progress()), value))
    }

    /// That, and what it waits for.
    pub(super) fn point(&mut self) -> Result<(Fence, Vec<Fence>)> {
        let fence = self.mark()?;
        Ok((fence, self.queue().needs().to_vec()))
    }

    /// Has what comes next wait until the device finds a number at least this high; `needs` is
    /// what it waits for in the end.
    pub(super) fn wait_at(
        &mut self,
        (addr, value): (u64, u64),
        page: &Arc<Page>,
        needs: &[Fence],
    ) -> Result<()> {
        let executed = self.queue().progress().executed();
        self.waits.retain(|(until, _)| *until > executed);
        let queue = self.queue_mut();
        queue.forget_reached();
        needs.iter().for_each(|fence| queue.need(fence));
        let packet = Packet::fence_wait(addr, value);
        queue.submit(1, std::iter::once(packet), Full::Wait)?;
        let until = queue.written();
        self.waits.push((until, Arc::clone(page)));
        Ok(())
    }
}

/// The end of a scope, as far as one stream goes.
pub(super) struct Ending {
    /// The stream was reset, which ended it.
    is_over: bool,
    /// The fence may have been written by a packet made by hand: the device is asked as well.
    by_hand: bool,
    point: Result<(Fence, Vec<Fence>)>,
}

impl Core {
    pub(super) fn new(gpu: &Gpu, options: StreamOptions) -> Result<Arc<Self>> {
        host::prepare()?;
        let queue = gpu.queue(options.queue(gpu))?;
        let shared = Shared::of(gpu.device());
        let core = Arc::new(Self {
            gpu: gpu.clone(),
            options,
            shared,
            id: AtomicU64::new(queue.id()),
            state: Mutex::new(State::new(queue)),
        });
        core.shared.join(&core);
        Ok(core)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves the ring as it was before, or with a packet more.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That, unless it was reset since it had the queue of that name.
    pub(super) fn lock_of(&self, queue: u64) -> Result<MutexGuard<'_, State>> {
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

    /// An error in a host function, before the lock: who has it may wait for that function.
    fn check_outside(&self) -> Result<()> {
        host::check(Operation::Submit, || format!("use stream {}", self.id()))
    }

    /// Of its queue.
    pub(super) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn device(&self) -> &Device {
        self.gpu.device()
    }

    pub(super) fn options(&self) -> StreamOptions {
        self.options
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The point behind all that was submitted, and what it waits for.
    pub(super) fn point(&self) -> Result<(Fence, Vec<Fence>)> {
        self.check_outside()?;
        let mut state = self.lock();
        state
            .queue()
            .progress()
            .check(Operation::Submit, "add to")?;
        state.point()
    }

    pub(super) fn query(&self) -> Result<bool> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            // Somebody is submitting.
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let (fence, needs) = state.point()?;
        drop(state);
        fence.query(&needs)
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let (fence, needs) = self.point()?;
        fence
            .progress()
            .wait_needing(fence.value(), &needs, timeout)
    }

    /// Begins to end a scope in which it had the queue of that name: tells the device to say when it is
    /// there.
    pub(super) fn begin_finish(&self, queue: u64) -> Ending {
        match self.lock_of(queue) {
            Ok(mut state) => Ending {
                is_over: false,
                by_hand: state.queue().is_by_hand(),
                point: state.point(),
            },
            Err(error) => Ending {
                is_over: true,
                by_hand: false,
                point: Err(error),
            },
        }
    }

    /// Ends a scope: afterwards the device does nothing any more of what was submitted. If it
    /// cannot be waited for, the queue is destroyed.
    pub(super) fn finish(&self, ending: Ending) -> Result<()> {
        let (fence, needs) = match ending.point {
            Ok(point) => point,
            Err(error) => {
                // Also if it has failed, or this is refused: it must come to an end.
                if !ending.is_over {
                    self.lock().queue().progress().destroy()?;
                }
                return Err(error);
            }
        };
        match fence.wait_for_ever(&needs, ending.by_hand) {
            Ok(()) => Ok(()),
            Err(error) => {
                fence.progress().destroy()?;
                Err(error)
            }
        }
    }

    /// Destroys the queue of that name, unless the stream was reset since.
    pub(super) fn give_up(&self, queue: u64) {
        let progress = match self.lock_of(queue) {
            Ok(state) => Arc::clone(state.queue().progress()),
            Err(_) => return,
        };
        progress.spoil(KEPT);
    }

    pub(super) fn call(&self, function: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.check_outside()?;
        let mut state = self.lock();
        let progress = Arc::clone(state.queue().progress());
        progress.check(Operation::Submit, "add to")?;
        let (fence, needs) = state.point()?;
        let calls = state.calls + 1;
        let packet = Packet::fence_wait(progress.calls_addr(), calls);
        state
            .queue_mut()
            .submit(1, std::iter::once(packet), Full::Wait)?;
        state.calls = calls;
        // If it fails it drops the function, which may use the stream.
        drop(state);
        host::when(fence, needs, Action::Call(calls, function))
    }

    pub(super) fn reset(&self) -> Result<()> {
        host::check(Operation::Stream, || "reset a stream".to_owned())?;
        let mut state = self.lock();
        let queue = self.gpu.queue(self.options.queue(&self.gpu))?;
        let progress = state.queue().progress();
        if matches!(progress.stopped(), Ok(None)) {
            progress.spoil(RESET);
        }
        progress.destroy()?;
        self.id.store(queue.id(), Ordering::Relaxed);
        *state = State::new(queue);
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let waits = std::mem::take(&mut state.waits);
        let Some(mut queue) = state.queue.take() else {
            return;
        };
        let progress = Arc::clone(queue.progress());
        let marked = queue.mark();
        let end = End {
            queue,
            _waits: waits,
            _shared: Arc::clone(&self.shared),
        };
        let Ok(value) = marked else { return };
        let by_hand = end.queue.is_by_hand();
        let fence = Fence::new(progress, value);
        if fence.is_passed(by_hand) {
            return;
        }
        let needs = end.queue.needs().to_vec();
        // Without a thread it stays as long as the process: it may not be waited for here.
        let _ = host::when(fence, needs, Action::Drop(Box::new(end), by_hand));
    }
}

/// What a stream leaves behind while the device still works for it.
struct End {
    queue: Queue,
    _waits: Vec<(u64, Arc<Page>)>,
    _shared: Arc<Shared>,
}

impl Drop for End {
    fn drop(&mut self) {
        // Events and the like may still look how far it came.
        let _ = self.queue.progress().destroy();
    }
}

#[cfg(test)]
impl Core {
    /// Without a driver: what it is told can be looked at.
    pub(super) fn fake(queue: Queue) -> Arc<Self> {
        Arc::new(Self {
            gpu: Gpu::fake(),
            options: StreamOptions::new(),
            shared: Arc::default(),
            id: AtomicU64::new(queue.id()),
            state: Mutex::new(State::new(queue)),
        })
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
