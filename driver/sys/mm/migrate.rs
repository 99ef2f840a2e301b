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
    device_private::Token,
    new_page::{Neighbours, NewPage},
};
use crate::{
    logic::{block::PAGES, span::Span, PAGE_SIZE},
    sys::helpers,
};
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    bindings,
    error::to_result,
    ffi,
    mm::{Mm, MmWithUser, MmWithUserAsync},
    prelude::*,
    sync::aref::ARef,
};

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

/// The memory of a process, whose areas stay as they are as long as this exists.
pub(crate) struct Areas<'a>(&'a Mm);

impl<'a> Areas<'a> {
    /// Takes the mmap lock of `mm`, which is in use, for reading. `EINTR`: a fatal signal came.
    pub(crate) fn lock(mm: &'a Mm) -> Result<Self> {
        // SAFETY: The address space is valid.
        to_result(unsafe { helpers::pinmap_mmap_lock_killable(mm.as_raw()) })?;
        Ok(Self(mm))
    }

    /// Takes the lock, unless somebody has it for writing or waits for that. `mm` is in use.
    pub(crate) fn try_lock(mm: &'a Mm) -> Option<Self> {
        // SAFETY: The address space is valid.
        let locked = unsafe { helpers::pinmap_mmap_trylock(mm.as_raw()) };
        // Not `then_some`: what it is given is dropped if there is no lock, which would unlock.
        locked.then(|| Self(mm))
    }

    /// Whether others wait for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        // SAFETY: The address space is valid.
        unsafe { helpers::pinmap_mmap_is_contended(self.0.as_raw()) }
    }

    /// The address space.
    pub(crate) fn mm(&self) -> &'a Mm {
        self.0
    }

    /// Returns the addresses of the area that `addr` is in, and the area if its pages can migrate.
    pub(crate) fn at(&self, addr: u64) -> Option<(Span, Option<Area<'_>>)> {
        let mut vma = core::ptr::null_mut();
        let mut area = helpers::pinmap_area::default();
        // SAFETY: The address space is in use, and its lock is held.
        let is_there = unsafe {
            helpers::pinmap_area_at(self.0.as_raw(), addr as usize, &raw mut area, &raw mut vma)
        };
        let span = Span::from_bounds(area.start, area.end.saturating_sub(1));
        let area = NonNull::new(vma).map(|vma| Area(vma, PhantomData));
        span.filter(|_| is_there).map(|span| (span, area))
    }

    /// Returns the addresses of the first area that ends behind `from`, as far as they are.
    pub(crate) fn next(&self, from: u64) -> Option<Span> {
        let mut area = helpers::pinmap_area::default();
        // SAFETY: The address space is in use, and its lock is held.
        let is_there =
            unsafe { helpers::pinmap_next_area(self.0.as_raw(), from as usize, &raw mut area) };
        let span = Span::from_bounds(area.start.max(from), area.end.saturating_sub(1));
        span.filter(|_| is_there)
    }

    /// Calls `visit` for the addresses where what is at `rmap` may be mapped, each with its area
    /// and that area's addresses, until it returns `false`: first for where the memory was when it
    /// was first touched, and so is mostly still.
    pub(crate) fn each_at(
        &self,
        rmap: &Rmap,
        mut visit: impl FnMut(u64, Area<'_>, Span) -> Result<bool>,
    ) -> Result {
        let find = |from: u64| {
            let mut area = helpers::pinmap_area::default();
            let mut addr = 0;
            // SAFETY: The address space is in use, and its lock is held.
            let vma = unsafe {
                helpers::pinmap_find_rmap(
                    self.0.as_raw(),
                    &raw const rmap.0,
                    from as usize,
                    &raw mut area,
                    &raw mut addr,
                )
            };
            let vma = NonNull::new(vma)?;
            let span = Span::from_bounds(area.start, area.end.saturating_sub(1))?;
            Some((addr as u64, Area(vma, PhantomData), span))
        };
        let linear = (rmap.0.index as u64).saturating_mul(PAGE_SIZE);
        let first = find(linear).filter(|&(addr, ..)| addr == linear);
        if let Some((addr, area, span)) = first {
            if !visit(addr, area, span)? {
                return Ok(());
            }
        }
        let mut from = 0;
        while let Some((addr, area, span)) = find(from) {
            if addr != linear && !visit(addr, area, span)? {
                return Ok(());
            }
            let Some(behind) = span.last().checked_add(1) else {
                return Ok(());
            };
            from = behind;
        }
        Ok(())
    }

    /// Calls `visit` for the areas of `span` that mremap() has moved: with the addresses that they
    /// have there, and with the linear address of the first.
    pub(crate) fn each_moved(&self, span: Span, mut visit: impl FnMut(Span, u64)) {
        let mut at = span.start();
        let mut linear = 0;
        let mut area = helpers::pinmap_area::default();
        // SAFETY: The address space is in use, and its lock is held.
        while unsafe {
            helpers::pinmap_next_moved(self.0.as_raw(), at as usize, &raw mut area, &raw mut linear)
        } {
            let all = Span::from_bounds(area.start, area.end.saturating_sub(1));
            let part = all.and_then(|all| all.intersection(span));
            let Some(part) = part else {
                return;
            };
            let offset = part.start().saturating_sub(area.start);
            visit(part, linear.saturating_add(offset));
            at = area.end;
        }
    }

    /// Calls `visit` for the parts of `span`, in order: a part of an area whose pages can migrate,
    /// or a part in which none can. Stops at the first failure.
    pub(crate) fn each<'b>(
        &'b self,
        span: Span,
        mut visit: impl FnMut(Span, Option<Area<'b>>) -> Result,
    ) -> Result {
        let end = span.last().checked_add(1).ok_or(EINVAL)?;
        let mut at = span.start();
        while at < end {
            let mut vma = core::ptr::null_mut();
            // SAFETY: The address space is in use, and its lock is held.
            let next = unsafe {
                helpers::pinmap_migratable(self.0.as_raw(), at as usize, end as usize, &raw mut vma)
            };
            let part = Span::from_bounds(at, (next as u64).saturating_sub(1)).ok_or(EINVAL)?;
            let area = NonNull::new(vma).map(|vma| Area(vma, PhantomData));
            visit(part, area)?;
            at = next as u64;
        }
        Ok(())
    }
}

