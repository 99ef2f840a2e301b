// SPDX-License-Identifier: GPL-2.0
//! The device addresses of a context, or of the bus: which are taken, and by whom.
//!
//! On a flat device, a space is what the IOMMU translates. On a paged one, each context has two
//! spaces behind the device's MMU, one for the program and one for the driver, and one further
//! space of bus addresses for all contexts lies between MMU and IOMMU.
//!
//! An [`IovaRange`] is taken until it is dropped. A range whose memory went away may be
//! *left*: the MMU notifier cannot wait until the device has forgotten it, but the program may want
//! the same addresses again at once. Whoever takes a range that was left waits for the device then.

use crate::{
    failure::Failure,
    logic::{
        gaps::Bounds,
        place::{NoPlace, Space},
        request::Target,
        span::Span,
        PAGE_SIZE,
    },
    mmu::{DmaControl, Entries, Mmu},
    spans::{SpanNodes, Spans},
    sys::{iommu::Domain, task::account::Account},
    uapi,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};

/// The MMU of a device, which translates the addresses of a space before the IOMMU does.
pub(crate) struct DeviceMmu {
    pub(crate) mmu: Arc<dyn Mmu>,
    aperture: Span,
    /// A part of them that is another space's.
    reserved: Option<Span>,
    /// Addresses on the bus, for all contexts of the device.
    pub(crate) bus: Arc<AddressSpace>,
}

/// A space of device addresses.
#[pin_data]
pub(crate) struct AddressSpace {
    domain: Arc<Domain>,
    dma_control: Arc<dyn DmaControl>,
    device_mmu: Option<DeviceMmu>,
    /// The account that pays for page tables of the IOMMU, in spaces where a program chooses the
    /// addresses, and so how many tables there are.
    payer: Option<Arc<Account>>,
    /// Ranges that are taken. Those that were left have the entries that the device still knows.
    #[pin]
    taken: Mutex<Spans<Arc<Entries>>>,
}

impl AddressSpace {
    /// Makes a space of all addresses that `domain` translates. The driver chooses the addresses,
    /// or, with a `payer`, a program does.
    pub(crate) fn new(
        domain: Arc<Domain>,
        dma_control: Arc<dyn DmaControl>,
        payer: Option<Arc<Account>>,
    ) -> Result<Arc<Self>> {
        Self::make(domain, dma_control, None, payer)
    }

    /// Makes a space of the addresses in `aperture`, without those that are `reserved`, which `mmu`
    /// translates to addresses of `bus`.
    pub(crate) fn with_mmu(
        mmu: Arc<dyn Mmu>,
        aperture: Span,
        reserved: Option<Span>,
        bus: Arc<AddressSpace>,
    ) -> Result<Arc<Self>> {
        let (domain, dma_control) = (bus.domain.clone(), bus.dma_control.clone());
        let device_mmu = DeviceMmu {
            mmu,
            aperture,
            reserved,
            bus,
        };
        Self::make(domain, dma_control, Some(device_mmu), None)
    }

