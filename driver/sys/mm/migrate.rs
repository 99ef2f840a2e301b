// SPDX-License-Identifier: GPL-2.0
//! Migration of anonymous memory between the system and a device.
//!
//! A [`Batch`] is a set of pages that migrate together, in three steps. They are *collected*: taken
//! from all page tables that have them, also those of devices, whose MMU notifiers are told; from
//! then on whoever touches them waits. Their contents are *copied*, by the caller. Then the new
//! pages take the place of the old ones, or for a page that has no new one the old one comes back.
//!
//! No page of the new ones may be entered in a device's page table before all that is over: the
//! memory may be freed meanwhile, and nobody would be told.
//!
//! Source: `Documentation/mm/hmm.rst`, but for its step 5, which is the mistake just named.
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h).

use super::{
    areas::Area,
    device_private::Token,
    new_page::{Neighbours, NewPage},
};
use crate::{
    logic::{block::PAGES, span::Span, PAGE_SIZE},
    sys::helpers,
};
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::{bindings, error::to_result, ffi, mm::Mm, prelude::*};

/// Which pages are collected.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Pages of the system.
    System,
    /// Pages on the device of this owner.
    Device(Token),
    /// Both.
    SystemAndDevice(Token),
}

impl Source {
    /// The bits that say it, and the owner.
    fn as_raw(self) -> (u32, *mut ffi::c_void) {
        let (system, device) = (
            helpers::PINMAP_PAGES_OF_SYSTEM,
            helpers::PINMAP_PAGES_OF_DEVICE,
        );
        match self {
            Self::System => (system, core::ptr::null_mut()),
            Self::Device(owner) => (device, owner.as_ptr()),
            Self::SystemAndDevice(owner) => (system | device, owner.as_ptr()),
        }
    }
}

/// A CPU fault on a page that is on a device.
pub(crate) struct HomeFault<'a> {
    raw: helpers::pinmap_home_fault,
    _fault: PhantomData<&'a ()>,
}

impl HomeFault<'_> {
    /// # Safety
    ///
    /// `fault` is valid during the lifetime.
    pub(super) unsafe fn new(fault: *mut bindings::vm_fault) -> Self {
        Self {
            // SAFETY: By the requirements.
            raw: unsafe { helpers::pinmap_home_fault(fault) },
            _fault: PhantomData,
        }
    }

    /// The address that was touched.
    pub(crate) fn addr(&self) -> u64 {
        self.raw.addr as u64
    }

    /// Whether the memory of `mm` was touched.
    pub(crate) fn is_in(&self, mm: &Mm) -> bool {
        // SAFETY: The fault is valid. The address space is only compared.
        unsafe { helpers::pinmap_home_fault_is_in(&raw const self.raw, mm.as_raw()) }
    }

    /// Whether another device, and not the CPU, needs the page.
    pub(crate) fn is_by_device(&self) -> bool {
        self.raw.by_device
    }

    pub(crate) fn area(&self) -> Option<Span> {
        Span::from_bounds(
            self.raw.start as u64,
            (self.raw.end as u64).saturating_sub(1),
        )
    }

    /// The frame number of the page.
    pub(crate) fn pfn(&self) -> u64 {
        self.raw.pfn as u64
    }
}

/// A page of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    /// The place in the batch.
    pub(crate) index: usize,
    /// The frame number of its page; `None`: there is none, and the contents are zeros.
    pub(crate) pfn: Option<u64>,
}

/// Room for a batch.
///
/// # Invariants
///
/// `raw` was made by `pinmap_batch_new()`, which allocates it with kvmalloc().
pub(crate) struct Batch {
    raw: NonNull<helpers::pinmap_batch>,
}

// SAFETY: It belongs to no thread.
unsafe impl Send for Batch {}

impl Batch {
    /// Makes room for a batch.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No requirements.
        let raw = unsafe { helpers::pinmap_batch_new() };
        // INVARIANT: It was made just now.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
        })
    }

    /// Collects the pages of `part`, in one block of 2 MiB, that are at `source`. Where the system
    /// is one, addresses without a page count too.
    pub(crate) fn collect(
        self,
        area: Area<'_>,
        part: Span,
        source: Source,
    ) -> Result<Collected<'_>> {
        // SAFETY: The area is valid, with the mmap lock held.
        unsafe { self.begin(area.0.as_ptr(), part, source, core::ptr::null_mut()) }
    }

    /// Collects device pages of `part`, in one block and in the area of `fault`, with the page that
    /// the CPU has touched.
    pub(crate) fn collect_for<'a>(
        self,
        fault: &'a HomeFault<'a>,
        part: Span,
        owner: Token,
    ) -> Result<Collected<'a>> {
        // SAFETY: The area is valid during a fault in it.
        unsafe { self.begin(fault.raw.vma, part, Source::Device(owner), fault.raw.page) }
    }

    /// # Safety
    ///
    /// `area` is valid, and stays as it is, for `'a`.
    unsafe fn begin<'a>(
        self,
        area: *mut bindings::vm_area_struct,
        part: Span,
        source: Source,
        page: *mut bindings::page,
    ) -> Result<Collected<'a>> {
        let (sources, owner) = source.as_raw();
        // SAFETY: The area is valid. There is room for a block.
        to_result(unsafe {
            helpers::pinmap_batch_begin(
                self.raw.as_ptr(),
                area,
                part.start() as usize,
                part.last().saturating_add(1) as usize,
                sources,
                owner,
                page,
            )
        })?;
        // INVARIANT: It was begun just now.
        Ok(Collected {
            batch: self,
            count: part.pages() as usize,
            area,
            start: part.start(),
            _area: PhantomData,
        })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::kvfree(self.raw.as_ptr().cast()) };
    }
}

