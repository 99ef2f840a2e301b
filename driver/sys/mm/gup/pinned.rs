// SPDX-License-Identifier: GPL-2.0
//! Pages that are pinned, as runs: kept, mapped, and unpinned in the end.

use super::{Chunk, Frames, PagePtr};
use crate::{
    logic::runs::Run,
    sys::{
        helpers,
        mm::pages::{Pages, BLOCK},
        task,
        task::account::{Account, Charge, OverLimit},
    },
};
use core::{mem::MaybeUninit, pin::Pin};
use kernel::{
    bindings, ffi,
    prelude::*,
    sync::{Arc, UniqueArc},
};

/// Collects pages of short runs, so as to unpin many with one call. Allocates nothing, for
/// releasing memory must not fail.
///
/// # Invariants
///
/// The first `filled` entries are set.
struct Unpinner {
    frames: Frames,
    pages: [MaybeUninit<PagePtr>; Unpinner::ROOM],
    filled: usize,
    dirty: bool,
    /// Pages unpinned since other tasks had a chance to run.
    since: u64,
}

impl Unpinner {
    const ROOM: usize = 64;
    /// Runs from this length on are unpinned by range.
    const LONG: u64 = 32;
    /// Pages unpinned before other tasks get a chance to run.
    const AT_ONCE: u64 = 8192;

    /// Lets other tasks run now and then, since so many more `pages` were unpinned.
    fn count(&mut self, pages: u64) {
        self.since = self.since.saturating_add(pages);
        if self.since >= Self::AT_ONCE {
            self.since = 0;
            task::cond_resched();
        }
    }

    /// # Safety
    ///
    /// `run` must be pinned, and must not be used any more.
    unsafe fn unpin(&mut self, run: Run) {
        let first = self.frames.page(run.pfn());
        if run.pages() >= Self::LONG {
            // SAFETY: By the requirements.
            return unsafe { self.unpin_range(first, run.pages()) };
        }
        for index in 0..run.pages() as usize {
            if self.filled == Self::ROOM {
                self.flush();
            }
            if let Some(slot) = self.pages.get_mut(self.filled) {
                slot.write(first.wrapping_add(index));
                // INVARIANT: The entry was set just now.
                self.filled = self.filled.saturating_add(1);
            }
        }
    }

    /// # Safety
    ///
    /// The `pages` pages from `first` on must be pinned, and must not be used any more.
    unsafe fn unpin_range(&mut self, first: PagePtr, pages: u64) {
        let mut done = 0;
        while done < pages {
            let part = pages.saturating_sub(done).min(Self::AT_ONCE);
            // SAFETY: The pages are pinned by the requirements.
            unsafe {
                bindings::unpin_user_page_range_dirty_lock(
                    first.wrapping_add(done as usize),
                    part as usize,
                    self.dirty,
                )
            };
            done = done.saturating_add(part);
            self.count(part);
        }
    }

    fn flush(&mut self) {
        if self.filled == 0 {
            return;
        }
        let pages = self.pages.as_mut_ptr().cast();
        // SAFETY: The first `filled` entries are set, to pages that are pinned and not used any
        // more.
        unsafe { helpers::pinmap_unpin_pages(pages, self.filled as ffi::c_ulong, self.dirty) };
        let unpinned = self.filled as u64;
        // INVARIANT: No entry counts as set.
        self.filled = 0;
        self.count(unpinned);
    }
}

/// Unpins `runs`, and marks them dirty if `dirty`. May sleep; must not be called with a lock that
/// page faults, reclaim or MMU notifiers take.
///
/// # Safety
///
/// [`Chunk::pin`] must have pinned the runs, nobody else may unpin them, and no device may reach
/// them any more.
unsafe fn unpin_runs(runs: impl Iterator<Item = Run>, dirty: bool) {
    // INVARIANT: No entry is set.
    let mut unpinner = Unpinner {
        frames: Frames::new(),
        pages: [const { MaybeUninit::uninit() }; Unpinner::ROOM],
        filled: 0,
        dirty,
        since: 0,
    };
    for run in runs {
        // SAFETY: By the requirements.
        unsafe { unpinner.unpin(run) };
    }
    unpinner.flush();
}

/// Runs of pinned pages, and the charge for them. Dropping it unpins the pages, then gives the
/// charge back. Whatever lets a device reach the pages keeps a reference: see
/// [`Mapped`](crate::sys::iommu::Mapped).
///
/// # Invariants
///
/// All runs in it are pinned.
pub(crate) struct PinnedRuns {
    /// Blocks of at most a page, so that the list grows without being copied. Only the last block
    /// is not full.
    blocks: KVVec<KVec<Run>>,
    /// The last run, which may still grow.
    last: Option<Run>,
    pages: u64,
    write: bool,
    charge: Option<Charge>,
}

