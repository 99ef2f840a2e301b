// SPDX-License-Identifier: GPL-2.0
//! Memory at a device address.
//!
//! A [`Mapping`] keeps everything that makes its memory reachable: the address, the entries of the
//! IOMMU, and, on a paged device, the entries of the device's MMU with an address on the bus
//! between the two, which no program knows. It also keeps the memory: that nothing is unpinned
//! while a device can reach it is a matter of types. It is undone from the device outwards: entries
//! of the MMU, entries of the IOMMU, memory, addresses.
//!
//! An MMU notifier must not wait for the device. It only calls [`Mapping::unmap`], after which no
//! host memory can be reached; the entries of the device's MMU go later.

use crate::{
    address_space::{AddressSpace, IovaRange},
    failure::Failure,
    logic::{
        contiguity::Contiguity,
        place::Placement,
        pte::{self, Access},
        request::Target,
        span::Span,
        PAGE_SIZE,
    },
    mmu::{DmaControl, Entries},
    sys::{
        iommu::{Gather, Mapped},
        mm::pages::Pages,
        pci::Function,
    },
    view::DevicePages,
};
use kernel::{prelude::*, sync::Arc};

/// A range of VRAM, which it keeps.
pub(crate) trait VramRange: Send + Sync {
    /// The range, by its offset in VRAM; whole pages.
    fn span(&self) -> Span;

    /// The function that has the VRAM.
    fn function(&self) -> &Function;

    /// `part` of the range, counted from its start, as other devices see it on the bus.
    fn on_bus(self: Arc<Self>, part: Span) -> Result<Arc<dyn Pages>>;

    /// The range as `mmap()` shows it.
    fn shown(self: Arc<Self>) -> Arc<dyn DevicePages>;
}

/// Memory that can be mapped.
#[derive(Clone)]
pub(crate) enum Memory {
    /// Memory behind the IOMMU, and what keeps it: that of the host, or of another device.
    Host(Arc<dyn Pages>),
    /// Memory of the device itself.
    Vram(Arc<dyn VramRange>),
}

impl Memory {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Host(pages) => pages.pages().saturating_mul(PAGE_SIZE),
            Self::Vram(vram) => vram.span().length(),
        }
    }

    /// How scattered the memory is. Takes time in proportion to the number of runs.
    pub(crate) fn contiguity(&self) -> Contiguity {
        match self {
            Self::Host(pages) => contiguity_of(&**pages),
            Self::Vram(vram) => contiguity_of_vram(&**vram),
        }
    }
}

fn contiguity_of(pages: &dyn Pages) -> Contiguity {
    let mut contiguity = Contiguity::default();
    // Adding never fails.
    let _ = pages.each(&mut |run| {
        contiguity = contiguity.add(run);
        Ok(())
    });
    contiguity
}

fn contiguity_of_vram(vram: &dyn VramRange) -> Contiguity {
    let span = vram.span();
    Contiguity::default().add_block(span.start() / PAGE_SIZE, span.pages())
}

/// Memory at an address of a context. Dropping it removes it from the device's MMU, unmaps and
/// flushes, lets go of the memory, and frees the addresses. If any of that ever failed, the
/// device's DMA is blocked when the drop returns. The drop waits for the device, if it has an MMU:
/// see [`Entries::remove`].
pub(crate) struct Mapping {
    entries: Option<Arc<Entries>>,
    mapped: Option<Mapped>,
    /// The address on the bus, where there is an MMU before the IOMMU.
    bus: Option<IovaRange>,
    range: IovaRange,
    /// The memory could not be unmapped.
    lost: bool,
    /// The memory, if it is VRAM.
    vram: Option<Arc<dyn VramRange>>,
}

impl Mapping {
    /// Begins a mapping at `range`, where nothing is mapped yet.
    pub(crate) fn new(range: IovaRange) -> Self {
        Self {
            entries: None,
            mapped: None,
            bus: None,
            range,
            lost: false,
            vram: None,
        }
    }

    /// Maps `memory`, which is as long as the range, once. Sleeps. A fatal signal stops it, and a
    /// failure of `wanted`. After a failure a part may be mapped, until the mapping is dropped.
    pub(crate) fn fill(
        &mut self,
        memory: Memory,
        access: Access,
        wanted: impl Fn() -> Result,
    ) -> Result<(), Failure> {
        let (space, span) = (self.range.space(), self.range.span());
        let reached = match memory {
            Memory::Host(pages) => {
                let mut at = span;
                if let Some(device_mmu) = space.device_mmu() {
                    // Congruent, so that huge pages stay huge in both page tables; and packed,
                    // since all contexts of the device share the IOMMU's tables.
                    let packed = Target {
                        placement: Placement::Packed(span.start()),
                        address_bits: u64::BITS,
                    };
                    let bus = IovaRange::take(&device_mmu.bus, span.length(), packed)?;
                    at = bus.span();
                    self.bus = Some(bus);
                }
                let mapped = Mapped::new(space.domain(), at, space.payer())?;
                let mapped = self.mapped.insert(mapped);
                mapped.fill(pages, access.is_write(), wanted)?;
                pte::Memory::Host(at.start())
            }
            Memory::Vram(vram) => {
                let start = vram.span().start();
                self.vram = Some(vram);
                pte::Memory::Vram(start)
            }
        };
        if let Some(device_mmu) = space.device_mmu() {
            let (mmu, dma_control) = (device_mmu.mmu.clone(), space.dma_control().clone());
            let entries = Entries::new(mmu, dma_control, span, reached, access)?;
            self.entries = Some(entries);
        }
        Ok(())
    }

