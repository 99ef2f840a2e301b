// SPDX-License-Identifier: GPL-2.0
//! Counts the tables that a page table keeps, and charges for them.
//!
//! Unmapping a range does not free the tables at its ends: they stay until the whole page table is
//! freed. The program chooses how far apart its addresses are, so each mapping of a page could cost
//! the kernel up to four pages for good. Hence each owner of a device has 4 MiB of tables for free,
//! which ordinary programs do not use up. What is beyond that is charged to whoever maps, as pinned
//! memory is.
//!
//! The charges end when the page table is replaced, with all of its tables (`Domain::renew`). Which
//! tables a mapping leaves is calculated in `logic/footprint.rs`.

use crate::{
    logic::{
        footprint::{self, End, Region},
        span::Span,
        PAGE_SIZE,
    },
    sys::task::account::{Account, Charge, OverLimit},
};
use kernel::{
    alloc::AllocError,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::Arc,
};

/// Tables that are free of charge, for each owner of a device: 4 MiB.
const FREE: u64 = 1024;

/// Why a mapping cannot have its tables.
pub(crate) enum NoTables {
    /// The payer's limit is exceeded.
    OverLimit(OverLimit),
    /// Another failure.
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

/// The tables that a page table keeps, and what was paid for them.
pub(super) struct Footprint {
    regions: RBTree<u64, Region>,
    tables: u64,
    paid: u64,
    charges: KVec<Charge>,
    /// Addresses of a lowest table that was counted: a mapping within costs nothing.
    counted: Option<Span>,
}

impl Footprint {
    /// Counts for an empty page table.
    pub(super) fn new() -> Self {
        Self {
            regions: RBTree::new(),
            tables: 0,
            paid: 0,
            charges: KVec::new(),
            counted: None,
        }
    }

    /// Returns how many new tables stay because of `end`, if something in region `also` is mapped
    /// too.
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

    /// Returns how many new tables stay because of each end of a mapping.
    fn costs(&self, first: End, other: Option<End>) -> (u64, u64) {
        let also = Some(first.region());
        let other = other.map_or(0, |end| self.cost(end, also));
        (self.cost(first, None), other)
    }

    /// Returns the pages that have to be paid for if there are `more` tables.
    fn owed(&self, more: u64) -> u64 {
        let tables = self.tables.saturating_add(more);
        tables.saturating_sub(FREE).saturating_sub(self.paid)
    }

    /// Returns the pages that have to be paid for before something is mapped at `span`.
    pub(super) fn due(&self, span: Span) -> u64 {
        let (first, other) = footprint::ends(span);
        let (near, far) = self.costs(first, other);
        self.owed(near.saturating_add(far))
    }

    /// Charges `payer` for what will be mapped at `span`, and counts it.
    pub(super) fn reserve(
        &mut self,
        span: Span,
        payer: &Arc<Account>,
    ) -> core::result::Result<(), NoTables> {
        if self.counted.is_some_and(|counted| counted.covers(span)) {
            return Ok(());
        }
        self.reserve_more(span, payer)
    }

    fn reserve_more(
        &mut self,
        span: Span,
        payer: &Arc<Account>,
    ) -> core::result::Result<(), NoTables> {
        let (first, other) = footprint::ends(span);
        let (near, far) = self.costs(first, other);
        let due = self.owed(near.saturating_add(far));
        if due != 0 {
            self.charges.reserve(1, GFP_KERNEL_ACCOUNT)?;
            let charge = Charge::new(payer, due)?;
            // Room for the charge was made above.
            let _ = self.charges.push_within_capacity(charge);
            self.paid = self.paid.saturating_add(due);
        }
        self.add(first, near)?;
        match other {
            Some(end) => self.add(end, far)?,
            None => self.counted = footprint::lowest_table(span),
        }
        Ok(())
    }

    /// Counts what was mapped at `span` unforeseen. Whoever maps next pays for it.
    pub(super) fn note(&mut self, span: Span) {
        let (first, other) = footprint::ends(span);
        for end in [Some(first), other].into_iter().flatten() {
            let cost = self.cost(end, None);
            if self.add(end, cost).is_err() {
                self.tables = self.tables.saturating_add(cost);
            }
        }
    }

    /// Counts an end of a mapping, which costs `cost` tables.
    fn add(&mut self, end: End, cost: u64) -> Result {
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
