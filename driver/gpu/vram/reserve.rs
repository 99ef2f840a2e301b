// SPDX-License-Identifier: GPL-2.0
//! Room in VRAM for pages that are to move in: frames are *reserved* before anything is collected,
//! since nothing may be waited for after that.
//!
//! If there are not enough, pages of processes are *evicted*: they go home, 2 MiB of VRAM at a
//! time. First a place is looked for where what is wanted would fit without them, and only what is
//! there goes. Of several places, it is the one with what the device was given longest ago. So what
//! can never be had evicts nothing. Whoever makes room tries each 2 MiB at most once, so it ends,
//! and a fatal signal ends it sooner. If nothing helps, the memory stays on the host, where the
//! device can always reach it.

use super::{budget::Budget, zeros, BITS};
use crate::{
    gpu::Gpu,
    logic::{
        block::{Pages, PAGES},
        PAGE_SIZE,
    },
    sys::task,
};
use core::ops::Range;
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Frames of 2 MiB.
pub(super) const EACH: u64 = PAGES as u64;

/// When the device was given what is in VRAM.
pub(super) struct Ages {
    /// Counts what was given.
    now: Atomic<u64>,
    /// When something of 2 MiB of VRAM was given last.
    given: KVVec<Atomic<u64>>,
}

impl Ages {
    pub(super) fn new(vram: u64) -> Result<Self> {
        Ok(Self {
            now: Atomic::new(1),
            given: zeros((vram / PAGE_SIZE).div_ceil(EACH))?,
        })
    }

    /// When something of 2 MiB of VRAM was given last.
    fn given(&self, block: u64) -> u64 {
        let given = self.given.get(block as usize);
        given.map_or(u64::MAX, |given| given.load(Relaxed))
    }

    /// Notes that the device is given page `number` now.
    fn note(&self, number: u64) {
        if let Some(given) = self.given.get((number / EACH) as usize) {
            let now = self.now.fetch_add(1, Relaxed);
            given.store(now, Relaxed);
        }
    }
}

/// Frames of VRAM that are reserved for pages of a block. Dropping it gives back those that were
/// not used.
pub(crate) struct Reserved<'a> {
    gpu: &'a Gpu,
    owner: u32,
    frames: Frames,
}

enum Frames {
    /// Pages of 2 MiB of VRAM, from this one on: each page of the block has its own.
    Block(u64, Pages),
    /// Any, the last one first.
    Single(KVec<u64>),
}

impl Reserved<'_> {
    /// Takes a frame for page `index` of the block.
    pub(super) fn take(&mut self, index: usize) -> Option<u64> {
        match &mut self.frames {
            Frames::Single(frames) => frames.pop(),
            Frames::Block(first, left) => {
                let is_left = left.has(index);
                left.set(index, false);
                is_left.then(|| first.saturating_add(index as u64))
            }
        }
    }

    /// The number of the 2 MiB of VRAM that were reserved as a whole, if all of it has been taken.
    pub(super) fn taken_block(&self) -> Option<u64> {
        match &self.frames {
            Frames::Block(first, left) if left.is_empty() => Some(first / EACH),
            _ => None,
        }
    }

    /// The owner that is to have the pages.
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.frames {
            Frames::Block(_, left) => left.is_empty(),
            Frames::Single(frames) => frames.is_empty(),
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let vram = &self.gpu.vram;
        match &self.frames {
            Frames::Block(first, left) if *left == Pages::ALL => vram.give_frames(*first, EACH),
            Frames::Block(first, left) => {
                for index in left.iter() {
                    vram.give_frames(first.saturating_add(index as u64), 1);
                }
            }
            Frames::Single(frames) => {
                for &frame in frames {
                    vram.give_frames(frame, 1);
                }
            }
        }
    }
}