    /// The device address. Valid also after the memory was unmapped.
    pub(crate) fn device_addr(&self) -> u64 {
        self.range.span().start()
    }

    /// How scattered the memory is; all zero once it was unmapped.
    pub(crate) fn contiguity(&self) -> Contiguity {
        match (&self.mapped, &self.vram) {
            (Some(mapped), _) => mapped.runs().map_or(Contiguity::default(), contiguity_of),
            (None, Some(vram)) => contiguity_of_vram(&**vram),
            (None, None) => Contiguity::default(),
        }
    }

    /// How often the IOMMU's cache was flushed for the mapping.
    pub(crate) fn flushes(&self) -> u64 {
        self.mapped.as_ref().map_or(0, Mapped::flushes)
    }

    /// Whether the mapping is in `space`.
    pub(crate) fn is_in(&self, space: &Arc<AddressSpace>) -> bool {
        Arc::ptr_eq(self.range.space(), space)
    }

    /// The entries in the device's MMU. Callers that may wait remove them before
    /// [`unmap`](Self::unmap).
    pub(crate) fn entries(&self) -> Option<&Arc<Entries>> {
        self.entries.as_ref()
    }

    /// Makes the device's MMU begin to forget the mapping: see [`Entries::begin_removal`].
    pub(crate) fn begin_to_forget(&self) {
        if let Some(entries) = &self.entries {
            entries.begin_removal();
        }
    }

    /// Makes the device's MMU forget the mapping: see [`Entries::remove`].
    pub(crate) fn forget(&self) -> Result {
        self.entries
            .as_ref()
            .map_or(Ok(()), |entries| entries.remove())
    }

    /// Unmaps from the IOMMU and flushes, once. When this returns `Ok`, no device can reach host
    /// memory through the mapping, and the memory was let go of. After an error, until the mapping
    /// is dropped, that is not known: the pages stay pinned, the addresses are not used again, and
    /// the device is stopped soon. May be called in an MMU notifier. May be called while the
    /// device's MMU still has the mapping, if somebody else keeps the memory.
    pub(crate) fn unmap(&mut self) -> Result {
        // The IOMMU is not in front of VRAM, which is kept until the device has forgotten it.
        let entries = self.entries.as_ref();
        if entries.is_none_or(|entries| entries.are_forgotten()) {
            self.vram = None;
        }
        let result = self.mapped.as_mut().map_or(Ok(()), |mapped| mapped.unmap());
        if result.is_err() {
            self.lose();
        }
        result
    }

    /// Stops the device soon, since memory could not be unmapped.
    fn lose(&mut self) {
        self.lost = true;
        self.dma_control().clone().schedule_removal();
        self.keep_addresses();
    }

    /// Unmaps from the IOMMU, and leaves the flush to `gather`, unless there are entries of a
    /// device's MMU, which go first. The pages are kept until [`unmap`](Self::unmap).
    pub(crate) fn unmap_into(&mut self, gather: &mut Gather) {
        if self.entries.is_none() {
            if let Some(mapped) = &mut self.mapped {
                mapped.unmap_into(gather);
            }
        }
    }

    /// Flushes what [`unmap_into`](Self::unmap_into) has left to another task. May be called in an
    /// MMU notifier.
    pub(crate) fn flush_gathered(&self) {
        if let Some(mapped) = &self.mapped {
            mapped.flush_gathered();
        }
    }

    /// Drops all of a mapping that was unmapped but its address, unless the device may have it
    /// still.
    pub(crate) fn keep_address_only(&mut self) {
        if self.lost || self.forget().is_err() {
            return;
        }
        self.entries = None;
        self.vram = None;
        self.mapped = None;
        self.bus = None;
    }

    /// Control over the device's DMA.
    pub(crate) fn dma_control(&self) -> &Arc<dyn DmaControl> {
        self.range.space().dma_control()
    }

    /// Makes sure that the addresses are never used again.
    fn keep_addresses(&self) {
        if let Some(bus) = &self.bus {
            bus.keep_forever();
        }
        self.range.keep_forever();
    }

    /// Frees the address of a mapping that was unmapped, or leaves it until the device has
    /// forgotten the entries. May sleep, but neither for an allocation nor for the device.
    pub(crate) fn free_address(&self) {
        match &self.entries {
            Some(entries) => self.range.leave(entries),
            None if self.mapped.as_ref().is_none_or(Mapped::is_empty) => self.range.free(),
            None => {}
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.forget().is_err() {
            self.keep_addresses();
        }
        // A failure is reported through `lost`.
        let _ = self.unmap();
        if self.lost {
            // A program may use the memory again once its call has failed.
            self.dma_control().clone().block_dma();
        }
    }
}
