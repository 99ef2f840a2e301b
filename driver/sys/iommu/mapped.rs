// SPDX-License-Identifier: GPL-2.0
//! Mappings of pages in a domain.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

use super::{fill::Part, gather::Gather, Current, Domain, NoTables};
use crate::{
    logic::span::Span,
    sys::{helpers, mm::pages::Pages, task::account::Account},
};
use core::{mem, ptr::NonNull};
use kernel::{
    bindings,
    prelude::*,
    sync::{
        atomic::{Relaxed, Release},
        Arc,
    },
};

/// A user of a domain's page table, which is not replaced as long as there is one.
///
/// # Invariants
///
/// `table` is the page table of `domain`, which counts this among its uses.
pub(super) struct Use {
    pub(super) domain: Arc<Domain>,
    table: NonNull<bindings::iommu_domain>,
    /// Whether the tables that the mapping leaves are charged.
    counted: bool,
}

// SAFETY: Mapping and unmapping of disjoint ranges may be done from any thread at once.
unsafe impl Send for Use {}
// SAFETY: Mapping and unmapping of disjoint ranges may be done from any thread at once.
unsafe impl Sync for Use {}

impl Use {
    /// Begins to use the page table for a mapping at `span`. The tables that it will leave are
    /// charged to `payer`, if there is one.
    pub(super) fn new(
        domain: &Arc<Domain>,
        span: Span,
        payer: Option<&Arc<Account>>,
    ) -> core::result::Result<Self, NoTables> {
        let mut current = domain.current.lock();
        current.attached?;
        if let Some(payer) = payer {
            current.footprint.reserve(span, payer)?;
        }
        Ok(Self::begin(domain, &mut current, payer.is_some()))
    }

    /// Begins to use the page table of `domain`, which is `current`.
    fn begin(domain: &Arc<Domain>, current: &mut Current, counted: bool) -> Self {
        current.used = true;
        domain.uses.add(1, Relaxed);
        // INVARIANT: Counted in `uses` just now, with `current` locked.
        Self {
            domain: domain.clone(),
            table: current.page_table.0,
            counted,
        }
    }

    /// Returns the page table, which is valid as long as the use exists.
    pub(super) fn table(&self) -> *mut bindings::iommu_domain {
        self.table.as_ptr()
    }

    /// Counts the tables of `part`, since no more than that of a mapping was mapped.
    pub(super) fn note(&self, part: Span) {
        if self.counted {
            self.domain.current.lock().footprint.note(part);
        }
    }

    /// Unmaps and flushes. When this returns `Ok`, no device can reach what was mapped there. May
    /// be called in any context.
    ///
    /// An error means that the page table was not as we left it: part of the range may still be
    /// reachable.
    pub(super) fn unmap(&self, start: u64, length: u64) -> Result {
        // SAFETY: The page table is valid.
        let unmapped =
            unsafe { bindings::iommu_unmap(self.table(), start as usize, length as usize) };
        if unmapped as u64 == length {
            return Ok(());
        }
        Err(self.domain.lose(unmapped as u64, length))
    }

    /// Flushes everything. May be called in any context.
    fn flush_all(&self) {
        // SAFETY: The page table is valid.
        unsafe { helpers::pinmap_flush_all(self.table()) };
    }