impl Gpu {
    /// Reserves frames for `pages` pages of a block if there is room. The pages are to be those of
    /// the context with the budget, which is not asked.
    pub(crate) fn reserve_free(&self, budget: &Budget, pages: u64) -> Result<Option<Reserved<'_>>> {
        if pages == EACH {
            if let Some(first) = self.vram.take(EACH, EACH) {
                return Ok(Some(
                    self.reserved(budget, Frames::Block(first, Pages::ALL)),
                ));
            }
        }
        let mut frames = KVec::with_capacity(pages as usize, GFP_KERNEL)?;
        let taken = self.vram.take_some(pages, |frame| {
            let _ = frames.push_within_capacity(frame);
        });
        // Neighbours are copied as one.
        frames.reverse();
        let reserved = self.reserved(budget, Frames::Single(frames));
        Ok((taken == pages).then_some(reserved))
    }

    fn reserved(&self, budget: &Budget, frames: Frames) -> Reserved<'_> {
        Reserved {
            gpu: self,
            owner: budget.owner,
            frames,
        }
    }

    /// Reserves as far as there is room, or room can be made of what the device was given before
    /// the moment `until`. Sleeps, without locks. `EINTR`: a fatal signal came.
    pub(crate) fn reserve(&self, budget: &Budget, pages: u64, until: u64) -> Result<Reserved<'_>> {
        self.settle();
        if pages == EACH {
            let take = || self.vram.take(EACH, EACH);
            if let Some(first) = take().or_else(|| self.make_room(until, EACH, EACH, take)) {
                return Ok(self.reserved(budget, Frames::Block(first, Pages::ALL)));
            }
        }
        let mut frames = KVec::with_capacity(pages as usize, GFP_KERNEL)?;
        let mut fill = || {
            let missing = pages.saturating_sub(frames.len() as u64);
            let taken = self.vram.take_some(missing, |frame| {
                let _ = frames.push_within_capacity(frame);
            });
            (taken == missing).then_some(())
        };
        if fill().is_none() {
            let _ = self.make_room(until, 1, 1, fill);
        }
        // Neighbours are copied as one.
        frames.reverse();
        let reserved = self.reserved(budget, Frames::Single(frames));
        if task::fatal_signal_pending() {
            return Err(EINTR);
        }
        Ok(reserved)
    }

    /// The moment now, for [`reserve`](Self::reserve).
    pub(crate) fn moment(&self) -> u64 {
        self.private.ages.now.load(Relaxed)
    }

    /// Pages that can move in at most: for which there is room, or for which others can go home.
    pub(crate) fn room(&self) -> u64 {
        let free = self.vram.free() / PAGE_SIZE;
        free.saturating_add(self.private_pages())
    }

    /// Notes that the device is given the page at `offset` of VRAM, which therefore is evicted
    /// later than others.
    pub(crate) fn note_given(&self, offset: u64) {
        self.private.ages.note(offset / PAGE_SIZE);
    }

    /// Evicts pages that the device was given before `until`, until `take` finds what it wants:
    /// `count` contiguous frames at a multiple of `align`.
    pub(super) fn make_room<T>(
        &self,
        until: u64,
        count: u64,
        align: u64,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if count > self.room() {
            return None;
        }
        // What is given from now on is not evicted by this call.
        let until = until.min(self.moment());
        for _ in 0..self.private.ages.given.len() {
            let mut moved = 0;
            for block in self.find_place(until, count, align)? {
                if !self.has_private_in(block) {
                    continue;
                }
                if task::fatal_signal_pending() {
                    return None;
                }
                // It has its turn only once, whatever comes of it.
                self.private.ages.note(block.saturating_mul(EACH));
                moved = self.send_home_block(block).unwrap_or(0).max(moved);
                if self.has_private_in(block) {
                    // Something stays, so this place is none.
                    break;
                }
            }
            if moved != 0 {
                if let Some(taken) = take() {
                    return Some(taken);
                }
            }
        }
        None
    }

    /// Finds where `count` contiguous frames at a multiple of `align` could be had, if pages went
    /// home that the device was given before `until`: those given longest ago are there. Returns
    /// numbers of 2 MiB of VRAM.
    fn find_place(&self, until: u64, count: u64, align: u64) -> Option<Range<u64>> {
        let given = |block: u64| self.private.ages.given(block);
        let spare = |word: u64| {
            let is_old = given(word.saturating_mul(BITS) / EACH) < until;
            let used = self.private.used.get(word as usize);
            used.filter(|_| is_old).map_or(0, |used| used.load(Relaxed))
        };
        let mut least = until;
        let mut oldest = None;
        let (count, align) = self.vram.find(count, align, spare, |run| {
            for block in run.start / EACH..run.end.div_ceil(EACH) {
                if given(block) < least && self.has_private_in(block) {
                    least = given(block);
                    oldest = Some((block, run.clone()));
                }
            }
        });
        let (block, run) = oldest?;
        let last = run.end.saturating_sub(count);
        let first = block.saturating_mul(EACH).min(last).max(run.start);
        let first = first.saturating_sub(first.checked_rem(align).unwrap_or(0));
        let end = first.saturating_add(count);
        Some(first / EACH..end.div_ceil(EACH))
    }

    /// Whether 2 MiB of VRAM have pages of processes.
    fn has_private_in(&self, block: u64) -> bool {
        const WORDS: usize = PAGES / BITS as usize;
        let first = (block as usize).saturating_mul(WORDS);
        let words = self.private.used.iter().skip(first).take(WORDS);
        words.into_iter().any(|word| word.load(Relaxed) != 0)
    }
}
