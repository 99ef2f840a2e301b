// SPDX-License-Identifier: GPL-2.0
//! Buffers: memory with permissions, and the mappings that share it.
//!
//! A buffer is a range of memory that devices can be given. Its [`Backing`] says where the memory
//! comes from: pinned user memory, pinned pages of a file, memory that the driver allocated, VRAM,
//! or the pages of another buffer. It belongs to no device; each
//! [`Mapping`](crate::mapping::Mapping) puts it at an address of a context, and all mappings share
//! the one pin and its charge.
//!
//! A buffer is *built* (watched, charged, pinned, mapped), then *live*. It *ends* when it is
//! released, or when its context or device goes. Registered memory can go away while the buffer is
//! live: then the buffer is *revoked*. That undoes all mappings at once, in the MMU notifier, and
//! leaves the buffer *stale*; a worker does the rest, because it waits: it *reaps* the buffer,
//! which makes devices forget the mappings and unpins the pages. Ending a buffer does both.
//!
//! One module for each part: `backing.rs`, `mappings.rs`, `life.rs` (live, stale, ended),
//! `watch.rs` (has registered memory gone away?), `guests.rs` (other contexts that have the
//! buffer), `pinned.rs`, `spare.rs` (buffers that are used again).
//!
//! Locks, outermost first: `backing`, `inner`, the address space of a mapping. `backing` is held
//! while mapping and while pages are looked up, which may both fault or allocate. So an MMU
//! notifier takes only `inner`, which is never held across either, nor while waiting for a device.

use crate::{
    address_space::AddressSpace,
    dmabuf::Exports,
    event::{EventId, EventQueue, EventSlot},
    logic::{request::RegisterPlan, span::Span, suspect::Suspect},
    mmu::DmaControl,
    stats::{Stat, StatGuard, Stats},
    sys::{
        mm::{memfd::PinnedFile, watch::Interval},
        task::account::Account,
    },
    trace::{Details, Timed},
    uapi,
};
use kernel::{
    list::{AtomicTracker, ListLinks},
    new_mutex, new_spinlock, new_work,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, Mutex, SpinLock,
    },
    workqueue::Work,
};

mod backing;
mod guests;
mod life;
mod mappings;
pub(crate) mod pinned;
mod spare;
mod watch;

pub(crate) use backing::Backing;
pub(crate) use life::State;
pub(crate) use mappings::Tenant;
pub(crate) use spare::Spare;
pub(crate) use watch::Lookout;

use backing::Holding;
use guests::Subscriber;
use mappings::MappedAt;
use spare::Kit;

/// The part of a buffer that its lock protects.
struct Inner {
    state: State,
    mappings: KVec<KBox<MappedAt>>,
    /// Mappings that were ever made; the id of the next one.
    made: u64,
    /// Memory for the one event that the buffer can have, and the event once it was sent.
    slot: Option<EventSlot>,
    event: Option<EventId>,
    guests: KVec<Subscriber>,
    /// Whether a mapping could not be removed.
    failed: bool,
    /// The device of which a mapping could not be removed.
    lost: Option<Arc<dyn DmaControl>>,
    /// The entry in the statistics that the buffer is stale.
    stale: Option<StatGuard>,
    kit: Kit,
}

/// A buffer's state, as QUERY and debugfs answer it.
pub(crate) struct Status {
    pub(crate) state: State,
    pub(crate) pinned: u64,
    pub(crate) mappings: usize,
    /// Device address of the first mapping.
    pub(crate) device_addr: Option<u64>,
}

/// A range of memory that devices can be given.
#[pin_data]
pub(crate) struct Buffer {
    life: Life,
    kind: u32,
    account: Arc<Account>,
    /// The event queue of the home context.
    events: Arc<EventQueue>,
    #[pin]
    inner: Mutex<Inner>,
    /// The ranges of which the worker has to find out whether they are still there.
    #[pin]
    suspect: SpinLock<Suspect>,
    /// The worker; only for user memory.
    lookout: Option<Arc<Lookout>>,
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
    #[pin]
    backing: Mutex<Holding>,
    /// Exports that are revoked with the buffer. Never locked in an MMU notifier.
    #[pin]
    exports: Mutex<Exports>,
    #[pin]
    interval: Interval<Buffer>,
    /// For [`reap`](Self::reap).
    #[pin]
    work: Work<Buffer>,
    /// Whether `work` was ever queued.
    reaped_later: Atomic<bool>,
}

