// SPDX-License-Identifier: GPL-2.0
//! Pages and permissions, and the mappings that share them.
//!
//! Locks, outermost first: `backing`, `inner`, the address space of a mapping. `backing` is held while
//! mapping and while pages are looked up, which both may fault or allocate; so an MMU notifier takes
//! `inner` only, and `inner` is never held across either, nor while waiting for a device.

use crate::{
    dmabuf::{Exports, Source},
    event::{Queue, Room, Ticket},
    failure::Failure,
    ledger::{self, Counted, Ledger},
    list,
    logic::{
        doubt::Doubt,
        pte::Access,
        request::{RegisterPlan, Target},
        shape::Shape,
        span::Span,
    },
    mapping::{AddressSpace, Entries, Guardian, Local, Mapping, Memory},
    pinned,
    sys::{
        account::Account,
        compat,
        folios::Folios,
        gup::PinnedRuns,
        memfd::PinnedFile,
        notifier::Interval,
        pages::Pages,
        task,
        uapi::{self, pinmap_event},
        work,
    },
    trace::{self, Details, Timed, What},
    view::Showing,
    watch::Lookout,
};
use core::mem;
use kernel::{
    list::{AtomicTracker, ListLinks},
    new_mutex, new_spinlock, new_work,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        lock::{mutex::MutexBackend, Guard},
        Arc, Mutex, SpinLock,
    },
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

impl State {
    /// Whether its mappings are there, if it has any.
    fn has_mappings(self) -> bool {
        matches!(self, Self::Building | Self::Doomed | Self::Live)
    }
}

/// What changes together.
pub(super) struct Inner {
    state: State,
    mappings: KVec<Known>,
    /// Mappings that there ever were.
    made: u64,
    /// For the one event that it can have.
    room: Option<Room>,
    ticket: Option<Ticket>,
    /// Who else is told.
    guests: KVec<Told>,
    /// Something could not be unmapped.
    failed: bool,
    /// Who cuts off the device for which that was.
    lost: Option<Arc<dyn Guardian>>,
    /// Its memory, and that it has gone, for whoever looks.
    held: Option<Counted>,
    stale: Option<Counted>,
}

/// Another context that has it.
struct Told {
    events: Arc<Queue>,
    /// What it is called there.
    handle: u64,
    room: Option<Room>,
    ticket: Option<Ticket>,
    /// That it has gone, for whoever looks.
    stale: Option<Counted>,
}

/// For whom a buffer is mapped.
#[derive(Clone, Copy)]
pub(crate) struct Tenant<'a> {
    pub(crate) space: &'a Arc<AddressSpace>,
    pub(crate) ledger: &'a Arc<Ledger>,
    /// What it is called there.
    pub(crate) handle: u64,
}

/// A mapping, and whether user space knows it.
pub(super) struct Known {
    mapping: Mapping,
    name: u64,
    /// What the buffer is called by whoever has it so.
    handle: u64,
    /// Not published yet.
    fresh: bool,
    /// For whoever looks.
    counted: Option<Counted>,
}

impl Known {
    /// Unmaps it from the IOMMU: see [`Mapping::unmap`].
    fn unmap(&mut self, buffer: &Buffer) -> Result {
        let shape = trace::wanted(What::Unmap, || self.mapping.shape());
        let before = self.mapping.flushes();
        let timed = Timed::begin(What::Unmap);
        let result = self.mapping.unmap();
        if let Some(counted) = self.counted.take() {
            timed.end(counted.ledger(), || Details {
                handle: self.handle,
                addr: buffer.span.start(),
                device_addr: self.mapping.device_addr(),
                shape,
                flushes: self.mapping.flushes().saturating_sub(before),
            });
        }
        result
    }
}

impl Inner {
    /// Unmaps all mappings from the IOMMU. Their addresses stay taken until [`Buffer::reap`].
    fn unmap_all(&mut self, buffer: &Buffer) {
        for known in &mut self.mappings {
            if known.unmap(buffer).is_err() {
                self.failed = true;
                self.lost = Some(known.mapping.guardian().clone());
            }
        }
    }

    /// Whether the MMU of a device has some of them, too.
    fn is_elsewhere(&self) -> bool {
        self.mappings
            .iter()
            .any(|known| known.mapping.entries().is_some())
    }

