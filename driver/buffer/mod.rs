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
pub(crate) use spare::{Kit, Spare};
pub(crate) use watch::Lookout;

use backing::Holding;
use guests::Subscriber;
use mappings::MappedAt;

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
}

/// A buffer's state, as QUERY and debugfs answer it.
pub(crate) struct Status {
    pub(crate) state: State,
    /// Number of pinned pages.
    pub(crate) pinned: u64,
    pub(crate) mappings: usize,
    /// Device address of the first mapping.
    pub(crate) device_addr: Option<u64>,
}

/// A range of memory that devices can be given.
#[pin_data]
pub(crate) struct Buffer {
    span: Span,
    write: bool,
    /// Whether any signal ends the registration while it is under way, not only a fatal one.
    interruptible: bool,
    /// Whether the buffer is mapped on every device that the process has open.
    portable: Atomic<bool>,
    /// Whether user space knows a handle of the buffer.
    published: Atomic<bool>,
    kind: u32,
    /// The handle in its home context; 0: none yet.
    handle: Atomic<u64>,
    /// Pages that are pinned so far.
    pinned: Atomic<u64>,
    account: Arc<Account>,
    /// The event queue of the home context.
    events: Arc<EventQueue>,
    #[pin]
    inner: Mutex<Inner>,
    /// The ranges of which the worker has to find out whether they are still there.
    #[pin]
    suspect: SpinLock<Suspect>,
    /// Whether a change was ever noted in `suspect`.
    told: Atomic<bool>,
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
    /// Whether `exports` was ever changed.
    exported: Atomic<bool>,
    #[pin]
    interval: Interval<Buffer>,
    /// For [`reap`](Self::reap).
    #[pin]
    work: Work<Buffer>,
    /// Whether `work` was ever queued.
    reaped_later: Atomic<bool>,
    /// Whether [`reap`](Self::reap) has finished.
    reaped: Atomic<bool>,
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

    /// Makes a buffer of memory that was allocated or imported. `span` begins at 0.
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
        };
        let holding = Holding {
            memory: backing,
            stat,
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
                suspect <- new_spinlock!(Suspect::new(), "pinmap_suspect"),
                told: Atomic::new(false),
                lookout,
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
                backing <- new_mutex!(holding, "pinmap_backing"),
                exports <- new_mutex!(Exports::default(), "pinmap_exports"),
                exported: Atomic::new(false),
                interval <- Interval::new(),
                work <- new_work!("pinmap_buffer"),
                reaped_later: Atomic::new(false),
                reaped: Atomic::new(false),
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
        self.span
    }

    /// A `PINMAP_BUFFER_` value.
    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    /// Whether the buffer is registered user memory.
    pub(crate) fn is_user_memory(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_USER
    }

    /// Whether the buffer is VRAM.
    pub(crate) fn is_vram(&self) -> bool {
        self.kind == uapi::PINMAP_BUFFER_VRAM
    }

    /// Whether the buffer is mapped on every device that the process has open.
    pub(crate) fn is_portable(&self) -> bool {
        self.portable.load(Relaxed)
    }

    /// Marks the buffer portable. Called before anybody else knows it.
    pub(crate) fn make_portable(&self) {
        self.portable.store(true, Relaxed);
    }

    /// Whether `events` are those of its home context, which made the buffer.
    pub(crate) fn is_home(&self, events: &Arc<EventQueue>) -> bool {
        Arc::ptr_eq(&self.events, events)
    }

    /// Whether user space knows a handle of the buffer.
    pub(crate) fn is_published(&self) -> bool {
        self.published.load(Acquire)
    }

    /// Marks that user space knows a handle of the buffer.
    pub(crate) fn publish(&self) {
        self.published.store(true, Release);
    }

    /// Whether devices may write.
    pub(crate) fn writable(&self) -> bool {
        self.write
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
                State::Building | State::Live => self.pinned.load(Relaxed),
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
            uapi::PINMAP_BUFFER_FILE => self.span.start(),
            _ => {
                let holding = self.backing.lock();
                holding.memory.as_ref().map_or(0, Backing::offset)
            }
        }
    }

    /// The handle in the home context; 0: none yet. Not published until the buffer is live.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Relaxed)
    }

    /// Sets the handle in the home context.
    pub(crate) fn set_handle(&self, handle: u64) {
        self.handle.store(handle, Relaxed);
    }

    /// Records a registration that began with `timed`.
    pub(crate) fn trace_registered(&self, timed: &Timed, device_addr: u64) {
        timed.end(self.stats(), || {
            let contiguity = self.contiguity();
            let inner = self.inner.lock();
            Details {
                handle: self.handle(),
                addr: self.span.start(),
                device_addr,
                contiguity,
                flushes: inner.flushes(),
            }
        });
    }
}
