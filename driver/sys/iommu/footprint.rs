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
        footprint::{Region, Regions, Tables, NONE},
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
const FREE: u64 = (4 << 20) / PAGE_SIZE;

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

/// Regions of a page table.
struct Tree(RBTree<u64, Region>);

impl Regions for Tree {
    type Error = Error;

    fn near(&self, region: u64) -> (Option<&Region>, Option<u64>, Option<u64>) {
        match self.0.cursor_lower_bound(&region) {
            Some(cursor) => {
                let (&above, _) = cursor.current();
                let below = cursor.peek_prev().map(|(&below, _)| below);
                let tables = (above == region).then(|| self.0.get(&region)).flatten();
                (tables, below, Some(above))
            }
            None => (
                None,
                self.0.cursor_back().map(|last| *last.current().0),
                None,
            ),
        }
    }

    fn entry(&mut self, region: u64) -> Result<&mut Region> {
        if self.0.get(&region).is_none() {
            let node = RBTreeNode::new(region, NONE, GFP_KERNEL_ACCOUNT)?;
            self.0.insert(node);
        }
        self.0.get_mut(&region).ok_or(EINVAL)
    }
}

/// The tables that a page table keeps, and what was paid for them.
pub(super) struct Footprint {
    tables: Tables<Tree>,
    paid: u64,
    charges: KVVec<Charge>,
}

impl Footprint {
    /// Counts for an empty page table.
    pub(super) fn new() -> Self {
        Self {
            tables: Tables::new(Tree(RBTree::new())),
            paid: 0,
            charges: KVVec::new(),
        }
    }

    /// Returns the pages that have to be paid for if there are `more` tables.
    fn owed(&self, more: u64) -> u64 {
        let tables = self.tables.count().saturating_add(more);
        tables.saturating_sub(FREE).saturating_sub(self.paid)
    }

    /// Returns the pages that have to be paid for before something is mapped at `span`.
    pub(super) fn due(&self, span: Span) -> u64 {
        self.owed(self.tables.more(span).count())
    }

    /// Charges `payer` for what will be mapped at `span`, and counts it.
    pub(super) fn reserve(
        &mut self,
        span: Span,
        payer: &Arc<Account>,
    ) -> core::result::Result<(), NoTables> {
        if self.tables.has(span) {
            return Ok(());
        }
        let more = self.tables.more(span);
        let due = self.owed(more.count());
        if due != 0 {
            self.charges.reserve(1, GFP_KERNEL_ACCOUNT)?;
            let charge = Charge::new(payer, due)?;
            // Room for the charge was made above.
            let _ = self.charges.push_within_capacity(charge);
            self.paid = self.paid.saturating_add(due);
        }
        Ok(self.tables.add(more)?)
    }

    /// Counts what was mapped at `span` unforeseen. Whoever maps next pays for it.
    pub(super) fn note(&mut self, span: Span) {
        self.tables.note(span);
    }
}
