// SPDX-License-Identifier: GPL-2.0
//! Giving pages of a block to the device: to hold, map and enter them, which are steps 3 to 5 of
//! the service of a fault.
//!
//! Pages that were read from the page table may change at any time. Between the two looks whether
//! they have, it is a reference that keeps them; after the second one, it is the notifier.

use super::{
    block::{lendable, Block, Service},
    fault::{Fault, Setback},
    pieces::{self, Piece, Pieces},
    plan::Extent,
    Managed, Managing,
};
use crate::{
    logic::{
        block::{Pages, PAGES},
        changes::{Moment, GRANULE_PAGES},
    },
    sys::mm::{
        hmm::{Held, Snapshot},
        mirror::Changes,
    },
};
use kernel::{
    prelude::*,
    sync::{
        lock::{mutex::MutexBackend, Guard},
        Arc,
    },
};

/// Pages of a block that the device is being given, with the block's service locked.
pub(super) struct Lending<'a> {
    managed: &'a Managed,
    changes: &'a Changes,
    block: &'a Arc<Block>,
    fault: Fault,
    /// When its page table was read.
    moment: &'a Moment,
    held: Held<'a>,
    /// Pages of `held` that are mapped in the IOMMU, as far as they have to be.
    pages: Pages,
    /// Pages that the device may write to.
    writable: Pages,
    /// They are all of the block, and become one entry.
    is_large: bool,
    _service: Guard<'a, Service, MutexBackend>,
}

impl<'a> Lending<'a> {
    /// Takes references to the page of `fault`, and to those around it that are managed and that
    /// the device has not, as far as they are as `snapshot` has had them at `moment`. Of the host's
    /// memory, only those of `extent`; and only few if it is `narrow`.
    pub(super) fn hold(
        managing: &'a Managing,
        block: &'a Arc<Block>,
        fault: Fault,
        snapshot: &'a Snapshot,
        moment: &'a Moment,
        extent: &Extent,
        narrow: bool,
    ) -> Result<Self, Setback> {
        let managed: &Managed = managing;
        let service = block.service.lock();
        if service.dead {
            return Err(Setback::Changed);
        }
        let mut wanted = lendable(managed, block.span());
        if extent.pages != Pages::ALL {
            let private = snapshot.among(&managed.vm.gpu().frames());
            wanted = wanted.and(extent.pages.or(private));
        }
        if narrow {
            let last = fault.index | (GRANULE_PAGES - 1);
            wanted = wanted.and(Pages::range(fault.index, last));
        }
        if !wanted.has(fault.index) {
            return Err(Setback::Changed);
        }
        // What the device has is left alone, unless it may not write where it has to.
        let mut lent = block.lent.lock();
        if lent.pages.has(fault.index) {
            if !fault.write || lent.pages.may_write(fault.index) {
                return Err(Setback::Reached);
            }
            drop(lent);
            // Old permissions may be cached.
            block.take_back(managed, fault.page())?;
            lent = block.lent.lock();
        }
        let changes = managing.all_changes();
        let current = changes.current(moment);
        if !current.has(fault.index) {
            return Err(Setback::Changed);
        }
        if !lent.pages.is_empty() {
            // What is leaving is still mapped on the bus, though nothing there changes.
            let leaving = lent.pages.leaving(Pages::ALL);
            if leaving.has(fault.index) {
                return Err(Setback::Leaving(block.clone()));
            }
            wanted = wanted.but(lent.pages.present().or(leaving));
        }
        let held = snapshot.hold(wanted, &current);
        drop(lent);
        let target = fault.write.then_some(fault.index);
        let mut writable = held.writable(target);
        if extent.read_only {
            writable = writable.but(extent.pages);
        }
        let is_large = pieces::is_one(managed, &held, &mut writable, target);
        Ok(Self {
            managed,
            changes,
            block,
            fault,
            moment,
            pages: held.pages(),
            held,
            writable,
            is_large,
            _service: service,
        })
    }

    /// Maps the pages in the IOMMU, and makes the table for their entries. What cannot be mapped is
    /// left out, unless it is the page that faulted.
    pub(super) fn map(&mut self) -> Result<(), Setback> {
        if !self.is_large {
            self.block.make_lower(self.managed)?;
        }
        if let Err((first, error)) = pieces::map(self.pieces(), self.block) {
            self.pages = self.pages.but(Pages::range(first, PAGES - 1));
            if !self.pages.has(self.fault.index) {
                self.unmap()?;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Enters the pages in the device's page table, unless one of them has changed meanwhile; those
    /// that the device may write to count as modified. Returns how many there are.
    pub(super) fn enter(&self) -> Result<u64, Setback> {
        let mut lent = self.block.lent.lock();
        let current = self.changes.current(self.moment);
        if !current.has_all(self.pages) {
            drop(lent);
            self.unmap()?;
            return Err(Setback::Changed);
        }
        let writable = self.writable.and(self.pages);
        self.held.mark_modified(writable, &current);
        let mut pages = 0_usize;
        for piece in self.pieces() {
            pages = pages.saturating_add(piece.run.count);
            let large = self.is_large;
            self.block.enter(self.managed, &mut lent, piece, large);
            if let Some(offset) = piece.private {
                self.managed.vm.gpu().note_given(offset);
            }
        }
        self.managed.vm.order();
        drop(lent);
        self.block.note_served(self.managed.next_served());
        Ok(pages as u64)
    }

    fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let pieces = Pieces::new(self.managed, &self.held, &self.writable);
        pieces.filter(|piece| self.pages.has(piece.run.first))
    }

    /// Unmaps again what was mapped. Nothing leads there, so the device has nothing to forget.
    fn unmap(&self) -> Result {
        let on_bus = self.pieces().filter(|piece| piece.private.is_none());
        let spans = on_bus.filter_map(|piece| self.block.bus_span(piece.run));
        let result = self.block.lender.unmap(spans);
        if result.is_err() {
            self.managed.dma_control().clone().block_dma();
        }
        result
    }
}
