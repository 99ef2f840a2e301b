// SPDX-License-Identifier: GPL-2.0
//! What user space must learn, by read, poll and eventfd.

use crate::{
    generations::Generations,
    ledger::Ledger,
    sys::{
        eventfd::EventFd,
        miscdevice::{HUNG_UP, READABLE},
        uapi::{self, pinmap_event},
    },
};
use kernel::{
    fs::File,
    new_poll_condvar, new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{poll::PollCondVar, poll::PollTable, Arc, SpinLock},
    uaccess::UserSliceWriter,
};

/// Room for one event, set aside beforehand: telling must not allocate.
pub(crate) struct Room(RBTreeNodeReservation<u64, Entry>);

/// Names an event that was queued.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

/// How far the last event has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    No,
    Unread,
    Read,
}

/// An event, and whether somebody is reading it.
struct Entry {
    event: pinmap_event,
    taken: bool,
}

struct Inner {
    /// By order of arrival. What is being read stays, so that it can be withdrawn meanwhile.
    ready: RBTree<u64, Entry>,
    /// Entries that are not taken.
    untaken: usize,
    arrived: u64,
    gone: Gone,
    eventfd: Option<EventFd>,
    /// For the next one that wants it.
    spare: Option<Room>,
}

impl Inner {
    fn is_readable(&self) -> bool {
        self.untaken != 0 || (self.gone == Gone::Unread && self.ready.is_empty())
    }

    /// The oldest that nobody is reading.
    fn take_first(&mut self) -> Option<(u64, pinmap_event)> {
        if self.untaken == 0 {
            return None;
        }
        let (&ticket, entry) = self.ready.iter_mut().find(|(_, entry)| !entry.taken)?;
        entry.taken = true;
        self.untaken = self.untaken.saturating_sub(1);
        Some((ticket, entry.event))
    }

    fn give_back(&mut self, ticket: u64) {
        if let Some(entry) = self.ready.get_mut(&ticket) {
            entry.taken = false;
            self.untaken = self.untaken.saturating_add(1);
        }
    }

    fn remove(&mut self, ticket: u64) {
        if let Some(entry) = self.ready.remove(&ticket) {
            if !entry.taken {
                self.untaken = self.untaken.saturating_sub(1);
            }
        }
    }
}

/// What `read()` takes next.
enum Next {
    /// With its ticket; none: the last event.
    Event(pinmap_event, Option<u64>),
    Nothing,
    End,
}

/// The events of one context.
#[pin_data]
pub(crate) struct Queue {
    ledger: Arc<Ledger>,
    #[pin]
    inner: SpinLock<Inner>,
    #[pin]
    waiters: PollCondVar,
    #[pin]
    generations: Generations,
}

impl Queue {
    /// An empty one, of the context of `ledger`.
    pub(crate) fn new(ledger: Arc<Ledger>) -> Result<Arc<Self>> {
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
                ledger,
                inner <- new_spinlock!(inner, "pinmap_events"),
                waiters <- new_poll_condvar!("pinmap_events"),
                generations <- Generations::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Whose they are.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The same without a system call, and without details.
    pub(crate) fn generations(&self) -> &Generations {
        &self.generations
    }

    /// Sets room aside.
    pub(crate) fn room(&self) -> Result<Room> {
        if let Some(room) = self.inner.lock().spare.take() {
            return Ok(room);
        }
        Ok(Room(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }

    /// It was not needed.
    pub(crate) fn return_room(&self, room: Room) {
        let before = self.inner.lock().spare.replace(room);
        drop(before);
    }

    /// Queues `event`. From any context that may take a spinlock.
    pub(crate) fn push(&self, room: Room, event: pinmap_event) -> Ticket {
        let mut inner = self.inner.lock();
        let ticket = inner.arrived;
        inner.arrived = ticket.wrapping_add(1);
        let entry = Entry {
            event,
            taken: false,
        };
        inner.ready.insert(room.0.into_node(ticket, entry));
        inner.untaken = inner.untaken.saturating_add(1);
        self.tell(&inner);
        Ticket(ticket)
    }

    /// Takes an event back, unless it was read.
    pub(crate) fn withdraw(&self, ticket: Ticket) {
        let mut inner = self.inner.lock();
        inner.remove(ticket.0);
        // The last event may have waited for it.
        self.waiters.notify_all();
    }

    /// The device is gone: the last event.
    pub(crate) fn gone(&self) {
        let mut inner = self.inner.lock();
        if inner.gone == Gone::No {
            inner.gone = Gone::Unread;
            self.tell(&inner);
        }
    }

    fn tell(&self, inner: &Inner) {
        if let Some(eventfd) = &inner.eventfd {
            eventfd.signal();
        }
        self.waiters.notify_all();
    }

    /// Signals `eventfd` from now on, also if there is something to read already.
    pub(crate) fn set_eventfd(&self, eventfd: Option<EventFd>) {
        let mut inner = self.inner.lock();
        if let Some(eventfd) = eventfd.as_ref().filter(|_| inner.is_readable()) {
            eventfd.signal();
        }
        let old = core::mem::replace(&mut inner.eventfd, eventfd);
        drop(inner);
        // Not under the spinlock: it may be the last reference.
        drop(old);
    }

    /// Writes whole events to `out`; waits for the first if `may_wait`.
    pub(crate) fn read(&self, out: &mut UserSliceWriter, may_wait: bool) -> Result<usize> {
        if out.len() < size_of::<pinmap_event>() {
            return Err(EINVAL);
        }
        let mut written = 0_usize;
        while out.len() >= size_of::<pinmap_event>() {
            let (event, ticket) = match self.next(may_wait && written == 0)? {
                Next::Event(event, ticket) => (event, ticket),
                Next::Nothing if written == 0 => return Err(EAGAIN),
                Next::Nothing | Next::End => break,
            };
            let result = out.write(&event);
            self.settle(ticket, result.is_ok());
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
            if let Some((ticket, event)) = inner.take_first() {
                return Ok(Next::Event(event, Some(ticket)));
            }
            match inner.gone {
                // It comes last: not before what somebody is still reading.
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
                    if self.waiters.wait_interruptible(&mut inner) {
                        return Err(ERESTARTSYS);
                    }
                }
            }
        }
    }

    /// An event that could not be written to user space is not lost.
    fn settle(&self, ticket: Option<u64>, written: bool) {
        let mut inner = self.inner.lock();
        match ticket {
            Some(ticket) if written => inner.remove(ticket),
            Some(ticket) => inner.give_back(ticket),
            None if written => {}
            None => inner.gone = Gone::Unread,
        }
        self.waiters.notify_all();
    }

    /// For `poll()`.
    pub(crate) fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        table.register_wait(file, &self.waiters);
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
