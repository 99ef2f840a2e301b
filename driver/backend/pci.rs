// SPDX-License-Identifier: GPL-2.0
//! Flat devices: any PCI function, driven from user space. One context owns it.
//!
//! The first call of a context that needs the device claims it. The claim becomes ownership when a
//! call succeeds, and lasts until the context ends. Before another context can claim the function,
//! it is reset, so that nothing that the last owner began goes on. If that failed when the owner
//! went, the first ioctl of the next context tries again, and so does each that claims the
//! function. A claim by `mmap()` only fails until then: a reset may take seconds, and waits for
//! locks under which memory is allocated, so it must not be done with the mmap lock held.
//!
//! Locks, outermost first: `vectors`, `owner`. `access` is a leaf. Whoever resets the function
//! holds `vectors`, and unbinding waits for that lock: a function that is somebody else's is never
//! reset.

use crate::{
    dmabuf::{self, Exports, Parts, Source, View},
    logic::{span::Span, PAGE_SHIFT, PAGE_SIZE},
    mapping::Memory,
    sys::{
        fs::eventfd::EventFd,
        iommu::Domain,
        pci::{irq_eventfd::Vectors, Bar, Function},
        task::gate::Gate,
    },
    uapi::{self, pinmap_info},
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Bits of a file offset that are an offset into a BAR; the bits above are its number.
const BAR_SHIFT: u32 = 40;

/// The number of no context.
const NOBODY: u64 = u64::MAX;

/// The context that has the function.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    /// Nobody, and the function is being reset for the next one.
    Cleaning,
    /// A context with `pending` calls under way, none of which has succeeded yet.
    Claimed { context: u64, pending: u32 },
    /// A context of which a call has succeeded.
    Owned { context: u64 },
    /// A context that is ending.
    Stopped { context: u64 },
}

#[derive(Default)]
struct Owner {
    holder: Holder,
    /// A call has succeeded since the function was last reset.
    used: bool,
    /// The function was unbound or cut off.
    gone: bool,
}

impl Owner {
    fn context(&self) -> Option<u64> {
        match self.holder {
            Holder::Nobody | Holder::Cleaning => None,
            Holder::Claimed { context, .. }
            | Holder::Owned { context }
            | Holder::Stopped { context } => Some(context),
        }
    }

    /// Whether the owner may do DMA.
    fn is_active(&self) -> bool {
        matches!(self.holder, Holder::Claimed { .. } | Holder::Owned { .. })
    }

    /// Fails if `context` neither has the function nor can claim it.
    fn check(&self, context: u64) -> Result {
        if self.gone {
            return Err(ENODEV);
        }
        if self.holder == Holder::Cleaning || self.context().is_some_and(|other| other != context) {
            return Err(EBUSY);
        }
        Ok(())
    }
}

/// Whether pages of device memory are given out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    /// Not now: an access to a function that does not answer during a reset kills some machines.
    Resetting,
    Gone,
}

#[pin_data]
pub(crate) struct Flat {
    function: Function,
    bars: [Bar; uapi::PINMAP_NR_BARS as usize],
    /// Number of interrupt vectors. Read once, since a function that is gone answers nonsense.
    nr_vectors: u32,
    #[pin]
    owner: Mutex<Owner>,
    /// The context that owns the device, to be read without the lock.
    owned_by: Atomic<u64>,
    #[pin]
    vectors: Mutex<Option<Vectors>>,
    /// Held while a page of device memory is inserted into a page table.
    #[pin]
    access: Mutex<Access>,
    /// Closed during a reset.
    answering: Gate,
    /// Exports of the BARs.
    #[pin]
    exports: Mutex<Exports>,
    /// Held while exports are revoked: who comes second waits for the first.
    #[pin]
    revoking: Mutex<()>,
}

/// The pages of `bar` that contain the MSI-X table or its pending bits, as offsets into the BAR.
fn hole(bar: &Bar) -> Option<Span> {
    let msix = bar.msix?;
    let page = |at| Span::aligned(at, PAGE_SIZE);
    Some(page(msix.start()).union(page(msix.last())))
}

