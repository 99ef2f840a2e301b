// SPDX-License-Identifier: GPL-2.0
//! The page tables of an address space: prepared, linked, counted, taken out.
//!
//! All tables that a mapping takes are prepared first, as a [`Stock`]: allocated, charged and
//! zeroed. Then they are stored to, under the tables' lock, where nothing allocates: a task that
//! reclaims memory may wait for that lock. Removing clears entries and takes out tables that became
//! empty; they are freed when the device has forgotten them (see [`Removal`](crate::mmu::Removal)).
//!
//! The driver relies on nothing that it reads in the tables: it counts their entries.

use crate::{
    failure::Failure,
    gpu::{vram::Share, Gpu},
    logic::{
        pte::{self, Leaves, ENTRIES, GIANT_LEVEL, LARGE, ROOT_LEVEL},
        span::Span,
        PAGE_SIZE,
    },
    mmu::Table,
    sys::{
        task,
        task::account::{Account, Charge},
    },
};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::Arc,
};

/// Names the table of `level` that has the entry for `va`.
fn key(level: u32, va: u64) -> u64 {
    let number = va.wrapping_shr(pte::shift(level.wrapping_add(1)));
    u64::from(level).wrapping_shl(60) | number
}

/// A table that is not in use, and all that it takes to use it.
pub(super) struct Spare {
    pub(super) table: Table,
    node: RBTreeNodeReservation<u64, Table>,
    /// The entry that leads to it from the table above.
    entry: u64,
}

impl Spare {
    /// Prepares a table, which is zeroed. `charge` pays for it.
    pub(super) fn new(gpu: &Gpu, share: &Share, charge: Option<Charge>) -> Result<Self, Failure> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let offset = share.take_table()?;
        let Some(entry) = gpu.hardware.format().table(offset) else {
            share.give_table(offset);
            return Err(ENODEV.into());
        };
        gpu.hardware.zero(offset, PAGE_SIZE);
        let table = Table {
            offset,
            used: 0,
            folded: false,
            _charge: charge,
        };
        Ok(Self { table, node, entry })
    }
}

/// Tables that are prepared. Dropping it frees those that were not needed.
pub(super) struct Stock<'a> {
    gpu: &'a Gpu,
    share: &'a Share,
    /// Mostly one is enough, which needs no list.
    one: Option<Spare>,
    more: KVVec<Spare>,
}

impl<'a> Stock<'a> {
    pub(super) fn new(gpu: &'a Gpu, share: &'a Share) -> Self {
        Self {
            gpu,
            share,
            one: None,
            more: KVVec::new(),
        }
    }

    /// The number of tables that are prepared.
    pub(super) fn len(&self) -> usize {
        let one = usize::from(self.one.is_some());
        self.more.len().saturating_add(one)
    }

    fn pop(&mut self) -> Option<Spare> {
        self.more.pop().or_else(|| self.one.take())
    }

    /// Prepares tables until there are `count`. `account` pays for them, if there is one. Called
    /// without the tables' lock. A fatal signal stops it.
    pub(super) fn fill(
        &mut self,
        account: Option<&Arc<Account>>,
        count: usize,
    ) -> Result<(), Failure> {
        let result = self.try_fill(account, count);
        // Also those that were made before a failure, which may do.
        self.gpu.hardware.order();
        result
    }

    fn try_fill(&mut self, account: Option<&Arc<Account>>, count: usize) -> Result<(), Failure> {
        // All at once, so that PREFLIGHT can tell the same numbers.
        let more = count.saturating_sub(self.len());
        let charges = account.map(|account| Charge::new(account, more as u64));
        let mut charges = charges.transpose()?;
        for _ in 0..more {
            let charge = charges.as_mut().and_then(Charge::take_page);
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
            if self.one.is_some() {
                self.more.reserve(1, GFP_KERNEL_ACCOUNT)?;
            }
            let spare = Spare::new(self.gpu, self.share, charge)?;
            if self.one.is_none() {
                self.one = Some(spare);
            } else if let Err(spare) = self.more.push_within_capacity(spare) {
                self.share.give_table(spare.0.table.offset);
                return Err(ENOMEM.into());
            }
            task::cond_resched();
        }
        Ok(())
    }
}