impl Drop for Areas<'_> {
    fn drop(&mut self) {
        // SAFETY: We took the lock.
        unsafe { helpers::pinmap_mmap_unlock(self.0.as_raw()) };
    }
}

/// An area of memory (VMA) whose pages can migrate. It stays as it is for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Area<'a>(NonNull<bindings::vm_area_struct>, PhantomData<&'a ()>);

impl Area<'_> {
    /// Whether user space is asked for pages that are missing, and may keep a fault waiting.
    pub(crate) fn asks_user_space(&self) -> bool {
        // SAFETY: The area stays as it is.
        unsafe { helpers::pinmap_asks_user_space(self.0.as_ptr()) }
    }

    /// Whether the program lets it have huge pages, where the system gives them.
    pub(crate) fn may_be_huge(&self) -> bool {
        // SAFETY: The area stays as it is.
        unsafe { helpers::pinmap_may_be_huge(self.0.as_ptr()) }
    }

    /// Whether it is an area of `mm`.
    pub(crate) fn is_in(&self, mm: &Mm) -> bool {
        // SAFETY: The area stays as it is. The address space is only compared.
        unsafe { helpers::pinmap_area_is_in(self.0.as_ptr(), mm.as_raw()) }
    }

    /// Whether it may be written to, and none of its pages is another process's too.
    pub(crate) fn is_unshared(&self) -> bool {
        // SAFETY: The area stays as it is.
        unsafe { helpers::pinmap_is_unshared(self.0.as_ptr()) }
    }

    /// The linear address of `addr`: where the memory was when it was first touched. mremap() does
    /// not change it.
    pub(crate) fn linear(&self, addr: u64) -> u64 {
        // SAFETY: The area stays as it is.
        let linear = unsafe { helpers::pinmap_linear_address(self.0.as_ptr(), addr as usize) };
        linear as u64
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

    /// The addresses of the area.
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

/// Where in the reverse map a page is that is on a device: every process that maps the page does so
/// at the same place. It is a hint, to find these processes.
#[derive(Clone, Copy)]
pub(crate) struct Rmap(helpers::pinmap_rmap);

impl Rmap {
    /// Finds the page with frame number `pfn` in the reverse map. `None`: nobody maps it now.
    ///
    /// # Safety
    ///
    /// `pfn` is the frame number of a page on a device, which has a description.
    pub(super) unsafe fn of(pfn: u64) -> Option<Self> {
        let mut raw = helpers::pinmap_rmap::default();
        // SAFETY: By the requirements.
        let found = unsafe { helpers::pinmap_rmap_of(pfn as usize, &raw mut raw) };
        found.then_some(Self(raw))
    }

    /// Where the pages of `part` are, in the same area as this page, which is at `addr`.
    pub(crate) fn around(&self, addr: u64, part: Span) -> RmapPart {
        let before = addr.saturating_sub(part.start()) / PAGE_SIZE;
        let mut first = *self;
        first.0.index = first.0.index.saturating_sub(before as usize);
        RmapPart {
            first,
            pages: part.pages() as usize,
        }
    }
}

/// Pages that follow each other in the reverse map.
#[derive(Clone, Copy)]
pub(crate) struct RmapPart {
    first: Rmap,
    pages: usize,
}

impl RmapPart {
    /// Whether the page at `rmap` is one of these.
    pub(crate) fn has(&self, rmap: &Rmap) -> bool {
        let Rmap(first) = &self.first;
        let at = rmap.0.index.wrapping_sub(first.index);
        rmap.0.root == first.root && at < self.pages
    }
}

// SAFETY: The pointer is compared, and nothing else.
unsafe impl Send for Rmap {}

/// The memory of all processes, one after the other; of one that several share, as often as they
/// do.
pub(crate) struct Processes(i32);

impl Processes {
    /// Begins with the first.
    pub(crate) fn new() -> Self {
        Self(0)
    }
}

impl Iterator for Processes {
    type Item = ARef<MmWithUserAsync>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The number is written.
        let mm = unsafe { helpers::pinmap_next_process(&raw mut self.0) };
        let mm = NonNull::new(mm)?;
        // SAFETY: We were given a reference to an address space in use.
        let mm: ARef<MmWithUser> = unsafe { ARef::from_raw(mm.cast()) };
        // If it is the last one, the address space is taken apart later, by another task.
        Some(MmWithUser::into_mmput_async(mm))
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
/// `raw` was made by `pinmap_batch_new()`.
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
        unsafe { helpers::pinmap_batch_free(self.raw.as_ptr()) };
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

    /// Returns the address of the page at `index`.
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
