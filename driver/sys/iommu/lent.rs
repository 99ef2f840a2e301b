// SPDX-License-Identifier: GPL-2.0
//! Pages that are mapped in a domain without anything here that keeps them.
//!
//! A [`Mapped`](super::Mapped) keeps its pages: while one exists, no page of it is freed. Pages
//! that are lent are not kept. Whoever lends them has references while they are mapped, and drops
//! these only once an MMU notifier would unmap them before they can be freed (`managed/`). Memory
//! of another device is there until that device leaves, which waits (`gpu/peers.rs`).
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

    /// Maps the pages from frame `pfn` on at `span`, where nothing is mapped. On failure nothing
    /// is. The caller has references to the pages. Sleeps.
    pub(crate) fn map(&self, span: Span, pfn: u64, write: bool) -> Result {
        let mut prot = bindings::IOMMU_READ;
        if write {
            prot |= bindings::IOMMU_WRITE;
        }
        if self.0.domain.coherent {
            prot |= bindings::IOMMU_CACHE;
        }
        self.map_as(span, pfn, prot)
    }

    /// Maps memory of another device, its page frames from `pfn` on, at `span`, where nothing is
    /// mapped, for reading. On failure nothing is. The other device is there as long as it is
    /// mapped. Sleeps.
    pub(crate) fn map_peer(&self, span: Span, pfn: u64) -> Result {
        self.map_as(span, pfn, bindings::IOMMU_READ | bindings::IOMMU_MMIO)
    }

    fn map_as(&self, span: Span, pfn: u64, prot: u32) -> Result {
        // SAFETY: The page table is valid by the invariants of `Use`. The callers of the public
        // methods keep what is mapped.
        to_result(unsafe {
            bindings::iommu_map(
                self.0.table.as_ptr(),
                span.start() as usize,
                pfn.saturating_mul(PAGE_SIZE),
                span.length() as usize,
                prot as ffi::c_int,
                bindings::GFP_KERNEL_ACCOUNT,
            )
        })
    }

    /// Unmaps all spans of `runs`, each of which one call has mapped, and flushes. When this
    /// returns `Ok`, no device can reach anything there. May be called in any context.
    pub(crate) fn unmap(&self, mut runs: impl Iterator<Item = Span>) -> Result {
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
            let unmapped =
                unsafe { helpers::pinmap_unmap_runs(self.0.table.as_ptr(), some.as_ptr(), count) };
            if unmapped != length {
                result = Err(self.0.domain.lose(unmapped, length));
            }
        }
    }
}
