// SPDX-License-Identifier: GPL-2.0
//! The areas of a process's memory (VMAs), and the processes that map a page.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/rmap.h`](srctree/include/linux/rmap.h).

use crate::{
    logic::{span::Span, PAGE_SIZE},
    sys::helpers,
};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    bindings,
    error::to_result,
    mm::{Mm, MmWithUser, MmWithUserAsync},
    prelude::*,
    sync::aref::ARef,
};

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
        let locked = unsafe { bindings::mmap_read_trylock(mm.as_raw()) };
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
        unsafe { bindings::mmap_read_unlock(self.0.as_raw()) };
    }
}

/// An area of memory (VMA) whose pages can migrate. It stays as it is for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Area<'a>(
    pub(super) NonNull<bindings::vm_area_struct>,
    PhantomData<&'a ()>,
);

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