    /// How often the IOMMU's cache was flushed for all mappings.
    fn flushes(&self) -> u64 {
        self.mappings
            .iter()
            .map(|known| known.mapping.flushes())
            .fold(0, u64::saturating_add)
    }
}

/// What QUERY tells.
pub(crate) struct Status {
    pub(crate) state: State,
    /// Pages that are pinned.
    pub(crate) pinned: u64,
    pub(crate) mappings: usize,
    /// Device address of the first mapping.
    pub(crate) device_addr: Option<u64>,
}

/// Where the memory of a buffer comes from, and what keeps it.
pub(crate) enum Backing {
    /// Pinned user memory.
    User(Arc<PinnedRuns>),
    /// Pinned memory of a file.
    File(Arc<PinnedFile>),
    /// Memory that the driver allocated.
    Host(Arc<Folios>, Showing),
    /// The device's own.
    Local(Arc<dyn Local>, Showing),
    /// Another buffer's.
    Import(Arc<dyn Pages>, Arc<Source>),
}

impl Backing {
    /// What is mapped.
    pub(crate) fn memory(&self) -> Memory {
        match self {
            Self::User(runs) => Memory::Host(runs.clone()),
            Self::Import(pages, _) => Memory::Host(pages.clone()),
            Self::File(pages) => Memory::Host(pages.clone()),
            Self::Host(folios, _) => Memory::Host(folios.clone()),
            Self::Local(local, _) => Memory::Local(local.clone()),
        }
    }

    /// What to pass to `mmap()`; 0: cannot be.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::User(_) | Self::File(_) | Self::Import(..) => 0,
            Self::Host(_, showing) | Self::Local(_, showing) => showing.offset(),
        }
    }

    /// A `PINMAP_BUFFER_` kind.
    fn kind(&self) -> u32 {
        match self {
            Self::User(_) => uapi::PINMAP_BUFFER_USER,
            Self::File(_) => uapi::PINMAP_BUFFER_FILE,
            Self::Host(..) => uapi::PINMAP_BUFFER_HOST,
            Self::Local(..) => uapi::PINMAP_BUFFER_VRAM,
            Self::Import(..) => uapi::PINMAP_BUFFER_IMPORT,
        }
    }

    /// User memory.
    pub(super) fn pinned(&self) -> Option<&Arc<PinnedRuns>> {
        match self {
            Self::User(runs) => Some(runs),
            Self::File(_) | Self::Host(..) | Self::Local(..) | Self::Import(..) => None,
        }
    }
}

/// A range of memory that devices can be given.
#[pin_data]
pub(crate) struct Buffer {
    span: Span,
    write: bool,
    /// Any signal ends its registration.
    interruptible: bool,
    /// On every device that the process has open.
    portable: Atomic<bool>,
    /// User space knows it.
    published: Atomic<bool>,
    kind: u32,
    /// What its context calls it; 0: nothing yet.
    handle: Atomic<u64>,
    /// Pages that are pinned so far.
    pinned: Atomic<u64>,
    pub(super) account: Arc<Account>,
    pub(super) events: Arc<Queue>,
    #[pin]
    inner: Mutex<Inner>,
    /// What may have gone away, for the worker to look at.
    #[pin]
    pub(super) doubt: SpinLock<Doubt>,
    /// Whose worker; of user memory.
    pub(super) lookout: Option<Arc<Lookout>>,
    #[pin]
    pub(super) links: ListLinks,
    #[pin]
    pub(super) tracker: AtomicTracker,
    /// Set once it is there, taken when it is let go of.
    #[pin]
    pub(super) backing: Mutex<Option<Backing>>,
    /// What goes with it. Never in an MMU notifier.
    #[pin]
    exports: Mutex<Exports>,
    #[pin]
    pub(super) interval: Interval<Buffer>,
    /// For [`reap`](Self::reap).
    #[pin]
    pub(super) work: Work<Buffer>,
    /// It was queued at some time.
    reaped_later: Atomic<bool>,
    /// It is over.
    reaped: Atomic<bool>,
}

impl Buffer {
    /// For the user memory of `plan`, with nothing pinned yet.
    pub(crate) fn new(
        plan: &RegisterPlan,
        account: Arc<Account>,
        events: Arc<Queue>,
        lookout: Arc<Lookout>,
    ) -> Result<Arc<Self>> {
        Self::make(plan, None, account, events, Some(lookout))
    }