impl Flat {
    pub(super) fn new(function: &Function) -> impl PinInit<Self, Error> + '_ {
        let mut bars = [Bar::default(); uapi::PINMAP_NR_BARS as usize];
        for (index, bar) in (0..).zip(&mut bars) {
            *bar = function.bar(index);
            if bar.length >> BAR_SHIFT != 0 {
                bar.flags &= !uapi::PINMAP_BAR_MMAP; // Its offsets would run into the next one's.
            }
        }
        try_pin_init!(Self {
            function: function.clone(),
            bars,
            nr_vectors: function.vectors(),
            owner <- new_mutex!(Owner::default(), "pinmap_owner"),
            owned_by: Atomic::new(NOBODY),
            vectors <- new_mutex!(None, "pinmap_vectors"),
            access <- new_mutex!(Access::Open, "pinmap_access"),
            answering: Gate::new(),
            exports <- new_mutex!(Exports::default(), "pinmap_bar_exports"),
            revoking <- new_mutex!((), "pinmap_bar_revoking"),
        }? Error)
    }

    /// Returns the BAR that a file offset names, and the offset into it.
    fn locate(&self, offset: u64) -> Result<(&Bar, u64)> {
        let index = usize::try_from(offset >> BAR_SHIFT).map_err(|_| EINVAL)?;
        let bar = self
            .bars
            .get(index)
            .filter(|bar| bar.length != 0)
            .ok_or(EINVAL)?;
        Ok((bar, offset & ((1 << BAR_SHIFT) - 1)))
    }

    fn set_access(&self, access: Access) {
        let mut now = self.access.lock();
        if *now == Access::Gone {
            return;
        }
        *now = access;
        if access == Access::Resetting {
            self.answering.close();
        } else {
            self.answering.open();
        }
    }

    /// Resets the function, which ends what the last owner began. The caller makes sure that nobody
    /// can claim it meanwhile. The function is bound to this driver as long as `_vectors` is
    /// locked: [`leave`](Self::leave) waits for that lock.
    fn clean(&self, _vectors: &Option<Vectors>) -> Result {
        self.function.reset()?;
        self.owner.lock().used = false;
        Ok(())
    }

    /// Whether the reset failed when the last owner went.
    fn is_due(&self, owner: &Owner) -> bool {
        owner.holder == Holder::Nobody && owner.used && !owner.gone && self.function.can_reset()
    }

    /// See [`Backend::make_up`](super::Backend::make_up).
    pub(super) fn make_up(&self) {
        let mut owner = self.owner.lock();
        if !self.is_due(&owner) {
            return;
        }
        owner.holder = Holder::Cleaning;
        drop(owner);
        let vectors = self.vectors.lock();
        let is_gone = self.owner.lock().gone;
        if !is_gone {
            // If it fails again, it is due again.
            let _ = self.clean(&vectors);
        }
        drop(vectors);
        self.owner.lock().holder = Holder::Nobody;
    }

    /// See [`Backend::claim`](super::Backend::claim).
    pub(super) fn claim(&self, context: u64) -> Result<bool> {
        if self.owned_by.load(Relaxed) == context {
            return Ok(false);
        }
        let mut owner = self.owner.lock();
        owner.check(context)?;
        if self.is_due(&owner) {
            return Err(EBUSY);
        }
        match &mut owner.holder {
            Holder::Claimed { pending, .. } => *pending = pending.saturating_add(1),
            Holder::Owned { .. } => return Ok(false),
            Holder::Stopped { .. } => {}
            holder => {
                *holder = Holder::Claimed {
                    context,
                    pending: 1,
                };
                self.function.set_master(true);
            }
        }
        Ok(true)
    }

    /// See [`Backend::check_claim`](super::Backend::check_claim).
    pub(super) fn check_claim(&self, context: u64) -> Result {
        self.owner.lock().check(context)
    }

    /// See [`Backend::end_claim`](super::Backend::end_claim).
    pub(super) fn end_claim(&self, context: u64, keep: bool) {
        let mut owner = self.owner.lock();
        if owner.context() != Some(context) {
            return;
        }
        owner.used |= keep;
        let Holder::Claimed { pending, .. } = owner.holder else {
            return;
        };
        if keep {
            owner.holder = Holder::Owned { context };
            if !owner.gone {
                self.owned_by.store(context, Relaxed);
            }
        } else if pending > 1 {
            owner.holder = Holder::Claimed {
                context,
                pending: pending.saturating_sub(1),
            };
        } else {
            self.function.set_master(false);
            owner.holder = Holder::Nobody;
        }
    }

    /// See [`Backend::stop`](super::Backend::stop).
    pub(super) fn stop(&self, context: u64) {
        let mut owner = self.owner.lock();
        if owner.context() == Some(context) {
            owner.holder = Holder::Stopped { context };
            self.owned_by.store(NOBODY, Relaxed);
            self.function.set_master(false);
            drop(owner);
            // It can raise none any more, and where the IOMMU translates them, vectors keep the
            // page table.
            *self.vectors.lock() = None;
            self.revoke_exports();
        }
    }

    /// See [`Backend::disown`](super::Backend::disown).
    pub(super) fn disown(&self, context: u64) {
        if !self.is_owner(context) {
            return;
        }
        let mut vectors = self.vectors.lock();
        *vectors = None;
        // The function still has an owner, so that nobody claims it before it is reset; and it is
        // still bound, since unbinding waits until all contexts have ended.
        if self.needs_reset() {
            // The reset fails if the device lock is taken: the next claim or unbinding tries again.
            let _ = self.clean(&vectors);
        }
        drop(vectors);
        let mut owner = self.owner.lock();
        owner.holder = Holder::Nobody;
    }

    /// See [`Backend::leave`](super::Backend::leave).
    pub(super) fn leave(&self) {
        self.owner.lock().gone = true;
        self.owned_by.store(NOBODY, Relaxed);
        self.function.set_master(false);
        self.set_access(Access::Gone);
        self.revoke_exports();
        // Waits for resets and changes of vectors that are under way.
        drop(self.vectors.lock());
    }

    /// See [`Backend::is_in_use`](super::Backend::is_in_use).
    pub(super) fn is_in_use(&self) -> bool {
        self.owner.lock().context().is_some()
    }

    /// See [`Backend::is_owner`](super::Backend::is_owner).
    pub(super) fn is_owner(&self, context: u64) -> bool {
        self.owner.lock().context() == Some(context)
    }

    /// See [`Backend::needs_reset`](super::Backend::needs_reset).
    pub(super) fn needs_reset(&self) -> bool {
        self.owner.lock().used && self.function.can_reset()
    }

    /// See [`Backend::before_reset`](super::Backend::before_reset).
    pub(super) fn before_reset(&self) {
        self.set_access(Access::Resetting);
        self.revoke_exports();
    }

    /// See [`Backend::prepare_sleep`](super::Backend::prepare_sleep).
    pub(super) fn prepare_sleep(&self) {
        self.before_reset();
        self.function.set_master(false);
    }

    /// See [`Backend::after_reset`](super::Backend::after_reset).
    pub(super) fn after_reset(&self) {
        let owner = self.owner.lock();
        // The PCI core has restored bus mastering as it was before; the owner may be gone since.
        self.function.set_master(owner.is_active() && !owner.gone);
        drop(owner);
        self.set_access(Access::Open);
    }

    /// See [`Backend::describe`](super::Backend::describe).
    pub(super) fn describe(&self, context: u64, info: &mut pinmap_info) {
        info.out_kind = uapi::PINMAP_KIND_FLAT;
        info.out_nr_vectors = self.nr_vectors;
        if self.function.can_reset() {
            info.out_flags |= uapi::PINMAP_INFO_RESET;
        }
        let owner = self.owner.lock().context();
        if owner.is_some() {
            info.out_flags |= uapi::PINMAP_INFO_OWNED;
        }
        if owner == Some(context) {
            info.out_flags |= uapi::PINMAP_INFO_OWNER;
        }
        for ((index, bar), out) in (0_u64..).zip(&self.bars).zip(&mut info.out_bars) {
            out.offset = index << BAR_SHIFT;
            out.length = bar.length;
            out.flags = bar.flags;
            if let Some(hole) = hole(bar) {
                out.hole_offset = hole.start();
                out.hole_length = hole.length();
            }
        }
    }

    /// Checks that `length` bytes of device memory at this file offset may be mapped. Returns
    /// whether to map them write-combined.
    pub(crate) fn check_view(&self, offset: u64, length: u64) -> Result<bool> {
        let (bar, offset) = self.locate(offset)?;
        let wanted = Span::new(offset, length).map_err(|_| EINVAL)?;
        if wanted.last() >= bar.length || hole(bar).is_some_and(|hole| hole.overlaps(wanted)) {
            return Err(EINVAL);
        }
        if bar.flags & uapi::PINMAP_BAR_MMAP == 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(bar.flags & uapi::PINMAP_BAR_PREFETCHABLE != 0)
    }

    /// The part of a BAR at these file offsets, as it can be exported. Fails as
    /// [`check_view`](Self::check_view) does.
    pub(crate) fn parts(&self, part: Span) -> Result<Parts> {
        if (part.start() | part.length()) % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        self.check_view(part.start(), part.length())?;
        let index = (part.start() >> BAR_SHIFT) as u32;
        let (_, offset) = self.locate(part.start())?;
        let inside = Span::new(offset, part.length()).map_err(|_| EINVAL)?;
        let pages = dmabuf::pages_of_bar(&self.function, index, inside, ())?;
        Ok(Parts {
            memory: Memory::Host(pages),
            view: View::None,
            revocable: true,
        })
    }

    /// Adds an export of the BARs for `context`, which has claimed the device: it is revoked when
    /// the context ends, or the function is reset or gone. `EAGAIN`: the function is being reset.
    pub(crate) fn add_export(&self, context: u64, source: &Arc<Source>) -> Result {
        self.exports.lock().add(source)?;
        // Whoever ends the claim, or begins a reset, does so before it takes the list.
        let is_answering = *self.access.lock() == Access::Open;
        let owner = self.owner.lock();
        let result = match owner.check(context) {
            Ok(()) if !owner.is_active() => Err(ENODEV),
            Ok(()) if !is_answering => Err(EAGAIN),
            result => result,
        };
        drop(owner);
        if result.is_err() {
            dmabuf::revoke(source);
        }
        result
    }

    /// When this returns, nobody reaches the BARs by an export that was made before.
    fn revoke_exports(&self) {
        let _one_at_a_time = self.revoking.lock();
        let exports = self.exports.lock().take();
        if let Some(exports) = exports {
            exports.revoke();
        }
    }

    /// Calls `insert` with the page frame of device memory at this file offset, unless the device
    /// is gone. [`leave`](Self::leave) waits for that call to return.
    pub(crate) fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let (bar, offset) = self.locate(offset).ok()?;
        let address = bar
            .start
            .checked_add(offset)
            .filter(|_| offset < bar.length)?;
        loop {
            let access = self.access.lock();
            match *access {
                Access::Open => return Some(insert(address >> PAGE_SHIFT)),
                Access::Gone => return None,
                Access::Resetting => {}
            }
            drop(access);
            self.answering.pass().ok()?;
        }
    }

    /// Whether there is an interrupt vector `index`.
    pub(crate) fn has_vector(&self, index: u32) -> bool {
        index < self.nr_vectors
    }

    /// Lets interrupt vector `index` signal `eventfd`, or nothing. The caller has claimed the
    /// device, whose DMA goes through `domain`.
    pub(crate) fn set_vector(
        &self,
        index: u32,
        eventfd: Option<EventFd>,
        domain: &Arc<Domain>,
    ) -> Result {
        let mut vectors = self.vectors.lock();
        // Checked under the lock: `leave` sets `gone` before it waits for the lock.
        if self.owner.lock().gone {
            return Err(ENODEV);
        }
        match (&mut *vectors, eventfd) {
            (Some(vectors), eventfd) => vectors.set(index, eventfd),
            (None, None) => Ok(()),
            (none, eventfd) => {
                let mut vectors = Vectors::new(&self.function, domain)?;
                vectors.set(index, eventfd)?;
                *none = Some(vectors);
                Ok(())
            }
        }
    }

    /// Whether the function has a reset method.
    pub(crate) fn can_reset(&self) -> bool {
        self.function.can_reset()
    }

    /// Resets the function. The caller has claimed it.
    pub(crate) fn reset(&self) -> Result {
        // `leave` waits for this lock: a function that is unbound must not be reset.
        let _vectors = self.vectors.lock();
        if self.owner.lock().gone {
            return Err(ENODEV);
        }
        self.function.reset()
    }
}
