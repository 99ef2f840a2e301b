// SPDX-License-Identifier: GPL-2.0
//! Host memory that the driver allocates, in folios: the largest that there are.
//!
//! C headers: [`include/linux/gfp.h`](srctree/include/linux/gfp.h),
//! [`include/linux/huge_mm.h`](srctree/include/linux/huge_mm.h).

use super::{
    cache::Combined,
    pages::{block_of, Pages, BLOCK},
};
use crate::{
    logic::{runs::Run, PAGE_SIZE},
    sys::{helpers, task, task::account::Charge},
};
use core::ptr::{self, NonNull};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{Atomic, Full},
};

/// Zeroed pages that the driver allocated, and the charge for them. Dropping it gives up the
/// driver's references; user space may hold others.
///
/// # Invariants
///
/// Each run is a folio of which we own a reference. Their orders never grow, and `pages` is the sum
/// of their pages.
pub(crate) struct Folios {
    folios: KVVec<Run>,
    pages: u64,
    /// Set if the pages are write-combined (after a failure, some of them).
    combined: Option<Combined>,
    _charge: Charge,
}

/// Properties of the pages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    /// Write-combined instead of cached.
    pub(crate) write_combined: bool,
    /// The only NUMA node to allocate from. Otherwise the task's memory policy decides.
    pub(crate) node: Option<u32>,
}

/// The kernel's `NUMA_NO_NODE`.
const ANY_NODE: i32 = -1;

impl Kind {
    /// Returns the node as the allocator takes it. Fails with `EINVAL` if the node has no memory.
    fn node(self) -> Result<i32> {
        match self.node {
            None => Ok(ANY_NODE),
            // SAFETY: The call takes any number.
            Some(node) if unsafe { helpers::pinmap_node_has_memory(node) } => Ok(node as i32),
            Some(_) => Err(EINVAL),
        }
    }
}

/// The order that is tried when there are no huge pages, before single pages.
const MIDDLE_ORDER: u32 = 4;

impl Folios {
    /// Allocates `pages` pages, which `charge` pays for. Sleeps; a fatal signal ends it. Fails with
    /// `EINVAL` if the node has no memory, and with `EOPNOTSUPP` if the architecture has no
    /// write-combined memory.
    pub(crate) fn new(pages: u64, kind: Kind, charge: Charge) -> Result<Self> {
        let node = kind.node()?;
        if kind.write_combined && !Combined::is_possible() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: No requirements.
        let (huge, all) = unsafe { (helpers::pinmap_huge_order(), helpers::pinmap_total_pages()) };
        // Fails at once, rather than after a long time.
        if pages > all as u64 {
            return Err(ENOMEM);
        }
        let mut this = Self {
            folios: KVVec::new(),
            pages: 0,
            combined: None,
            _charge: charge,
        };
        let mut order = huge;
        while this.pages < pages {
            if task::fatal_signal_pending() {
                return Err(EINTR);
            }
            let left = pages.saturating_sub(this.pages);
            if left >= 1_u64.wrapping_shl(order) && this.add(order, node)? {
                task::cond_resched();
            } else if order == 0 {
                return Err(ENOMEM);
            } else {
                order = if order > MIDDLE_ORDER {
                    MIDDLE_ORDER
                } else {
                    0
                };
            }
        }
        if kind.write_combined {
            // The pages were zeroed through the cache, and nobody has seen them yet.
            let combined = this.combined.insert(Combined::new()?);
            combined.combine(&this.folios)?;
        }
        Ok(this)
    }

    /// Adds a folio; returns `false` if there is none of that order.
    fn add(&mut self, order: u32, node: i32) -> Result<bool> {
        self.make_room()?;
        // SAFETY: No requirements.
        let page = unsafe { helpers::pinmap_alloc_folio(order, node) };
        let Some(page) = NonNull::new(page) else {
            return Ok(false);
        };
        // SAFETY: The allocator has just given us the page.
        let pfn = unsafe { helpers::pinmap_page_to_pfn(page.as_ptr()) } as u64;
        let count = 1_u64.wrapping_shl(order);
        // INVARIANT: The allocator gave us a reference.
        let stored = Run::new(pfn, count)
            .ok_or(ERANGE)
            .and_then(|run| self.folios.push_within_capacity(run).map_err(|_| ENOMEM));
        if let Err(error) = stored {
            // SAFETY: The reference is ours, and nobody else knows the page.
            unsafe { helpers::pinmap_put_page(page.as_ptr()) };
            return Err(error);
        }
        self.pages = self.pages.saturating_add(count);
        Ok(true)
    }

    /// Makes room for one more run. Unlike `reserve()`, which would call the OOM killer in a full
    /// memory cgroup, this fails, as allocating the pages does.
    fn make_room(&mut self) -> Result {
        let (length, capacity) = (self.folios.len(), self.folios.capacity());
        if length < capacity {
            return Ok(());
        }
        let more = capacity.saturating_mul(2).max(64);
        let size = more
            .checked_mul(size_of::<Run>())
            .filter(|size| *size <= isize::MAX as usize)
            .ok_or(ENOMEM)?;
        // SAFETY: No requirements.
        let room = unsafe { helpers::pinmap_kvmalloc_or_fail(size) }.cast::<Run>();
        if room.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: `length` runs fit, and runs have no destructor; KVmalloc frees what kvmalloc()
        // allocated.
        self.folios = unsafe {
            room.copy_from_nonoverlapping(self.folios.as_ptr(), length);
            KVVec::from_raw_parts(room, length, more)
        };
        Ok(())
    }

