// SPDX-License-Identifier: GPL-2.0
//! Moving memory that the device has touched, where it is planned to be elsewhere (`plan.rs`).
//!
//! What is tried in vain is not tried again before the device has touched it once more, and what
//! was tried in vain again and again, as memory of a program that forks all the time, is not tried
//! for as long as memory that thrashes.

use super::{
    ahead,
    block::pages_in,
    fault::{Fault, Setback},
    plan::{self, Extent, Plan},
    Managed, Managing,
};
use crate::{
    gpu::{mmu::pager::Taker, vram::moving::Line},
    logic::{
        block::Pages,
        pte::LARGE,
        residence::{Place, Rule},
    },
    sys::mm::{
        areas::Areas,
        hmm::{Leaf, Snapshot},
    },
};

/// Moves the memory of `fault`, of which the page table has `snapshot`, if it is to be elsewhere.
/// Returns what stays on the host, unless something has moved.
pub(super) fn place(
    managing: &Managing,
    fault: Fault,
    snapshot: &Snapshot,
) -> Result<Extent, Setback> {
    let managed: &Managed = managing;
    let gpu = managed.vm.gpu();
    let page = Pages::range(fault.index, fault.index).into();
    let Some(past) = managed.pasts.get(fault.addr / LARGE) else {
        return Ok(page);
    };
    let areas = Areas::lock(managing.mm())?;
    let holder = plan::holder(gpu, &areas, fault, snapshot)?;
    let Some(plan) = Plan::new(managing, &areas, fault, snapshot, holder.as_ref(), past) else {
        return Ok(page);
    };
    drop(areas);
    if plan.place == Place::Host {
        return Ok(plan.stays(managed, past, plan.rule));
    }
    let mut reserved = gpu.reserve(&managed.budget, plan.part.pages(), u64::MAX)?;
    if reserved.is_empty() {
        return Ok(plan.stays(managed, past, Rule::NoRoom));
    }
    let areas = Areas::lock(managing.mm())?;
    let Some((now_there, Some(area))) = areas.at(fault.addr) else {
        return Err(Setback::Moved);
    };
    if !now_there.covers(plan.part) {
        return Err(Setback::Moved);
    }
    // The process may have forked meanwhile.
    let holder = match holder {
        Some(_) => plan::holder(gpu, &areas, fault, snapshot)?,
        None => None,
    };
    let mut line = Line::new()?;
    let peer = holder.as_ref().map(|holder| holder.source(Taker::Device));
    let outcome = match gpu.begin_in(area, plan.part, &mut reserved, peer) {
        Ok(moving) if plan.part == fault.block => {
            ahead::move_ahead(managing, &areas, fault, moving, &mut line)
        }
        Ok(moving) => moving.finish(),
        Err(error) => Err(error),
    };
    // A copy that failed leaves the pages where they are.
    let outcome = outcome.unwrap_or_default();
    drop(line);
    drop(areas);
    if outcome.moved == 0 {
        // What is swapped out, or on a device that is out of reach, can move when it was faulted
        // in.
        if snapshot.leaf(fault.index) != Leaf::Absent {
            past.note_stuck(plan.now);
            if fault.atomic {
                return Err(Setback::Busy);
            }
        }
        return Ok(pages_in(fault.block, plan.part).into());
    }
    let more = plan.part.pages().saturating_sub(1) as u32;
    managed.note_readahead(fault, more, plan.readahead);
    managed.note_moved_in(past, plan.part, outcome, plan.rule);
    Err(Setback::Moved)
}
