// SPDX-License-Identifier: GPL-2.0
//! IOMMU domains: an address space for one device, of its driver's own making.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

mod fill;
mod footprint;

pub(crate) use self::footprint::NoTables;

use self::{fill::Part, footprint::Footprint};
use super::{account::Account, helpers, pages::Pages, pci::Function};
use crate::logic::{place::Space, span::Span};
use core::{mem, ptr::NonNull};
use kernel::{
    alloc::AllocError,
    bindings, device,
    error::{from_err_ptr, to_result},
    ffi, new_mutex,
    prelude::*,
    str::CStrExt,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, Mutex,
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
            CStr::from_char_ptr(helpers::pinmap_device_name(member).cast()),
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
    let mut regions = KVec::from_elem(helpers::pinmap_region::default(), ROOM, GFP_KERNEL)?;
    // SAFETY: The device is valid, and there is room for `ROOM` regions.
    let count = unsafe {
        helpers::pinmap_reserved_regions(function.as_dev(), regions.as_mut_ptr(), ROOM as u32)
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

/// A page table of the IOMMU.
///
/// # Invariants
///
/// The pointer is valid and ours.
struct PageTable(NonNull<bindings::iommu_domain>);

// SAFETY: It may be freed by any thread.
unsafe impl Send for PageTable {}

impl PageTable {
    fn new(function: &Function) -> Result<Self> {
        // SAFETY: The device is valid and bound to our driver.
        let domain = from_err_ptr(unsafe {
            bindings::iommu_paging_domain_alloc_flags(function.as_dev(), 0)
        })?;
        // INVARIANT: Just made.
        NonNull::new(domain).map(Self).ok_or(ENOMEM)
    }

    /// Lets the DMA of `function`, which is ours and blocked, go through it. It is empty.
    fn attach(&self, function: &Function) -> Result {
        // SAFETY: Both are valid, and the DMA is ours.
        to_result(unsafe { bindings::iommu_attach_device(self.0.as_ptr(), function.as_dev()) })?;
        // SAFETY: Valid, attached, and still empty.
        unsafe { helpers::pinmap_enforce_coherency(self.0.as_ptr()) };
        Ok(())
    }

    /// Blocks the DMA of `function`, to which it is attached.
    fn detach(&self, function: &Function) {
        // A device whose DMA is owned and that is detached from its domain has all its DMA blocked.
        // SAFETY: Attached, as the caller says.
        unsafe { bindings::iommu_detach_device(self.0.as_ptr(), function.as_dev()) };
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariants. Whoever attached it has detached it.
        unsafe { bindings::iommu_domain_free(self.0.as_ptr()) };
    }
}

/// What a domain translates by now.
struct Current {
    page_table: PageTable,
    /// Whether the function's DMA goes through it; if not, it is blocked, for this reason.
    attached: Result,
    /// Whether anything was ever mapped in it. What is left of that goes with the page table only.
    used: bool,
    footprint: Footprint,
}

/// What a device reaches: a paging domain, and another one, as empty as it was at first, when nothing is
/// mapped and the tables that are left are to go.
///
/// It may outlive its attachment; what is mapped in it then reaches no device.
#[pin_data]
pub(crate) struct Domain {
    /// Changed when there are no `uses` only.
    #[pin]
    current: Mutex<Current>,
    /// [`Use`]s that there are. More of them only with `current` locked.
    uses: Atomic<u64>,
    /// A new page table is due, as far as is known without `current`.
    overdue: Atomic<bool>,
    aperture: Span,
    page_sizes: u64,
    reserved: KVec<Reserved>,
    reserved_spans: KVec<Span>,
    coherent: bool,
    broken: Atomic<bool>,
}

impl Domain {
    fn new(function: &Function) -> core::result::Result<Arc<Self>, Unfit> {
        let reserved = reserved(function)?;
        let mut reserved_spans = KVec::with_capacity(reserved.len(), GFP_KERNEL)?;
        for entry in &reserved {
            reserved_spans.push(entry.span, GFP_KERNEL)?;
        }
        // SAFETY: The device is valid.
        let coherent = unsafe { helpers::pinmap_is_coherent(function.as_dev()) };
        let page_table = PageTable::new(function)?;
        // SAFETY: Just made.
        let (geometry, page_sizes) = unsafe {
            let domain = page_table.0.as_ptr();
            ((*domain).geometry, (*domain).pgsize_bitmap)
        };
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
                reserved,
                reserved_spans,
                coherent,
                broken: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;
        Ok(this)
    }

    /// Lets the DMA of `function`, which is ours and blocked, go through it.
    fn attach(&self, function: &Function) -> Result {
        let mut current = self.current.lock();
        current.page_table.attach(function)?;
        current.attached = Ok(());
        Ok(())
    }

    /// Blocks the DMA of `function`, for good.
    fn detach(&self, function: &Function) {
        let mut current = self.current.lock();
        if current.attached.is_ok() {
            current.page_table.detach(function);
        }
        current.attached = Err(ENODEV);
    }

    /// Whether there should be another page table than `current`, and can be.
    fn is_due(&self, current: &Current) -> bool {
        if self.uses.load(Acquire) != 0 || self.is_broken() {
            return false;
        }
        let due = current.used || current.attached.is_err();
        self.overdue.store(due, Relaxed);
        due
    }

    /// If nothing is mapped: a new page table for `function`, so that the old one's tables are freed.
    /// Meanwhile its DMA is blocked. `Err`: there is none, and whoever wants to map has to try again.
    fn renew(&self, function: &Function) -> Result {
        if !self.is_due(&self.current.lock()) {
            return Ok(());
        }
        let fresh = PageTable::new(function)?;
        let mut current = self.current.lock();
        // Somebody may have begun to map meanwhile.
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
        // Who paid for its tables pays no more.
        drop(footprint);
        Ok(())
    }

    /// Whoever mapped something has gone: before the next one does, [`Attachment::renew`] is due.
    pub(crate) fn outdate(&self) {
        self.overdue.store(true, Relaxed);
    }

    /// Whether [`Attachment::renew`] is due, and has to succeed before anything is mapped.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.load(Relaxed)
    }

    /// Pages that `payer` would be charged for the tables of a mapping at `span`.
    pub(crate) fn tables_due(&self, span: Span) -> u64 {
        self.current.lock().footprint.due(span)
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

/// The page table of a domain, for who maps in it: the domain has no other as long as there is a use.
///
/// # Invariants
///
/// `table` is that of `domain`, which counts this among its uses.
struct Use {
    domain: Arc<Domain>,
    table: NonNull<bindings::iommu_domain>,
}

// SAFETY: Mapping and unmapping of disjoint ranges may be done from any thread at once.
unsafe impl Send for Use {}
// SAFETY: As above.
unsafe impl Sync for Use {}

impl Use {
    /// To map at `span`. What that leaves in the page table is counted if there is a `payer`.
    fn new(
        domain: &Arc<Domain>,
        span: Span,
        payer: Option<&Arc<Account>>,
    ) -> core::result::Result<Self, NoTables> {
        let mut current = domain.current.lock();
        current.attached?;
        if let Some(payer) = payer {
            current.footprint.reserve(span, payer)?;
        }
        current.used = true;
        domain.uses.add(1, Relaxed);
        // INVARIANT: Counted, with `current` locked.
        Ok(Self {
            domain: domain.clone(),
            table: current.page_table.0,
        })
    }

    /// Only a part of what was to be mapped was.
    fn note(&self, part: Span) {
        self.domain.current.lock().footprint.note(part);
    }

    /// Unmaps and flushes. When it returns `Ok`, no device can reach what was mapped there. From any
    /// context.
    ///
    /// `Err`: the page table was not as we left it; part of the range may still be reachable.
    fn unmap(&self, start: u64, length: u64) -> Result {
        // SAFETY: The domain is valid by the type invariants.
        let unmapped =
            unsafe { bindings::iommu_unmap(self.table.as_ptr(), start as usize, length as usize) };
        if unmapped as u64 == length {
            return Ok(());
        }
        Err(self.domain.lose(unmapped as u64, length))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // What it mapped is unmapped before somebody sees that.
        self.domain.uses.fetch_sub(1, Release);
    }
}

/// Pages in a domain. Dropping it unmaps, flushes, and lets go of the pages.
///
/// # Invariants
///
/// `part` is mapped from `start` on, to pages of `runs`, in the page table of `table`.
pub(crate) struct Mapped {
    table: Option<Use>,
    counted: bool,
    start: u64,
    part: Part,
    runs: Option<Arc<dyn Pages>>,
}

impl Mapped {
    /// Nothing, to begin with. `span` in `domain` must be free; what the domain keeps of it, when it is
    /// unmapped, is charged to `payer`, if there is one.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        span: Span,
        payer: Option<&Arc<Account>>,
    ) -> core::result::Result<Self, NoTables> {
        // INVARIANT: Nothing is mapped yet.
        Ok(Self {
            table: Some(Use::new(domain, span, payer)?),
            counted: payer.is_some(),
            start: span.start(),
            part: Part::default(),
            runs: None,
        })
    }

    /// Maps `runs`, one after the other; once. If it fails, a part may be mapped. A fatal signal is a
    /// failure, and so is what `wanted` returns now and then. Sleeps.
    pub(crate) fn fill(
        &mut self,
        runs: &Arc<dyn Pages>,
        write: bool,
        wanted: impl Fn() -> Result,
    ) -> Result {
        let Some(table) = self.table.as_ref().filter(|_| self.runs.is_none()) else {
            return Err(EBUSY);
        };
        // What a device can write was pinned for writing.
        if write && !runs.writable() {
            return Err(EACCES);
        }
        self.runs = Some(runs.clone());
        // INVARIANT: It counts in `part` what it maps.
        let result = table.fill(self.start, &**runs, write, wanted, &mut self.part);
        if result.is_err() && self.counted {
            let front = Span::new(self.start, self.part.length).ok();
            for part in [front, self.part.undone].into_iter().flatten() {
                table.note(part);
            }
        }
        result
    }

    /// Unmaps and flushes, once. When it returns `Ok`, no device can reach the pages here, and they
    /// are let go of. After an error that is not known, and they never are. From any context in which
    /// the pages may be let go of, or somebody else has them, too.
    pub(crate) fn unmap(&mut self) -> Result {
        let length = mem::take(&mut self.part.length);
        let stuck = mem::take(&mut self.part.stuck);
        let table = self.table.take();
        let mut result = Ok(());
        if let Some(table) = table.filter(|_| length != 0) {
            result = table.unmap(self.start, length);
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
/// We own the DMA of the function; it goes through `domain` or is blocked, and stays so if `blocked`.
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
        let domain = Domain::new(function)?;
        let claim = Claim::new(function)?;
        domain.attach(function)?;
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

    /// If nothing is mapped, gives the tables back that are left of what was. `Err`: nothing can be
    /// mapped until this has succeeded. Sleeps.
    pub(crate) fn renew(&self) -> Result {
        if self.blocked {
            return Ok(());
        }
        self.domain.renew(&self.function)
    }

    /// From now on the function can reach nothing. For good. Sleeps.
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