    /// Returns the folio around page `index`, and the index of its first page.
    fn folio(&self, index: u64) -> Option<(Run, u64)> {
        let mut first = 0_u64;
        let mut rest: &[Run] = &self.folios;
        // Folios of one order stand together, and there are at most three orders.
        while let Some(&head) = rest.first() {
            let same = rest.partition_point(|run| run.pages() == head.pages());
            let inside = index.checked_sub(first)?.checked_div(head.pages())?;
            if let Some(&run) = usize::try_from(inside)
                .ok()
                .filter(|&inside| inside < same)
                .and_then(|inside| rest.get(inside))
            {
                return Some((
                    run,
                    first.saturating_add(inside.saturating_mul(head.pages())),
                ));
            }
            first = first.saturating_add((same as u64).saturating_mul(head.pages()));
            rest = rest.get(same..)?;
        }
        None
    }

    fn page(&self, index: u64) -> Option<*mut bindings::page> {
        let (run, first) = self.folio(index)?;
        let pfn = run.pfn().saturating_add(index.saturating_sub(first));
        // SAFETY: The page belongs to a folio of ours.
        Some(unsafe { helpers::pinmap_pfn_to_page(pfn as usize) })
    }

    pub(crate) fn first_frame(&self) -> Option<u64> {
        self.folios.first().map(|run| run.pfn())
    }

    /// Returns the page at the byte `offset`, for a page fault.
    pub(super) fn page_at(&self, offset: u64) -> Option<*mut bindings::page> {
        self.page(offset / PAGE_SIZE)
    }

    /// Returns the first page of the huge folio that begins at the byte `offset`, if one does.
    pub(super) fn huge_at(&self, offset: u64) -> Option<*mut bindings::page> {
        // SAFETY: No requirements.
        let huge = 1_u64.wrapping_shl(unsafe { helpers::pinmap_huge_order() });
        let index = offset / PAGE_SIZE;
        let (run, first) = self.folio(index)?;
        (run.pages() == huge && first == index)
            .then(|| self.page(index))
            .flatten()
    }

    /// Adds 1 to the 8 bytes at `offset`, a multiple of 8. May be called in any context.
    pub(crate) fn increment(&self, offset: u64) {
        if let Some(word) = self.word(offset) {
            // SAFETY: The word is aligned, in a page of ours, and only accessed atomically.
            let word = unsafe { Atomic::<u64>::from_ptr(word) };
            word.fetch_add(1, Full);
        }
    }

    /// Returns where the 8 bytes at `offset` are; `None` unless that is a multiple of 8 in the
    /// memory.
    fn word(&self, offset: u64) -> Option<*mut u64> {
        if offset % 8 != 0 {
            return None;
        }
        let page = self.page(offset / PAGE_SIZE)?;
        // SAFETY: The page is ours, and the kernel has it mapped, since a 64-bit kernel has no high
        // memory.
        let address = unsafe { helpers::pinmap_page_address(page) };
        let inside = (offset % PAGE_SIZE) as usize;
        Some(address.wrapping_byte_add(inside).cast())
    }

    /// Loads 8 bytes, which user space and a device may write at the same time.
    pub(crate) fn load(&self, offset: u64) -> Option<u64> {
        let word = self.word(offset)?;
        // SAFETY: The word is aligned and in a page of ours. The access is volatile, since others
        // write the word, and single, so that it sees whole values.
        Some(unsafe { ptr::read_volatile(word) })
    }

    /// Stores whole words of 8 bytes from `offset` on, a multiple of 8. User space and a device may
    /// access them at the same time.
    pub(crate) fn store(&self, offset: u64, bytes: &[u8]) -> Result {
        for (at, value) in (offset..).step_by(8).zip(bytes.chunks_exact(8)) {
            let word = self.word(at).ok_or(EINVAL)?;
            let value = u64::from_ne_bytes(value.try_into().map_err(|_| EINVAL)?);
            // SAFETY: The word is aligned and in a page of ours; the access is volatile, since
            // others access the word.
            unsafe { ptr::write_volatile(word, value) };
        }
        Ok(())
    }
}

// SAFETY: We own references to the folios as long as `self` lives.
unsafe impl Pages for Folios {
    fn pages(&self) -> u64 {
        self.pages
    }

    fn blocks(&self) -> usize {
        self.folios.len().div_ceil(BLOCK)
    }

    fn block(&self, index: usize) -> &[Run] {
        block_of(&self.folios, index)
    }

    fn writable(&self) -> bool {
        true
    }

    fn is_cached(&self) -> bool {
        self.combined.is_none()
    }
}

impl Drop for Folios {
    fn drop(&mut self) {
        // The allocator must get the pages back as it gave them: cached.
        if let Some(combined) = &mut self.combined {
            if combined.take_back(&self.folios).is_err() {
                pr_err!(
                    "{} pages stay write-combined; they are kept for ever\n",
                    self.pages
                );
                return;
            }
        }
        for run in &self.folios {
            // SAFETY: We own a reference to the folio that begins there. Whatever lets a device
            // reach the folio has a reference to `self`, so nothing does any more.
            unsafe {
                helpers::pinmap_put_page(helpers::pinmap_pfn_to_page(run.pfn() as usize));
            }
            task::cond_resched();
        }
    }
}