    /// For the part of a file of `plan`, pinned.
    pub(crate) fn of_file(
        plan: &RegisterPlan,
        pages: Arc<PinnedFile>,
        account: Arc<Account>,
        events: Arc<Queue>,
    ) -> Result<Arc<Self>> {
        Self::make(plan, Some(Backing::File(pages)), account, events, None)
    }

    /// Of memory that was allocated or imported, whose addresses are `span` as far as it has any.
    pub(crate) fn allocated(
        span: Span,
        write: bool,
        backing: Backing,
        account: Arc<Account>,
        events: Arc<Queue>,
    ) -> Result<Arc<Self>> {
        let plan = RegisterPlan {
            span,
            write,
            target: None,
            interruptible: false,
            portable: false,
        };
        Self::make(&plan, Some(backing), account, events, None)
    }

    fn make(
        plan: &RegisterPlan,
        backing: Option<Backing>,
        account: Arc<Account>,
        events: Arc<Queue>,
        lookout: Option<Arc<Lookout>>,
    ) -> Result<Arc<Self>> {
        let kind = backing
            .as_ref()
            .map_or(uapi::PINMAP_BUFFER_USER, Backing::kind);
        let held = backing.as_ref().map(|_| {
            let what = ledger::What::of_kind(kind);
            Counted::new(events.ledger(), what, plan.span.length())
        });
        let pinned = backing.as_ref().map_or(0, |_| plan.span.pages());
        let inner = Inner {
            state: State::Building,
            mappings: KVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?,
            made: 0,
            room: Some(events.room()?),
            ticket: None,
            guests: KVec::new(),
            failed: false,
            lost: None,
            held,
            stale: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                span: plan.span,
                write: plan.write,
                interruptible: plan.interruptible,
                portable: Atomic::new(plan.portable),
                published: Atomic::new(false),
                kind,
                handle: Atomic::new(0),
                pinned: Atomic::new(pinned),
                account,
                events,
                inner <- new_mutex!(inner, "pinmap_buffer"),
                doubt <- new_spinlock!(Doubt::new(), "pinmap_doubt"),
                lookout,
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
                backing <- new_mutex!(backing, "pinmap_backing"),
                exports <- new_mutex!(Exports::default(), "pinmap_exports"),
                interval <- Interval::new(),
                work <- new_work!("pinmap_buffer"),
                reaped_later: Atomic::new(false),
                reaped: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Whose it is.
    fn ledger(&self) -> &Arc<Ledger> {
        self.events.ledger()
    }

    /// Its user addresses; from 0 on if it has none.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// A `PINMAP_BUFFER_` kind.
    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    /// Whether it was registered, by its user addresses.
    pub(crate) fn is_user_memory(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_USER
    }

    /// Whether it is memory of a device.
    pub(crate) fn is_local(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_VRAM
    }

    /// Whether it is on every device that the process has open.
    pub(crate) fn is_portable(&self) -> bool {
        self.portable.load(Relaxed)
    }

    /// It is to be; before anybody knows it.
    pub(crate) fn make_portable(&self) {
        self.portable.store(true, Relaxed);
    }

    /// Whether `events` is where it tells what happens to it: its context's.
    pub(crate) fn tells(&self, events: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.events, events)
    }

    /// Whether user space knows it.
    pub(crate) fn is_published(&self) -> bool {
        self.published.load(Acquire)
    }

    /// User space knows it from now on.
    pub(crate) fn make_known(&self) {
        self.published.store(true, Release);
    }

    /// Whether it is mapped in `space`.
    pub(crate) fn is_in(&self, space: &Arc<AddressSpace>) -> bool {
        let inner = self.inner.lock();
        inner
            .mappings
            .iter()
            .any(|known| known.mapping.is_in(space))
    }

    /// Whether devices may write.
    pub(crate) fn writable(&self) -> bool {
        self.write
    }

    /// Where it is in its life.
    pub(crate) fn state(&self) -> State {
        self.inner.lock().state
    }

    /// What there is to know, of the mappings in `space`.
    pub(crate) fn status(&self, space: &Arc<AddressSpace>) -> Status {
        let inner = self.inner.lock();
        // The mappings of a stale buffer are undone; only their addresses are not free yet.
        let mappings: &[Known] = if inner.state == State::Live {
            &inner.mappings
        } else {
            &[]
        };
        let mut known = mappings
            .iter()
            .filter(|known| !known.fresh && known.mapping.is_in(space));
        let first = known.next();
        Status {
            state: inner.state,
            pinned: match inner.state {
                State::Building | State::Live => self.pinned.load(Relaxed),
                _ => 0,
            },
            mappings: known.count().saturating_add(usize::from(first.is_some())),
            device_addr: first.map(|known| known.mapping.device_addr()),
        }
    }

    /// What to pass to `mmap()`, or the offset of a part of a file; 0: neither.
    pub(crate) fn offset(&self) -> u64 {
        match self.kind {
            uapi::PINMAP_BUFFER_USER => 0,
            uapi::PINMAP_BUFFER_FILE => self.span.start(),
            _ => self.backing.lock().as_ref().map_or(0, Backing::offset),
        }
    }

    /// Waits until it is decided whether memory that changed until now has gone, and, if it has, until it was let
    /// go of. Fails if the current task is killed meanwhile.
    pub(crate) fn settle(&self) -> Result {
        let Some(lookout) = &self.lookout else {
            return Ok(());
        };
        // Nobody looks before it is live.
        if !matches!(self.state(), State::Live | State::Stale) {
            return Ok(());
        }
        let noted = self.doubt.lock().noted();
        lookout
            .changed
            .wait_killable(|| self.doubt.lock().is_decided(noted))?;
        if self.state() == State::Stale {
            lookout
                .changed
                .wait_killable(|| self.reaped.load(Acquire))?;
        }
        Ok(())
    }

    /// How scattered its memory is; nothing if that was let go of. Waits for whoever maps it.
    pub(crate) fn shape(&self) -> Shape {
        let backing = self.backing.lock();
        let memory = backing.as_ref().map(Backing::memory);
        memory.map_or(Shape::default(), |memory| memory.shape())
    }

    /// Calls `visit` with where `space` has it, under the lock that the MMU notifier takes.
    pub(crate) fn each_device_addr(&self, space: &Arc<AddressSpace>, mut visit: impl FnMut(u64)) {
        let inner = self.inner.lock();
        for known in &inner.mappings {
            if !known.fresh && known.counted.is_some() && known.mapping.is_in(space) {
                visit(known.mapping.device_addr());
            }
        }
    }

    /// What its context calls it, or will call it if it goes live; 0: nothing yet.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Relaxed)
    }

