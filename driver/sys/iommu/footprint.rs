// SPDX-License-Identifier: GPL-2.0
//! Charges for the tables that a page table keeps after unmapping.
//!
//! A program chooses how far apart its addresses are, and each may cost a page of kernel memory.
//! Ordinary programs stay far below what is free.

use crate::{
    logic::{
        footprint::{self, End, Region},
        span::Span,
        PAGE_SIZE,
    },
    sys::account::{Account, Charge, OverLimit},
};
use kernel::{
    alloc::AllocError,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::Arc,
};

/// Tables that cost nothing, for each owner of a device: 4 MiB.
const FREE: u64 = 1024;

/// Reason for which there are no tables.
pub(crate) enum NoTables {
    /// The charge would be over the limit.
    OverLimit(OverLimit),
    /// Another error.
    Failed(Error),
}

impl From<OverLimit> for NoTables {
    fn from(over: OverLimit) -> Self {
        Self::OverLimit(over)
    }
}

impl From<Error> for NoTables {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<AllocError> for NoTables {
    fn from(error: AllocError) -> Self {
        Self::Failed(error.into())
    }
}

/// Tables that a page table has grown to.
pub(super) struct Footprint {
    regions: RBTree<u64, Region>,
    tables: u64,
    paid: u64,
    charges: KVec<Charge>,
}

impl Footprint {
    /// Makes the footprint of an empty page table.
    pub(super) fn new() -> Self {
        Self {
            regions: RBTree::new(),
            tables: 0,
            paid: 0,
            charges: KVec::new(),
        }
    }

    /// Returns how many tables `end` adds, if region `also` has some as well.
    fn cost(&self, end: End, also: Option<u64>) -> u64 {
        let region = end.region();
        let cost = |below, above| end.cost(None, below, above);
        match self.regions.cursor_lower_bound(&region) {
            Some(cursor) => {
                let (&above, tables) = cursor.current();
                if above == region {
                    return end.cost(Some(tables), None, None);
                }
                let below = cursor.peek_prev().map(|(&below, _)| below);
                cost(below.max(also), Some(above))
            }
            None => {
                let below = self.regions.cursor_back().map(|last| *last.current().0);
                cost(below.max(also), None)
            }
        }
    }

    /// Returns how many pages must be charged for `more` tables.
    fn owed(&self, more: u64) -> u64 {
        let tables = self.tables.saturating_add(more);
        tables.saturating_sub(FREE).saturating_sub(self.paid)
    }

    /// Returns how many pages must be charged before `span` is mapped.
    pub(super) fn due(&self, span: Span) -> u64 {
        let (first, other) = footprint::ends(span);
        let other = other.map_or(0, |end| self.cost(end, Some(first.region())));
        self.owed(self.cost(first, None).saturating_add(other))
    }

    /// Charges `payer` for a mapping at `span`.
    pub(super) fn reserve(
        &mut self,
        span: Span,
        payer: &Arc<Account>,
    ) -> core::result::Result<(), NoTables> {
        let due = self.due(span);
        if due != 0 {
            self.charges.reserve(1, GFP_KERNEL_ACCOUNT)?;
            let charge = Charge::new(payer, due)?;
            // There is room.
            let _ = self.charges.push_within_capacity(charge);
            self.paid = self.paid.saturating_add(due);
        }
        let (first, other) = footprint::ends(span);
        for end in [Some(first), other].into_iter().flatten() {
            self.add(end)?;
        }
        Ok(())
    }

    /// Counts a mapping at `span` that was not reserved. The next mapping pays for it.
    pub(super) fn note(&mut self, span: Span) {
        let (first, other) = footprint::ends(span);
        for end in [Some(first), other].into_iter().flatten() {
            if self.add(end).is_err() {
                self.tables = self.tables.saturating_add(self.cost(end, None));
            }
        }
    }

    fn add(&mut self, end: End) -> Result {
        let cost = self.cost(end, None);
        if cost == 0 {
            return Ok(());
        }
        if self.regions.get(&end.region()).is_none() {
            let node = RBTreeNode::new(end.region(), Region::default(), GFP_KERNEL_ACCOUNT)?;
            self.regions.insert(node);
        }
        if let Some(tables) = self.regions.get_mut(&end.region()) {
            end.note(tables);
        }
        self.tables = self.tables.saturating_add(cost);
        Ok(())
    }
}

const _: () = assert!(FREE * PAGE_SIZE == 4 << 20);
