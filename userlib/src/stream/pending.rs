// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that was handed over to work in flight.

use std::fmt;
use std::sync::Arc;

use nix::errno::Errno;

use crate::error::{ErrorWith, Operation, Result};
use crate::fence::{Fence, Progress};
use crate::host::{self, Action};

use super::core::{Core, KEPT};
use super::parked::Parked;
use super::work::{Kept, Work};

/// Memory that was handed over to a stream, until what was submitted with it is done.
///
/// Made by [`Stream::submit`](super::Stream::submit). Dropped, it returns at once, and the memory is dropped when the work
/// is done, by a thread of this crate, as in a host function: what that drops must not wait. Then a
/// stream that waits for one that has failed is given up. Forgotten ([`std::mem::forget`]), the memory stays as long as the process lives.
#[must_use = "dropped, it drops the memory when the work is done"]
pub struct Pending<M: Send + 'static> {
    fence: Fence,
    needs: Vec<Fence>,
    /// The fence may have been written by a packet made by hand: the device is asked as well.
    by_hand: bool,
    /// None only once it was taken.
    held: Option<Held<M>>,
}

/// The memory, and what was registered for the work.
struct Held<M> {
    /// None only once it was taken.
    memory: Option<Parked<M>>,
    kept: Arc<Kept>,
}

impl<M> Held<M> {
    fn into_memory(mut self) -> M {
        // Before the memory, of which it may be a part. If it fails the device is gone.
        let _ = self.kept.release();
        match self.memory.take() {
            Some(memory) => memory.into_inner(),
            None => unreachable!("only this takes it, and that consumes it"),
        }
    }
}

impl<M> Drop for Held<M> {
    fn drop(&mut self) {
        // As above.
        let _ = self.kept.release();
    }
}

/// Work that is being submitted: dropped by a panic, it waits for what there is of it.
struct Submitting<'a, M: Send + 'static> {
    core: &'a Arc<Core>,
    /// Of the queue that it began with.
    progress: Arc<Progress>,
    held: Option<Held<M>>,
}

impl<M: Send + 'static> Submitting<'_, M> {
    /// Tells the device of it.
    fn end(&mut self) -> Option<Pending<M>> {
        let held = self.held.take()?;
        // What goes wrong here, or that the stream was reset, waiting tells: the point is never reached.
        let mut pending = Pending {
            fence: Fence::new(Arc::clone(&self.progress), u64::MAX),
            needs: Vec::new(),
            by_hand: false,
            held: Some(held),
        };
        if let Ok(mut state) = self.core.lock_of(self.progress.id()) {
            let _ = state.queue_mut().unhold();
            pending.by_hand = state.queue().is_by_hand();
            if let Ok((fence, needs)) = state.point() {
                pending.fence = fence;
                pending.needs = needs;
            }
        }
        Some(pending)
    }
}

impl<M: Send + 'static> Drop for Submitting<'_, M> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl<M: Send + 'static> Pending<M> {
    pub(super) fn new<F>(core: &Arc<Core>, memory: M, work: F) -> Result<Self>
    where
        F: for<'w> FnOnce(&Work<'w>, &'w mut M) -> Result<()>,
    {
        // Before the lock: who has it may wait for a host function.
        host::check(Operation::Submit, || "submit work".to_owned())?;
        let progress = {
            let mut state = core.lock();
            let progress = Arc::clone(state.queue().progress());
            progress.check(Operation::Submit, "add to")?;
            state.queue_mut().hold();
            progress
        };
        let kept = Arc::default();
        let handle = Work::new(core, progress.id(), &kept);
        let mut submitting = Submitting {
            core,
            progress,
            held: Some(Held {
                memory: Some(Parked::new(memory)),
                kept,
            }),
        };
        let memory = submitting
            .held
            .as_mut()
            .and_then(|held| held.memory.as_mut());
        let result = memory.map_or(Ok(()), |memory| work(&handle, memory.get_mut()));
        let pending = submitting.end();
        result?;
        match pending {
            Some(pending) => Ok(pending),
            None => unreachable!("only `end` takes it"),
        }
    }

    /// Whether the work is done, without asking the driver whether it ever will be: no system call.
    pub fn is_done(&self) -> bool {
        self.fence.is_done()
    }

    /// Whether the work is done.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, [`Error::fault`](crate::Error::fault) says why; `ENODEV`: the
    /// device is gone; `EDEADLK`: it is not done, and this is a host function.
    pub fn query(&self) -> Result<bool> {
        self.fence.query(&self.needs)
    }

    /// Waits until the work is done, and gives the memory back.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, [`Error::fault`](crate::Error::fault) says why, or was reset before it
    /// was done, or memory of [`Work::copy_to`] could not be taken back from the device, as for
    /// [`scope()`](super::scope()); `ENODEV`: the device is gone. Then
    /// [`try_into_memory`](Self::try_into_memory) gives the memory back. `EDEADLK`: this is a host
    /// function.
    pub fn wait(self) -> Result<M, ErrorWith<Self>> {
        let progress = self.fence.progress();
        match self.fence.wait_for_ever(&self.needs, self.by_hand) {
            Ok(()) => match self.release() {
                Ok(()) => Ok(self.into_memory()),
                Err(error) => {
                    progress.spoil(KEPT);
                    Err(ErrorWith { error, value: self })
                }
            },
            Err(error) => {
                if !host::is_inside() && progress.stopped().is_ok_and(|stop| stop.is_none()) {
                    // It waits for one that has stopped.
                    progress.spoil("work that it waits for cannot be done");
                }
                Err(ErrorWith { error, value: self })
            }
        }
    }

    /// The memory, if the device does nothing with it any more: the work is done, or the stream has
    /// failed. Does not wait. In a host function, only if it is done.
    ///
    /// # Errors
    ///
    /// This itself: not yet.
    pub fn try_into_memory(self) -> Result<M, Self> {
        let has_ended = || match self.fence.progress().stopped() {
            Ok(stop) => stop.is_some(),
            // Told so, the device does nothing any more. Any other error says nothing about it.
            Err(error) => error.errno() == Errno::ENODEV as i32,
        };
        if self.fence.is_passed(self.by_hand) || has_ended() {
            Ok(self.into_memory())
        } else {
            Err(self)
        }
    }

    /// What was registered for the work, which is done.
    fn release(&self) -> Result<()> {
        self.held
            .as_ref()
            .map_or(Ok(()), |held| held.kept.release())
    }

    fn into_memory(mut self) -> M {
        match self.held.take() {
            Some(held) => held.into_memory(),
            None => unreachable!("only this takes it, and that consumes it"),
        }
    }
}

impl<M: Send + 'static> Drop for Pending<M> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // What has nothing to drop, and of which nothing was registered, the device does not know.
        let is_known = std::mem::needs_drop::<M>() || !held.kept.is_empty();
        if is_known && !self.fence.is_passed(self.by_hand) {
            let needs = std::mem::take(&mut self.needs);
            let action = Action::Drop(Box::new(held), self.by_hand);
            // Without a thread it stays as long as the process: it may not be waited for here.
            let _ = host::when(self.fence.clone(), needs, action);
        }
    }
}

impl<M: Send + 'static> fmt::Debug for Pending<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.fence).finish()
    }
}