    /// It will be `handle`, if it goes live.
    pub(crate) fn set_handle(&self, handle: u64) {
        self.handle.store(handle, Relaxed);
    }

    /// It was registered, by what began with `timed`.
    pub(crate) fn trace_registered(&self, timed: &Timed, device_addr: u64) {
        timed.end(self.ledger(), || {
            let shape = self.shape();
            let inner = self.inner.lock();
            Details {
                handle: self.handle(),
                addr: self.span.start(),
                device_addr,
                shape,
                flushes: inner.flushes(),
            }
        });
    }

    /// What `look` makes of the memory, if it is there still.
    pub(crate) fn with_backing<T>(
        &self,
        look: impl FnOnce(&Backing) -> T,
    ) -> core::result::Result<T, Failure> {
        let backing = self.backing.lock();
        let looked = backing.as_ref().map(look);
        looked.ok_or_else(|| self.refusal(self.state()))
    }

    /// What is to be revoked with it.
    pub(crate) fn exports(&self) -> &Mutex<Exports> {
        &self.exports
    }

    /// Begins to watch, then pins. By the task that owns the memory.
    pub(crate) fn pin(this: &Arc<Self>) -> core::result::Result<(), Failure> {
        let lookout = this.lookout.as_ref().ok_or(EINVAL)?;
        lookout.watch(this, this.account.mm())?;
        let pinned = pinned::pin(&this.account, this.span, this.write, |pages| {
            this.pinned.store(pages, Relaxed);
            this.check_signal()
        })?;
        *this.backing.lock() = Some(Backing::User(pinned));
        let held = Counted::new(this.ledger(), ledger::What::Pinned, this.span.length());
        this.inner.lock().held = Some(held);
        Ok(())
    }

    /// Maps the pages for `tenant`. Returns the device address.
    pub(crate) fn map(
        &self,
        tenant: Tenant<'_>,
        target: Target,
        write: bool,
    ) -> core::result::Result<u64, Failure> {
        let (device_addr, _) = self.map_as(tenant, target, write, false)?;
        Ok(device_addr)
    }

