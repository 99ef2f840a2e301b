// SPDX-License-Identifier: GPL-2.0
//! Memory that a device may reach through the IOMMU, as physically contiguous runs.

use crate::{
    logic::{runs::Run, PAGE_SIZE},
    sys::pci::Function,
};
use kernel::prelude::*;

/// Runs in a block: as many as fit into a page.
pub(in crate::sys) const BLOCK: usize = PAGE_SIZE as usize / size_of::<Run>();

/// The kinds of memory that a device may reach.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// Pages of the host's memory.
    Host,
    /// A base address register of a function that this driver has, by its number.
    Bar(&'a Function, u32),
    /// Registers or memory of a device that another driver has.
    Foreign,
}

/// Memory as physically contiguous runs.
///
/// # Safety
///
/// The runs must consist of pages that stay what they are for as long as `self` lives.
pub(crate) unsafe trait Pages: Send + Sync {
    fn pages(&self) -> u64;

    fn blocks(&self) -> usize;

    /// Returns the runs of one block: at most [`BLOCK`].
    fn block(&self, index: usize) -> &[Run];

    /// Returns the only run; `None`: there are several, or none.
    fn single(&self) -> Option<Run> {
        match self.block(0) {
            [run] if self.blocks() == 1 => Some(*run),
            _ => None,
        }
    }

    /// Whether a device may write to the pages.
    fn writable(&self) -> bool;

    /// The kind of memory.
    fn origin(&self) -> Origin<'_> {
        Origin::Host
    }

    /// Whether CPUs cache the pages.
    fn is_cached(&self) -> bool {
        true
    }

    /// Calls `visit` for each run, in order, until one call fails.
    fn each(&self, visit: &mut dyn FnMut(Run) -> Result) -> Result {
        for index in 0..self.blocks() {
            for &run in self.block(index) {
                visit(run)?;
            }
        }
        Ok(())
    }
}

/// The pages of a list of runs.
pub(in crate::sys) fn pages_of(runs: &[Run]) -> u64 {
    let pages = runs.iter().map(|run| run.pages());
    pages.fold(0, u64::saturating_add)
}

/// The blocks of a list of runs: see [`block_of`].
pub(in crate::sys) fn blocks_of(runs: &[Run]) -> usize {
    runs.len().div_ceil(BLOCK)
}

/// Returns the runs of one block of a list.
pub(in crate::sys) fn block_of(runs: &[Run], index: usize) -> &[Run] {
    runs.chunks(BLOCK).nth(index).unwrap_or_default()
}
