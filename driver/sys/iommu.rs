// SPDX-License-Identifier: GPL-2.0
//! IOMMU domains: an address space for one device, of its driver's own making.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

mod fill;

use self::fill::Part;
use super::{pages::Pages, pci::Function, raw};
use crate::logic::{place::Space, span::Span};
use core::{mem, ptr::NonNull};
use kernel::{
    alloc::AllocError,
    bindings, device,
    error::{from_err_ptr, to_result},
    ffi,
    prelude::*,
    str::CStrExt,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Why a device cannot be given an address space of its own.
pub(crate) enum Unfit {
    /// No IOMMU translates for it.
    NoIommu,
    /// Others share its group: the IOMMU cannot tell them apart.
    Shared,
    /// It could raise interrupts that belong to other devices.
    UnsafeInterrupts,
    /// Firmware demands memory that stays mapped, or interrupts need a mapping.
    Firmware(Span),
    /// Something failed.
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

/// The IOMMU group of a function, with a reference.
///
/// # Invariants
///
/// The pointer is valid and we own a reference.
pub(crate) struct Group(NonNull<bindings::iommu_group>);

// SAFETY: Groups are reference-counted and may be used from any thread.
unsafe impl Send for Group {}
// SAFETY: As above.
unsafe impl Sync for Group {}

impl Group {
    /// `None`: no IOMMU.
    pub(crate) fn of(function: &Function) -> Option<Self> {
        // SAFETY: The device is valid.
        let group = unsafe { bindings::iommu_group_get(function.as_dev()) };
        // INVARIANT: The call took a reference.
        NonNull::new(group).map(Self)
    }

    /// Its number in sysfs.
    pub(crate) fn id(&self) -> u32 {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::iommu_group_id(self.0.as_ptr()) }.unsigned_abs()
    }

    /// Whether the interrupts of its members are isolated from everybody else's.
    fn has_isolated_interrupts(&self) -> bool {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::iommu_group_has_isolated_msi(self.0.as_ptr()) }
    }

    /// Number of members.
    fn members(&self) -> usize {
        let mut count = 0_usize;
        self.for_each(count_member, (&raw mut count).cast());
        count
    }

    /// Names every member in the log, as belonging with `function`.
    pub(crate) fn log_members(&self, function: &Function) {
        self.for_each(log_member, function.as_dev().cast());
    }

    fn for_each(&self, visit: MemberFn, data: *mut ffi::c_void) {
        // SAFETY: Valid by the type invariants; `visit` belongs with `data`.
        unsafe { bindings::iommu_group_for_each_dev(self.0.as_ptr(), data, Some(visit)) };
    }
}

type MemberFn = unsafe extern "C" fn(*mut bindings::device, *mut ffi::c_void) -> ffi::c_int;

/// # Safety
///
/// `data` must point to a `usize`.
unsafe extern "C" fn count_member(_: *mut bindings::device, data: *mut ffi::c_void) -> ffi::c_int {
    // SAFETY: By the requirements.
    let count = unsafe { &mut *data.cast::<usize>() };
    *count = count.saturating_add(1);
    0
}

/// # Safety
///
/// `member` and `data` must be valid devices.
unsafe extern "C" fn log_member(
    member: *mut bindings::device,
    data: *mut ffi::c_void,
) -> ffi::c_int {
    // SAFETY: Both are valid by the requirements; the name lives as long as the device.
    let (function, name) = unsafe {
        (
            device::Device::<device::Normal>::from_raw(data.cast()),
            CStr::from_char_ptr(raw::pinmap_device_name(member).cast()),
        )
    };
    dev_err!(function, "member of its IOMMU group: {}\n", name);
    0
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariants.
        unsafe { bindings::iommu_group_put(self.0.as_ptr()) };
    }
}

/// A range that cannot be mapped.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    pub(crate) span: Span,
    /// A `PINMAP_RESERVED_` kind.
    pub(crate) kind: u32,
}

/// Reserved ranges of a function, sorted and disjoint (of overlapping ones the first stays whole).
fn reserved(function: &Function) -> core::result::Result<KVec<Reserved>, Unfit> {
    const ROOM: usize = 64;
    let mut regions = KVec::from_elem(raw::pinmap_region::default(), ROOM, GFP_KERNEL)?;
    // SAFETY: The device is valid, and there is room for `ROOM` regions.
    let count = unsafe {
        raw::pinmap_reserved_regions(function.as_dev(), regions.as_mut_ptr(), ROOM as u32)
    };
    to_result(count)?;
    let count = count.unsigned_abs() as usize;
    regions.truncate(count);
    let mut reserved = KVec::with_capacity(count, GFP_KERNEL)?;
    // Nothing is behind the last address that there is.
    let mut free_from = Some(0);
    for region in &regions {
        if region.refused != 0 {
            let span = Span::from_bounds(region.start, region.last).ok_or(EINVAL)?;
            return Err(Unfit::Firmware(span));
        }
        let start = free_from.map(|from| region.start.max(from));
        let Some(span) = start.and_then(|start| Span::from_bounds(start, region.last)) else {
            continue;
        };
        reserved.push(
            Reserved {
                span,
                kind: region.kind,
            },
            GFP_KERNEL,
        )?;
        free_from = region.last.checked_add(1);
    }
    Ok(reserved)
}

