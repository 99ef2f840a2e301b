// SPDX-License-Identifier: GPL-2.0
//! Events: what a program is told by `read()`, `poll()` and eventfd.
//!
//! Sending an event must not allocate, since MMU notifiers and interrupts do it. So memory for each
//! event, an [`EventSlot`], is reserved when the object is made that may send it. An event that was
//! not read yet can be withdrawn by its [`EventId`], when its object ends. The last event of a
//! context, that its device is gone, needs no slot: it is a state of the queue, and read after all
//! others.

use crate::{
    generations::Generations,
    stats::Stats,
    sys::{
        fs::{
            eventfd::EventFd,
            miscdevice::{HUNG_UP, READABLE},
        },
        task::wait::WaitQueue,
    },
    uapi::{self, pinmap_event},
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{Arc, SpinLock},
    uaccess::UserSliceWriter,
};

/// Memory for one event, reserved beforehand.
pub(crate) struct EventSlot(RBTreeNodeReservation<u64, Entry>);

/// Names an event that was sent.
#[derive(Clone, Copy)]
pub(crate) struct EventId(u64);

/// How far the last event has come: that the device is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    No,
    Unread,
    Read,
}

struct Entry {
    event: pinmap_event,
    /// A reader is copying the event to user space.
    taken: bool,
}

struct Inner {
    /// Events by order of arrival. An event that is being read stays, so that it can be withdrawn.
    ready: RBTree<u64, Entry>,
    /// Number of events that are not taken.
    untaken: usize,
    arrived: u64,
    gone: Gone,
    eventfd: Option<EventFd>,
    /// A slot that was returned, for the next object that needs one.
    spare: Option<EventSlot>,
}

impl Inner {
    fn is_readable(&self) -> bool {
        self.untaken != 0 || (self.gone == Gone::Unread && self.ready.is_empty())
    }

    /// Takes the oldest event that no reader has taken.
    fn take_first(&mut self) -> Option<(u64, pinmap_event)> {
        if self.untaken == 0 {
            return None;
        }
        let (&id, entry) = self.ready.iter_mut().find(|(_, entry)| !entry.taken)?;
        entry.taken = true;
        self.untaken = self.untaken.saturating_sub(1);
        Some((id, entry.event))
    }

