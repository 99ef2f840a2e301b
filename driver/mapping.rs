// SPDX-License-Identifier: GPL-2.0
//! Buffers in the address space of a device.

use crate::{
    failure::Failure,
    logic::{
        place::{NoPlace, Taken},
        request::Target,
        span::Span,
        PAGE_SIZE,
    },
    sys::{
        gup::PinnedRuns,
        iommu::{Domain, Mapped},
        uapi,
    },
};
use core::mem;
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{Arc, Mutex},
};

/// Disjoint spans by their last address, so that the first one not wholly below an address is the
/// lower bound of that address.
struct Spans(RBTree<u64, Span>);

impl Taken for Spans {
    fn from(&self, address: u64) -> Option<Span> {
        self.0
            .cursor_lower_bound(&address)
            .map(|cursor| *cursor.current().1)
    }
}

/// Who is told that a domain cannot be trusted any more.
pub(crate) trait Guardian: Send + Sync {
    /// Something could not be unmapped. To be stopped soon: the device. From any context.
    fn lost_control(self: Arc<Self>);
}

/// The device addresses that one context has given out.
#[pin_data]
pub(crate) struct AddressSpace {
    domain: Arc<Domain>,
    guardian: Arc<dyn Guardian>,
    #[pin]
    taken: Mutex<Spans>,
}

impl AddressSpace {
    /// All free, in `domain`.
    pub(crate) fn new(domain: Arc<Domain>, guardian: Arc<dyn Guardian>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                domain,
                guardian,
                taken <- new_mutex!(Spans(RBTree::new()), "pinmap_space"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

/// A span of device addresses that nothing else in the space can have. Dropping it frees it.
struct Place {
    space: Arc<AddressSpace>,
    span: Span,
}

impl Place {
    fn take(
        space: &Arc<AddressSpace>,
        length: u64,
        target: Target,
    ) -> core::result::Result<Self, Failure> {
        // The memory for it is allocated outside of the lock.
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut taken = space.taken.lock();
        let span = space
            .domain
            .space(&*taken)
            .place(length, target.wish, target.bits)
            .map_err(no_place)?;
        taken.0.insert(node.into_node(span.last(), span));
        drop(taken);
        Ok(Self {
            space: space.clone(),
            span,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.space.taken.lock().0.remove(&self.span.last());
    }
}

fn no_place(why: NoPlace) -> Failure {
    match why {
        NoPlace::Aperture(highest) => Failure::limit(ENOSPC, uapi::FAIL_APERTURE, 0, highest),
        NoPlace::Reserved(span) => Failure::at(ENOSPC, uapi::FAIL_RESERVED, span.start()),
        NoPlace::Taken(span) => Failure::at(EEXIST, uapi::FAIL_OVERLAP, span.start()),
        NoPlace::Full => Failure::at(ENOSPC, uapi::FAIL_FULL, 0),
    }
}

/// A buffer at an address of a context. Dropping it unmaps, flushes, lets go of the pages, and frees
/// the address.
pub(crate) struct Mapping {
    mapped: Mapped,
    /// `None` once the address is free, or must never be used again.
    place: Option<Place>,
    device_addr: u64,
}

impl Mapping {
    /// Maps `runs` in `space`. Sleeps. Stopped by a fatal signal, and when `wanted` says so.
    pub(crate) fn new(
        space: &Arc<AddressSpace>,
        runs: &Arc<PinnedRuns>,
        target: Target,
        write: bool,
        wanted: impl Fn() -> Result,
    ) -> core::result::Result<Self, Failure> {
        let place = Place::take(space, runs.pages().saturating_mul(PAGE_SIZE), target)?;
        let device_addr = place.span.start();
        let mut this = Self {
            mapped: Mapped::new(&space.domain, device_addr),
            place: Some(place),
            device_addr,
        };
        this.mapped.fill(runs, write, wanted)?;
        Ok(this)
    }

    /// Where it is, or was.
    pub(crate) fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// Unmaps and flushes, once. When it returns `Ok`, no device can reach the pages here, and they are
    /// let go of. After an error that is not known: they stay pinned, the address is not used again, and
    /// the device is stopped. May be called from an MMU notifier if somebody else has the pages, too.
    pub(crate) fn unmap(&mut self) -> Result {
        let result = self.mapped.unmap();
        if let Some(place) = self.place.take_if(|_| result.is_err()) {
            place.space.guardian.clone().lost_control();
            mem::forget(place);
        }
        result
    }

    /// Frees the address, once it is unmapped. May sleep, but not for an allocation.
    pub(crate) fn free_address(&mut self) {
        if self.mapped.is_empty() {
            self.place = None;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Whoever has to know of a failure was told by it.
        let _ = self.unmap();
    }
}