/// A paging domain.
///
/// It may outlive its attachment; what is mapped in it then reaches no device.
///
/// # Invariants
///
/// The pointer is valid and ours.
pub(crate) struct Domain {
    domain: NonNull<bindings::iommu_domain>,
    aperture: Span,
    page_sizes: u64,
    reserved: KVec<Reserved>,
    reserved_spans: KVec<Span>,
    coherent: bool,
    broken: Atomic<bool>,
}

// SAFETY: Mapping and unmapping of disjoint ranges may be done from any thread at once.
unsafe impl Send for Domain {}
// SAFETY: As above.
unsafe impl Sync for Domain {}

impl Domain {
    fn new(function: &Function) -> core::result::Result<Self, Unfit> {
        let reserved = reserved(function)?;
        let mut reserved_spans = KVec::with_capacity(reserved.len(), GFP_KERNEL)?;
        for entry in &reserved {
            reserved_spans.push(entry.span, GFP_KERNEL)?;
        }
        // SAFETY: The device is valid.
        let coherent = unsafe { raw::pinmap_is_coherent(function.as_dev()) };
        // SAFETY: The device is valid and bound to our driver.
        let domain = from_err_ptr(unsafe {
            bindings::iommu_paging_domain_alloc_flags(function.as_dev(), 0)
        })?;
        let domain = NonNull::new(domain).ok_or(ENOMEM)?;
        // SAFETY: Just made.
        let (geometry, page_sizes) = unsafe {
            (
                (*domain.as_ptr()).geometry,
                (*domain.as_ptr()).pgsize_bitmap,
            )
        };
        // INVARIANT: Just made.
        let mut this = Self {
            domain,
            aperture: Span::new(0, 1).map_err(|_| EINVAL)?,
            page_sizes: page_sizes as u64,
            reserved,
            reserved_spans,
            coherent,
            broken: Atomic::new(false),
        };
        this.aperture =
            Span::from_bounds(geometry.aperture_start, geometry.aperture_end).ok_or(EINVAL)?;
        Ok(this)
    }

    /// What can be translated. Checked by us: not every IOMMU driver does.
    pub(crate) fn aperture(&self) -> Span {
        self.aperture
    }

    /// Bitmap of page sizes.
    pub(crate) fn page_sizes(&self) -> u64 {
        self.page_sizes
    }

    /// What cannot be mapped, in the order of the addresses.
    pub(crate) fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// Their addresses.
    pub(crate) fn reserved_spans(&self) -> &[Span] {
        &self.reserved_spans
    }

    /// Where to place something, with `taken` taken.
    pub(crate) fn space<'a, T: ?Sized>(&'a self, taken: &'a T) -> Space<'a, T> {
        Space {
            aperture: self.aperture,
            reserved: &self.reserved_spans,
            taken,
        }
    }

    /// Whether something could not be unmapped: nobody else may be given this domain.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Whether DMA snoops the CPU's caches.
    pub(crate) fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// Unmaps and flushes. When it returns `Ok`, no device can reach what was mapped there. From any
    /// context.
    ///
    /// `Err`: the page table was not as we left it; part of the range may still be reachable.
    fn unmap(&self, start: u64, length: u64) -> Result {
        // SAFETY: The domain is valid by the type invariants.
        let unmapped =
            unsafe { bindings::iommu_unmap(self.domain.as_ptr(), start as usize, length as usize) };
        if unmapped as u64 == length {
            return Ok(());
        }
        Err(self.lose(unmapped as u64, length))
    }

    /// Of `length` bytes only so many were unmapped.
    fn lose(&self, unmapped: u64, length: u64) -> Error {
        if !self.broken.xchg(true, Relaxed) {
            pr_err!(
                "the IOMMU unmapped {unmapped} of {length} bytes; their pages are kept for ever\n"
            );
        }
        EIO
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariants. An `Attachment` holds a reference, so no device is
        // attached any more.
        unsafe { bindings::iommu_domain_free(self.domain.as_ptr()) };
    }
}

/// Pages in a domain. Dropping it unmaps, flushes, and lets go of the pages.
///
/// # Invariants
///
/// `part` is mapped from `start` on, to pages of `runs`.
pub(crate) struct Mapped {
    domain: Arc<Domain>,
    start: u64,
    part: Part,
    runs: Option<Arc<dyn Pages>>,
}

