// SPDX-License-Identifier: GPL-2.0
//! Windows: ranges for which everything is made at once.
//!
//! A window has its addresses in the context's address space to itself: they are taken, as those
//! of a mapping are, and also refused to registrations (`context/ranges.rs`). Its blocks, their
//! addresses on the bus and the page tables of the device are made before the window is there, and
//! are *kept*: they stay when the device has nothing of them, and when others run short of tables.
//! So a fault in a window takes nothing that may not be there, but for the page itself and the
//! IOMMU's tables, which are the host's memory.

use super::{block::Spare, Managed};
use crate::{
    failure::Failure,
    gpu::mmu::leaves::Supply,
    logic::{pte::LARGE, span::Span},
    sys::{mm::areas::Areas, task},
    uapi,
};
use kernel::{mm::Mm, prelude::*};

impl Managed {
    /// Makes all that a window of `span` takes, whose addresses are taken for it. What was made
    /// before a failure stays until the range is [removed](Self::remove). `EINTR`: a fatal signal
    /// came. Sleeps.
    pub(crate) fn furnish(&self, span: Span) -> Result<(), Failure> {
        // What another range has there is taken away. Faults may make it again meanwhile.
        self.each_block(span, |block| {
            let _ = self.take_back(block, block.span(), true);
            task::cond_resched();
        });
        let mut supply = self.vm.supply(span)?;
        for va in (span.start()..=span.last()).step_by(LARGE as usize) {
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
            self.furnish_block(va, &mut supply)?;
            task::cond_resched();
        }
        Ok(())
    }

    fn furnish_block(&self, va: u64, supply: &mut Supply<'_>) -> Result<(), Failure> {
        loop {
            if let Some(old) = self.find_block(va) {
                self.take_back(&old, old.span(), true)?;
                self.drop_block(&old);
            }
            let (node, block) = Spare::new(self)?.settle(self, va, Some(supply))?;
            match self.insert(node, &block) {
                None => return Ok(()),
                Some(None) => return Err(ENODEV.into()),
                // A fault was quicker.
                Some(Some(_)) if task::fatal_signal_pending() => return Err(EINTR.into()),
                Some(Some(_)) => {}
            }
        }
    }
}

/// Fails with the first address of `span` at which `mm`, which is in use, has nothing mapped.
pub(crate) fn check_mapped(mm: &Mm, span: Span) -> Result<(), Failure> {
    let areas = Areas::lock(mm)?;
    let mut at = span.start();
    loop {
        let area = areas.next(at).filter(|area| area.start() == at);
        let area = area.ok_or_else(|| Failure::at(EFAULT, uapi::PINMAP_FAIL_HOLE, at))?;
        if area.last() >= span.last() {
            return Ok(());
        }
        at = area.last().saturating_add(1);
    }
}
