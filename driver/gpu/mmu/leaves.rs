// SPDX-License-Identifier: GPL-2.0
//! Entries of managed memory in a context's page tables.
//!
//! An MMU notifier clears these entries, so it must find them without looking for tables, whose
//! lock is held for as long as a large mapping takes. So a block of 2 MiB *keeps* the tables that
//! lead to it, and knows where they are: the *upper* one, which has one entry for the block, and,
//! unless the block is one large leaf, the *lower* one, which has an entry for each page. To store
//! to them takes no lock of this module. Entries of mappings may be in the same tables, at other
//! addresses.

use super::{
    tables::{Removed, Stock},
    vm::Vm,
};
use crate::{
    failure::Failure,
    gpu::Gpu,
    logic::{
        pte::{self, Access, Leaf, Memory, Step, LARGE, ROOT_LEVEL},
        span::Span,
    },
    mmu::{Mmu, Removal},
    sys::{task, task::account::Account},
};
use kernel::{prelude::*, rbtree::RBTree, sync::Arc};

/// Tables that are prepared for a window: for all of its blocks, before the first of them is kept.
pub(crate) struct Supply<'a>(Stock<'a>);

/// Tables that are looked for before others have a turn.
const TURN: u32 = 4096;

/// Level of the entry for a block, and of those for its pages.
const UPPER: u32 = 1;
const LOWER: u32 = 0;

/// The table that has the entry for a block, which stays until it is given back.
#[derive(Clone, Copy)]
pub(crate) struct Upper(u64);

impl Upper {
    /// No table: nothing is stored there.
    pub(crate) const NOWHERE: Self = Self(u64::MAX);
}

/// The table that has the entries for the pages of a block, which stays until it is given back.
#[derive(Clone, Copy)]
pub(crate) struct Lower(u64);

impl Vm {
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Keeps the table of `level` for `va`: makes it and those above it, if they are missing, of
    /// those in `stock`. `payer` pays for what that lacks, if there is one.
    fn keep_table(
        &self,
        stock: &mut Stock<'_>,
        payer: Option<&Arc<Account>>,
        level: u32,
        va: u64,
    ) -> Result<u64, Failure> {
        let mut tables = self.tables.lock();
        if let Some(offset) = tables.keep(&self.gpu, level, va) {
            return Ok(offset);
        }
        loop {
            if tables.dead {
                return Err(ENODEV.into());
            }
            let levels = level..ROOT_LEVEL;
            let missing = levels.filter(|&level| tables.find(level, va).is_none());
            let missing = missing.count();
            if missing <= stock.len() {
                break;
            }
            drop(tables);
            stock.fill(payer, missing)?;
            tables = self.tables.lock();
        }
        let offset = tables.make(stock, level, va).ok_or(ENOMEM)?;
        tables.count(level, va);
        Ok(offset)
    }

    /// Keeps the upper table of the block at `va`. Sleeps.
    pub(crate) fn keep_upper(&self, va: u64) -> Result<Upper, Failure> {
        let there = self.tables.lock().keep(&self.gpu, UPPER, va);
        let upper = match there {
            Some(offset) => offset,
            None => {
                let mut stock = Stock::new(&self.gpu, &self.share);
                self.keep_table(&mut stock, None, UPPER, va)?
            }
        };
        Ok(Upper(upper))
    }

    /// Keeps the lower table of the block at `va`, which is linked to `upper`; the block keeps that
    /// already. There is no large leaf for the block. Sleeps.
    pub(crate) fn keep_lower(&self, upper: Upper, va: u64) -> Result<Lower, Failure> {
        let mut tables = self.tables.lock();
        if !tables.dead {
            let there = tables.keep(&self.gpu, LOWER, va);
            let kept = there.or_else(|| tables.keep_spare(&self.gpu, upper.0, LOWER, va));
            if let Some(offset) = kept {
                return Ok(Lower(offset));
            }
        }
        drop(tables);
        let mut stock = Stock::new(&self.gpu, &self.share);
        self.keep_table(&mut stock, None, LOWER, va).map(Lower)
    }