/// A buffer's memory, and how far its life has come: new each time that a buffer is used again.
struct Life {
    span: Span,
    write: bool,
    /// Whether any signal ends the registration while it is under way, not only a fatal one.
    interruptible: bool,
    /// Whether the buffer is mapped on every device that the process has open.
    portable: Atomic<bool>,
    /// Whether user space knows a handle of the buffer.
    published: Atomic<bool>,
    /// The handle in its home context; 0: none yet.
    handle: Atomic<u64>,
    /// Pages that are pinned so far.
    pinned: Atomic<u64>,
    /// Whether a change was ever noted in `suspect`.
    told: Atomic<bool>,
    /// Whether `exports` was ever changed.
    exported: Atomic<bool>,
    /// Whether [`reap`](Buffer::reap) has finished.
    reaped: Atomic<bool>,
}

impl Life {
    /// Begins the life of a buffer of `plan` that is called `handle`, of which `pinned` pages are
    /// there already.
    fn new(plan: &RegisterPlan, handle: u64, pinned: u64) -> Self {
        Self {
            span: plan.span,
            write: plan.write,
            interruptible: plan.interruptible,
            portable: Atomic::new(plan.portable),
            published: Atomic::new(false),
            handle: Atomic::new(handle),
            pinned: Atomic::new(pinned),
            told: Atomic::new(false),
            exported: Atomic::new(false),
            reaped: Atomic::new(false),
        }
    }
}

impl Buffer {
    /// Makes a buffer of the user memory of `plan`, with nothing pinned yet.
    pub(crate) fn new(
        plan: &RegisterPlan,
        account: Arc<Account>,
        events: Arc<EventQueue>,
        lookout: Arc<Lookout>,
    ) -> Result<Arc<Self>> {
        Self::make(plan, None, account, events, Some(lookout))
    }

    /// Makes a buffer of a part of a file, which is pinned.
    pub(crate) fn of_file(
        plan: &RegisterPlan,
        pages: Arc<PinnedFile>,
        account: Arc<Account>,
        events: Arc<EventQueue>,
    ) -> Result<Arc<Self>> {
        Self::make(plan, Some(Backing::File(pages)), account, events, None)
    }

