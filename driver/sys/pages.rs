// SPDX-License-Identifier: GPL-2.0
//! Host memory that a device may reach, as physically contiguous runs, whoever owns it.

use crate::logic::{runs::Run, PAGE_SIZE};
use kernel::prelude::*;

/// Number of runs in a block, which is a page.
pub(super) const BLOCK: usize = PAGE_SIZE as usize / size_of::<Run>();

/// Host memory as physically contiguous runs.
///
/// # Safety
///
/// The runs consist of pages that stay what they are for as long as `self`.
pub(crate) unsafe trait Pages: Send + Sync {
    /// Returns the number of pages.
    fn pages(&self) -> u64;

    /// Returns the number of blocks of runs.
    fn blocks(&self) -> usize;

    /// Returns the runs of a block; at most [`BLOCK`].
    fn block(&self, index: usize) -> &[Run];

    /// Returns whether a device may write to the pages.
    fn writable(&self) -> bool;

    /// Returns whether CPUs cache the pages.
    fn is_cached(&self) -> bool {
        true
    }

    /// Calls `visit` for the runs in order, until one call fails.
    fn each(&self, visit: &mut dyn FnMut(Run) -> Result) -> Result {
        for index in 0..self.blocks() {
            for &run in self.block(index) {
                visit(run)?;
            }
        }
        Ok(())
    }
}

/// Returns a block of `runs`.
pub(super) fn block_of(runs: &[Run], index: usize) -> &[Run] {
    runs.chunks(BLOCK).nth(index).unwrap_or_default()
}
