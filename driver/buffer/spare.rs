// SPDX-License-Identifier: GPL-2.0
//! The buffer that a context released last, for its next registration.
//!
//! A program that registers memory for a short time does so again and again. To allocate a buffer
//! and its lists, to initialise its locks and to free all of that takes as long as to pin a page.
//! So a buffer of user memory that has ended becomes a [`Spare`], with its references to the
//! context, its event slot and the memory of its lists.

use super::{Buffer, State};
use crate::logic::{request::RegisterPlan, suspect::Suspect};
use core::pin::Pin;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Relaxed, Release},
        Arc, UniqueArc,
    },
};

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
        let inner = buffer.inner.lock();
        let is_fit = inner.slot.is_some() && !inner.failed && inner.guests.is_empty();
        drop(inner);
        is_fit.then_some(Self(buffer))
    }

    /// Makes the buffer one of the user memory of `plan`, with nothing pinned yet.
    pub(crate) fn register(mut self, plan: &RegisterPlan) -> Arc<Buffer> {
        let buffer = self.0.as_mut().project();
        *buffer.span = plan.span;
        *buffer.write = plan.write;
        *buffer.interruptible = plan.interruptible;
        buffer.interval.renew();
        let buffer = &self.0;
        buffer.portable.store(plan.portable, Relaxed);
        buffer.published.store(false, Release);
        buffer.handle.store(0, Relaxed);
        buffer.pinned.store(0, Relaxed);
        buffer.reaped_later.store(false, Relaxed);
        buffer.reaped.store(false, Release);
        *buffer.suspect.lock() = Suspect::new();
        let mut inner = buffer.inner.lock();
        inner.state = State::Building;
        inner.made = 0;
        drop(inner);
        self.0.into()
    }
}
