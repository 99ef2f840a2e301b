// SPDX-License-Identifier: GPL-2.0
//! Moving ahead: when a device goes through memory in huge pages, the next ones move together with
//! the one that it has touched, so that one is copied while the CPU takes care of others.
//!
//! How many is decided by `logic/fault_around.rs`. About each of them it is decided as if it had
//! been touched by itself, and nothing is evicted for it.

use super::{past::Past, placement::Plan, serve::Fault, Managed, Managing, WINDOWS};
use crate::{
    gpu::moving::{Moving, Outcome},
    logic::{
        fault_around::{self, Course},
        pte::LARGE,
        residence::{Place, Rule},
        span::Span,
    },
    sys::{hmm::Snapshot, migrate::Areas},
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Blocks that are under way at the same time.
const TOGETHER: usize = 3;

/// A block that is under way.
struct Step<'a> {
    past: &'a Past,
    block: Span,
    rule: Rule,
    moving: Moving<'a>,
}

/// The blocks that move because one was touched.
pub(super) struct Line<'a> {
    managing: &'a Managing,
    /// The touched one.
    first: Option<Moving<'a>>,
    outcome: Result<Outcome>,
    steps: KVec<Step<'a>>,
}

impl<'a> Line<'a> {
    pub(super) fn new(managing: &'a Managing) -> Result<Self> {
        Ok(Self {
            managing,
            first: None,
            outcome: Ok(Outcome::default()),
            steps: KVec::with_capacity(TOGETHER, GFP_KERNEL)?,
        })
    }

    /// Moves blocks behind that of `fault`, which is `moving`, if the device goes through them.
    /// Returns what became of that.
    pub(super) fn move_ahead(
        &mut self,
        areas: &'a Areas<'_>,
        fault: Fault,
        moving: Moving<'a>,
    ) -> Result<Outcome> {
        let managed: &Managed = self.managing;
        self.first = Some(moving);
        let number = fault.addr / LARGE;
        let wanted = managed.blocks_ahead(number);
        let mut moved = 0_u64;
        while moved < wanted && !areas.is_contended() {
            self.make_room();
            let next = number.saturating_add(moved).saturating_add(1);
            match self.step(areas, next, fault.write) {
                Ok(Some(step)) => {
                    let _ = self.steps.push_within_capacity(step);
                }
                _ => break,
            }
            moved = moved.saturating_add(1);
        }
        managed.note_ahead(number, moved);
        self.end();
        core::mem::replace(&mut self.outcome, Ok(Outcome::default()))
    }

    /// Begins to move block `number`, if it moves.
    fn step(&self, areas: &'a Areas<'_>, number: u64, write: bool) -> Result<Option<Step<'a>>> {
        let managed: &'a Managed = self.managing;
        let gpu = managed.vm.gpu();
        let start = number.checked_mul(LARGE).ok_or(EINVAL)?;
        let block = Span::new(start, LARGE).map_err(|_| EINVAL)?;
        let fault = Fault {
            addr: start,
            write,
            atomic: false,
            block,
            index: 0,
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
        let plan = Plan::new(self.managing, areas, fault, &snapshot, past);
        let plan = plan
            .filter(|plan| plan.place == Place::Device && plan.part == block && there.is_none());
        let (Some(plan), Some((all, Some(area)))) = (plan, areas.at(start)) else {
            return Ok(None);
        };
        let reserved = gpu.reserve_free(&managed.budget, block.pages())?;
        let (Some(mut reserved), true) = (reserved, all.covers(block)) else {
            return Ok(None);
        };
        Ok(Some(Step {
            past,
            block,
            rule: plan.rule,
            moving: gpu.begin_in(area, block, &mut reserved)?,
        }))
    }

    fn make_room(&mut self) {
        loop {
            let first = usize::from(self.first.is_some());
            let under_way = self.steps.len().saturating_add(first);
            let last = self.steps.last().map(|step| &step.moving);
            let last = last.or(self.first.as_ref());
            if under_way < TOGETHER && last.is_none_or(Moving::has_begun) {
                return;
            }
            self.end_first();
        }
    }

    fn end_first(&mut self) {
        if let Some(first) = self.first.take() {
            self.outcome = first.finish();
        } else if let Ok(step) = self.steps.remove(0) {
            // What was not copied is where it was.
            let outcome = step.moving.finish().unwrap_or_default();
            if outcome.moved != 0 {
                let managed: &Managed = self.managing;
                managed.note_moved_in(step.past, step.block, outcome, step.rule);
            }
        }
    }

    fn end(&mut self) {
        while self.first.is_some() || !self.steps.is_empty() {
            self.end_first();
        }
    }
}

impl Managed {
    /// Where it is kept how a device has gone through the blocks before a block.
    fn course_to(&self, number: u64) -> Option<&Atomic<u64>> {
        self.courses.get((number % WINDOWS) as usize)
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
