// SPDX-License-Identifier: GPL-2.0
//! The contexts that have a portable buffer as a guest, and are told what happens to it.

use super::{Buffer, Inner};
use crate::{
    event::{EventId, EventQueue, EventSlot},
    stats::StatGuard,
};
use kernel::{
    prelude::*,
    sync::{atomic::Acquire, Arc},
};

/// A context that is told when the buffer goes stale, besides its home.
pub(super) struct Subscriber {
    pub(super) events: Arc<EventQueue>,
    /// The buffer's handle there.
    pub(super) handle: u64,
    /// Memory for the event, and the event once it was sent.
    pub(super) slot: Option<EventSlot>,
    pub(super) event: Option<EventId>,
    /// The entry in the context's statistics, once the buffer is stale.
    pub(super) stale: Option<StatGuard>,
}

impl Buffer {
    /// Adds the context of `events`, in which the buffer is called `handle`.
    pub(crate) fn add_guest(&self, events: &Arc<EventQueue>, handle: u64) -> Result {
        let mut guest = Subscriber {
            events: events.clone(),
            handle,
            slot: Some(events.reserve()?),
            event: None,
            stale: None,
        };
        loop {
            let mut inner = self.inner.lock();
            let count = inner.guests.len();
            match inner.guests.push_within_capacity(guest) {
                Ok(()) => return Ok(()),
                Err(full) => guest = full.0,
            }
            drop(inner);
            self.make_room(count, |inner: &mut Inner| &mut inner.guests)?;
        }
    }

    /// Removes the context of `events`, and takes back the event that it has not read.
    pub(crate) fn remove_guest(&self, events: &Arc<EventQueue>) {
        let mut inner = self.inner.lock();
        let index = inner
            .guests
            .iter()
            .position(|guest| Arc::ptr_eq(&guest.events, events));
        let guest = index.and_then(|index| inner.guests.remove(index).ok());
        drop(inner);
        if let Some(event) = guest.and_then(|guest| guest.event) {
            events.withdraw(event);
        }
    }

    /// Increments the generation in all contexts that have the buffer: its memory may have gone
    /// away. Called in an MMU notifier, which must not sleep while the address space is taken from
    /// a process that is ending; then everything in it goes away, and all contexts are told anyhow.
    pub(super) fn bump_generations(&self, may_sleep: bool) {
        let handle = self.handle();
        if handle != 0 {
            self.events.generations().bump(handle);
        }
        if self.is_portable() {
            let inner = if may_sleep {
                Some(self.inner.lock())
            } else {
                self.inner.try_lock()
            };
            for guest in inner.iter().flat_map(|inner| &inner.guests) {
                guest.events.generations().bump(guest.handle);
            }
        }
    }

    /// Takes back an event that was not read yet. The buffer has ended.
    pub(crate) fn withdraw_event(&self) {
        // Whoever sent one has queued the worker, before the buffer ended.
        if !self.reaped_later.load(Acquire) {
            return;
        }
        let event = self.inner.lock().event.take();
        if let Some(event) = event {
            self.events.withdraw(event);
        }
    }
}