    /// Prepares the tables that a window of `span` will take, which has whole blocks. The context
    /// pays for them. `EINTR`: a fatal signal came. Sleeps.
    pub(crate) fn supply(&self, span: Span) -> Result<Supply<'_>, Failure> {
        let mut missing = 0_usize;
        let mut seen = 0_u32;
        let mut tables = self.tables.lock();
        for level in LOWER..ROOT_LEVEL {
            let reach = 1_u64.wrapping_shl(pte::shift(level.wrapping_add(1)));
            let mut at = Some(Span::aligned(span.start(), reach).start());
            while let Some(va) = at.filter(|&va| va <= span.last()) {
                if task::fatal_signal_pending() {
                    return Err(EINTR.into());
                }
                if tables.find(level, va).is_none() {
                    missing = missing.saturating_add(1);
                }
                at = va.checked_add(reach);
                seen = seen.wrapping_add(1);
                if seen % TURN == 0 {
                    // Others wait for the lock, also some that reclaim memory.
                    drop(tables);
                    task::cond_resched();
                    tables = self.tables.lock();
                }
            }
        }
        drop(tables);
        // Before anything is charged or zeroed for what there is no room for.
        Mmu::check_tables(self, missing as u64)?;
        let mut stock = Stock::new(&self.gpu, &self.share);
        stock.fill(Some(&self.account), missing)?;
        Ok(Supply(stock))
    }

    /// Keeps both tables of the block at `va`, of those in `supply`. There is no large leaf for the
    /// block. Sleeps.
    pub(crate) fn keep_both(
        &self,
        supply: &mut Supply<'_>,
        va: u64,
    ) -> Result<(Upper, Lower), Failure> {
        let payer = Some(&self.account);
        let upper = self.keep_table(&mut supply.0, payer, UPPER, va)?;
        match self.keep_table(&mut supply.0, payer, LOWER, va) {
            Ok(lower) => Ok((Upper(upper), Lower(lower))),
            Err(failure) => {
                // A device that does not confirm is gone soon, and so are the tables.
                let _ = self.give_tables(va, None, true);
                Err(failure)
            }
        }
    }

    /// Gives back the lower table of the block at `va`, and the upper one too if `upper`. No entry
    /// of the block is valid. Waits for the device, and frees the tables that nobody uses any more.
    pub(crate) fn give_tables(&self, va: u64, lower: Option<Lower>, upper: bool) -> Result {
        let mut removed: Removed = RBTree::new();
        let mut tables = self.tables.lock();
        if !tables.dead {
            if lower.is_some() {
                tables.let_go(&self.gpu, LOWER, va, &mut removed);
            }
            if upper {
                tables.let_go(&self.gpu, UPPER, va, &mut removed);
            }
        }
        drop(tables);
        if removed.is_empty() {
            return Ok(());
        }
        self.gpu.hardware.order();
        let span = Span::new(va, LARGE).map_err(|_| EINVAL)?;
        let command = match self.vmid() {
            Some(vmid) => self.gpu.begin_invalidate(vmid, span)?,
            None => None,
        };
        crate::mmu::Mmu::finish(
            self,
            Removal {
                command,
                tables: removed,
            },
        )
    }

    /// Stores the entry for the page at `va`, which leads to `memory`. From any context.
    pub(crate) fn store_small(&self, lower: Lower, va: u64, memory: Memory, access: Access) {
        let leaf = Leaf {
            va,
            memory,
            large: false,
        };
        let entry = self.gpu.hardware.format();
        if let Some(entry) = entry.leaf(leaf, access, true) {
            let at = lower.0.saturating_add(pte::slot(LOWER, va));
            self.gpu.hardware.store(at, entry);
        }
    }

    /// Clears the entry for the page at `va`. From any context.
    pub(crate) fn clear_small(&self, lower: Lower, va: u64) {
        let at = lower.0.saturating_add(pte::slot(LOWER, va));
        self.gpu.hardware.store(at, 0);
    }

    /// Stores the one entry for the block at `va`, which leads to `memory`, in the place of the
    /// lower table, none of whose entries is valid. From any context.
    pub(crate) fn store_large(&self, upper: Upper, va: u64, memory: Memory, access: Access) {
        let leaf = Leaf {
            va,
            memory,
            large: true,
        };
        let entry = self.gpu.hardware.format();
        if let Some(entry) = entry.leaf(leaf, access, true) {
            let at = upper.0.saturating_add(pte::slot(UPPER, va));
            self.gpu.hardware.store(at, entry);
        }
    }

    /// Clears the one entry for the block at `va`, which leads to the lower table again, if the
    /// block has one. From any context.
    pub(crate) fn clear_large(&self, upper: Upper, lower: Option<Lower>, va: u64) {
        let format = self.gpu.hardware.format();
        let entry = lower.and_then(|lower| format.table(lower.0)).unwrap_or(0);
        let at = upper.0.saturating_add(pte::slot(UPPER, va));
        self.gpu.hardware.store(at, entry);
    }

    /// Has entries that were stored arrive before any command to the device. From any context.
    pub(crate) fn order(&self) {
        self.gpu.hardware.order();
    }

    /// Makes the device forget `span`, whose entries were cleared. After `Ok` it has, and no access
    /// that was translated before is under way. For MMU notifiers too: allocates nothing, and waits
    /// for the device only, for a bounded time. `EIO`: the device did not confirm; the caller sees
    /// to it that it is given up.
    pub(crate) fn forget(&self, span: Span) -> Result {
        self.gpu.hardware.order();
        // Without a VMID the device has nothing cached, and nothing runs that could cache it.
        let Some(vmid) = self.vmid() else {
            return Ok(());
        };
        self.gpu.try_invalidate(vmid, span)
    }

    /// Returns what the entry for `va` permits, reading and writing, if it is valid.
    pub(crate) fn permits(&self, va: u64) -> Option<(bool, bool)> {
        let format = self.gpu.hardware.format();
        let tables = self.tables.lock();
        if tables.dead {
            return None;
        }
        let mut table = self.root;
        for level in (0..=ROOT_LEVEL).rev() {
            let at = table.saturating_add(pte::slot(level, va));
            match format.read(self.gpu.hardware.load(at), level, va) {
                Step::Absent => return None,
                Step::Table(next) => table = next,
                Step::Leaf { read, write, .. } => return Some((read, write)),
            }
        }
        None
    }
}
