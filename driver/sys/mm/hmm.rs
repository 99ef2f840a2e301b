// SPDX-License-Identifier: GPL-2.0
//! The memory of a process as its page table has it, for a device that follows the page table
//! instead of pinning pages.
//!
//! What is read from a page table is true until the memory changes, which an MMU notifier tells
//! beforehand (`mirror.rs`). In between, a page of which it is known that it has not changed can be
//! held by a reference.
//!
//! C header: [`include/linux/hmm.h`](srctree/include/linux/hmm.h).

use super::{areas::Areas, device_private::Token};
use crate::{
    logic::{
        block::{Pages, MARK, PAGES},
        changes::Current,
        span::Span,
        PAGE_SIZE,
    },
    sys::helpers,
};
use core::ops::Range;
use kernel::{error::to_result, mm::Mm, prelude::*};

/// Bits of an entry, as `sys/mm/hmm.c` checks them. One with an error is not valid.
const VALID: u64 = MARK;
const WRITE: u64 = 1 << 62;
const ERROR: u64 = 1 << 61;
const PFN: u64 = (1 << 53) - 1;
/// Where an entry has the order of its mapping: one entry of the page table maps so many pages, all
/// alike, among them this one.
const ORDER: u32 = 53;
const ORDERS: u64 = 0x1f;
/// The order of a mapping of 2 MiB.
const HUGE: u64 = PAGES.trailing_zeros() as u64;

/// The entry of a page table for one page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaf {
    /// Nothing: the page has to be faulted in.
    Absent,
    /// Something that no device may have, or nothing that could be faulted in.
    Forbidden,
    /// A page, and whether the process can write to it as it is.
    Page { pfn: u64, write: bool },
}

/// The page table of a block of 2 MiB, as it was read.
pub(crate) struct Snapshot(KVec<usize>);

impl Snapshot {
    /// Makes room for a block.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(KVec::from_elem(0, PAGES, GFP_KERNEL_ACCOUNT)?))
    }

    /// Reads the page table of `mm`, which must be in use, from `start` on. Faults nothing in.
    /// Pages on the device of `owner` are told as others are. `EINTR`: a fatal signal came.
    pub(crate) fn read(&mut self, mm: &Mm, start: u64, owner: Token) -> Result {
        // SAFETY: The address space is in use. There is room for so many entries.
        to_result(unsafe {
            helpers::pinmap_read_leaves(
                mm.as_raw(),
                start as usize,
                self.0.len() as u32,
                owner.as_ptr(),
                self.0.as_mut_ptr(),
            )
        })
    }

    /// Does the same for the memory of `areas`, whose lock is held already.
    pub(crate) fn read_locked(&mut self, areas: &Areas<'_>, start: u64, owner: Token) -> Result {
        // SAFETY: The address space is in use, and its lock is held. There is room for so many
        // entries.
        to_result(unsafe {
            helpers::pinmap_read_leaves_locked(
                areas.mm().as_raw(),
                start as usize,
                self.0.len() as u32,
                owner.as_ptr(),
                self.0.as_mut_ptr(),
            )
        })
    }

    /// Returns what the page table had for page `index` of the block.
    pub(crate) fn leaf(&self, index: usize) -> Leaf {
        let leaf = self.0.get(index).map_or(0, |&leaf| leaf as u64);
        if leaf & ERROR != 0 {
            Leaf::Forbidden
        } else if leaf & VALID != 0 {
            Leaf::Page {
                pfn: leaf & PFN,
                write: leaf & WRITE != 0,
            }
        } else {
            Leaf::Absent
        }
    }

    /// Returns the page frame of page `index`, if it has one.
    pub(crate) fn pfn(&self, index: usize) -> Option<u64> {
        match self.leaf(index) {
            Leaf::Page { pfn, .. } => Some(pfn),
            _ => None,
        }
    }

    /// Returns whether one entry of the page table maps all of the block: its leaves are alike, and
    /// its page frames contiguous and aligned.
    pub(crate) fn is_one(&self) -> bool {
        let first = self.0.first().map_or(0, |&leaf| leaf as u64);
        first & VALID != 0 && first.wrapping_shr(ORDER) & ORDERS >= HUGE
    }

    /// Returns the pages of the block that the page table has.
    pub(crate) fn present(&self) -> Pages {
        if self.is_one() {
            return Pages::ALL;
        }
        Pages::marked(&self.0, |_| true)
    }

    /// Returns the pages of the block that the page table has and whose page frames are among
    /// `frames`.
    pub(crate) fn among(&self, frames: &Range<u64>) -> Pages {
        let count = frames.end.saturating_sub(frames.start);
        let is_among = |pfn: u64| pfn.wrapping_sub(frames.start) < count;
        if self.is_one() {
            let is_in = self.pfn(0).is_some_and(is_among);
            return if is_in { Pages::ALL } else { Pages::NONE };
        }
        Pages::marked(&self.0, |leaf| is_among(leaf & PFN))
    }

    /// Takes references to those of `pages` that the page table has. `current` says that it has
    /// them still; the caller has the lock that a notifier needs before they can go away.
    pub(crate) fn hold(&self, pages: Pages, current: &Current) -> Held<'_> {
        let mut held = Held {
            snapshot: self,
            pages: Pages::NONE,
            one: false,
        };
        let mut pages = current.among(pages);
        if !self.is_one() {
            pages = pages.and(self.present());
        }
        if let (true, true, Some(first)) = (self.is_one(), pages == Pages::ALL, self.pfn(0)) {
            // SAFETY: As below.
            unsafe { helpers::pinmap_hold_page(first as usize) };
            // SAFETY: We own a reference to the first page.
            if unsafe { helpers::pinmap_is_one_folio(first as usize, PAGES) } {
                // A folio of which anybody has a reference is neither freed nor split.
                held.pages = Pages::ALL;
                held.one = true;
                return held;
            }
            // SAFETY: We own the reference.
            unsafe { helpers::pinmap_let_go_of_page(first as usize) };
        }
        for index in pages.iter() {
            if let Some(pfn) = self.pfn(index) {
                // SAFETY: The page is in a page table, and stays there until a notifier was told,
                // for which the caller has the lock.
                unsafe { helpers::pinmap_hold_page(pfn as usize) };
                held.pages.set(index, true);
            }
        }
        held
    }
}

