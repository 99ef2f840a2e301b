// SPDX-License-Identifier: GPL-2.0
//! Room in VRAM for pages that are to move in: frames are *reserved* before anything is collected,
//! since nothing may be waited for after that.
//!
//! If there are not enough, pages of processes are *evicted*: they go home, 2 MiB of VRAM at a
//! time, those first that the device was given longest ago. Whoever makes room tries each 2 MiB at
//! most once, so it ends, and a fatal signal ends it sooner. If nothing helps, the memory stays on
//! the host, where the device can always reach it.

use super::{
    budget::Budget,
    vram::{zeros, BITS},
    Gpu,
};
use crate::{
    logic::{block::PAGES, PAGE_SIZE},
    sys::task,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Mutex,
    },
};

const EACH: u64 = PAGES as u64;

/// When the device was given what is in VRAM.
#[pin_data]
pub(super) struct Ages {
    /// Counts what was given.
    now: Atomic<u64>,
    /// When something of 2 MiB of VRAM was given last.
    given: KVVec<Atomic<u64>>,
    /// Held by the task that takes pages of 2 MiB from page tables to evict them.
    #[pin]
    evicting: Mutex<()>,
    /// That task; 0: none.
    evictor: Atomic<u64>,
}

impl Ages {
    pub(super) fn new(vram: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let given = zeros((vram / PAGE_SIZE).div_ceil(EACH))?;
            Ok(try_pin_init!(Self {
                now: Atomic::new(1),
                given,
                evicting <- new_mutex!((), "pinmap_evicting"),
                evictor: Atomic::new(0),
            }? Error))
        })
    }

    /// Notes that the device is given page `number` now.
    fn note(&self, number: u64) {
        if let Some(given) = self.given.get((number / EACH) as usize) {
            let now = self.now.fetch_add(1, Relaxed);
            given.store(now, Relaxed);
        }
    }
}

/// Frames of VRAM that are reserved. Dropping it gives back those that were not used.
pub(crate) struct Reserved<'a> {
    gpu: &'a Gpu,
    owner: u32,
    /// First frames, and numbers of frames.
    frames: KVec<(u64, u64)>,
}

impl Reserved<'_> {
    /// Takes `count` frames, contiguous, at a multiple of `count`; `count` is 1 or those of 2 MiB.
    pub(super) fn take(&mut self, count: u64) -> Option<u64> {
        let (first, left) = self.frames.iter_mut().find(|(_, left)| {
            if count == 1 {
                *left != 0
            } else {
                *left == count
            }
        })?;
        let taken = *first;
        *first = first.saturating_add(count);
        *left = left.saturating_sub(count);
        Some(taken)
    }

    /// Who is to have the pages.
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn count(&self) -> u64 {
        let counts = self.frames.iter().map(|&(_, count)| count);
        counts.fold(0, u64::saturating_add)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for &(first, count) in &self.frames {
            if count != 0 {
                self.gpu.vram.give_frames(first, count);
            }
        }
    }
}

impl Gpu {
    /// Reserves frames for `pages` pages of a block if there is room. The pages are to be those of
    /// the context with the budget, which is not asked.
    pub(crate) fn reserve_free(&self, budget: &Budget, pages: u64) -> Result<Option<Reserved<'_>>> {
        let mut reserved = self.reserve_none(budget, pages)?;
        if pages == EACH {
            if let Some(first) = self.vram.take_frames(EACH) {
                let _ = reserved.frames.push_within_capacity((first, EACH));
                return Ok(Some(reserved));
            }
        }
        let taken = self.vram.take_some(pages, |frame| {
            let _ = reserved.frames.push_within_capacity((frame, 1));
        });
        Ok((taken == pages).then_some(reserved))
    }

    fn reserve_none(&self, budget: &Budget, pages: u64) -> Result<Reserved<'_>> {
        let most = if pages == EACH { PAGES } else { pages as usize };
        Ok(Reserved {
            gpu: self,
            owner: budget.owner,
            frames: KVec::with_capacity(most, GFP_KERNEL)?,
        })
    }

    /// The same, as far as there is room, or room can be made of what the device was given before
    /// the moment `until`. Sleeps, without locks. `EINTR`: a fatal signal came.
    pub(crate) fn reserve(&self, budget: &Budget, pages: u64, until: u64) -> Result<Reserved<'_>> {
        self.release_held();
        let mut reserved = self.reserve_none(budget, pages)?;
        if pages == EACH {
            let take = || self.vram.take_frames(EACH);
            if let Some(first) = take().or_else(|| self.make_room(until, take)) {
                let _ = reserved.frames.push_within_capacity((first, EACH));
                return Ok(reserved);
            }
        }
        let mut fill = || {
            let missing = pages.saturating_sub(reserved.count());
            let taken = self.vram.take_some(missing, |frame| {
                let _ = reserved.frames.push_within_capacity((frame, 1));
            });
            (taken == missing).then_some(())
        };
        if fill().is_none() {
            let _ = self.make_room(until, fill);
        }
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

    /// Evicts pages that the device was given before `until` until `take` finds what it wants.
    pub(super) fn make_room<T>(
        &self,
        until: u64,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // What is given from now on is not evicted by this call.
        let until = until.min(self.moment());
        for _ in 0..self.private.ages.given.len() {
            if task::fatal_signal_pending() {
                break;
            }
            let block = self.oldest(until)?;
            // It has its turn only once, whatever comes of it.
            self.private.ages.note(block.saturating_mul(EACH));
            if self.send_home_block(block).unwrap_or(0) != 0 {
                if let Some(taken) = take() {
                    return Some(taken);
                }
            }
        }
        None
    }

    /// Finds the 2 MiB with pages of processes that the device was given longest ago.
    fn oldest(&self, until: u64) -> Option<u64> {
        let mut oldest = None;
        let mut least = until;
        for (block, given) in self.private.ages.given.iter().enumerate() {
            let given = given.load(Relaxed);
            if given < least && self.has_private_in(block) {
                least = given;
                oldest = Some(block as u64);
            }
        }
        oldest
    }

    /// Calls `evict`, which takes pages of VRAM from page tables, and has MMU notifiers that it
    /// causes know what they are about.
    pub(super) fn as_evictor<T>(&self, evict: impl FnOnce() -> T) -> T {
        let ages = &self.private.ages;
        let evicting = ages.evicting.lock();
        ages.evictor.xchg(task::current_number(), Full);
        let result = evict();
        ages.evictor.xchg(0, Full);
        drop(evicting);
        result
    }

    /// Whether the current task takes pages from page tables to evict them.
    pub(crate) fn is_evicting(&self) -> bool {
        self.private.ages.evictor.load(Relaxed) == task::current_number()
    }

    /// Whether 2 MiB of VRAM have pages of processes.
    fn has_private_in(&self, block: usize) -> bool {
        const WORDS: usize = PAGES / BITS as usize;
        let first = block.saturating_mul(WORDS);
        let words = self.private.used.iter().skip(first).take(WORDS);
        words.into_iter().any(|word| word.load(Relaxed) != 0)
    }
}
