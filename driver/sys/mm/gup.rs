// SPDX-License-Identifier: GPL-2.0
//! Pins user pages for DMA: `pin_user_pages_fast()` with FOLL_LONGTERM.
//!
//! A range is pinned chunk by chunk. The pages of a [`Chunk`] are an array, as GUP returns them;
//! from there they go to [`PinnedRuns`] as physically contiguous runs of 8 bytes each, so that the
//! list of a large registration stays small. Nothing keeps the array.
//!
//! Where one entry of the page table maps a huge page, GUP is asked for one page only. The pin of
//! that page holds the whole folio: the folio can neither be split nor move. So the pages behind it
//! can be pinned by adding to the folio's count, as far as the entry maps them
//! (`Chunk::pin_behind`).
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h). Rules:
//! `Documentation/core-api/pin_user_pages.rst`.

use crate::{
    logic::{
        runs::{self, Run},
        span::Span,
    },
    sys::{helpers, task},
    uapi,
};
use core::{mem::MaybeUninit, ptr, slice};
use kernel::{
    bindings,
    error::to_result,
    ffi,
    mm::virt::{self, VmaRef},
    prelude::*,
};

mod pinned;

pub(crate) use pinned::PinnedRuns;

pub(super) type PagePtr = *mut bindings::page;

#[cfg(not(CONFIG_SPARSEMEM_VMEMMAP))]
compile_error!(
    "runs are found by the addresses of struct pages: CONFIG_SPARSEMEM_VMEMMAP is needed"
);

const _: () = assert!(crate::logic::PAGE_SHIFT as usize == kernel::page::PAGE_SHIFT);

/// The array of all `struct page`s, by page frame number. Indexing it saves a call for each page.
#[derive(Clone, Copy)]
pub(in crate::sys) struct Frames(usize);

impl Frames {
    /// Finds the beginning of the array.
    pub(in crate::sys) fn new() -> Self {
        // SAFETY: The call only calculates an address.
        Self(unsafe { helpers::pinmap_pfn_to_page(0) }.expose_provenance())
    }

    /// Returns the page of the frame `pfn`, if that is a frame.
    pub(in crate::sys) fn page(self, pfn: u64) -> PagePtr {
        ptr::with_exposed_provenance_mut::<bindings::page>(self.0).wrapping_add(pfn as usize)
    }
}

/// Pages of one chunk, on their way from GUP to a list of runs.
///
/// # Invariants
///
/// The first `pinned` entries are set, to pages of which we hold a long-term pin. If there is one,
/// we also hold a pin of each of the `behind` pages that follow it in its folio; otherwise `behind`
/// is 0.
pub(crate) struct Chunk {
    few: [MaybeUninit<PagePtr>; Chunk::FEW],
    many: Option<KVec<PagePtr>>,
    pinned: usize,
    behind: u64,
    /// The chunk before was one huge entry of the page table, so the next one probably is, too.
    huge: bool,
    write: bool,
}

impl Chunk {
    /// Pages that fit without allocating memory.
    const FEW: usize = 16;

    /// Makes a chunk with room for a few pages, to be pinned for writing if `write`.
    pub(crate) fn new(write: bool) -> Self {
        // INVARIANT: Nothing is pinned.
        Self {
            few: [const { MaybeUninit::uninit() }; Self::FEW],
            many: None,
            pinned: 0,
            behind: 0,
            huge: false,
            write,
        }
    }

    /// Makes room for `pages` pages. The chunk must be empty.
    pub(crate) fn make_room(&mut self, pages: usize) -> Result {
        if pages > Self::FEW {
            self.many = Some(KVec::from_elem(ptr::null_mut(), pages, GFP_KERNEL_ACCOUNT)?);
        }
        Ok(())
    }

    /// The pages that are pinned.
    fn pages(&self) -> &[PagePtr] {
        let few = match &self.many {
            Some(many) => return many.get(..self.pinned).unwrap_or_default(),
            None => self.few.get(..self.pinned).unwrap_or_default(),
        };
        // SAFETY: The first `pinned` entries are set, by the type invariants.
        unsafe { slice::from_raw_parts(few.as_ptr().cast(), few.len()) }
    }

    /// Where GUP writes pages, and how many it may.
    fn room(&mut self) -> (*mut PagePtr, usize) {
        match &mut self.many {
            Some(many) => (many.as_mut_ptr(), many.len()),
            None => (self.few.as_mut_ptr().cast(), Self::FEW),
        }
    }

