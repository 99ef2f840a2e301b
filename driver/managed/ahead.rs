// SPDX-License-Identifier: GPL-2.0
//! Moving ahead: when a device goes through memory in huge pages, the next ones move together with
//! the one that it has touched, so that one is copied while the CPU takes care of others.
//!
//! How many is decided by `logic/fault_around.rs`. About each of them it is decided as if it had
//! been touched by itself, and nothing is evicted for it.

use super::{
    fault::Fault,
    past::Past,
    plan::{holder, Plan},
    Managed, Managing, READAHEADS,
};
use crate::{
    gpu::{
        mmu::pager::Taker,
        vram::moving::{Line, Moving, Outcome},
    },
    logic::{
        fault_around::{self, Course},
        pte::LARGE,
        residence::{Place, Rule},
        span::Span,
    },
    sys::mm::{areas::Areas, hmm::Snapshot},
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// A block that moves because one before it was touched.
pub(super) struct Ahead<'a> {
    past: &'a Past,
    block: Span,
    rule: Rule,
}

/// Moves blocks behind that of `fault`, which is `moving`, if the device goes through them. `line`
/// is empty, before and afterwards. Returns what became of the touched one.
pub(super) fn move_ahead<'a>(
    managing: &'a Managing,
    areas: &'a Areas<'_>,
    fault: Fault,
    moving: Moving<'a>,
    line: &mut Line<'a, Option<Ahead<'a>>>,
) -> Result<Outcome> {
    let managed: &Managed = managing;
    let mut touched = Ok(Outcome::default());
    let mut end = |(step, moving): (Option<Ahead<'_>>, Moving<'_>)| match step {
        None => touched = moving.finish(),
        Some(step) => {
            // What was not copied is where it was.
            let outcome = moving.finish().unwrap_or_default();
            if outcome.moved != 0 {
                managed.note_moved_in(step.past, step.block, outcome, step.rule);
            }
        }
    };
    line.add(None, moving)?;
    let number = fault.addr / LARGE;
    let wanted = managed.blocks_ahead(number);
    let mut moved = 0_u64;
    while moved < wanted && !areas.is_contended() {
        while let Some(first) = line.take_if_full() {
            end(first);
        }
        let next = number.saturating_add(moved).saturating_add(1);
        let Ok(Some((step, moving))) = begin(managing, areas, next, fault) else {
            break;
        };
        line.add(Some(step), moving)?;
        moved = moved.saturating_add(1);
    }
    managed.note_ahead(number, moved);
    while let Some(first) = line.take_first() {
        end(first);
    }
    touched
}

/// Begins to move block `number`, if it moves, as if `touched` had been a fault in it.
fn begin<'a>(
    managing: &'a Managing,
    areas: &'a Areas<'_>,
    number: u64,
    touched: Fault,
) -> Result<Option<(Ahead<'a>, Moving<'a>)>> {
    let managed: &Managed = managing;
    let gpu = managed.vm.gpu();
    let start = number.checked_mul(LARGE).ok_or(EINVAL)?;
    let block = Span::new(start, LARGE).map_err(|_| EINVAL)?;
    let fault = Fault {
        addr: start,
        atomic: false,
        block,
        index: 0,
        ..touched
    };
    if managed.is_for_host(start) {
        return Ok(None);
    }
    let Some(past) = managed.pasts.get(number) else {
        return Ok(None);
    };
    let mut snapshot = Snapshot::new()?;
    snapshot.read_locked(areas, start, gpu.token())?;
    let there = snapshot.pfn(0).and_then(|pfn| gpu.offset_of(pfn));
    let holder = holder(gpu, areas, fault, &snapshot)?;
    let plan = Plan::new(managing, areas, fault, &snapshot, holder.as_ref(), past);
    let plan =
        plan.filter(|plan| plan.place == Place::Device && plan.part == block && there.is_none());
    let (Some(plan), Some((all, Some(area)))) = (plan, areas.at(start)) else {
        return Ok(None);
    };
    let reserved = gpu.reserve_free(&managed.budget, block.pages())?;
    let (Some(mut reserved), true) = (reserved, all.covers(block)) else {
        return Ok(None);
    };
    let step = Ahead {
        past,
        block,
        rule: plan.rule,
    };
    let peer = holder.as_ref().map(|holder| holder.source(Taker::Device));
    let moving = gpu.begin_in(area, block, &mut reserved, peer)?;
    Ok(Some((step, moving)))
}

impl Managed {
    /// Where it is kept how a device has gone through the blocks before a block.
    fn course_to(&self, number: u64) -> Option<&Atomic<u64>> {
        self.courses.get((number % READAHEADS) as usize)
    }

    /// Returns how many blocks move with block `number`, which is touched.
    fn blocks_ahead(&self, number: u64) -> u64 {
        let word = self.course_to(number).map_or(0, |word| word.load(Relaxed));
        fault_around::blocks(number, Course::from_bits(word))
    }

    /// Notes that `more` have moved with it.
    fn note_ahead(&self, number: u64, more: u64) {
        let course = Course::new(number, more);
        if let Some(word) = self.course_to(course.next()) {
            word.store(course.bits(), Relaxed);
        }
    }
}
