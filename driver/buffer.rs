// SPDX-License-Identifier: GPL-2.0
//! Pages and permissions, and the mappings that share them.
//!
//! Locks, outermost first: `pages`, `inner`, the address space of a mapping. `pages` is held while
//! mapping and while pages are looked up, which both may fault or allocate; so an MMU notifier takes
//! `inner` only, and `inner` is never held across either.

use crate::{
    event::{Queue, Room, Ticket},
    failure::Failure,
    logic::{request::Target, span::Span},
    mapping::{AddressSpace, Mapping},
    pinned,
    sys::{
        account::Account,
        compat,
        gup::PinnedRuns,
        notifier::Interval,
        uapi::{self, Event},
        work,
    },
};
use core::mem;
use kernel::{
    new_mutex, new_spinlock, new_work,
    prelude::*,
    sync::{lock::mutex::MutexBackend, lock::Guard, Arc, Mutex, SpinLock},
    workqueue::Work,
};

/// Mappings that a buffer may have.
const MAX_MAPPINGS: usize = 64;

/// The life of a buffer, in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Being registered; nobody else knows it.
    Building,
    /// Its memory went away while it was being registered.
    Doomed,
    /// In use.
    Live,
    /// Its memory went away; the mappings are undone.
    Stale,
    /// Released.
    Released,
    /// Its device is gone.
    Gone,
}

/// What changes together.
pub(super) struct Inner {
    state: State,
    handle: u64,
    mappings: KVec<Known>,
    /// Mappings that there ever were.
    made: u64,
    /// For the one event that it can have.
    room: Option<Room>,
    ticket: Option<Ticket>,
    /// Something could not be unmapped.
    failed: bool,
}

/// A mapping, and whether user space knows it.
pub(super) struct Known {
    mapping: Mapping,
    /// The name of a mapping that is not published yet.
    fresh: Option<u64>,
}

impl Inner {
    /// Undoes all mappings. Their addresses stay taken until [`Buffer::reap`].
    fn unmap_all(&mut self) {
        for known in &mut self.mappings {
            self.failed |= known.mapping.unmap().is_err();
        }
    }
}

/// What QUERY tells.
pub(crate) struct Status {
    pub(crate) state: State,
    pub(crate) mappings: usize,
    /// Device address of the first mapping.
    pub(crate) device_addr: Option<u64>,
}

/// A range of user memory, pinned.
#[pin_data]
pub(crate) struct Buffer {
    span: Span,
    write: bool,
    pub(super) account: Arc<Account>,
    events: Arc<Queue>,
    #[pin]
    inner: Mutex<Inner>,
    /// What may have gone away, for the worker to look at.
    #[pin]
    pub(super) doubt: SpinLock<Option<Span>>,
    /// Set once they are pinned, taken when they are unpinned.
    #[pin]
    pub(super) pages: Mutex<Option<Arc<PinnedRuns>>>,
    #[pin]
    pub(super) interval: Interval<Buffer>,
    #[pin]
    pub(super) work: Work<Buffer>,
}