impl Drop for Stock<'_> {
    fn drop(&mut self) {
        for spare in Iterator::chain(self.one.iter(), self.more.iter()) {
            self.share.give_table(spare.table.offset);
        }
    }
}

/// Counts the tables for `leaves` that are missing. `is_there` tells which exist, by key.
///
/// `EINTR`: a fatal signal came.
pub(super) fn absent(leaves: Leaves, is_there: impl Fn(u64) -> bool) -> Result<usize> {
    // The last table of each level that was looked at; those above it were looked at as well.
    let mut looked = [u64::MAX; ROOT_LEVEL as usize];
    let mut count = 0_usize;
    for leaf in leaves {
        if task::fatal_signal_pending() {
            return Err(EINTR);
        }
        let levels = (0..ROOT_LEVEL).zip(&mut looked);
        for (level, last) in levels.skip(leaf.level() as usize) {
            let name = key(level, leaf.va);
            if *last == name || is_there(name) {
                break;
            }
            *last = name;
            count = count.saturating_add(1);
        }
        task::cond_resched();
    }
    Ok(count)
}

/// Tables that were taken out of the tree, and that the device may still walk.
pub(super) type Removed = RBTree<u64, Table>;

/// The tables of an address space. Dropping them frees them. Nothing is mapped then, or the
/// mappings would keep the address space, so the device has forgotten all of them.
pub(super) struct Tables {
    share: Arc<Share>,
    /// Offset of the root table.
    root: u64,
    below: RBTree<u64, Table>,
    /// A table that is prepared for managed memory, and charged to nobody.
    pub(super) spare: Option<Spare>,
    /// The device does not use the tables any more, and they were freed.
    pub(super) dead: bool,
}

impl Tables {
    /// Makes the tables of an empty address space, whose root is at the offset `root`.
    pub(super) fn new(share: Arc<Share>, root: u64) -> Self {
        Self {
            share,
            root,
            below: RBTree::new(),
            spare: None,
            dead: false,
        }
    }

    /// Counts the tables for `leaves` that are missing. `EINTR`: a fatal signal came.
    pub(super) fn absent(&self, leaves: Leaves) -> Result<usize> {
        absent(leaves, |name| self.below.get(&name).is_some())
    }

    /// Offset of the table of `level` that has the entry for `va`.
    pub(super) fn find(&self, level: u32, va: u64) -> Option<u64> {
        if level == ROOT_LEVEL {
            return Some(self.root);
        }
        self.below.get(&key(level, va)).map(|table| table.offset)
    }

    /// Like [`find`](Self::find), and makes the table if it is missing, of those in `stock`.
    /// `None`: there are not enough.
    pub(super) fn make(&mut self, stock: &mut Stock<'_>, level: u32, va: u64) -> Option<u64> {
        if let Some(offset) = self.find(level, va) {
            return Some(offset);
        }
        let above = level.saturating_add(1);
        let parent = self.make(stock, above, va)?;
        let spare = stock.pop()?;
        Some(self.link(stock.gpu, parent, spare, level, va))
    }

    /// Makes `spare` the table of `level` for `va`, which is missing. `parent` is the table above.
    /// Returns its offset.
    fn link(&mut self, gpu: &Gpu, parent: u64, spare: Spare, level: u32, va: u64) -> u64 {
        let Spare { table, node, entry } = spare;
        let above = level.saturating_add(1);
        let offset = table.offset;
        let at = parent.saturating_add(pte::slot(above, va));
        gpu.hardware.store(at, entry);
        self.below.insert(node.into_node(key(level, va), table));
        self.count(above, va);
        offset
    }

    /// Counts one more user of the table of `level` for `va`, if it is there. Returns its offset.
    pub(super) fn keep(&mut self, gpu: &Gpu, level: u32, va: u64) -> Option<u64> {
        let table = self.below.get_mut(&key(level, va))?;
        table.used = table.used.saturating_add(1);
        let offset = table.offset;
        if core::mem::take(&mut table.folded) {
            let above = level.saturating_add(1);
            let parent = self.find(above, va)?;
            let entry = gpu.hardware.format().table(offset)?;
            // It translates as the giant leaf does, so the device need not forget that.
            let at = parent.saturating_add(pte::slot(above, va));
            gpu.hardware.store(at, entry);
        }
        Some(offset)
    }

