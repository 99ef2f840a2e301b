// SPDX-License-Identifier: GPL-2.0
//! IOMMU domains: the address space of one device, which this driver makes itself instead of using
//! the DMA API.
//!
//! The driver chooses each device address, maps runs of pages there, and flushes synchronously:
//! when unmapping returns, the device cannot reach the pages. Before anything is mapped,
//! [`Attachment`] has claimed the DMA of the function and checked that its group and its interrupts
//! are isolated.
//!
//! Unmapping leaves tables behind, which the IOMMU driver frees only together with the page table.
//! So a [`Domain`] changes to a fresh page table while nothing is mapped (`Domain::renew`); during
//! the change all DMA is blocked. A [`Use`](mapped::Use) keeps the page table from changing as long
//! as something is mapped in it. What the tables cost is counted in `footprint.rs`.
//!
//! Some IOMMUs translate interrupts as they do all other writes (`IOMMU_RESV_SW_MSI`: Arm's). The
//! kernel then maps their target in the page table that the function has when it gets its vectors,
//! so vectors have a [`Use`](mapped::Use), too: a change would lose interrupts.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

mod fill;
mod footprint;
mod gather;
mod group;
#[cfg(pinmap_mirror)]
mod lent;
mod mapped;
mod reserved;

pub(crate) use self::{
    footprint::NoTables,
    gather::Gather,
    group::Group,
    mapped::{Mapped, MessagesUse},
    reserved::Reserved,
};
#[cfg(pinmap_mirror)]
pub(crate) use self::{lent::Lender, lent::Row};