impl PinnedRuns {
    /// Runs in the first block: most registrations have few.
    const FEW: usize = 8;

    /// Makes an empty list.
    pub(crate) fn new() -> Result<UniqueArc<Self>> {
        // INVARIANT: There are no runs.
        let empty = Self {
            blocks: KVVec::new(),
            last: None,
            pages: 0,
            write: false,
            charge: None,
        };
        Ok(UniqueArc::new(empty, GFP_KERNEL_ACCOUNT)?)
    }

    /// Prepares the list, which is empty, for so many pages, and charges `account` for them.
    pub(crate) fn begin(
        &mut self,
        write: bool,
        account: &Arc<Account>,
        pages: u64,
    ) -> core::result::Result<(), OverLimit> {
        self.write = write;
        match &mut self.charge {
            Some(charge) if Arc::ptr_eq(charge.account(), account) => charge.renew(pages),
            _ => {
                self.charge = Some(Charge::new(account, pages)?);
                Ok(())
            }
        }
    }

    /// Lets go of the pages and the charge. If this was the last reference, returns the empty list;
    /// otherwise whoever drops the last one unpins the pages.
    pub(crate) fn let_go(this: Arc<Self>) -> Option<UniqueArc<Self>> {
        let mut this = Pin::into_inner(Arc::into_unique_or_drop(this)?);
        this.unpin();
        Some(this)
    }

    /// Unpins the pages, and gives the charge back.
    fn unpin(&mut self) {
        if self.pages == 1 {
            if let Some(run) = self.last {
                // SAFETY: The page is pinned by the type invariants. Whatever lets a device reach
                // it has a reference to `self`, so nothing does any more.
                unsafe { helpers::pinmap_unpin_page(run.pfn() as usize, self.write) };
            }
        } else if self.pages != 0 {
            // SAFETY: As above.
            unsafe { unpin_runs(self.iter(), self.write) };
        }
        // The lists of a large registration are not kept.
        if !self.blocks.is_empty() {
            self.blocks = KVVec::new();
        }
        // INVARIANT: There are no runs.
        self.last = None;
        self.pages = 0;
        if let Some(charge) = &mut self.charge {
            charge.give_back();
        }
    }

    /// Takes all pages of `chunk`. On failure, those that could not be stored are unpinned.
    pub(crate) fn take(&mut self, chunk: &mut Chunk) -> Result {
        if chunk.write != self.write {
            return Err(EINVAL);
        }
        // INVARIANT: The pages are pinned, and ours from here on.
        chunk.take_runs(|run| self.push(run))
    }

    fn push(&mut self, run: Run) -> Result {
        self.last = Some(match self.last {
            None => run,
            Some(last) => match last.join(run) {
                Some(joined) => joined,
                None => {
                    self.store(last)?;
                    run
                }
            },
        });
        self.pages = self.pages.saturating_add(run.pages());
        Ok(())
    }

    /// Stores a run that does not grow any more.
    fn store(&mut self, run: Run) -> Result {
        let mut room = Self::FEW;
        if let Some(block) = self.blocks.last_mut() {
            if block.push_within_capacity(run).is_ok() {
                return Ok(());
            }
            if let Some(more) = BLOCK.checked_sub(block.len()).filter(|&more| more > 0) {
                block.reserve(more, GFP_KERNEL_ACCOUNT)?;
                return Ok(block.push(run, GFP_KERNEL_ACCOUNT)?);
            }
            room = BLOCK;
        }
        let mut block = KVec::with_capacity(room, GFP_KERNEL_ACCOUNT)?;
        block.push(run, GFP_KERNEL_ACCOUNT)?;
        Ok(self.blocks.push(block, GFP_KERNEL_ACCOUNT)?)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Stores the last run: no pages are added after this. A single run stays outside of the
    /// blocks.
    pub(crate) fn finish(&mut self) -> Result {
        match self.last.filter(|_| !self.blocks.is_empty()) {
            Some(last) => {
                self.store(last)?;
                self.last = None;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Iterates over the runs, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let stored = self.blocks.iter().flat_map(|block| block.iter().copied());
        Iterator::chain(stored, self.last)
    }
}

// SAFETY: The runs are pinned as long as `self` lives.
unsafe impl Pages for PinnedRuns {
    fn pages(&self) -> u64 {
        self.pages
    }

    fn blocks(&self) -> usize {
        let last = usize::from(self.last.is_some());
        self.blocks.len().saturating_add(last)
    }

    fn block(&self, index: usize) -> &[Run] {
        match self.blocks.get(index) {
            Some(block) => block,
            None => self.last.as_slice(),
        }
    }

    fn single(&self) -> Option<Run> {
        self.last.filter(|_| self.blocks.is_empty())
    }

    fn writable(&self) -> bool {
        self.write
    }
}

impl Drop for PinnedRuns {
    fn drop(&mut self) {
        self.unpin();
    }
}