    fn make(
        domain: Arc<Domain>,
        dma_control: Arc<dyn DmaControl>,
        device_mmu: Option<DeviceMmu>,
        payer: Option<Arc<Account>>,
    ) -> Result<Arc<Self>> {
        let spans = Spans::new(bounds(&domain, device_mmu.as_ref()))?;
        Arc::pin_init(
            pin_init!(Self {
                domain,
                dma_control,
                device_mmu,
                payer,
                taken <- new_mutex!(spans, "pinmap_space"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The IOMMU's side of the space.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn dma_control(&self) -> &Arc<dyn DmaControl> {
        &self.dma_control
    }

    pub(crate) fn device_mmu(&self) -> Option<&DeviceMmu> {
        self.device_mmu.as_ref()
    }

    pub(crate) fn payer(&self) -> Option<&Arc<Account>> {
        self.payer.as_ref()
    }

    /// The range of addresses that can be taken.
    pub(crate) fn aperture(&self) -> Span {
        match &self.device_mmu {
            Some(device_mmu) => device_mmu.aperture,
            None => self.domain.aperture(),
        }
    }

    /// Whether the space is the device's only one, and not a context's own. Parts of such a one may
    /// be reserved for the platform.
    pub(crate) fn is_of_the_device(&self) -> bool {
        self.device_mmu.is_none()
    }

    /// Fails if there is no room for `length` bytes as demanded. Returns the number of pages that
    /// would be charged for page tables, of the IOMMU or of the device's MMU.
    pub(crate) fn check_room(&self, length: u64, target: Target) -> Result<u64, Failure> {
        let mut taken = self.taken.lock();
        taken.free_vacant(self.bounds());
        let space = self.space(&taken);
        let place = match space.place(length, target.placement, target.address_bits) {
            // A mapping would take what was left there.
            Err(NoPlace::Taken(way)) if taken.leftover(way).is_some() => {
                Span::new(target.placement.address(), length).map_err(|_| EINVAL)?
            }
            place => place.map_err(|why| no_place(why, &taken))?,
        };
        drop(taken);
        Ok(match (&self.device_mmu, &self.payer) {
            (Some(device_mmu), _) => device_mmu.mmu.tables_due(place)?,
            (None, Some(_)) => self.domain.tables_due(place),
            (None, None) => 0,
        })
    }

    /// The first range that overlaps `span` and is taken by a mapping, not by a window.
    pub(crate) fn first_mapped(&self, span: Span) -> Option<Span> {
        self.taken.lock().first_mapped(span)
    }

    /// The part of `span` that the MMU translates, and that is another space's.
    pub(crate) fn reserved(&self, span: Span) -> Option<Span> {
        let device_mmu = self.device_mmu.as_ref()?;
        device_mmu.reserved?.intersection(span)
    }

    /// Frees the ranges in `span` that were left, after the device has forgotten them. Returns
    /// whether there were any. Sleeps.
    pub(crate) fn free_left(&self, span: Span) -> Result<bool> {
        let mut taken = self.taken.lock();
        let mut any = false;
        while let Some((last, id, entries)) = taken.leftover(span) {
            drop(taken);
            entries.remove()?;
            taken = self.taken.lock();
            taken.free_left(self.bounds(), last, id);
            taken.free_vacant(self.bounds());
            any = true;
        }
        Ok(any)
    }

    /// Fails with `ENOSPC` if the device's MMU, if there is one, cannot have so many page tables.
    pub(crate) fn check_tables(&self, count: u64) -> Result {
        let device_mmu = self.device_mmu.as_ref();
        device_mmu.map_or(Ok(()), |device_mmu| device_mmu.mmu.check_tables(count))
    }

    fn bounds(&self) -> Bounds<'_> {
        bounds(&self.domain, self.device_mmu.as_ref())
    }

    /// The space as `logic/place.rs` sees it.
    fn space<'a>(&'a self, taken: &'a Spans<Arc<Entries>>) -> Space<'a, Spans<Arc<Entries>>> {
        match &self.device_mmu {
            Some(device_mmu) => Space {
                aperture: device_mmu.aperture,
                reserved: device_mmu.reserved.as_slice(),
                taken,
            },
            None => self.domain.space(taken),
        }
    }
}

/// The addresses that can be taken, in `domain` or in the MMU before it.
fn bounds<'a>(domain: &'a Domain, device_mmu: Option<&'a DeviceMmu>) -> Bounds<'a> {
    match device_mmu {
        Some(device_mmu) => Bounds::new(device_mmu.aperture, device_mmu.reserved.as_slice()),
        None => Bounds::new(domain.aperture(), domain.reserved_spans()),
    }
}

/// A range of device addresses, taken until it is [freed](Self::free) or dropped.
pub(crate) struct IovaRange {
    space: Arc<AddressSpace>,
    span: Span,
    /// By this number `space` knows whose the range is.
    owner: u64,
}

/// Whether `length` bytes may be placed at `span` again.
fn suits(target: Target, length: u64, span: Span) -> bool {
    let fits = span.last().checked_shr(target.address_bits).unwrap_or(0) == 0;
    fits && span.start() >= PAGE_SIZE && target.placement.suits(length, span)
}

impl IovaRange {
    /// Takes `length` bytes as demanded. May wait for the device, if a range was left there.
    pub(crate) fn take(
        space: &Arc<AddressSpace>,
        length: u64,
        target: Target,
    ) -> Result<Self, Failure> {
        let wished = Span::new(target.placement.address(), length);
        let suits = |span| suits(target, length, span);
        let again = space.taken.lock().take_again(suits);
        if let Some((span, owner)) = again {
            return Ok(Self::new(space, span, owner));
        }
        // Its memory is allocated outside of the lock.
        let nodes = SpanNodes::new()?;
        let mut taken = space.taken.lock();
        taken.free_vacant(space.bounds());
        if let Ok(placement) = wished {
            // Ranges that were left are freed here, where the device can be waited for.
            while let Some((last, id, entries)) = taken.leftover(placement) {
                drop(taken);
                entries.remove()?;
                taken = space.taken.lock();
                taken.free_left(space.bounds(), last, id);
                taken.free_vacant(space.bounds());
            }
        }
        let span = space
            .space(&taken)
            .place(length, target.placement, target.address_bits)
            .map_err(|why| no_place(why, &taken))?;
        let owner = taken.take(space.bounds(), span, nodes);
        drop(taken);
        Ok(Self::new(space, span, owner))
    }

    /// Wraps a span that is already marked as taken.
    fn new(space: &Arc<AddressSpace>, span: Span, owner: u64) -> Self {
        Self {
            space: space.clone(),
            span,
            owner,
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    pub(crate) fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    /// Leaves the range: it can be taken again once `entries` were removed.
    pub(crate) fn leave(&self, entries: &Arc<Entries>) {
        let mut taken = self.space.taken.lock();
        taken.leave(self.span.last(), self.owner, entries.clone());
    }

    /// Makes the range a window of managed memory: nothing is mapped there, but faults are served.
    pub(crate) fn make_window(&self) {
        let mut taken = self.space.taken.lock();
        taken.set_window(self.span.last(), self.owner);
    }

    /// Keeps the range taken for as long as the space exists, unless it was freed.
    pub(crate) fn keep_forever(&self) {
        let left = self.space.taken.lock().keep(self.span.last(), self.owner);
        drop(left);
    }

    /// Frees the range, if it was neither freed nor kept forever.
    pub(crate) fn free(&self) {
        let mut taken = self.space.taken.lock();
        let left = taken.free(self.space.bounds(), self.span.last(), self.owner);
        drop(taken);
        drop(left);
    }
}

impl Drop for IovaRange {
    fn drop(&mut self) {
        self.free();
    }
}

fn no_place(why: NoPlace, taken: &Spans<Arc<Entries>>) -> Failure {
    match why {
        NoPlace::Aperture(highest) => {
            Failure::limit(ENOSPC, uapi::PINMAP_FAIL_APERTURE, 0, highest)
        }
        NoPlace::Reserved(span) => Failure::at(ENOSPC, uapi::PINMAP_FAIL_RESERVED, span.start()),
        NoPlace::Taken(span) if taken.is_window(span) => {
            Failure::at(EEXIST, uapi::PINMAP_FAIL_WINDOW, span.start())
        }
        NoPlace::Taken(span) => Failure::at(EEXIST, uapi::PINMAP_FAIL_OVERLAP, span.start()),
        NoPlace::Full => Failure::at(ENOSPC, uapi::PINMAP_FAIL_FULL, 0),
    }
}