use self::footprint::Footprint;
use super::{helpers, pci::Function};
use crate::logic::{place::Space, span::Span, too_large_page};
use core::{mem, ptr::NonNull};
use kernel::{
    alloc::AllocError,
    bindings,
    error::{from_err_ptr, to_result},
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Why a device cannot be given an address space of its own.
pub(crate) enum Unfit {
    /// No IOMMU translates the function's DMA.
    NoIommu,
    /// The IOMMU group has other members: the IOMMU cannot tell them apart.
    Shared,
    /// The function could raise interrupts that belong to other devices.
    UnsafeInterrupts,
    /// Firmware demands that this range stays mapped.
    Firmware(Span),
    /// The smallest page of the IOMMU, which is larger than the kernel's.
    LargePages(u64),
    /// A call has failed.
    Failed(Error),
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<AllocError> for Unfit {
    fn from(error: AllocError) -> Self {
        Self::Failed(error.into())
    }
}

/// A page table of the IOMMU.
///
/// # Invariants
///
/// The pointer is valid and ours.
struct PageTable(NonNull<bindings::iommu_domain>);

// SAFETY: Any thread may free a page table.
unsafe impl Send for PageTable {}

impl PageTable {
    /// Makes an empty page table, in which the target of interrupts will be mapped from `messages`
    /// on, if they are translated.
    fn new(function: &Function, messages: Option<u64>) -> Result<Self> {
        // SAFETY: The device is valid and bound to our driver.
        let domain = from_err_ptr(unsafe {
            bindings::iommu_paging_domain_alloc_flags(function.as_dev(), 0)
        })?;
        // INVARIANT: The page table was made just now.
        let this = NonNull::new(domain).map(Self).ok_or(ENOMEM)?;
        if let Some(base) = messages {
            // SAFETY: The page table is ours, and nobody knows of it.
            to_result(unsafe { helpers::pinmap_get_msi_cookie(this.0.as_ptr(), base) })?;
        }
        Ok(this)
    }

    /// Lets the DMA of `function` go through this page table, which is empty. The DMA must be
    /// claimed by us, and blocked.
    fn attach(&self, function: &Function) -> Result {
        // SAFETY: Both are valid, and we own the DMA.
        to_result(unsafe { bindings::iommu_attach_device(self.0.as_ptr(), function.as_dev()) })?;
        // SAFETY: The domain is valid, attached, and still empty.
        unsafe { helpers::pinmap_enforce_coherency(self.0.as_ptr()) };
        Ok(())
    }

    /// Blocks the DMA of `function`, which goes through this page table.
    fn detach(&self, function: &Function) {
        // A function whose DMA is owned, and which is detached from its domain, has all its DMA
        // blocked.
        //
        // SAFETY: The function is attached, as the documentation demands.
        unsafe { bindings::iommu_detach_device(self.0.as_ptr(), function.as_dev()) };
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        // SAFETY: The page table is ours by the type invariants. Whoever attached it has detached
        // it.
        unsafe { bindings::iommu_domain_free(self.0.as_ptr()) };
    }
}

/// The page table that a domain has now.
struct Current {
    page_table: PageTable,
    /// Whether the function's DMA goes through the page table. An error says why it is blocked.
    attached: Result,
    /// Whether anything was ever mapped in the page table, which then may have kept tables.
    used: bool,
    footprint: Footprint,
}

/// A device address space: a page table of the IOMMU, replaced by an empty one from time to time.
///
/// A domain may outlive its attachment. What is mapped in it then reaches no device.
#[pin_data]
pub(crate) struct Domain {
    /// The page table. It is replaced only while there are no `uses`.
    #[pin]
    current: Mutex<Current>,
    /// Number of [`Use`](mapped::Use)s; it only grows from 0 with `current` locked.
    uses: Atomic<u64>,
    /// Whether a new page table is due, as far as can be told without the lock.
    overdue: Atomic<bool>,
    aperture: Span,
    page_sizes: u64,
    reserved: KVec<Reserved>,
    reserved_spans: KVec<Span>,
    /// Where the target of interrupts is mapped, if the IOMMU translates them as it does all else.
    messages: Option<u64>,
    coherent: bool,
    broken: Atomic<bool>,
}

impl Domain {
    fn new(function: &Function) -> core::result::Result<Arc<Self>, Unfit> {
        let reserved::All { ranges, messages } = reserved::reserved(function)?;
        let mut reserved_spans = KVec::with_capacity(ranges.len(), GFP_KERNEL)?;
        for entry in &ranges {
            reserved_spans.push(entry.span, GFP_KERNEL)?;
        }
        // SAFETY: The device is valid.
        let coherent = unsafe {
            bindings::device_iommu_capable(function.as_dev(), helpers::PINMAP_CACHE_COHERENCY)
        };
        let page_table = PageTable::new(function, messages)?;
        // SAFETY: The page table was made just now.
        let (geometry, page_sizes) = unsafe {
            let domain = page_table.0.as_ptr();
            ((*domain).geometry, (*domain).pgsize_bitmap)
        };
        if let Some(size) = too_large_page(page_sizes as u64) {
            return Err(Unfit::LargePages(size));
        }
        let aperture =
            Span::from_bounds(geometry.aperture_start, geometry.aperture_end).ok_or(EINVAL)?;
        let current = Current {
            page_table,
            attached: Err(ENODEV),
            used: false,
            footprint: Footprint::new(),
        };
        let this = Arc::pin_init(
            pin_init!(Self {
                current <- new_mutex!(current, "pinmap_domain"),
                uses: Atomic::new(0),
                overdue: Atomic::new(false),
                aperture,
                page_sizes: page_sizes as u64,
                reserved: ranges,
                reserved_spans,
                messages,
                coherent,
                broken: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;
        Ok(this)
    }

    /// Lets the DMA of `function` go through this domain. The DMA must be claimed by us, and
    /// blocked.
    fn attach(&self, function: &Function) -> Result {
        let mut current = self.current.lock();
        current.page_table.attach(function)?;
        current.attached = Ok(());
        Ok(())
    }

    /// Blocks the DMA of `function` for good.
    fn detach(&self, function: &Function) {
        let mut current = self.current.lock();
        if current.attached.is_ok() {
            current.page_table.detach(function);
        }
        current.attached = Err(ENODEV);
    }

    /// Whether `current` should be replaced, and can be.
    fn is_due(&self, current: &Current) -> bool {
        if self.uses.load(Acquire) != 0 || self.is_broken() {
            return false;
        }
        let due = current.used || current.attached.is_err();
        self.overdue.store(due, Relaxed);
        due
    }

    /// Replaces the page table by an empty one if nothing is mapped, so that its tables are freed.
    /// Blocks the DMA of `function` meanwhile. After a failure nothing can be mapped until a later
    /// call succeeds.
    fn renew(&self, function: &Function) -> Result {
        if !self.is_due(&self.current.lock()) {
            return Ok(());
        }
        let fresh = PageTable::new(function, self.messages)?;
        let mut current = self.current.lock();
        // A task may have begun to map meanwhile.
        if !self.is_due(&current) {
            return Ok(());
        }
        if current.attached.is_ok() {
            current.page_table.detach(function);
        }
        current.attached = fresh.attach(function);
        current.attached?;
        self.overdue.store(false, Relaxed);
        current.used = false;
        let footprint = mem::replace(&mut current.footprint, Footprint::new());
        let old = mem::replace(&mut current.page_table, fresh);
        drop(current);
        drop(old);
        // Gives back what was paid for the old tables.
        drop(footprint);
        Ok(())
    }

    /// Says that whoever mapped something has finished: [`Attachment::renew`] is due before the
    /// next one maps anything.
    pub(crate) fn outdate(&self) {
        self.overdue.store(true, Relaxed);
    }

    /// Whether [`Attachment::renew`] is due, and has to succeed before anything is mapped.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.load(Relaxed)
    }

    /// Returns how many pages would be charged for the tables of a mapping at `span`.
    pub(crate) fn tables_due(&self, span: Span) -> u64 {
        self.current.lock().footprint.due(span)
    }

    /// The addresses that can be translated. Callers check this, since not every IOMMU driver does.
    pub(crate) fn aperture(&self) -> Span {
        self.aperture
    }

    /// Bitmap of the page sizes that the IOMMU has.
    pub(crate) fn page_sizes(&self) -> u64 {
        self.page_sizes
    }

    /// Ranges that cannot be mapped, in the order of their addresses.
    pub(crate) fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// Addresses of the reserved ranges.
    pub(crate) fn reserved_spans(&self) -> &[Span] {
        &self.reserved_spans
    }

    /// Returns the space in which to place a mapping, where `taken` is taken.
    pub(crate) fn space<'a, T: ?Sized>(&'a self, taken: &'a T) -> Space<'a, T> {
        Space {
            aperture: self.aperture,
            reserved: &self.reserved_spans,
            taken,
        }
    }

    /// Whether unmapping has failed once: then no other owner may be given this domain.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Whether DMA snoops the CPU's caches.
    pub(crate) fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// Marks the domain as broken, since only `unmapped` of `length` bytes were unmapped.
    fn lose(&self, unmapped: u64, length: u64) -> Error {
        if !self.broken.xchg(true, Relaxed) {
            pr_err!("the IOMMU unmapped {unmapped} of {length} bytes\n");
        }
        EIO
    }
}

/// The default domain of a function.
///
/// # Invariants
///
/// The pointer is valid as long as the DMA of the function is owned: the kernel replaces no default
/// domain meanwhile.
struct Default(NonNull<bindings::iommu_domain>);

// SAFETY: Any thread may look up addresses.
unsafe impl Send for Default {}

/// A function whose DMA goes through a domain of ours. Dropping it blocks all DMA, then gives the
/// function back to the DMA API.
///
/// # Invariants
///
/// We own the DMA of the function. The DMA goes through `domain` or is blocked; if `blocked`, it
/// stays so.
pub(crate) struct Attachment {
    domain: Arc<Domain>,
    /// The domain of the DMA API, which the function goes back to.
    default: Default,
    blocked: bool,
    function: Function,
    group: Group,
}

impl Attachment {
    /// Claims the DMA of `function` and attaches a new, empty domain: from here on the function can
    /// reach nothing.
    pub(crate) fn new(
        function: &Function,
        group: Group,
        allow_unsafe_interrupts: bool,
    ) -> core::result::Result<Self, (Unfit, Group)> {
        match Self::try_new(function, &group, allow_unsafe_interrupts) {
            // INVARIANT: `try_new` has claimed the DMA and attached the domain.
            Ok((domain, default)) => Ok(Self {
                domain,
                default,
                blocked: false,
                function: function.clone(),
                group,
            }),
            Err(unfit) => Err((unfit, group)),
        }
    }

    fn try_new(
        function: &Function,
        group: &Group,
        allow_unsafe_interrupts: bool,
    ) -> core::result::Result<(Arc<Domain>, Default), Unfit> {
        if group.members() != 1 {
            return Err(Unfit::Shared);
        }
        if !allow_unsafe_interrupts && !group.has_isolated_interrupts() {
            return Err(Unfit::UnsafeInterrupts);
        }
        let domain = Domain::new(function)?;
        // Drivers that manage their DMA cannot ask for the default domain later, nor before the
        // claim keep root from changing its type at this very moment.
        //
        // SAFETY: The function is valid, and its default domain attached.
        let default = unsafe { bindings::iommu_get_domain_for_dev(function.as_dev()) };
        // INVARIANT: The DMA is claimed from here on.
        let default = Default(NonNull::new(default).ok_or(Unfit::NoIommu)?);
        let claim = Claim::new(function)?;
        domain.attach(function)?;
        mem::forget(claim);
        Ok((domain, default))
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Returns where an address of the DMA API leads for the function; `None`: nowhere.
    pub(crate) fn translate(&self, address: u64) -> Option<u64> {
        // SAFETY: Valid by the type invariants.
        let at = unsafe { bindings::iommu_iova_to_phys(self.default.0.as_ptr(), address) };
        (at != 0).then_some(at)
    }

    /// Whether the DMA is blocked for good.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Replaces the page table if nothing is mapped: see `Domain::renew`. Sleeps.
    pub(crate) fn renew(&self) -> Result {
        if self.blocked {
            return Ok(());
        }
        self.domain.renew(&self.function)
    }

    /// Blocks the function's DMA for good. Sleeps.
    pub(crate) fn block(&mut self) {
        if !self.blocked {
            self.domain.detach(&self.function);
            self.blocked = true;
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.block();
        // SAFETY: We claimed the DMA, by the type invariants.
        unsafe { bindings::iommu_device_release_dma_owner(self.function.as_dev()) };
    }
}

/// Ownership of a function's DMA.
struct Claim<'a>(&'a Function);

impl<'a> Claim<'a> {
    fn new(function: &'a Function) -> Result<Self> {
        let dev = function.as_dev();
        // SAFETY: The device is valid and bound to us; the cookie is unique to it.
        to_result(unsafe { bindings::iommu_device_claim_dma_owner(dev, dev.cast()) })?;
        Ok(Self(function))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` claimed the DMA.
        unsafe { bindings::iommu_device_release_dma_owner(self.0.as_dev()) };
    }
}