    /// The same for a mapping that nobody knows before [`publish`](Self::publish). Returns the device address,
    /// and its name until then.
    pub(crate) fn map_fresh(
        &self,
        tenant: Tenant<'_>,
        target: Target,
        write: bool,
    ) -> core::result::Result<(u64, u64), Failure> {
        self.map_as(tenant, target, write, true)
    }

    fn map_as(
        &self,
        tenant: Tenant<'_>,
        target: Target,
        write: bool,
        fresh: bool,
    ) -> core::result::Result<(u64, u64), Failure> {
        let timed = Timed::begin(What::Map);
        // Held until the mapping is known to whoever revokes, or undone: who ends the buffer waits for
        // that.
        let backing = self.backing.lock();
        let memory = backing
            .as_ref()
            .map(Backing::memory)
            .ok_or_else(|| self.refusal(self.state()))?;
        let access = if write { Access::Write } else { Access::Read };
        let wanted = || {
            self.check_usable().map_err(|failure| failure.errno)?;
            self.check_signal()
        };
        let mapping = Mapping::new(tenant.space, &memory, target, access, wanted)?;
        let (device_addr, flushes) = (mapping.device_addr(), mapping.flushes());
        let counted = Counted::new(tenant.ledger, ledger::What::Mapped, self.span.length());
        let name = self.add(Known {
            mapping,
            name: 0,
            handle: tenant.handle,
            fresh,
            counted: Some(counted),
        })?;
        timed.end(tenant.ledger, || Details {
            handle: tenant.handle,
            addr: self.span.start(),
            device_addr,
            shape: memory.shape(),
            flushes,
        });
        Ok((device_addr, name))
    }

    /// Whether a signal has come that ends its registration.
    fn check_signal(&self) -> Result {
        let building = self.interruptible && self.state() == State::Building;
        if building && task::signal_pending() {
            return Err(EINTR);
        }
        Ok(())
    }

    /// Makes a mapping known to whoever revokes, or undoes it. Returns its name.
    fn add(&self, mut known: Known) -> core::result::Result<u64, Failure> {
        loop {
            let mut inner = self.inner.lock();
            let count = inner.mappings.len();
            match inner.state {
                State::Building | State::Live => {}
                state => return Err(self.refusal(state)),
            }
            if count >= MAX_MAPPINGS {
                let (needed, allowed) = ((count as u64).saturating_add(1), MAX_MAPPINGS as u64);
                let failure = Failure::limit(ENOSPC, uapi::PINMAP_FAIL_OBJECTS, needed, allowed);
                return Err(failure);
            }
            let name = inner.made;
            known.name = name;
            match inner.mappings.push_within_capacity(known) {
                Ok(()) => {
                    inner.made = name.wrapping_add(1);
                    return Ok(name);
                }
                Err(full) => known = full.0,
            }
            drop(inner);
            self.make_room(count, |inner| &mut inner.mappings)?;
        }
    }

    /// Room for more than `count` entries of a list, allocated outside of the lock, which the notifier
    /// takes.
    fn make_room<T>(&self, count: usize, which: impl Fn(&mut Inner) -> &mut KVec<T>) -> Result {
        let more = count.saturating_mul(2).max(1);
        let roomy = KVec::with_capacity(more, GFP_KERNEL_ACCOUNT)?;
        let mut inner = self.inner.lock();
        let old = list::grow(which(&mut inner), roomy)?;
        drop(inner);
        drop(old);
        Ok(())
    }

    /// User space knows the mapping from now on.
    pub(crate) fn publish(&self, name: u64) {
        let mut inner = self.inner.lock();
        for known in &mut inner.mappings {
            if known.name == name {
                known.fresh = false;
            }
        }
    }

    /// Removes the mapping at `device_addr` of `space`; flushed when it returns.
    pub(crate) fn unmap(&self, space: &Arc<AddressSpace>, device_addr: u64) -> Result {
        if self.state() != State::Live {
            return Err(compat::stale());
        }
        self.remove(|known| {
            let mapping = &known.mapping;
            !known.fresh && mapping.device_addr() == device_addr && mapping.is_in(space)
        })
    }

    /// Removes all mappings in `space`; none is made there meanwhile. Not by the worker.
    pub(crate) fn leave(this: &Arc<Self>, space: &Arc<AddressSpace>) -> Result {
        loop {
            match this.remove(|known| known.mapping.is_in(space)) {
                Ok(()) => {}
                Err(ENOENT) => return Ok(()),
                Err(EIO) => return Err(EIO),
                Err(_) => {
                    // They are undone, and the worker does the rest.
                    work::wait(this);
                    return Ok(());
                }
            }
        }
    }

