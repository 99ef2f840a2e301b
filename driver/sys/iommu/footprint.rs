// SPDX-License-Identifier: GPL-2.0
//! Tables that a page table keeps of what is not mapped any more, and who pays for them.
//!
//! How far apart the addresses are is up to the program, and each may cost a page of the kernel's for some
//! bytes of its own. Ordinary programs stay far below what is free.

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

/// Tables that nobody pays for, for each owner of a device: 4 MiB.
const FREE: u64 = 1024;

/// Why there are no tables.
pub(crate) enum NoTables {
    /// Nobody may pay for more.
    OverLimit(OverLimit),
    /// Something else.
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

/// What a page table has come to.
pub(super) struct Footprint {
    regions: RBTree<u64, Region>,
    tables: u64,
    paid: u64,
    charges: KVec<Charge>,
}

impl Footprint {
    /// That of an empty one.
    pub(super) fn new() -> Self {
        Self {
            regions: RBTree::new(),
            tables: 0,
            paid: 0,
            charges: KVec::new(),
        }
    }

    /// Tables that stay because of `end`, if something was mapped in region `also` besides.
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

    /// Pages to pay for with so many more tables.
    fn owed(&self, more: u64) -> u64 {
        let tables = self.tables.saturating_add(more);
        tables.saturating_sub(FREE).saturating_sub(self.paid)
    }

    /// Pages that are to be paid for before something is mapped at `span`.
    pub(super) fn due(&self, span: Span) -> u64 {
        let (first, other) = footprint::ends(span);
        let other = other.map_or(0, |end| self.cost(end, Some(first.region())));
        self.owed(self.cost(first, None).saturating_add(other))
    }

    /// Something will be mapped at `span`, for `payer`.
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

    /// Something was mapped at `span`, unforeseen. Who maps next pays.
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
