// SPDX-License-Identifier: GPL-2.0
//! Taking managed memory away before it changes.
//!
//! Every change counts: that memory goes away, that another page takes its place, and also that a
//! permission is taken, since nothing else tells of `fork()` and `mprotect()`. When the callback
//! returns, the device has forgotten the pages, and all accesses that it made by what it knew are
//! done; and the IOMMU does not lead to them any more. A device that does not confirm in time is
//! given up; the IOMMU is then what protects the host's memory, and `gpu/vram/held.rs` protects
//! VRAM.
//!
//! The callback runs with locks of the memory management held, and possibly on behalf of a task
//! that reclaims memory. It allocates nothing, and takes no lock under which anything is allocated.
//! All blocks of a change are cleared before the device is waited for, once.

use super::Managed;
use crate::{logic::span::Span, sys::mm::mirror::Follower};

impl Follower for Managed {
    fn changes(&self, range: Span, may_sleep: bool) {
        let mut cleared: Option<Span> = None;
        self.each_block(range, |block| {
            if let Some(span) = block.clear(self, block.pages_in(range)) {
                cleared = Some(cleared.map_or(span, |all| all.union(span)));
            }
        });
        let Some(cleared) = cleared else {
            return;
        };
        // Only the OOM reaper may not sleep: its process is as good as dead, and no page comes in
        // the place of one that it takes. The device forgets before the blocks' addresses on the
        // bus, or VRAM, are given out.
        let forgotten = if may_sleep {
            self.vm.forget(cleared)
        } else {
            self.vm.order();
            Ok(())
        };
        if !may_sleep || forgotten.is_err() {
            self.vm.gpu().note_hasty();
        }
        let mut result = forgotten;
        self.each_block(range, |block| {
            let unmapped = block.unmap(block.pages_in(range));
            result = result.and(unmapped);
        });
        if result.is_err() {
            self.dma_control().clone().schedule_removal();
        }
    }

    fn leaves(&self, range: Span) {
        self.advice.leaves(range);
        self.pasts.leaves(range);
    }
}
