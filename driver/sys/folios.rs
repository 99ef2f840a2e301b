// SPDX-License-Identifier: GPL-2.0
//! Host memory that the driver allocates, in folios.
//!
//! C headers: [`include/linux/gfp.h`](srctree/include/linux/gfp.h),
//! [`include/linux/huge_mm.h`](srctree/include/linux/huge_mm.h).

use super::{
    account::Charge,
    cache::Combined,
    compat, helpers,
    pages::{block_of, Pages, BLOCK},
    task,
};
use crate::logic::{runs::Run, PAGE_SIZE};
#[cfg(not(pinmap_flat))]
use core::ptr;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{Atomic, Full},
};

/// Zeroed pages of the driver's own, the largest first, and the charge for them. Dropping it gives up
/// our references; user space may have more.
///
/// # Invariants
///
/// Each run is one folio that we own a reference of; their orders never grow, and `pages` is their sum.
pub(crate) struct Folios {
    folios: KVVec<Run>,
    pages: u64,
    /// They are write-combined, as far as that went.
    combined: Option<Combined>,
    _charge: Charge,
}

/// What kind of pages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    /// Past the CPU's caches.
    pub(crate) write_combined: bool,
    /// Of this NUMA node only; otherwise the task's memory policy decides.
    pub(crate) node: Option<u32>,
}

/// `NUMA_NO_NODE`.
const ANY_NODE: i32 = -1;

impl Kind {
    /// The node as the allocator takes it; `EINVAL` if it has no memory.
    fn node(self) -> Result<i32> {
        match self.node {
            None => Ok(ANY_NODE),
            // SAFETY: Any number may be passed.
            Some(node) if unsafe { helpers::pinmap_node_has_memory(node) } => Ok(node as i32),
            Some(_) => Err(EINVAL),
        }
    }
}

/// Orders of folios: the largest first. The one in between is a compromise of the kernel's own.
const MIDDLE_ORDER: u32 = 4;

