// SPDX-License-Identifier: GPL-2.0
//! Buffers that a context has released and keeps for its next registrations.
//!
//! A program that registers memory for a short time does so again and again. To allocate a buffer
//! and its lists, to initialise its locks and to free all of that takes as long as to pin a page.
//! So a buffer of user memory that has ended becomes a [`Spare`], with its references to the
//! context, its event slot and the memory of its lists.

use super::{mappings::MappedAt, Buffer, Life, State};
use crate::{
    logic::{request::RegisterPlan, suspect::Suspect},
    sys::mm::gup::PinnedRuns,
};
use core::{mem::MaybeUninit, pin::Pin};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc, UniqueArc},
};

/// Memory that registering a buffer takes, and reaping it gives back.
#[derive(Default)]
pub(super) struct Kit {
    /// Memory for the first mapping.
    pub(super) place: Option<KBox<MaybeUninit<MappedAt>>>,
    /// Memory for the list of pinned pages.
    pub(super) runs: Option<UniqueArc<PinnedRuns>>,
}

/// A buffer of user memory that has ended, to which nobody else has a reference.
pub(crate) struct Spare(Pin<UniqueArc<Buffer>>);

impl Spare {
    /// Takes `buffer`, which has ended, and whose home is the context that keeps the spare. `None`:
    /// somebody else still has a reference, or the buffer cannot be used again.
    pub(crate) fn new(buffer: Arc<Buffer>) -> Option<Self> {
        if !buffer.is_user_memory() || buffer.is_portable() {
            return None;
        }
        let buffer = Arc::into_unique_or_drop(buffer)?;
        let mut inner = buffer.inner.lock();
        // One that has gone stale has no slot: it was reaped by the worker, has sent its event, and
        // nobody looks at `suspect` any more.
        if inner.failed || inner.slot.is_none() {
            return None;
        }
        // What else the lock protects is empty, or is to be used again.
        inner.state = State::Building;
        drop(inner);
        if buffer.life.told.load(Relaxed) {
            *buffer.suspect.lock() = Suspect::new();
        }
        if buffer.life.exported.load(Relaxed) {
            let left = buffer.exports.lock().take();
            drop(left);
        }
        Some(Self(buffer))
    }

    /// Makes the buffer one of the user memory of `plan`, called `handle` in its home context, with
    /// nothing pinned yet.
    pub(crate) fn register(mut self, plan: &RegisterPlan, handle: u64) -> Arc<Buffer> {
        *self.0.as_mut().project().life = Life::new(plan, handle, 0);
        self.0.into()
    }
}