impl Mapped {
    /// Nothing, to begin with. What follows `start` in `domain` must be free.
    pub(crate) fn new(domain: &Arc<Domain>, start: u64) -> Self {
        // INVARIANT: Nothing is mapped yet.
        Self {
            domain: domain.clone(),
            start,
            part: Part::default(),
            runs: None,
        }
    }

    /// Maps `runs`, one after the other; once. If it fails, a part may be mapped. A fatal signal is a
    /// failure, and so is what `wanted` returns now and then. Sleeps.
    pub(crate) fn fill(
        &mut self,
        runs: &Arc<dyn Pages>,
        write: bool,
        wanted: impl Fn() -> Result,
    ) -> Result {
        if self.runs.is_some() {
            return Err(EBUSY);
        }
        // What a device can write was pinned for writing.
        if write && !runs.writable() {
            return Err(EACCES);
        }
        self.runs = Some(runs.clone());
        // INVARIANT: It counts in `part` what it maps.
        self.domain
            .fill(self.start, &**runs, write, wanted, &mut self.part)
    }

    /// Unmaps and flushes, once. When it returns `Ok`, no device can reach the pages here, and they
    /// are let go of. After an error that is not known, and they never are. From any context in which
    /// the pages may be let go of, or somebody else has them, too.
    pub(crate) fn unmap(&mut self) -> Result {
        let length = mem::take(&mut self.part.length);
        let stuck = mem::take(&mut self.part.stuck);
        if length == 0 && !stuck {
            self.runs = None;
            return Ok(());
        }
        let mut result = Ok(());
        if length != 0 {
            result = self.domain.unmap(self.start, length);
            self.part.flushes = self.part.flushes.saturating_add(1);
        }
        if stuck {
            result = Err(EIO);
        }
        let runs = self.runs.take();
        if result.is_err() {
            mem::forget(runs);
        }
        result
    }

    /// How often the IOMMU's cache was flushed for it.
    pub(crate) fn flushes(&self) -> u64 {
        self.part.flushes
    }

    /// What is mapped.
    pub(crate) fn runs(&self) -> Option<&dyn Pages> {
        self.runs.as_deref()
    }

    /// Whether anything is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.part.length == 0 && !self.part.stuck
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Whoever has to know the result has called `unmap` before.
        let _ = self.unmap();
    }
}

/// A function whose DMA goes through a domain of ours. Dropping it blocks all DMA, then gives the
/// function back to the DMA API.
///
/// # Invariants
///
/// We own the DMA of the function, and unless `blocked`, `domain` is attached to it.
pub(crate) struct Attachment {
    domain: Arc<Domain>,
    blocked: bool,
    function: Function,
    group: Group,
}

impl Attachment {
    /// Claims the DMA of `function` and attaches a new, empty domain: from here on it reaches nothing.
    pub(crate) fn new(
        function: &Function,
        group: Group,
        allow_unsafe_interrupts: bool,
    ) -> core::result::Result<Self, (Unfit, Group)> {
        match Self::try_new(function, &group, allow_unsafe_interrupts) {
            // INVARIANT: `try_new` did both.
            Ok(domain) => Ok(Self {
                domain,
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
    ) -> core::result::Result<Arc<Domain>, Unfit> {
        if group.members() != 1 {
            return Err(Unfit::Shared);
        }
        if !allow_unsafe_interrupts && !group.has_isolated_interrupts() {
            return Err(Unfit::UnsafeInterrupts);
        }
        let domain = Arc::new(Domain::new(function)?, GFP_KERNEL)?;
        let claim = Claim::new(function)?;
        // SAFETY: Both are valid, and the DMA is ours.
        to_result(unsafe {
            bindings::iommu_attach_device(domain.domain.as_ptr(), function.as_dev())
        })?;
        // SAFETY: Valid, attached, and still empty.
        unsafe { raw::pinmap_enforce_coherency(domain.domain.as_ptr()) };
        mem::forget(claim);
        Ok(domain)
    }

    /// The domain.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The group.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Whether it can reach nothing any more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// From now on the function can reach nothing. For good. Sleeps.
    pub(crate) fn block(&mut self) {
        if !self.blocked {
            // A device whose DMA is owned and that is detached from its domain has all its DMA blocked.
            // SAFETY: Attached by the type invariants.
            unsafe {
                bindings::iommu_detach_device(self.domain.domain.as_ptr(), self.function.as_dev())
            };
            self.blocked = true;
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.block();
        // SAFETY: Claimed by the type invariants.
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
        // SAFETY: Claimed in `new`.
        unsafe { bindings::iommu_device_release_dma_owner(self.0.as_dev()) };
    }
}