    /// Pins pages of the current task from `address` on: at most `want`, and no more than fit, up
    /// to the first obstacle. If a huge entry of the page table maps `address`, pins what that
    /// entry maps. The chunk must be empty.
    pub(crate) fn pin(&mut self, address: u64, want: u64) -> Result {
        if self.pinned != 0 {
            return Err(EBUSY);
        }
        let is_huge = || {
            // SAFETY: The current task has an address space, of which the call only reads the page
            // table.
            let leaf = unsafe {
                helpers::pinmap_leaf_pages(address as usize, ptr::null_mut(), self.write)
            };
            leaf > 1
        };
        // A wrong guess costs one short chunk.
        if want > 1 && (self.huge || is_huge()) {
            self.pin_some(address, 1)?;
            self.pin_behind(address, want)?;
            self.huge = self.behind > 0;
            Ok(())
        } else {
            self.pin_some(address, want)
        }
    }

    fn pin_some(&mut self, address: u64, want: u64) -> Result {
        let flags = bindings::FOLL_LONGTERM | if self.write { bindings::FOLL_WRITE } else { 0 };
        let (room, length) = self.room();
        let want = length.min(usize::try_from(want).unwrap_or(usize::MAX));
        // SAFETY: There is room for `want` pointers.
        let got = unsafe {
            bindings::pin_user_pages_fast(address as usize, want as ffi::c_int, flags, room)
        };
        if got.wrapping_neg() == bindings::EREMOTEIO as ffi::c_int {
            // A P2PDMA page, of which there are no long-term pins. `explain` finds it again.
            return Err(EFAULT);
        }
        if got <= 0 {
            return to_result(got).and(Err(EFAULT));
        }
        // INVARIANT: GUP has pinned so many.
        self.pinned = got.unsigned_abs() as usize;
        Ok(())
    }

    /// Pins the pages behind the one at `address`, which is pinned, as far as the same entry of the
    /// page table maps them.
    ///
    /// This reads the entry after the first pin was taken. That is a pin of the whole folio, which
    /// cannot be split, move, or be shared with a forked child any more. So the addresses mean the
    /// pages that the entry maps. The MMU notifier tells if they change later.
    fn pin_behind(&mut self, address: u64, want: u64) -> Result {
        let Some(&first) = self.pages().first() else {
            return Ok(());
        };
        // SAFETY: The call only reads the page table; the page is pinned.
        let leaf = unsafe { helpers::pinmap_leaf_pages(address as usize, first, self.write) };
        let behind = (leaf as u64)
            .min(want)
            .min(runs::MAX_PAGES)
            .saturating_sub(1);
        if behind > 0 {
            // SAFETY: The page is pinned, and `behind` more pages of its folio follow it.
            to_result(unsafe { helpers::pinmap_add_pins(first, behind as u32) })?;
            // INVARIANT: The call has pinned them.
            self.behind = behind;
        }
        Ok(())
    }

    /// Hands the pages to `store`, as runs of neighbouring pages, and empties the chunk. If `store`
    /// fails, the rest is unpinned.
    ///
    /// Each page is compared with the one before it. To look only at both ends of a huge page would
    /// be wrong: a page in the middle may have been replaced.
    pub(crate) fn take_runs(&mut self, mut store: impl FnMut(Run) -> Result) -> Result {
        let &[only] = self.pages() else {
            return self.take_many(store);
        };
        // SAFETY: `only` is a page.
        let pfn = unsafe { helpers::pinmap_page_to_pfn(only) } as u64;
        let run = Run::new(pfn, self.behind.saturating_add(1)).ok_or(ERANGE);
        if let Err(error) = run.and_then(&mut store) {
            self.unpin(0);
            return Err(error);
        }
        // INVARIANT: `store` has taken all of them, and is responsible for them now.
        self.pinned = 0;
        self.behind = 0;
        Ok(())
    }

