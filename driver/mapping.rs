// SPDX-License-Identifier: GPL-2.0
//! Buffers in the address space of a device.
//!
//! On a flat device that is the IOMMU's. A paged one has an MMU in front of it: addresses are then those
//! that the MMU translates, and each mapping has an address on the bus besides, which nobody is told.

use crate::{
    failure::Failure,
    logic::{
        gaps::Bounds,
        place::{NoPlace, Space, Wish},
        pte::{self, Access},
        request::Target,
        shape::Shape,
        span::Span,
        PAGE_SIZE,
    },
    spans::{Room, Spans},
    sys::{
        account::{Account, Charge},
        iommu::{Domain, Mapped},
        pages::Pages,
        uapi,
    },
};
use core::mem;
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{Arc, Mutex},
};

/// Who is told that a device cannot be trusted any more.
pub(crate) trait Guardian: Send + Sync {
    /// Something could not be unmapped. To be stopped soon: the device. From any context.
    fn lost_control(self: Arc<Self>);

    /// The same; and when it returns, no DMA of the device reaches any memory. Sleeps. Nobody is told
    /// of a failure before.
    fn cut_off(self: Arc<Self>);
}

/// The MMU of a device, as one of its contexts has it.
pub(crate) trait Mmu: Send + Sync {
    /// Lets the device reach `memory`, contiguous, at `span`, of which nothing is mapped. On failure
    /// nothing of it is. Sleeps, and may wait for the device.
    fn enter(
        &self,
        span: Span,
        memory: pte::Memory,
        access: Access,
    ) -> core::result::Result<(), Failure>;

    /// Takes away what was entered at `span`, and has the device begin to forget it. `Err`: the device
    /// does not answer. Sleeps.
    fn remove(&self, span: Span) -> Result<Removal>;

    /// Waits until the device has forgotten what `removal` took away: nothing that it translated before
    /// is still under way. `Err`: it did not say so in time.
    fn finish(&self, removal: Removal) -> Result;
}

/// Something that a device was told to forget, and may use until it says that it has.
pub(crate) struct Removal {
    /// The number of the command to do so; `None`: the device knew nothing of it.
    pub(crate) command: Option<u64>,
    /// Tables that are used no more.
    pub(crate) tables: RBTree<u64, Table>,
}

/// A table of a device's MMU.
pub(crate) struct Table {
    /// In the device's memory.
    pub(crate) offset: u64,
    /// Entries that are valid.
    pub(crate) used: u64,
    /// How many there are is up to the program.
    pub(crate) _charge: Charge,
}

/// Memory of a device's own.
pub(crate) trait Local: Send + Sync {
    /// Where it is in the device; whole pages.
    fn span(&self) -> Span;
}

/// What is mapped.
#[derive(Clone)]
pub(crate) enum Memory {
    /// Host memory, and what keeps it.
    Host(Arc<dyn Pages>),
    /// The device's.
    Local(Arc<dyn Local>),
}

impl Memory {
    fn length(&self) -> u64 {
        match self {
            Self::Host(pages) => pages.pages().saturating_mul(PAGE_SIZE),
            Self::Local(local) => local.span().length(),
        }
    }

    /// How scattered it is. Takes as long as there are runs.
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Host(pages) => shape_of(&**pages),
            Self::Local(local) => shape_of_local(&**local),
        }
    }
}

fn shape_of(pages: &dyn Pages) -> Shape {
    let mut shape = Shape::default();
    // Adding never fails.
    let _ = pages.each(&mut |run| {
        shape = shape.add(run);
        Ok(())
    });
    shape
}

fn shape_of_local(local: &dyn Local) -> Shape {
    let span = local.span();
    Shape::default().add_block(span.start() / PAGE_SIZE, span.pages())
}

/// What translates the addresses of a space before the IOMMU does.
struct Front {
    mmu: Arc<dyn Mmu>,
    aperture: Span,
    /// Addresses on the bus, for all contexts of the device.
    bus: Arc<AddressSpace>,
}

/// The device addresses that were given out.
#[pin_data]
pub(crate) struct AddressSpace {
    domain: Arc<Domain>,
    guardian: Arc<dyn Guardian>,
    front: Option<Front>,
    /// Who pays for tables of the IOMMU, where it is up to the program how many those are.
    payer: Option<Arc<Account>>,
    /// What was left: the device has not forgotten it yet, though its memory went away.
    #[pin]
    taken: Mutex<Spans<Arc<Entries>>>,
}