impl Buffer {
    /// For `span`, with nothing pinned yet.
    pub(crate) fn new(
        span: Span,
        write: bool,
        account: Arc<Account>,
        events: Arc<Queue>,
    ) -> Result<Arc<Self>> {
        let inner = Inner {
            state: State::Building,
            handle: 0,
            mappings: KVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?,
            made: 0,
            room: Some(Room::new()?),
            ticket: None,
            failed: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                span,
                write,
                account,
                events,
                inner <- new_mutex!(inner, "pinmap_buffer"),
                doubt <- new_spinlock!(None, "pinmap_doubt"),
                pages <- new_mutex!(None, "pinmap_pages"),
                interval <- Interval::new(),
                work <- new_work!("pinmap_buffer"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Its user addresses.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Whether devices may write.
    pub(crate) fn writable(&self) -> bool {
        self.write
    }

    /// Where it is in its life.
    pub(crate) fn state(&self) -> State {
        self.inner.lock().state
    }

    /// What there is to know.
    pub(crate) fn status(&self) -> Status {
        let inner = self.inner.lock();
        // The mappings of a stale buffer are undone; only their addresses are not free yet.
        let mappings: &[Known] = if inner.state == State::Live {
            &inner.mappings
        } else {
            &[]
        };
        let mut known = mappings.iter().filter(|known| known.fresh.is_none());
        let first = known.next();
        Status {
            state: inner.state,
            mappings: known.count().saturating_add(usize::from(first.is_some())),
            device_addr: first.map(|known| known.mapping.device_addr()),
        }
    }

    /// Begins to watch, then pins. By the task that owns the memory.
    pub(crate) fn pin(this: &Arc<Self>) -> core::result::Result<(), Failure> {
        Interval::insert(this, this.account.mm(), this.span)?;
        let pinned = pinned::pin(&this.account, this.span, this.write)?;
        *this.pages.lock() = Some(pinned);
        Ok(())
    }

    /// Maps the pages in `space`. Returns the device address, and the name of the mapping until
    /// [`publish`](Self::publish).
    pub(crate) fn map(
        &self,
        space: &Arc<AddressSpace>,
        target: Target,
        write: bool,
    ) -> core::result::Result<(u64, u64), Failure> {
        // Held until the mapping is known to whoever revokes, or undone: who ends the buffer waits for
        // that.
        let pages = self.pages.lock();
        let runs = pages.as_ref().ok_or_else(|| self.refusal(self.state()))?;
        let wanted = || self.check_usable().map_err(|failure| failure.errno);
        let mapping = Mapping::new(space, runs, target, write, wanted)?;
        let device_addr = mapping.device_addr();
        let name = self.add(mapping)?;
        Ok((device_addr, name))
    }

    /// Makes `mapping` known to whoever revokes, or undoes it. Returns its name.
    fn add(&self, mapping: Mapping) -> core::result::Result<u64, Failure> {
        let mut known = Known {
            mapping,
            fresh: None,
        };
        loop {
            let mut inner = self.inner.lock();
            let count = inner.mappings.len();
            match inner.state {
                State::Building | State::Live => {}
                state => return Err(self.refusal(state)),
            }
            if count >= MAX_MAPPINGS {
                let (needed, allowed) = ((count as u64).saturating_add(1), MAX_MAPPINGS as u64);
                let failure = Failure::limit(ENOSPC, uapi::FAIL_OBJECTS, needed, allowed);
                return Err(failure);
            }
            let name = inner.made;
            known.fresh = Some(name);
            match inner.mappings.push_within_capacity(known) {
                Ok(()) => {
                    inner.made = name.wrapping_add(1);
                    return Ok(name);
                }
                Err(full) => known = full.0,
            }
            drop(inner);
            self.make_room(count.saturating_mul(2).max(1))?;
        }
    }

    /// Room for `capacity` mappings, allocated outside of the lock.
    fn make_room(&self, capacity: usize) -> Result {
        let mut roomy = KVec::with_capacity(capacity, GFP_KERNEL_ACCOUNT)?;
        let mut inner = self.inner.lock();
        if inner.mappings.len() >= roomy.capacity() {
            return Ok(());
        }
        for mapping in inner.mappings.drain_all() {
            if roomy.push_within_capacity(mapping).is_err() {
                return Err(ENOSPC); // Cannot be: there is room for all of them.
            }
        }
        let old = mem::replace(&mut inner.mappings, roomy);
        drop(inner);
        drop(old);
        Ok(())
    }

    /// User space knows the mapping from now on.
    pub(crate) fn publish(&self, name: u64) {
        let mut inner = self.inner.lock();
        for known in &mut inner.mappings {
            if known.fresh == Some(name) {
                known.fresh = None;
            }
        }
    }

    /// Removes the mapping at `device_addr`; flushed when it returns.
    pub(crate) fn unmap(&self, device_addr: u64) -> Result {
        self.remove(|known| known.fresh.is_none() && known.mapping.device_addr() == device_addr)
    }

    /// Removes a mapping that was not published.
    pub(crate) fn unmap_fresh(&self, name: u64) -> Result {
        self.remove(|known| known.fresh == Some(name))
    }

    fn remove(&self, wanted: impl Fn(&Known) -> bool) -> Result {
        let mut inner = self.inner.lock();
        if inner.state != State::Live {
            return Err(compat::stale());
        }
        let index = inner.mappings.iter().position(wanted).ok_or(ENOENT)?;
        // All of it under the lock, so that a munmap() or a RELEASE that comes meanwhile waits for it. The
        // pages stay: `pages` has them.
        let known = inner.mappings.get_mut(index).ok_or(ENOENT)?;
        let result = known.mapping.unmap();
        known.mapping.free_address();
        inner.failed |= result.is_err();
        let known = inner.mappings.remove(index);
        drop(inner);
        drop(known);
        result
    }

    /// From now on it is in use, as `handle`, and can go stale.
    pub(crate) fn go_live(this: &Arc<Self>, handle: u64) -> core::result::Result<(), Failure> {
        let mut inner = this.inner.lock();
        match inner.state {
            State::Building => inner.state = State::Live,
            state => return Err(this.refusal(state)),
        }
        inner.handle = handle;
        drop(inner);
        if this.doubt.lock().is_some() {
            this.look_later();
        }
        Ok(())
    }

    /// Fails if its memory went away, or it was ended.
    pub(crate) fn check_usable(&self) -> core::result::Result<(), Failure> {
        match self.state() {
            State::Building | State::Live => Ok(()),
            state => Err(self.refusal(state)),
        }
    }

    /// Why it cannot be used in this state.
    fn refusal(&self, state: State) -> Failure {
        match state {
            State::Gone => ENODEV.into(),
            _ => Failure::at(compat::stale(), uapi::FAIL_STALE, self.span.start()),
        }
    }

    /// For the MMU notifier; `None` if it would have to sleep and must not.
    pub(super) fn lock(&self, may_sleep: bool) -> Option<Guard<'_, Inner, MutexBackend>> {
        if may_sleep {
            Some(self.inner.lock())
        } else {
            self.inner.try_lock()
        }
    }

    /// The memory went away: undoes all mappings, tells, and has the pages unpinned soon. Safe in an
    /// MMU notifier.
    pub(super) fn revoke(
        this: &Arc<Self>,
        mut inner: Guard<'_, Inner, MutexBackend>,
        may_sleep: bool,
    ) {
        match inner.state {
            State::Building => inner.state = State::Doomed,
            State::Live => {
                inner.state = State::Stale;
                inner.unmap_all();
                if may_sleep {
                    // The same addresses may be registered again at once.
                    for known in &mut inner.mappings {
                        known.mapping.free_address();
                    }
                }
                let event = Event {
                    type_: uapi::EVENT_STALE,
                    handle: inner.handle,
                    addr: this.span.start(),
                    length: this.span.length(),
                    ..Event::default()
                };
                inner.ticket = inner.room.take().map(|room| this.events.push(room, event));
                drop(inner);
                this.look_later();
            }
            State::Doomed | State::Stale | State::Released | State::Gone => {}
        }
    }

    /// What is left after the mappings are undone: frees their addresses, unpins, un-charges.
    pub(super) fn reap(&self) {
        let mut inner = self.inner.lock();
        let mappings = mem::take(&mut inner.mappings);
        drop(inner);
        drop(mappings);
        let pages = self.pages.lock().take();
        drop(pages);
    }

    /// The device is gone: its registration is not to succeed any more.
    pub(crate) fn doom(&self) {
        let mut inner = self.inner.lock();
        if matches!(inner.state, State::Building | State::Doomed | State::Live) {
            inner.state = State::Gone;
        }
    }

    /// Ends it, as released or as gone: unmap and flush, unpin, un-charge. Nothing is left when it
    /// returns `Ok`, except for an event that was not read yet. After an error its pages stay pinned.
    /// Can be called again; not by the worker.
    pub(crate) fn end(this: &Arc<Self>, state: State) -> Result {
        let mut inner = this.inner.lock();
        if inner.state != State::Gone {
            inner.state = state;
        }
        inner.unmap_all();
        let failed = inner.failed;
        drop(inner);
        this.interval.remove();
        work::cancel(this);
        this.reap();
        if failed {
            Err(EIO)
        } else {
            Ok(())
        }
    }

    /// Takes back an event that was not read yet.
    pub(crate) fn withdraw_event(&self) {
        let ticket = self.inner.lock().ticket.take();
        if let Some(ticket) = ticket {
            self.events.withdraw(ticket);
        }
    }
}