    /// Puts `entry`, a giant leaf, in the place of the table below, whose entries translate the
    /// same, unless others store to that table. The table stays, for whoever does so later.
    pub(super) fn fold(&mut self, gpu: &Gpu, va: u64, entry: u64) {
        let parent = self.find(GIANT_LEVEL, va);
        let table = self.below.get_mut(&key(GIANT_LEVEL - 1, va));
        if let (Some(parent), Some(table)) = (parent, table) {
            if table.used == ENTRIES {
                let at = parent.saturating_add(pte::slot(GIANT_LEVEL, va));
                gpu.hardware.store(at, entry);
                table.folded = true;
            }
        }
    }

    /// Makes the spare table, if there is one, that of `level` for `va`, which is missing, with one
    /// user. `parent` is the table above. Returns its offset.
    pub(super) fn keep_spare(
        &mut self,
        gpu: &Gpu,
        parent: u64,
        level: u32,
        va: u64,
    ) -> Option<u64> {
        let mut spare = self.spare.take()?;
        spare.table.used = 1;
        Some(self.link(gpu, parent, spare, level, va))
    }

    /// Frees the spare table. Returns whether there was one.
    pub(super) fn free_spare(&mut self) -> bool {
        let Some(spare) = self.spare.take() else {
            return false;
        };
        self.share.give_table(spare.table.offset);
        true
    }

    /// Counts one more valid entry of a table, or user of it.
    pub(super) fn count(&mut self, level: u32, va: u64) {
        if let Some(table) = self.below.get_mut(&key(level, va)) {
            table.used = table.used.saturating_add(1);
        }
    }

    /// Clears the entry of `level` for `va`, and takes out the tables that have no other entry.
    fn clear(&mut self, gpu: &Gpu, level: u32, va: u64, removed: &mut Removed) {
        let mut level = level;
        while let Some(offset) = self.find(level, va) {
            gpu.hardware
                .store(offset.saturating_add(pte::slot(level, va)), 0);
            let name = key(level, va);
            if let Some(table) = self.below.get_mut(&name) {
                table.used = table.used.saturating_sub(1);
            }
            if !self.take_if_empty(name, removed) {
                return;
            }
            level = level.saturating_add(1);
        }
    }

    fn take_if_empty(&mut self, name: u64, removed: &mut Removed) -> bool {
        if self.below.get(&name).is_none_or(|table| table.used != 0) {
            return false;
        }
        if let Some(node) = self.below.remove_node(&name) {
            removed.insert(node);
        }
        true
    }

    /// Lets go of a table that the caller has counted itself in, and takes out the tables that have
    /// no other entry.
    pub(super) fn let_go(&mut self, gpu: &Gpu, level: u32, va: u64, removed: &mut Removed) {
        let name = key(level, va);
        if let Some(table) = self.below.get_mut(&name) {
            table.used = table.used.saturating_sub(1);
        }
        if self.take_if_empty(name, removed) {
            self.clear(gpu, level.saturating_add(1), va, removed);
        }
    }

    /// Clears everything in `span`, all of which was entered, by leaves that do not reach beyond
    /// it.
    pub(super) fn clear_all(&mut self, gpu: &Gpu, span: Span, removed: &mut Removed) {
        let mut at = Some(span.start());
        while let Some(va) = at.filter(|&va| va <= span.last()) {
            // Where there is a table for small leaves, there is no large one.
            let (level, bytes) = match self.find(0, va) {
                Some(_) => (0, PAGE_SIZE),
                None => (1, LARGE),
            };
            self.clear(gpu, level, va, removed);
            at = va.checked_add(bytes);
            task::cond_resched();
        }
    }

    pub(super) fn free(&mut self) {
        if !self.dead {
            self.dead = true;
            self.free_spare();
            self.share.give_table(self.root);
            for table in self.below.values() {
                self.share.give_table(table.offset);
            }
            self.below = RBTree::new();
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.free();
    }
}