impl AddressSpace {
    /// All that `domain` translates, free: for addresses that the driver chooses, or, with a `payer`, a
    /// program.
    pub(crate) fn new(
        domain: Arc<Domain>,
        guardian: Arc<dyn Guardian>,
        payer: Option<Arc<Account>>,
    ) -> Result<Arc<Self>> {
        Self::make(domain, guardian, None, payer)
    }

    /// The addresses in `aperture` that `mmu` translates to addresses of `bus`, free.
    pub(crate) fn behind(
        mmu: Arc<dyn Mmu>,
        aperture: Span,
        bus: Arc<AddressSpace>,
    ) -> Result<Arc<Self>> {
        let (domain, guardian) = (bus.domain.clone(), bus.guardian.clone());
        let front = Front { mmu, aperture, bus };
        Self::make(domain, guardian, Some(front), None)
    }

    fn make(
        domain: Arc<Domain>,
        guardian: Arc<dyn Guardian>,
        front: Option<Front>,
        payer: Option<Arc<Account>>,
    ) -> Result<Arc<Self>> {
        let spans = Spans::new(bounds(&domain, front.as_ref()))?;
        Arc::pin_init(
            pin_init!(Self {
                domain,
                guardian,
                front,
                payer,
                taken <- new_mutex!(spans, "pinmap_space"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The addresses that can be given out.
    pub(crate) fn aperture(&self) -> Span {
        match &self.front {
            Some(front) => front.aperture,
            None => self.domain.aperture(),
        }
    }

    /// Whether it is the device's, and not a context's of its own.
    pub(crate) fn is_of_the_device(&self) -> bool {
        self.front.is_none()
    }

    /// Whether some of the aperture is reserved for the platform.
    pub(crate) fn has_reserved(&self) -> bool {
        self.front.is_none()
    }

    /// Whether there is room for `length` bytes, as demanded. Pages that would be charged for tables.
    pub(crate) fn check_room(
        &self,
        length: u64,
        target: Target,
    ) -> core::result::Result<u64, Failure> {
        let mut taken = self.taken.lock();
        taken.settle(self.bounds());
        let space = self.space(&taken);
        let place = space.place(length, target.wish, target.bits);
        match place {
            // It would be asked for first.
            Err(NoPlace::Taken(way)) if taken.leftover(way).is_some() => Ok(0),
            Ok(span) if self.payer.is_some() => Ok(self.domain.tables_due(span)),
            place => place.map(|_| 0).map_err(no_place),
        }
    }

    /// What can be given out.
    fn bounds(&self) -> Bounds<'_> {
        bounds(&self.domain, self.front.as_ref())
    }

    /// Where to place something, with `taken` taken.
    fn space<'a>(&'a self, taken: &'a Spans<Arc<Entries>>) -> Space<'a, Spans<Arc<Entries>>> {
        match &self.front {
            Some(front) => Space {
                aperture: front.aperture,
                reserved: &[],
                taken,
            },
            None => self.domain.space(taken),
        }
    }
}

/// What can be given out of `domain`, or of what is in `front` of it.
fn bounds<'a>(domain: &'a Domain, front: Option<&Front>) -> Bounds<'a> {
    match front {
        Some(front) => Bounds::new(front.aperture, &[]),
        None => Bounds::new(domain.aperture(), domain.reserved_spans()),
    }
}

/// A span of device addresses that nothing else in the space can have. Dropping it frees it.
struct Place {
    space: Arc<AddressSpace>,
    span: Span,
    id: u64,
    /// Not even when it is dropped.
    forever: bool,
}

impl Place {
    fn take(
        space: &Arc<AddressSpace>,
        length: u64,
        target: Target,
    ) -> core::result::Result<Self, Failure> {
        let suits = |span: Span| {
            let fits = span.last().checked_shr(target.bits).unwrap_or(0) == 0;
            fits && span.start() >= PAGE_SIZE && target.wish.suits(length, span)
        };
        let again = space.taken.lock().take_again(suits);
        if let Some((span, id)) = again {
            return Ok(Self::new(space, span, id));
        }
        let wished = Span::new(target.wish.address(), length);
        // The memory for it is allocated outside of the lock.
        let room = Room::new()?;
        let mut taken = space.taken.lock();
        taken.settle(space.bounds());
        if let Ok(wish) = wished {
            // The same addresses may be used again as soon as their memory went away. That the device
            // has not forgotten them yet, we find out here and not in an MMU notifier.
            while let Some((last, place, entries)) = taken.leftover(wish) {
                drop(taken);
                entries.remove()?;
                taken = space.taken.lock();
                taken.free(space.bounds(), last, place);
                taken.settle(space.bounds());
            }
        }
        let span = space
            .space(&taken)
            .place(length, target.wish, target.bits)
            .map_err(no_place)?;
        let id = taken.take(space.bounds(), span, room);
        drop(taken);
        Ok(Self::new(space, span, id))
    }

    /// Of what was taken.
    fn new(space: &Arc<AddressSpace>, span: Span, id: u64) -> Self {
        Self {
            space: space.clone(),
            span,
            id,
            forever: false,
        }
    }

    /// Whoever wants the span next may have it, after `entries` were removed.
    fn leave(&self, entries: &Arc<Entries>) {
        let mut taken = self.space.taken.lock();
        taken.leave(self.span.last(), self.id, entries.clone());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.forever {
            let mut taken = self.space.taken.lock();
            taken.free(self.space.bounds(), self.span.last(), self.id);
        }
    }
}

fn no_place(why: NoPlace) -> Failure {
    match why {
        NoPlace::Aperture(highest) => {
            Failure::limit(ENOSPC, uapi::PINMAP_FAIL_APERTURE, 0, highest)
        }
        NoPlace::Reserved(span) => Failure::at(ENOSPC, uapi::PINMAP_FAIL_RESERVED, span.start()),
        NoPlace::Taken(span) => Failure::at(EEXIST, uapi::PINMAP_FAIL_OVERLAP, span.start()),
        NoPlace::Full => Failure::at(ENOSPC, uapi::PINMAP_FAIL_FULL, 0),
    }
}

/// What a device's MMU knows of a mapping.
enum Known {
    Present,
    /// It was told to forget.
    Leaving(Removal),
    Forgotten,
    /// Whether it has forgotten was never said.
    Lost,
}

/// A span of a device's MMU. Outlives the mapping until the device has forgotten it.
#[pin_data]
pub(crate) struct Entries {
    mmu: Arc<dyn Mmu>,
    guardian: Arc<dyn Guardian>,
    span: Span,
    #[pin]
    known: Mutex<Known>,
}

impl Entries {
    /// Has the device begin to forget them, once. To be followed by [`remove`](Self::remove): who takes
    /// away many begins with all, and so waits for about as long as for one.
    pub(crate) fn begin_removal(&self) {
        self.begin(&mut self.known.lock());
    }

    fn begin(&self, known: &mut Known) {
        if let Known::Present = known {
            *known = match self.mmu.remove(self.span) {
                Ok(removal) => Known::Leaving(removal),
                Err(_) => self.lose(),
            };
        }
    }

    /// Takes them away from the device, once. When it returns `Ok`, the device has forgotten them.
    /// After an error its DMA is blocked. Waits for the device: never in an MMU notifier, nor with a
    /// lock that one takes.
    pub(crate) fn remove(&self) -> Result {
        let mut known = self.known.lock();
        self.begin(&mut known);
        *known = match mem::replace(&mut *known, Known::Lost) {
            Known::Leaving(removal) => match self.mmu.finish(removal) {
                Ok(()) => Known::Forgotten,
                Err(_) => self.lose(),
            },
            known => known,
        };
        match *known {
            Known::Lost => Err(EIO),
            _ => Ok(()),
        }
    }

    /// The device has not done as it was told: nothing may be let go of before it is cut off.
    fn lose(&self) -> Known {
        self.guardian.clone().cut_off();
        Known::Lost
    }
}

/// A buffer at an address of a context. Dropping it takes it away from the device's MMU, unmaps and
/// flushes, lets go of the memory, and frees the addresses. If any of that ever failed, the device is cut
/// off when the drop returns. That waits for the device, if it has an MMU: see [`Entries::remove`].
pub(crate) struct Mapping {
    entries: Option<Arc<Entries>>,
    mapped: Option<Mapped>,
    /// Its address on the bus, where that is another one.
    bus: Option<Place>,
    /// `None` once the address is free, or must never be used again.
    place: Option<Place>,
    device_addr: u64,
    space: Arc<AddressSpace>,
    guardian: Arc<dyn Guardian>,
    /// It could not be unmapped.
    lost: bool,
    /// Memory of the device's own.
    local: Option<Arc<dyn Local>>,
}

impl Mapping {
    /// Maps `memory` in `space`. Sleeps. Stopped by a fatal signal, and when `wanted` says so.
    pub(crate) fn new(
        space: &Arc<AddressSpace>,
        memory: &Memory,
        target: Target,
        access: Access,
        wanted: impl Fn() -> Result,
    ) -> core::result::Result<Self, Failure> {
        let place = Place::take(space, memory.length(), target)?;
        let span = place.span;
        // Whatever fails from here on, dropping it undoes what there is, and tells if it cannot.
        let mut this = Self {
            entries: None,
            mapped: None,
            bus: None,
            device_addr: span.start(),
            place: Some(place),
            space: space.clone(),
            guardian: space.guardian.clone(),
            lost: false,
            local: None,
        };
        let reached = match memory {
            Memory::Host(pages) => {
                let mut at = span;
                if let Some(front) = &space.front {
                    // Congruent, so that huge pages stay huge in both page tables; and close together, for
                    // the IOMMU's tables are everybody's, and not what a context may have many of.
                    let packed = Target {
                        wish: Wish::Packed(span.start()),
                        bits: u64::BITS,
                    };
                    let bus = Place::take(&front.bus, span.length(), packed)?;
                    at = bus.span;
                    this.bus = Some(bus);
                }
                let mapped = Mapped::new(&space.domain, at, space.payer.as_ref())?;
                let mapped = this.mapped.insert(mapped);
                mapped.fill(pages, access == Access::Write, wanted)?;
                pte::Memory::Host(at.start())
            }
            Memory::Local(local) => {
                this.local = Some(local.clone());
                pte::Memory::Local(local.span().start())
            }
        };
        if let Some(front) = &space.front {
            let entries = Arc::pin_init(
                pin_init!(Entries {
                    mmu: front.mmu.clone(),
                    guardian: space.guardian.clone(),
                    span,
                    known <- new_mutex!(Known::Present, "pinmap_entries"),
                }),
                GFP_KERNEL_ACCOUNT,
            )?;
            front.mmu.enter(span, reached, access)?;
            this.entries = Some(entries);
        }
        Ok(this)
    }

    /// Where it is, or was.
    pub(crate) fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// How scattered the memory is that is mapped now.
    pub(crate) fn shape(&self) -> Shape {
        match (&self.mapped, &self.local) {
            (Some(mapped), _) => mapped.runs().map_or(Shape::default(), shape_of),
            (None, Some(local)) => shape_of_local(&**local),
            (None, None) => Shape::default(),
        }
    }

    /// How often the IOMMU's cache was flushed for it.
    pub(crate) fn flushes(&self) -> u64 {
        self.mapped.as_ref().map_or(0, Mapped::flushes)
    }

    /// Whether it is in `space`.
    pub(crate) fn is_in(&self, space: &Arc<AddressSpace>) -> bool {
        Arc::ptr_eq(&self.space, space)
    }

    /// What the device's MMU has, to be removed before [`unmap`](Self::unmap) by whoever may wait.
    pub(crate) fn entries(&self) -> Option<&Arc<Entries>> {
        self.entries.as_ref()
    }

    /// Has the device's MMU begin to forget it: see [`Entries::begin_removal`].
    pub(crate) fn begin_to_forget(&self) {
        if let Some(entries) = &self.entries {
            entries.begin_removal();
        }
    }

    /// Takes it away from the device's MMU: see [`Entries::remove`].
    pub(crate) fn forget(&self) -> Result {
        self.entries
            .as_ref()
            .map_or(Ok(()), |entries| entries.remove())
    }

    /// Unmaps from the IOMMU and flushes, once. When it returns `Ok`, no device can reach host memory
    /// here, and the memory is let go of. After an error that is not known before it is dropped: pages
    /// stay pinned, the addresses are not used again, and the device is stopped soon. May be called from
    /// an MMU notifier, or while the device's MMU still has it, if somebody else has the memory, too.
    pub(crate) fn unmap(&mut self) -> Result {
        self.local = None;
        let result = self.mapped.as_mut().map_or(Ok(()), Mapped::unmap);
        if result.is_err() {
            self.lost = true;
            self.guardian.clone().lost_control();
            self.keep_addresses();
        }
        result
    }

    /// Who can cut off the device.
    pub(crate) fn guardian(&self) -> &Arc<dyn Guardian> {
        &self.guardian
    }

    /// The addresses are never used again.
    fn keep_addresses(&mut self) {
        for place in [&mut self.bus, &mut self.place] {
            if let Some(mut place) = place.take() {
                place.forever = true;
            }
        }
    }

    /// Lets the address be used again, once it is unmapped. May sleep, but neither for an allocation
    /// nor for the device.
    pub(crate) fn free_address(&mut self) {
        match (&self.entries, &self.place) {
            (Some(entries), Some(place)) => place.leave(entries),
            _ if self.mapped.as_ref().is_none_or(Mapped::is_empty) => self.place = None,
            _ => {}
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.forget().is_err() {
            self.keep_addresses();
        }
        // Whoever has to know of a failure was told by it, or will be.
        let _ = self.unmap();
        if self.lost {
            // The memory may be used again once the call has failed.
            self.guardian.clone().cut_off();
        }
    }
}
