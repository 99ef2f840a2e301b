// SPDX-License-Identifier: GPL-2.0
//! Buffers that a context has released and keeps for its next registrations.
//!
//! A program that registers memory for a short time does so again and again. To allocate a buffer
//! and its lists, to initialise its locks and to free all of that takes as long as to pin a page.
//! So a buffer of user memory that has ended becomes a [`Spare`], with its references to the
//! context, its event slot and the memory of its lists.

use super::{Buffer, State};
use crate::logic::{request::RegisterPlan, suspect::Suspect};
use core::pin::Pin;
use kernel::sync::{atomic::Relaxed, Arc, UniqueArc};

/// A buffer of user memory that has ended, to which nobody else has a reference.
pub(crate) struct Spare(Pin<UniqueArc<Buffer>>);

impl Spare {
    /// Takes `buffer`, which has ended, and whose home is the context that keeps the spare. `None`:
    /// somebody else still has a reference, or the buffer cannot be used again.
    pub(crate) fn new(buffer: Arc<Buffer>) -> Option<Self> {
        if !buffer.is_user_memory() || buffer.is_portable() {
            return None;
        }
        let mut buffer = Arc::into_unique_or_drop(buffer)?;
        let mut inner = buffer.inner.lock();
        let is_fit = inner.slot.is_some() && !inner.failed && inner.guests.is_empty();
        inner.state = State::Building;
        inner.made = 0;
        drop(inner);
        if !is_fit {
            return None;
        }
        if buffer.told.load(Relaxed) {
            *buffer.suspect.lock() = Suspect::new();
        }
        let fields = buffer.as_mut().project();
        fields.interval.renew();
        *fields.told.get_mut() = false;
        *fields.published.get_mut() = false;
        *fields.handle.get_mut() = 0;
        *fields.pinned.get_mut() = 0;
        *fields.reaped_later.get_mut() = false;
        *fields.reaped.get_mut() = false;
        Some(Self(buffer))
    }

    /// Makes the buffer one of the user memory of `plan`, with nothing pinned yet.
    pub(crate) fn register(mut self, plan: &RegisterPlan) -> Arc<Buffer> {
        let fields = self.0.as_mut().project();
        *fields.span = plan.span;
        *fields.write = plan.write;
        *fields.interruptible = plan.interruptible;
        *fields.portable.get_mut() = plan.portable;
        self.0.into()
    }
}
