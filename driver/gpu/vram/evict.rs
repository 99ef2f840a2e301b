// SPDX-License-Identifier: GPL-2.0
//! Eviction: pages of processes go home from VRAM though nobody has touched them, since others need
//! the room (`reserve.rs`) or the device leaves.
//!
//! Pages move by address, with the mmap lock of a process that maps them (`sys/mm/migrate.rs` says
//! why). So a process has to be found for each page. Mostly it is the one from which the page came,
//! which its owner tells (`budget.rs`). A child may have it alone by now, as it maps what its
//! parent had before `fork()`; then all processes are asked. The reverse map tells at which address
//! a process maps the page, if it does.
//!
//! Whoever evicts holds nothing that others wait for, but the mmap lock may be held by a program
//! that waits for anything. So the lock is only tried for, for a while. What stays in VRAM because
//! of that is tried again by whoever needs room next, and for a device that leaves until it is
//! home.

use super::reserve::EACH;
use crate::{
    gpu::{mmu::pager::Taker, Gpu},
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    sys::{
        mm::areas::{Area, Areas, Processes, RmapPart},
        task,
        task::clock::{self, MILLISECOND},
    },
};
use core::ops::Range;
use kernel::{
    mm::{Mm, MmWithUser},
    prelude::*,
};

/// How long the mmap lock of a process is tried for.
const PATIENCE: u64 = 20 * MILLISECOND;

impl Gpu {
    /// Has all pages go home, as far as they can at this moment. `ENODEV`: some cannot be read any
    /// more.
    pub(super) fn send_home_all(&self) -> Result {
        for block in 0..(self.limits.vram / PAGE_SIZE).div_ceil(EACH) {
            match self.send_home_block(block) {
                Err(error) if error == ENODEV => return Err(error),
                // The others may have better luck.
                _ => {}
            }
            task::cond_resched();
        }
        Ok(())
    }

    /// Has the pages of 2 MiB of VRAM go home, as far as they can at this moment. Returns how many
    /// did. `ENODEV`: some cannot be read any more.
    pub(super) fn send_home_block(&self, block: u64) -> Result<u64> {
        let first = block.saturating_mul(EACH);
        let end = first.saturating_add(EACH);
        let numbers = first..end.min(self.limits.vram / PAGE_SIZE);
        let owners = &self.private.owners;
        let mut moved = 0_u64;
        let mut rest = numbers.clone();
        while let Some(number) = rest.find(|&number| self.is_used(number)) {
            let owner = owners.of(number);
            let is_others = |&other: &u64| self.is_used(other) && owners.of(other) != owner;
            let behind = rest.clone().find(is_others).unwrap_or(numbers.end);
            rest = behind..numbers.end;
            if let Some(mm) = owners.mm(owner) {
                let of_owner = self.send_home_of(&mm, number..behind)?;
                moved = moved.saturating_add(of_owner);
            }
        }
        let mut processes = Processes::new();
        while numbers.clone().any(|number| self.rmap(number).is_some()) {
            let Some(process) = processes.next() else {
                break;
            };
            if task::fatal_signal_pending() {
                break;
            }
            moved = moved.saturating_add(self.send_home_in(&process, numbers.clone())?);
            task::cond_resched();
        }
        Ok(moved)
    }

    fn send_home_of(&self, mm: &Mm, numbers: Range<u64>) -> Result<u64> {
        // If this is the last reference, the address space is taken apart later, by another task.
        match mm.mmget_not_zero().map(MmWithUser::into_mmput_async) {
            Some(mm) => self.send_home_in(&mm, numbers),
            None => Ok(0),
        }
    }

    /// Has the pages `numbers` go home that `mm` maps, which is in use.
    fn send_home_in(&self, mm: &Mm, numbers: Range<u64>) -> Result<u64> {
        let mut areas = None;
        let mut moved = 0_u64;
        let mut tried: Option<RmapPart> = None;
        for number in numbers.clone() {
            let rmap = self.rmap(number);
            // What is still there of a part that was tried has to stay.
            let rmap = rmap.filter(|rmap| tried.is_none_or(|tried| !tried.has(rmap)));
            let Some(rmap) = rmap else { continue };
            let Some(areas) = areas.get_or_insert_with(|| lock(mm)) else {
                break;
            };
            areas.each_at(&rmap, |addr, area, span| {
                let block = Span::aligned(addr, LARGE);
                let part = span.intersection(block).ok_or(EINVAL)?;
                tried = Some(rmap.around(addr, part));
                moved = moved.saturating_add(self.evict(area, part, &numbers)?);
                task::cond_resched();
                Ok(self.is_used(number))
            })?;
        }
        Ok(moved)
    }

    /// Has what of `part`, in one block, is among the pages `numbers` go home.
    fn evict(&self, area: Area<'_>, part: Span, numbers: &Range<u64>) -> Result<u64> {
        let moved = self.begin_eviction(area, part, numbers)?.finish()?.moved;
        self.tell_taken(&area, part, moved, Taker::Eviction);
        Ok(moved)
    }
}

/// Takes the mmap lock of `mm`, which is in use, if it can be had in time.
fn lock(mm: &Mm) -> Option<Areas<'_>> {
    let mut areas = None;
    clock::poll(PATIENCE, || {
        areas = Areas::try_lock(mm);
        areas.is_some()
    });
    areas
}