    /// Removes a mapping that was not published.
    pub(crate) fn unmap_fresh(&self, name: u64) -> Result {
        self.remove(|known| known.fresh && known.name == name)
    }

    fn remove(&self, wanted: impl Fn(&Known) -> bool) -> Result {
        // The device is waited for without the lock.
        let (name, entries) = {
            let inner = self.inner.lock();
            if !inner.state.has_mappings() {
                return Err(compat::stale());
            }
            let known = inner.mappings.iter().find(|known| wanted(known));
            let known = known.ok_or(ENOENT)?;
            (known.name, known.mapping.entries().cloned())
        };
        let forgotten = entries.as_ref().map_or(Ok(()), |entries| entries.remove());
        let mut inner = self.inner.lock();
        if !inner.state.has_mappings() {
            return Err(compat::stale());
        }
        // Somebody else may have been quicker, and have put another one there.
        let index = inner
            .mappings
            .iter()
            .position(|known| known.name == name)
            .ok_or(ENOENT)?;
        // All of it under the lock, so that a munmap() or a RELEASE that comes meanwhile waits for it. The
        // pages stay: `backing` has them.
        let known = inner.mappings.get_mut(index).ok_or(ENOENT)?;
        let result = forgotten.and(known.unmap(self));
        known.mapping.free_address();
        inner.failed |= result.is_err();
        let known = inner.mappings.remove(index);
        drop(inner);
        // After a failure this cuts the device off.
        drop(known);
        result
    }

    /// Takes all mappings away from the MMUs of devices, and waits for those. Nobody else adds or
    /// takes mappings meanwhile.
    fn forget_all(&self) -> Result {
        self.each_entries(|_| true, Entries::begin_removal);
        let mut result = Ok(());
        self.each_entries(|_| true, |entries| result = result.and(entries.remove()));
        result
    }

    /// Has devices begin to forget all mappings that are not in `space`; [`leave`](Self::leave) follows.
    pub(crate) fn begin_to_leave_all_but(&self, space: &Arc<AddressSpace>) {
        self.each_entries(|mapping| !mapping.is_in(space), Entries::begin_removal);
    }

    /// Calls `visit` for what the MMUs of devices have of all mappings that are `wanted`: without the lock,
    /// which an MMU notifier takes.
    fn each_entries(&self, wanted: impl Fn(&Mapping) -> bool, mut visit: impl FnMut(&Entries)) {
        for index in 0..MAX_MAPPINGS {
            let inner = self.inner.lock();
            let Some(known) = inner.mappings.get(index) else {
                break;
            };
            let entries = known.mapping.entries().filter(|_| wanted(&known.mapping));
            let entries = entries.cloned();
            drop(inner);
            if let Some(entries) = entries {
                visit(&entries);
            }
        }
    }

    /// From now on it is in use, and can go stale.
    pub(crate) fn go_live(this: &Arc<Self>) -> core::result::Result<(), Failure> {
        let mut inner = this.inner.lock();
        match inner.state {
            State::Building => inner.state = State::Live,
            state => return Err(this.refusal(state)),
        }
        drop(inner);
        if this.doubt.lock().is_open() {
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
            _ => Failure::at(compat::stale(), uapi::PINMAP_FAIL_STALE, self.span.start()),
        }
    }

