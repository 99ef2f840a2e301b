// SPDX-License-Identifier: GPL-2.0
//! Pages that are mapped in a domain without anything here that keeps them.
//!
//! A [`Mapped`](super::Mapped) keeps its pages: while one exists, no page of it is freed. Pages
//! that are lent are not kept, so to map them is unsafe. Whoever lends them has references while
//! they are mapped, and drops these only once an MMU notifier would unmap them before they can be
//! freed (`managed/`). Memory of another device is there until that device leaves, which waits
//! (`gpu/vram/peers.rs`).
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

use super::{mapped::Use, Domain, NoTables};
use crate::{
    logic::{span::Span, PAGE_SIZE},
    sys::helpers,
};
use kernel::{bindings, error::to_result, ffi, prelude::*, sync::Arc};

/// Runs that are unmapped with one flush.
const TOGETHER: usize = 32;

/// Runs of pages that are mapped with one call, which tells the IOMMU once: their addresses follow
/// each other, their pages do not.
#[derive(Default)]
pub(crate) struct Row {
    start: u64,
    length: u64,
    write: bool,
    count: u32,
    runs: [helpers::pinmap_lent_run; helpers::PINMAP_LENT_RUNS as usize],
}

impl Row {
    /// Makes it a row of one run: the pages from frame `pfn` on, at `span`.
    pub(crate) fn begin(&mut self, span: Span, pfn: u64, write: bool) {
        self.start = span.start();
        self.length = 0;
        self.write = write;
        self.count = 0;
        self.add(span, pfn, write);
    }

    /// The address of the first run.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Adds a run, if there is room and it follows the others. Returns whether it does.
    pub(crate) fn add(&mut self, span: Span, pfn: u64, write: bool) -> bool {
        let follows = self.start.saturating_add(self.length) == span.start();
        let Some(place) = self.runs.get_mut(self.count as usize) else {
            return false;
        };
        if !follows || self.write != write {
            return false;
        }
        place.pfn = pfn;
        place.length = span.length();
        self.length = self.length.saturating_add(span.length());
        self.count = self.count.saturating_add(1);
        true
    }
}

/// The right to lend pages to a domain, whose page table is not replaced as long as this exists.
pub(crate) struct Lender(Use);

impl Lender {
    /// Makes a lender of pages at `span` of `domain`. Sleeps.
    pub(crate) fn new(domain: &Arc<Domain>, span: Span) -> Result<Self> {
        match Use::new(domain, span, None) {
            Ok(table) => Ok(Self(table)),
            Err(NoTables::Failed(error)) => Err(error),
            Err(NoTables::OverLimit(_)) => Err(ENOMEM),
        }
    }

    /// Makes another one.
    pub(crate) fn another(&self) -> Self {
        Self(self.0.another())
    }

    /// Maps the pages from frame `pfn` on at `span`, where nothing is mapped. On failure nothing
    /// is. Sleeps.
    ///
    /// # Safety
    ///
    /// The pages stay until they are unmapped, and may be read by a device, or written if `write`.
    pub(crate) unsafe fn map(&self, span: Span, pfn: u64, write: bool) -> Result {
        // SAFETY: By the requirements.
        unsafe { self.map_as(span, pfn, self.0.prot(write)) }
    }

    /// Maps all runs of `row`, where nothing is mapped. Returns how many bytes are mapped, from the
    /// start of the row on: after a failure the runs before the one that failed. Sleeps.
    ///
    /// # Safety
    ///
    /// That of [`map`](Self::map), for the pages of each run.
    pub(crate) unsafe fn map_row(&self, row: &Row) -> (u64, Result) {
        let prot = self.0.prot(row.write);
        if row.count > 1 {
            // SAFETY: The page table is valid; so many runs are there. For the pages see the
            // requirements.
            let result = to_result(unsafe {
                helpers::pinmap_map_runs(
                    self.0.table(),
                    row.start,
                    row.runs.as_ptr(),
                    row.count,
                    prot,
                )
            });
            if result.is_ok() {
                return (row.length, result);
            }
        }
        let mut mapped = 0_u64;
        for run in row.runs.iter().take(row.count as usize) {
            let span = Span::new(row.start.saturating_add(mapped), run.length);
            let result = span.map_err(|_| EINVAL);
            // SAFETY: By the requirements.
            let map = |span| unsafe { self.map_as(span, run.pfn, prot) };
            if let Err(error) = result.and_then(map) {
                return (mapped, Err(error));
            }
            mapped = mapped.saturating_add(run.length);
        }
        (mapped, Ok(()))
    }

    /// Maps memory of another device, its page frames from `pfn` on, at `span`, where nothing is
    /// mapped, for reading. On failure nothing is. Sleeps.
    ///
    /// # Safety
    ///
    /// The other device is there until it is unmapped, and its memory may be read.
    pub(crate) unsafe fn map_peer(&self, span: Span, pfn: u64) -> Result {
        let prot = bindings::IOMMU_READ | bindings::IOMMU_MMIO;
        // SAFETY: By the requirements.
        unsafe { self.map_as(span, pfn, prot as ffi::c_int) }
    }

    /// # Safety
    ///
    /// That of [`map`](Self::map), or of [`map_peer`](Self::map_peer).
    unsafe fn map_as(&self, span: Span, pfn: u64, prot: ffi::c_int) -> Result {
        // SAFETY: The page table is valid. For what is mapped see the requirements.
        to_result(unsafe {
            bindings::iommu_map(
                self.0.table(),
                span.start() as usize,
                pfn.saturating_mul(PAGE_SIZE),
                span.length() as usize,
                prot,
                bindings::GFP_KERNEL_ACCOUNT,
            )
        })
    }

    /// Unmaps all spans of `runs`, each of which one call has mapped, and flushes. When this
    /// returns `Ok`, no device can reach anything there. May be called in any context.
    pub(crate) fn unmap(&self, mut runs: impl Iterator<Item = Span>) -> Result {
        let table = self.0.table();
        let mut result = Ok(());
        loop {
            let mut some = [helpers::pinmap_bus_run::default(); TOGETHER];
            let (mut count, mut length) = (0_u32, 0_u64);
            for (place, span) in some.iter_mut().zip(&mut runs) {
                place.start = span.start();
                place.length = span.length();
                length = length.saturating_add(span.length());
                count = count.saturating_add(1);
            }
            if count == 0 {
                return result;
            }
            // SAFETY: The page table is valid; so many runs are there.
            let unmapped = unsafe { helpers::pinmap_unmap_runs(table, some.as_ptr(), count) };
            if unmapped != length {
                result = Err(self.0.domain.lose(unmapped, length));
            }
        }
    }
}