    /// Makes a buffer of memory that was allocated or imported. `span` begins at 0, or at the user
    /// address where the program has it mapped.
    pub(crate) fn allocated(
        span: Span,
        write: bool,
        backing: Backing,
        account: Arc<Account>,
        events: Arc<EventQueue>,
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
        events: Arc<EventQueue>,
        lookout: Option<Arc<Lookout>>,
    ) -> Result<Arc<Self>> {
        let kind = backing
            .as_ref()
            .map_or(uapi::PINMAP_BUFFER_USER, Backing::kind);
        let mut stat = StatGuard::stopped(events.stats(), Stat::of_kind(kind));
        if backing.is_some() {
            stat.begin(plan.span.length());
        }
        let pinned = backing.as_ref().map_or(0, |_| plan.span.pages());
        let inner = Inner {
            state: State::Building,
            mappings: KVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?,
            made: 0,
            slot: Some(events.reserve()?),
            event: None,
            guests: KVec::new(),
            failed: false,
            lost: None,
            stale: None,
            kit: Kit::default(),
        };
        let holding = Holding {
            memory: backing,
            stat,
        };
        Arc::pin_init(
            pin_init!(Self {
                life: Life::new(plan, 0, pinned),
                kind,
                account,
                events,
                inner <- new_mutex!(inner, "pinmap_buffer"),
                suspect <- new_spinlock!(Suspect::new(), "pinmap_suspect"),
                lookout,
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
                backing <- new_mutex!(holding, "pinmap_backing"),
                exports <- new_mutex!(Exports::default(), "pinmap_exports"),
                interval <- Interval::new(),
                work <- new_work!("pinmap_buffer"),
                reaped_later: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    pub(super) fn stats(&self) -> &Arc<Stats> {
        self.events.stats()
    }

    /// The user addresses of registered memory; for a part of a file its offsets; from 0 for the
    /// rest.
    pub(crate) fn span(&self) -> Span {
        self.life.span
    }

    /// A `PINMAP_BUFFER_` value.
    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    /// Whether the buffer is registered user memory.
    pub(crate) fn is_user_memory(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_USER
    }

    pub(crate) fn is_vram(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_VRAM
    }

    pub(super) fn is_import(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_IMPORT
    }

    /// Whether somebody else could have the memory after the function is unbound, or has a part in
    /// its mapping for the function.
    pub(crate) fn may_outlive_function(&self) -> bool {
        self.is_vram() || self.is_import()
    }

    /// Whether the buffer is mapped on every device that the process has open.
    pub(crate) fn is_portable(&self) -> bool {
        self.life.portable.load(Relaxed)
    }

    /// Marks the buffer portable. Called before anybody else knows it.
    pub(crate) fn make_portable(&self) {
        self.life.portable.store(true, Relaxed);
    }

    /// Whether `events` are those of its home context, which made the buffer.
    pub(crate) fn is_home(&self, events: &Arc<EventQueue>) -> bool {
        Arc::ptr_eq(&self.events, events)
    }

    /// Whether user space knows a handle of the buffer.
    pub(crate) fn is_published(&self) -> bool {
        self.life.published.load(Acquire)
    }

    /// Marks that user space knows a handle of the buffer.
    pub(crate) fn publish(&self) {
        self.life.published.store(true, Release);
    }

    /// Whether devices may write.
    pub(crate) fn writable(&self) -> bool {
        self.life.write
    }

    pub(crate) fn state(&self) -> State {
        self.inner.lock().state
    }

    /// Describes the buffer and its mappings in `space`.
    pub(crate) fn status(&self, space: &Arc<AddressSpace>) -> Status {
        let inner = self.inner.lock();
        // The mappings of a stale buffer are undone, but stay in the list until it is reaped.
        let mappings: &[KBox<MappedAt>] = if inner.state == State::Live {
            &inner.mappings
        } else {
            &[]
        };
        let mut mappings = mappings
            .iter()
            .filter(|mapped| mapped.published && mapped.mapping.is_in(space));
        let first = mappings.next();
        Status {
            state: inner.state,
            pinned: match inner.state {
                State::Building | State::Live => self.life.pinned.load(Relaxed),
                _ => 0,
            },
            mappings: mappings
                .count()
                .saturating_add(usize::from(first.is_some())),
            device_addr: first.map(|mapped| mapped.mapping.device_addr()),
        }
    }

    /// The offset to pass to `mmap()`; for a part of a file, its offset there; 0: neither.
    pub(crate) fn offset(&self) -> u64 {
        match self.kind {
            uapi::PINMAP_BUFFER_USER => 0,
            uapi::PINMAP_BUFFER_FILE => self.life.span.start(),
            _ => {
                let holding = self.backing.lock();
                holding.memory.as_ref().map_or(0, Backing::offset)
            }
        }
    }

    /// The handle in the home context; 0: none yet. Not published until the buffer is live.
    pub(crate) fn handle(&self) -> u64 {
        self.life.handle.load(Relaxed)
    }

    /// Sets the handle in the home context.
    pub(crate) fn set_handle(&self, handle: u64) {
        self.life.handle.store(handle, Relaxed);
    }

    /// Records a registration that began with `timed`.
    pub(crate) fn trace_registered(&self, timed: &Timed, device_addr: u64) {
        timed.end(self.stats(), || {
            let contiguity = self.contiguity();
            let inner = self.inner.lock();
            Details {
                handle: self.handle(),
                addr: self.life.span.start(),
                device_addr,
                contiguity,
                flushes: inner.flushes(),
            }
        });
    }
}