    /// Makes another use of the same page table.
    pub(super) fn another(&self) -> Self {
        self.domain.uses.add(1, Relaxed);
        // INVARIANT: Counted just now. There was one already, so the page table was not replaced.
        Self {
            domain: self.domain.clone(),
            table: self.table,
            counted: self.counted,
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // `Release`: what was mapped is unmapped before another task sees the count.
        self.domain.uses.fetch_sub(1, Release);
    }
}

/// Keeps the page table in which the target of a function's interrupts is mapped, where the IOMMU
/// translates them.
pub(crate) struct MessagesUse(#[expect(dead_code, reason = "it is kept")] Option<Use>);

impl MessagesUse {
    /// Begins the use, before vectors are allocated. Fails if the function's DMA is blocked.
    pub(crate) fn new(domain: &Arc<Domain>) -> Result<Self> {
        if domain.messages.is_none() {
            return Ok(Self(None));
        }
        let mut current = domain.current.lock();
        current.attached?;
        Ok(Self(Some(Use::begin(domain, &mut current, false))))
    }
}

/// Pages mapped in a domain. Dropping it unmaps, flushes, and lets go of the pages.
///
/// # Invariants
///
/// `part` is mapped from `start` on, to pages of `runs`, in the page table of `table`.
pub(crate) struct Mapped {
    /// `None`: unmapped, and `part` is empty.
    table: Option<Use>,
    start: u64,
    part: Part,
    runs: Option<Arc<dyn Pages>>,
}

impl Mapped {
    /// Begins a mapping at `span` of `domain`, which must be free. The tables that it will leave
    /// are charged to `payer`, if there is one.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        span: Span,
        payer: Option<&Arc<Account>>,
    ) -> core::result::Result<Self, NoTables> {
        // INVARIANT: Nothing is mapped yet.
        Ok(Self {
            table: Some(Use::new(domain, span, payer)?),
            start: span.start(),
            part: Part::default(),
            runs: None,
        })
    }

    /// Maps `runs`, one after the other; can be called once. Fails after a fatal
    /// signal, and when `wanted`, which is called now and then, fails. After a failure a part may
    /// be mapped. Sleeps.
    pub(crate) fn fill(
        &mut self,
        runs: Arc<dyn Pages>,
        write: bool,
        wanted: impl Fn() -> Result,
    ) -> Result {
        let table = self.table.as_ref().filter(|_| self.runs.is_none());
        let table = table.ok_or(EBUSY)?;
        // A device may only write to pages that were pinned for writing.
        if write && !runs.writable() {
            return Err(EACCES);
        }
        let runs = &**self.runs.insert(runs);
        // INVARIANT: The call counts in `part` what it maps.
        let result = table.fill(self.start, runs, write, wanted, &mut self.part);
        if result.is_err() {
            if let Ok(front) = Span::new(self.start, self.part.length) {
                table.note(front);
            }
        }
        result
    }

    /// Unmaps and flushes, once. When this returns `Ok`, no device can reach the pages here, and
    /// they are let go of. After an error the pages may be reachable, and are kept forever. The
    /// caller's context must allow that the last reference to the pages is dropped, or somebody
    /// else must have one.
    pub(crate) fn unmap(&mut self) -> Result {
        let Some(table) = self.table.take() else {
            return Ok(());
        };
        let length = mem::take(&mut self.part.length);
        let stuck = mem::take(&mut self.part.stuck);
        let mut result = Ok(());
        if length != 0 {
            result = table.unmap(self.start, length);
            self.part.flushes = self.part.flushes.saturating_add(1);
        }
        drop(table);
        if stuck {
            result = Err(EIO);
        }
        let runs = self.runs.take();
        if result.is_err() {
            mem::forget(runs);
        }
        result
    }

    /// Unmaps, and leaves the flush to `gather`. Until that is flushed, a device may still reach
    /// the pages, which are kept until [`unmap`](Self::unmap).
    pub(crate) fn unmap_into(&mut self, gather: &mut Gather) {
        let length = mem::take(&mut self.part.length);
        if let Some(table) = self.table.as_ref().filter(|_| length != 0) {
            self.part.stuck |= gather.unmap(table, self.start, length).is_err();
        }
    }

    /// Flushes what [`unmap_into`](Self::unmap_into) has left to another task. May be called in any
    /// context.
    pub(crate) fn flush_gathered(&self) {
        if let Some(table) = self.table.as_ref().filter(|_| self.part.length == 0) {
            table.flush_all();
        }
    }

    /// How often the IOMMU's cache was flushed for this mapping.
    pub(crate) fn flushes(&self) -> u64 {
        self.part.flushes
    }

    /// The pages that are mapped.
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
        // Callers that need the result have called `unmap` before.
        let _ = self.unmap();
    }
}
