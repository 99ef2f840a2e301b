// SPDX-License-Identifier: GPL-2.0
//! Host memory that a device may reach, as physically contiguous runs, whatever keeps it.

use crate::logic::{runs::Run, PAGE_SIZE};
use kernel::prelude::*;

/// Runs in a block: a page of them.
pub(super) const BLOCK: usize = PAGE_SIZE as usize / size_of::<Run>();

/// Host memory as physically contiguous runs.
///
/// # Safety
///
/// The runs consist of pages that stay what they are for as long as `self`.
pub(crate) unsafe trait Pages: Send + Sync {
    /// How many.
    fn pages(&self) -> u64;

    /// Of how many blocks of runs.
    fn blocks(&self) -> usize;

    /// The runs in such a block; at most [`BLOCK`].
    fn block(&self, index: usize) -> &[Run];

    /// Whether a device may write to them.
    fn writable(&self) -> bool;

    /// Whether CPUs cache them.
    fn is_cached(&self) -> bool {
        true
    }

    /// Calls `visit` for the runs in order, until one fails.
    fn each(&self, visit: &mut dyn FnMut(Run) -> Result) -> Result {
        for index in 0..self.blocks() {
            for &run in self.block(index) {
                visit(run)?;
            }
        }
        Ok(())
    }
}

/// A block of `runs`.
pub(super) fn block_of(runs: &[Run], index: usize) -> &[Run] {
    runs.chunks(BLOCK).nth(index).unwrap_or_default()
}