    /// Does [`take_runs`](Self::take_runs) for other than one page. A large registration spends
    /// most of its time here, so the loop is kept in a function of its own.
    fn take_many(&mut self, mut store: impl FnMut(Run) -> Result) -> Result {
        let Some((&base, rest)) = self.pages().split_first() else {
            return Ok(());
        };
        // SAFETY: `base` is a page.
        let base_pfn = unsafe { helpers::pinmap_page_to_pfn(base) } as u64;
        let mut store = |first: PagePtr, pages: usize| {
            let bytes = (first.addr() as i64).wrapping_sub(base.addr() as i64);
            let frames = bytes.checked_div(size_of::<bindings::page>() as i64);
            let pfn = base_pfn.wrapping_add_signed(frames.unwrap_or(0));
            Run::new(pfn, (pages as u64).saturating_add(self.behind))
                .ok_or(ERANGE)
                .and_then(&mut store)
        };
        let (mut first, mut pages, mut done) = (base, 1_usize, 0_usize);
        let mut result = Ok(());
        for &page in rest {
            if ptr::eq(page, first.wrapping_add(pages)) {
                pages = pages.wrapping_add(1);
                continue;
            }
            result = store(first, pages);
            if result.is_err() {
                break;
            }
            done = done.wrapping_add(pages);
            (first, pages) = (page, 1);
        }
        if let Err(error) = result.and_then(|()| store(first, pages)) {
            self.unpin(done);
            return Err(error);
        }
        // INVARIANT: `store` has taken all of them, and is responsible for them now.
        self.pinned = 0;
        self.behind = 0;
        Ok(())
    }

    /// Unpins all but the first `keep` pages, which `store` has taken.
    fn unpin(&mut self, keep: usize) {
        if let Some(pages) = self.pages().get(keep..) {
            if let Some(&first) = pages.first().filter(|_| self.behind > 0) {
                // SAFETY: The pages are pinned by the type invariants. Nothing was written through
                // them.
                unsafe {
                    bindings::unpin_user_page_range_dirty_lock(
                        first.wrapping_add(1),
                        self.behind as usize,
                        false,
                    )
                };
            }
            // SAFETY: The pages are pinned by the type invariants. Nothing was written through
            // them. The call only reads the array.
            unsafe { bindings::unpin_user_pages(pages.as_ptr().cast_mut(), pages.len()) };
        }
        // INVARIANT: Nothing is left.
        self.pinned = 0;
        self.behind = 0;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.pinned != 0 {
            self.unpin(0);
        }
    }
}

/// Tells why the page at `address` of the current task cannot be pinned: a `PINMAP_FAIL_` reason.
pub(crate) fn explain(address: u64, write: bool) -> u32 {
    let task = kernel::current!();
    let Some(mm) = task.mm() else {
        return uapi::PINMAP_FAIL_HOLE;
    };
    let lock = mm.mmap_read_lock();
    let Some(area) = lock.vma_lookup(address as usize) else {
        return uapi::PINMAP_FAIL_HOLE;
    };
    match explain_area(area, write) {
        // The area does not tell of P2PDMA pages, which GUP has found.
        uapi::PINMAP_FAIL_FAULT if area.flags() & virt::flags::MIXEDMAP != 0 => {
            uapi::PINMAP_FAIL_DEVICE
        }
        reason => reason,
    }
}

/// Returns the first address in `span` of the current task that cannot be pinned, as far as the
/// VMAs tell, and why: a `PINMAP_FAIL_` reason. Touches no memory.
pub(crate) fn survey(span: Span, write: bool) -> Option<(u64, u32)> {
    let task = kernel::current!();
    let Some(mm) = task.mm() else {
        return Some((span.start(), uapi::PINMAP_FAIL_HOLE));
    };
    let lock = mm.mmap_read_lock();
    let mut address = span.start();
    while address <= span.last() {
        let Some(area) = lock.vma_lookup(address as usize) else {
            return Some((address, uapi::PINMAP_FAIL_HOLE));
        };
        let reason = explain_area(area, write);
        // PINMAP_FAIL_FAULT stands for an area that gives no reason.
        if reason != uapi::PINMAP_FAIL_FAULT {
            return Some((address, reason));
        }
        address = area.end() as u64;
        task::cond_resched();
    }
    None
}

/// Tells why pages of `area` cannot be pinned; `PINMAP_FAIL_FAULT` if the area gives no reason.
fn explain_area(area: &VmaRef, write: bool) -> u32 {
    // SAFETY: The area is valid and the mmap lock held as long as there is a reference.
    unsafe { helpers::pinmap_explain(area.as_ptr(), write) }
}