/// Pages that were collected. Dropping it lets those go where they are to go that were committed,
/// and the others where they were.
///
/// # Invariants
///
/// The batch was begun, with so many places, and `area` is that of its pages.
pub(crate) struct Collected<'a> {
    batch: Batch,
    count: usize,
    area: *mut bindings::vm_area_struct,
    start: u64,
    _area: PhantomData<&'a ()>,
}

impl Collected<'_> {
    /// Lets the pages go, as dropping does, and returns the batch for the next ones.
    pub(crate) fn end(self) -> Batch {
        let this = ManuallyDrop::new(self);
        // SAFETY: The batch was begun, by the type invariants, and ends only here.
        unsafe { helpers::pinmap_batch_end(this.batch.raw.as_ptr()) };
        // INVARIANT: It was made by `pinmap_batch_new()`, and `this` is not dropped.
        Batch {
            raw: this.batch.raw,
        }
    }

    /// Calls `visit` for the pages that can move.
    pub(crate) fn each(&self, mut visit: impl FnMut(Item)) {
        for index in 0..self.count {
            // SAFETY: The batch was begun, with so many places.
            let raw = unsafe { helpers::pinmap_batch_item(self.batch.raw.as_ptr(), index as u32) };
            if raw.moves {
                visit(Item {
                    index,
                    pfn: (!raw.empty).then_some(raw.pfn as u64),
                });
            }
        }
    }

    /// Whether the page at `index` can move, or after [`commit`](Self::commit): has moved.
    pub(crate) fn moves(&self, index: usize) -> bool {
        // SAFETY: The batch was begun.
        let raw = unsafe { helpers::pinmap_batch_item(self.batch.raw.as_ptr(), index as u32) };
        raw.moves
    }

    /// Makes the page at `index` move to `page`.
    pub(crate) fn set(&mut self, index: usize, page: NewPage) {
        if index < self.count {
            let pfn = ManuallyDrop::new(page).pfn() as usize;
            // SAFETY: The batch was begun; there is such a place. From here on the page is its.
            unsafe { helpers::pinmap_batch_to(self.batch.raw.as_ptr(), index as u32, pfn) };
        }
    }

    pub(crate) fn address(&self, index: usize) -> u64 {
        let offset = (index as u64).saturating_mul(PAGE_SIZE);
        self.start.saturating_add(offset)
    }

    /// Allocates a page of the system for the one at `index`.
    pub(crate) fn allocate_home(&self, index: usize) -> Option<NewPage> {
        let addr = self.address(index) as usize;
        // SAFETY: The area is valid, by the type invariants.
        let pfn = unsafe { helpers::pinmap_alloc_home(self.area, addr) };
        // SAFETY: It was allocated just now, and is locked.
        (pfn != 0).then(|| unsafe { NewPage::of(pfn as u64) })
    }

    /// Allocates pages of the system for all of a block, which are neighbours, if that is easy.
    pub(crate) fn allocate_neighbours(&self) -> Option<Neighbours> {
        // SAFETY: The area is valid, by the type invariants.
        let pfn = unsafe { helpers::pinmap_alloc_neighbours(self.area) } as u64;
        // SAFETY: They were allocated just now, and are locked.
        (pfn != 0).then(|| unsafe { Neighbours::of(pfn..pfn.saturating_add(PAGES as u64)) })
    }

    /// Puts the new pages, which have the contents by now, in the place of the old ones.
    pub(crate) fn commit(&mut self) {
        // SAFETY: The batch was begun.
        unsafe { helpers::pinmap_batch_commit(self.batch.raw.as_ptr()) };
    }
}

impl Drop for Collected<'_> {
    fn drop(&mut self) {
        // SAFETY: The batch was begun.
        unsafe { helpers::pinmap_batch_end(self.batch.raw.as_ptr()) };
    }
}