/// Pages of a block, with references. Dropping it drops the references.
///
/// # Invariants
///
/// We own a reference to each page of `snapshot` that is in `pages`; if `one`, these are all, of
/// one folio, and have one reference together.
pub(crate) struct Held<'a> {
    snapshot: &'a Snapshot,
    pages: Pages,
    one: bool,
}

impl Held<'_> {
    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    /// The first page from `index` on that is held.
    pub(crate) fn next(&self, index: usize) -> Option<usize> {
        self.pages.next(index)
    }

    /// Returns whether all pages of the block are held, and are one folio that one entry of the
    /// page table maps.
    pub(crate) fn is_one(&self) -> bool {
        self.one
    }

    /// Calls `visit` for pages that stand for all of `pages`: for the first if they are one folio.
    fn each_folio(&self, pages: Pages, mut visit: impl FnMut(usize)) {
        if !self.one {
            pages.and(self.pages).iter().for_each(visit);
        } else if !pages.is_empty() {
            visit(0);
        }
    }

    /// Returns the page frame of a page that is held.
    pub(crate) fn pfn(&self, index: usize) -> Option<u64> {
        // What is held has one, by the type invariants.
        let &leaf = self.snapshot.0.get(index)?;
        self.pages.has(index).then_some(leaf as u64 & PFN)
    }

    /// Returns those of the pages to which a device may be let write: the process can, and either
    /// they count as modified, or they are in the folio of page `target`, which will.
    pub(crate) fn writable(&self, target: Option<usize>) -> Pages {
        let target = target.and_then(|index| self.pfn(index));
        let is_in = |index| match self.snapshot.leaf(index) {
            // SAFETY: We own references to both pages, by the type invariants.
            Leaf::Page { pfn, write: true } => unsafe {
                target.is_some_and(|target| {
                    helpers::pinmap_is_same_folio(pfn as usize, target as usize)
                }) || helpers::pinmap_is_modified(pfn as usize)
            },
            _ => false,
        };
        if self.one {
            return if is_in(0) { Pages::ALL } else { Pages::NONE };
        }
        let mut writable = Pages::NONE;
        for index in self.pages.iter() {
            writable.set(index, is_in(index));
        }
        writable
    }

    /// Marks pages as modified: a device may write to them from now on. `current` is as in
    /// [`Snapshot::hold`].
    pub(crate) fn mark_modified(&self, pages: Pages, _current: &Current) {
        self.each_folio(pages, |index| {
            if let Some(pfn) = self.pfn(index) {
                // SAFETY: We own a reference, by the type invariants. The page is in a page table
                // that permits writing, and so its mapping is not taken from it.
                unsafe { helpers::pinmap_mark_modified(pfn as usize) };
            }
        });
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.each_folio(self.pages, |index| {
            if let Some(pfn) = self.snapshot.pfn(index) {
                // SAFETY: We own the reference, by the type invariants.
                unsafe { helpers::pinmap_let_go_of_page(pfn as usize) };
            }
        });
    }
}

/// Faults in the page at `addr` of `mm`, which must be in use, as if the process had touched it,
/// and up to `most` pages behind it that are like it: fewer, but not fewer than `least`, if others
/// wait for the mmap lock. Returns how many of those behind it. Sleeps as long as user space keeps
/// it waiting. `EINTR`: a fatal signal came.
pub(crate) fn fault_in(mm: &Mm, addr: u64, write: bool, least: u32, most: u32) -> Result<u32> {
    let addr = addr as usize;
    // SAFETY: The address space is in use.
    let result = unsafe { helpers::pinmap_fault_in(mm.as_raw(), addr, write, least, most) };
    to_result(result)?;
    Ok(result as u32)
}

/// Why a page cannot be had.
pub(crate) struct Reason {
    /// A `PINMAP_FAULT_` value; `PINMAP_FAULT_NONE`: it can be had, as far as is known.
    pub(crate) reason: u32,
    /// The area of memory around it, if there is one, and its `PINMAP_VMA_` flags.
    pub(crate) area: Option<(Span, u32)>,
}

/// Tells why the page at `addr` of `mm`, which must be in use, cannot be had. `error` is that of
/// [`fault_in`], or `None` if the page table has a [`Leaf::Forbidden`].
pub(crate) fn explain(mm: &Mm, addr: u64, write: bool, error: Option<Error>) -> Reason {
    let mut area = helpers::pinmap_area::default();
    let error = error.map_or(0, Error::to_errno);
    // SAFETY: The address space is in use; `area` is written during the call.
    let reason = unsafe {
        helpers::pinmap_explain_fault(mm.as_raw(), addr as usize, write, error, &raw mut area)
    };
    let last = area.end.saturating_sub(1);
    let span = Span::from_bounds(area.start, last).filter(|_| area.end >= PAGE_SIZE);
    Reason {
        reason,
        area: span.map(|span| (span, area.flags)),
    }
}