impl Folios {
    /// Allocates `pages` pages, paid for by `charge`. Sleeps; a fatal signal stops it. `EINVAL`: there is
    /// no such node; `EOPNOTSUPP`: there is no such memory here.
    pub(crate) fn new(pages: u64, kind: Kind, charge: Charge) -> Result<Self> {
        let node = kind.node()?;
        if kind.write_combined && !Combined::is_possible() {
            return Err(compat::unsupported());
        }
        // SAFETY: No requirements.
        let (huge, all) = unsafe { (helpers::pinmap_huge_order(), helpers::pinmap_total_pages()) };
        // Rather than find out page by page.
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
            // They were zeroed; nobody has seen them yet.
            let combined = this.combined.insert(Combined::new()?);
            combined.combine(&this.folios)?;
        }
        Ok(this)
    }

    /// Adds a folio; `false` if there is none of that order.
    fn add(&mut self, order: u32, node: i32) -> Result<bool> {
        self.make_room()?;
        // SAFETY: No requirements.
        let page = unsafe { helpers::pinmap_alloc_folio(order, node) };
        let Some(page) = NonNull::new(page) else {
            return Ok(false);
        };
        // SAFETY: A page that we were just given.
        let pfn = unsafe { helpers::pinmap_page_to_pfn(page.as_ptr()) } as u64;
        let count = 1_u64.wrapping_shl(order);
        // INVARIANT: The call gave us a reference.
        let stored = Run::new(pfn, count)
            .ok_or(ERANGE)
            .and_then(|run| self.folios.push_within_capacity(run).map_err(|_| ENOMEM));
        if let Err(error) = stored {
            // SAFETY: Ours, and nobody knows it.
            unsafe { helpers::pinmap_put_page(page.as_ptr()) };
            return Err(error);
        }
        self.pages = self.pages.saturating_add(count);
        Ok(true)
    }

    /// For one more folio. As for the pages themselves, a memory cgroup that is full says no: that
    /// of `reserve()` would have somebody killed.
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
        // SAFETY: `length` runs fit, which have no destructor; and it is what KVmalloc allocates.
        self.folios = unsafe {
            room.copy_from_nonoverlapping(self.folios.as_ptr(), length);
            KVVec::from_raw_parts(room, length, more)
        };
        Ok(())
    }

    /// Its folio around page `index`, and the index of that folio's first page.
    fn folio(&self, index: u64) -> Option<(Run, u64)> {
        let mut first = 0_u64;
        let mut rest: &[Run] = &self.folios;
        // Folios of one order stand together; there are three orders at most.
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

    /// Page `index`.
    fn page(&self, index: u64) -> Option<*mut bindings::page> {
        let (run, first) = self.folio(index)?;
        let pfn = run.pfn().saturating_add(index.saturating_sub(first));
        // SAFETY: A page of a folio of ours.
        Some(unsafe { helpers::pinmap_pfn_to_page(pfn as usize) })
    }

    /// The frame of the first page.
    #[cfg(not(pinmap_flat))]
    pub(crate) fn first_frame(&self) -> Option<u64> {
        self.folios.first().map(|run| run.pfn())
    }

    /// For the page-fault handler: the page at the byte `offset`.
    pub(super) fn page_at(&self, offset: u64) -> Option<*mut bindings::page> {
        self.page(offset / PAGE_SIZE)
    }

    /// The first page of the huge folio that begins at the byte `offset`, if one does.
    pub(super) fn huge_at(&self, offset: u64) -> Option<*mut bindings::page> {
        // SAFETY: No requirements.
        let huge = 1_u64.wrapping_shl(unsafe { helpers::pinmap_huge_order() });
        let index = offset / PAGE_SIZE;
        let (run, first) = self.folio(index)?;
        (run.pages() == huge && first == index)
            .then(|| self.page(index))
            .flatten()
    }

    /// Adds 1 to the 8 bytes at `offset`, a multiple of 8. From any context.
    pub(crate) fn increment(&self, offset: u64) {
        if let Some(word) = self.word(offset) {
            // SAFETY: Aligned, in a page of ours, and only ever accessed atomically.
            let word = unsafe { Atomic::<u64>::from_ptr(word) };
            word.fetch_add(1, Full);
        }
    }

    /// Where the 8 bytes at `offset` are, if it is a multiple of 8 in the memory.
    fn word(&self, offset: u64) -> Option<*mut u64> {
        if offset % 8 != 0 {
            return None;
        }
        let page = self.page(offset / PAGE_SIZE)?;
        // SAFETY: A page of ours, in memory that the kernel has mapped (there is no high memory with
        // 64 bits).
        let address = unsafe { helpers::pinmap_page_address(page) };
        let inside = (offset % PAGE_SIZE) as usize;
        Some(address.wrapping_byte_add(inside).cast())
    }

    /// Loads 8 bytes that user space and a device may write meanwhile.
    #[cfg(not(pinmap_flat))]
    pub(crate) fn load(&self, offset: u64) -> Option<u64> {
        let word = self.word(offset)?;
        // SAFETY: Aligned, in a page of ours. Volatile, since others write it; one access of 8 bytes
        // is seen whole.
        Some(unsafe { ptr::read_volatile(word) })
    }

    /// Stores whole words of 8 bytes from `offset` on, a multiple of 8. User space and a device may
    /// read and write there meanwhile.
    #[cfg(not(pinmap_flat))]
    pub(crate) fn store(&self, offset: u64, bytes: &[u8]) -> Result {
        for (at, value) in (offset..).step_by(8).zip(bytes.chunks_exact(8)) {
            let word = self.word(at).ok_or(EINVAL)?;
            let value = u64::from_ne_bytes(value.try_into().map_err(|_| EINVAL)?);
            // SAFETY: As in `load`.
            unsafe { ptr::write_volatile(word, value) };
        }
        Ok(())
    }
}

// SAFETY: We own references of the folios as long as it lives.
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
        // No page may get back to the allocator before it is as the allocator gave it.
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
            // SAFETY: We own a reference of the folio that begins there. Whatever lets a device reach
            // it has a reference to `self`, so nothing does any more.
            unsafe {
                helpers::pinmap_put_page(helpers::pinmap_pfn_to_page(run.pfn() as usize));
            }
            task::cond_resched();
        }
    }
}