    /// For who revokes.
    pub(super) fn lock(&self) -> Guard<'_, Inner, MutexBackend> {
        self.inner.lock()
    }

    /// As [`shape`](Self::shape), for who has `inner` and must not wait for more.
    fn shape_now(&self, inner: &Inner) -> Shape {
        if let Some(known) = inner.mappings.first() {
            return known.mapping.shape();
        }
        let Some(backing) = self.backing.try_lock() else {
            return Shape::default();
        };
        // Gone before the lock is: ours is never the last reference.
        let memory = backing.as_ref().map(Backing::memory);
        memory.map_or(Shape::default(), |memory| memory.shape())
    }

    /// The memory went away: undoes all mappings, tells, and has the pages unpinned soon. Safe in an
    /// MMU notifier.
    pub(super) fn revoke(this: &Arc<Self>, mut inner: Guard<'_, Inner, MutexBackend>) {
        match inner.state {
            State::Building => inner.state = State::Doomed,
            State::Live => {
                let before = inner.flushes();
                let shape = trace::wanted(What::Stale, || this.shape_now(&inner));
                let timed = Timed::begin(What::Stale);
                inner.state = State::Stale;
                inner.unmap_all(this);
                timed.end(this.ledger(), || Details {
                    handle: this.handle(),
                    addr: this.span.start(),
                    device_addr: 0,
                    shape,
                    flushes: inner.flushes().saturating_sub(before),
                });
                let bytes = this.span.length();
                inner.stale = Some(Counted::new(this.ledger(), ledger::What::Stale, bytes));
                // The same addresses may be registered again at once.
                for known in &mut inner.mappings {
                    known.mapping.free_address();
                }
                let handle = this.handle();
                let event = pinmap_event {
                    type_: uapi::PINMAP_EVENT_STALE,
                    handle,
                    addr: this.span.start(),
                    length: this.span.length(),
                    ..pinmap_event::default()
                };
                inner.ticket = inner.room.take().map(|room| this.events.push(room, event));
                for guest in &mut inner.guests {
                    let handle = guest.handle;
                    let event = pinmap_event { handle, ..event };
                    let room = guest.room.take();
                    guest.ticket = room.map(|room| guest.events.push(room, event));
                    let ledger = guest.events.ledger();
                    guest.stale = Some(Counted::new(ledger, ledger::What::Stale, bytes));
                    // Who asks QUERY now waits for the lock.
                    guest.events.generations().bump(handle);
                }
                // Before the lock is given up, so that who ends it knows.
                this.reap_later();
                drop(inner);
                // Not before QUERY says so.
                this.events.generations().bump(handle);
                this.forget_doubt();
            }
            // Being ended, perhaps by somebody who waits for a device.
            State::Released | State::Gone => {
                inner.unmap_all(this);
            }
            State::Doomed | State::Stale => {}
        }
    }

    /// Has a worker do [`reap`](Self::reap) soon.
    fn reap_later(self: &Arc<Self>) {
        self.reaped_later.store(true, Release);
        // If it is queued already, once is enough.
        let _ = work::ending().enqueue(self.clone());
    }

    /// What its memory has become is known, or nobody wants to know any more.
    fn forget_doubt(&self) {
        self.doubt.lock().close();
        if let Some(lookout) = &self.lookout {
            lookout.changed.wake_up();
        }
    }

    /// What is left after the mappings are undone: has devices forget them, frees their addresses,
    /// lets go of the memory, un-charges. Fails if something could not be unmapped, ever: then the
    /// device is cut off.
    pub(super) fn reap(&self) -> Result {
        let mut inner = self.inner.lock();
        let mappings = mem::take(&mut inner.mappings);
        let held = inner.held.take();
        let failed = inner.failed;
        drop(inner);
        for known in &mappings {
            known.mapping.begin_to_forget();
        }
        let forgotten = mappings
            .iter()
            .map(|known| known.mapping.forget())
            .fold(Ok(()), Result::and);
        drop(mappings);
        if forgotten.is_err() {
            self.inner.lock().failed = true;
        }
        let exports = self.exports.lock().take();
        if let Some(exports) = exports {
            exports.revoke();
        }
        let backing = self.backing.lock().take();
        if let Some(Backing::Import(_, source)) = &backing {
            source.exporter().forget_import(self);
        }
        drop(backing);
        drop(held);
        self.reaped.store(true, Release);
        if let Some(lookout) = &self.lookout {
            lookout.changed.wake_up();
        }
        if failed {
            Err(EIO)
        } else {
            forgotten
        }
    }

    /// What it was imported from went away: it goes stale. When it returns, no device can reach the memory
    /// by it. Not in an MMU notifier.
    pub(crate) fn revoke_import(this: &Arc<Self>) {
        Self::revoke(this, this.lock());
        // The worker does that, too, but whose memory it is does not wait for that. An import is for one
        // device.
        let lost = this.inner.lock().lost.clone();
        if let Some(guardian) = lost {
            guardian.cut_off();
        }
    }

    /// Waits for whoever is mapping it.
    pub(crate) fn await_mappers(&self) {
        drop(self.backing.lock());
    }

    /// The device is gone: its registration is not to succeed any more.
    pub(crate) fn doom(&self) {
        let mut inner = self.inner.lock();
        if matches!(inner.state, State::Building | State::Doomed | State::Live) {
            inner.state = State::Gone;
        }
    }

    /// Ends it, as released or as gone: have devices forget it, unmap and flush, unpin, un-charge. Nothing is left when it
    /// returns `Ok`, except for an event that was not read yet. After an error its pages stay pinned, and
    /// the device reaches no memory at all. Can be called again; not by the worker.
    pub(crate) fn end(this: &Arc<Self>, state: State) -> Result {
        let mut inner = this.inner.lock();
        let was_known = matches!(inner.state, State::Live | State::Stale);
        if inner.state != State::Gone {
            inner.state = state;
        }
        let is_elsewhere = inner.is_elsewhere();
        drop(inner);
        // Not before: who is mapping it, and has its pages, has seen the state and stops.
        let shape = trace::wanted(What::Release, || this.shape());
        let timed = Timed::begin(What::Release);
        let forgotten = if is_elsewhere {
            this.forget_all()
        } else {
            Ok(())
        };
        let mut inner = this.inner.lock();
        let before = inner.flushes();
        inner.unmap_all(this);
        inner.failed |= forgotten.is_err();
        let flushes = inner.flushes().saturating_sub(before);
        inner.stale = None;
        drop(inner);
        this.interval.remove();
        // Nobody is told any more, and who looks stops at the next page: nobody else has the pages then.
        this.forget_doubt();
        if let Some(lookout) = &this.lookout {
            lookout.changed.wait(|| !this.doubt.lock().is_busy());
        }
        // Who revoked it has had it queued by now, if ever.
        if this.reaped_later.load(Acquire) {
            work::cancel(this);
        }
        let result = this.reap();
        if was_known {
            timed.end(this.ledger(), || Details {
                handle: this.handle(),
                addr: this.span.start(),
                device_addr: 0,
                shape,
                flushes,
            });
        }
        result.map_err(|_| EIO)
    }

    /// Its context ends: if user space knows it, it goes stale for the guests, who are told; otherwise it
    /// was never there. As [`end`](Self::end).
    pub(crate) fn end_with_context(this: &Arc<Self>) -> Result {
        if !this.is_portable() || !this.is_published() {
            return Self::end(this, State::Gone);
        }
        let mut inner = this.inner.lock();
        if inner.state == State::Live {
            // Its own context is told that it is gone itself.
            let room = inner.room.take();
            Self::revoke(this, inner);
            drop(room);
        } else {
            drop(inner);
        }
        match this.state() {
            State::Stale => Self::end(this, State::Stale),
            _ => Self::end(this, State::Gone),
        }
    }

    /// From now on the context of `events`, which calls it `handle`, is told as well what happens to it.
    pub(crate) fn add_guest(&self, events: &Arc<Queue>, handle: u64) -> Result {
        let mut told = Told {
            events: events.clone(),
            handle,
            room: Some(events.room()?),
            ticket: None,
            stale: None,
        };
        loop {
            let mut inner = self.inner.lock();
            let count = inner.guests.len();
            match inner.guests.push_within_capacity(told) {
                Ok(()) => return Ok(()),
                Err(full) => told = full.0,
            }
            drop(inner);
            self.make_room(count, |inner| &mut inner.guests)?;
        }
    }

    /// The context of `events` does not have it any more: takes back what it has not read.
    pub(crate) fn remove_guest(&self, events: &Arc<Queue>) {
        let mut inner = self.inner.lock();
        let index = inner
            .guests
            .iter()
            .position(|guest| Arc::ptr_eq(&guest.events, events));
        let told = index.and_then(|index| inner.guests.remove(index).ok());
        drop(inner);
        if let Some(ticket) = told.and_then(|told| told.ticket) {
            events.withdraw(ticket);
        }
    }

    /// Says to all who have it that its memory may have gone. In an MMU notifier. It must not sleep where
    /// the address space is being taken from a process that is ending, of which all are told.
    pub(super) fn suspect(&self, may_sleep: bool) {
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

    /// Takes back an event that was not read yet, or the room for it.
    pub(crate) fn withdraw_event(&self) {
        let mut inner = self.inner.lock();
        let (ticket, room) = (inner.ticket.take(), inner.room.take());
        drop(inner);
        if let Some(ticket) = ticket {
            self.events.withdraw(ticket);
        }
        if let Some(room) = room {
            self.events.return_room(room);
        }
    }
}