    fn give_back(&mut self, id: u64) {
        if let Some(entry) = self.ready.get_mut(&id) {
            entry.taken = false;
            self.untaken = self.untaken.saturating_add(1);
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(entry) = self.ready.remove(&id) {
            if !entry.taken {
                self.untaken = self.untaken.saturating_sub(1);
            }
        }
    }
}

/// The next thing to be read.
enum Next {
    /// An event, with its number. The last event has no number.
    Event(pinmap_event, Option<u64>),
    Nothing,
    End,
}

#[pin_data]
pub(crate) struct EventQueue {
    stats: Arc<Stats>,
    #[pin]
    inner: SpinLock<Inner>,
    #[pin]
    waiters: WaitQueue,
    #[pin]
    generations: Generations,
}

impl EventQueue {
    /// Makes an empty queue for the context of `stats`.
    pub(crate) fn new(stats: Arc<Stats>) -> Result<Arc<Self>> {
        let inner = Inner {
            ready: RBTree::new(),
            untaken: 0,
            arrived: 0,
            gone: Gone::No,
            eventfd: None,
            spare: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                stats,
                inner <- new_spinlock!(inner, "pinmap_events"),
                waiters <- WaitQueue::new(),
                generations <- Generations::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The statistics of the context.
    pub(crate) fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The counters that tell user space without a system call, and without details.
    pub(crate) fn generations(&self) -> &Generations {
        &self.generations
    }

    /// Reserves memory for one event.
    pub(crate) fn reserve(&self) -> Result<EventSlot> {
        if let Some(slot) = self.inner.lock().spare.take() {
            return Ok(slot);
        }
        Ok(EventSlot(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }

    /// Returns a slot that was not needed.
    pub(crate) fn return_slot(&self, slot: EventSlot) {
        let before = self.inner.lock().spare.replace(slot);
        drop(before);
    }

    /// Sends `event`. From any context that may take a spinlock.
    pub(crate) fn push(&self, slot: EventSlot, event: pinmap_event) -> EventId {
        let mut inner = self.inner.lock();
        let id = inner.arrived;
        inner.arrived = id.wrapping_add(1);
        let entry = Entry {
            event,
            taken: false,
        };
        inner.ready.insert(slot.0.into_node(id, entry));
        inner.untaken = inner.untaken.saturating_add(1);
        self.notify(&inner);
        EventId(id)
    }

    /// Takes back an event that was not read.
    pub(crate) fn withdraw(&self, id: EventId) {
        let mut inner = self.inner.lock();
        inner.remove(id.0);
        // A reader may wait for the last event, which comes after this one.
        self.waiters.wake_up();
    }

    /// Sends the last event: the device is gone.
    pub(crate) fn push_gone(&self) {
        let mut inner = self.inner.lock();
        if inner.gone == Gone::No {
            inner.gone = Gone::Unread;
            self.notify(&inner);
        }
    }

    /// Wakes readers, and signals the eventfd.
    fn notify(&self, inner: &Inner) {
        if let Some(eventfd) = &inner.eventfd {
            eventfd.signal();
        }
        self.waiters.wake_up();
    }

    /// Signals `eventfd` for each event from now on, and at once if there is something to read.
    pub(crate) fn set_eventfd(&self, eventfd: Option<EventFd>) {
        let mut inner = self.inner.lock();
        if let Some(eventfd) = eventfd.as_ref().filter(|_| inner.is_readable()) {
            eventfd.signal();
        }
        let old = core::mem::replace(&mut inner.eventfd, eventfd);
        drop(inner);
        // Outside of the spinlock, since it may be the last reference.
        drop(old);
    }

    /// Writes whole events to `out`; waits for the first one if `may_wait`.
    pub(crate) fn read(&self, out: &mut UserSliceWriter, may_wait: bool) -> Result<usize> {
        if out.len() < size_of::<pinmap_event>() {
            return Err(EINVAL);
        }
        let mut written = 0_usize;
        while out.len() >= size_of::<pinmap_event>() {
            let (event, id) = match self.next(may_wait && written == 0)? {
                Next::Event(event, id) => (event, id),
                Next::Nothing if written == 0 => return Err(EAGAIN),
                Next::Nothing | Next::End => break,
            };
            let result = out.write(&event);
            self.finish_read(id, result.is_ok());
            if let Err(error) = result {
                return if written == 0 {
                    Err(error)
                } else {
                    Ok(written)
                };
            }
            written = written.saturating_add(size_of::<pinmap_event>());
        }
        Ok(written)
    }

    fn next(&self, may_wait: bool) -> Result<Next> {
        let mut inner = self.inner.lock();
        loop {
            if let Some((id, event)) = inner.take_first() {
                return Ok(Next::Event(event, Some(id)));
            }
            match inner.gone {
                // The last event comes after events that another reader is still copying.
                Gone::Unread if inner.ready.is_empty() => {
                    inner.gone = Gone::Read;
                    let event = pinmap_event {
                        type_: uapi::PINMAP_EVENT_GONE,
                        ..pinmap_event::default()
                    };
                    return Ok(Next::Event(event, None));
                }
                Gone::Read => return Ok(Next::End),
                _ if !may_wait => return Ok(Next::Nothing),
                _ => {
                    drop(inner);
                    self.waiters.wait_interruptible(|| {
                        let inner = self.inner.lock();
                        inner.is_readable() || inner.gone == Gone::Read
                    })?;
                    inner = self.inner.lock();
                }
            }
        }
    }

    /// Removes an event that was copied to user space, or makes it readable again.
    fn finish_read(&self, id: Option<u64>, written: bool) {
        let mut inner = self.inner.lock();
        match id {
            Some(id) if written => inner.remove(id),
            Some(id) => inner.give_back(id),
            None if written => {}
            None => inner.gone = Gone::Unread,
        }
        self.waiters.wake_up();
    }

    /// Returns the queue of those who wait for something to read.
    pub(crate) fn waiters(&self) -> &WaitQueue {
        &self.waiters
    }

    /// Answers `poll()`.
    pub(crate) fn readiness(&self) -> u32 {
        let inner = self.inner.lock();
        let readable = if inner.is_readable() { READABLE } else { 0 };
        let gone = if inner.gone == Gone::No {
            0
        } else {
            HUNG_UP | READABLE
        };
        readable | gone
    }
}
