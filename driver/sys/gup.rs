// SPDX-License-Identifier: GPL-2.0
//! Pinning user pages for DMA.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h); rules:
//! `Documentation/core-api/pin_user_pages.rst`.

use super::{
    account::Charge,
    helpers,
    pages::{Pages, BLOCK},
    task, uapi,
};
use crate::logic::{
    runs::{self, Run},
    span::Span,
};
use core::{mem::MaybeUninit, ptr};
use kernel::{bindings, error::to_result, ffi, prelude::*};

pub(super) type PagePtr = *mut bindings::page;

#[cfg(not(CONFIG_SPARSEMEM_VMEMMAP))]
compile_error!(
    "pages are found, and runs of them, by the addresses of struct page: CONFIG_SPARSEMEM_VMEMMAP is needed"
);

const _: () = assert!(crate::logic::PAGE_SHIFT as usize == kernel::page::PAGE_SHIFT);

/// The `struct page` of every frame, in one array: no call for each of them.
#[derive(Clone, Copy)]
pub(super) struct Frames(usize);

impl Frames {
    /// Where it begins.
    pub(super) fn new() -> Self {
        // SAFETY: It only calculates an address.
        Self(unsafe { helpers::pinmap_pfn_to_page(0) }.expose_provenance())
    }

    /// That of frame `pfn`, if that is one.
    pub(super) fn page(self, pfn: u64) -> PagePtr {
        ptr::with_exposed_provenance_mut::<bindings::page>(self.0).wrapping_add(pfn as usize)
    }
}

/// Room for the pages of one chunk.
///
/// # Invariants
///
/// The first `pinned` entries are pages that we hold a long-term pin of. If there is one, we hold a pin
/// of each of the `behind` pages that follow it in its folio, too; otherwise `behind` is 0.
pub(crate) struct Chunk {
    few: [PagePtr; Chunk::FEW],
    many: Option<KVec<PagePtr>>,
    pinned: usize,
    behind: u64,
    /// What was pinned last was one huge entry of the page table: the next one is likely to be, too.
    huge: bool,
    write: bool,
}

impl Chunk {
    /// Pages for which no memory needs to be allocated.
    const FEW: usize = 16;

    /// Room for `pages` pages; `write`: they will be written to.
    pub(crate) fn new(pages: usize, write: bool) -> Result<Self> {
        let many = if pages > Self::FEW {
            Some(KVec::from_elem(ptr::null_mut(), pages, GFP_KERNEL)?)
        } else {
            None
        };
        // INVARIANT: None is pinned.
        Ok(Self {
            few: [ptr::null_mut(); Self::FEW],
            many,
            pinned: 0,
            behind: 0,
            huge: false,
            write,
        })
    }

    fn room(&self) -> &[PagePtr] {
        match &self.many {
            Some(many) => many,
            None => &self.few,
        }
    }

    fn room_mut(&mut self) -> &mut [PagePtr] {
        match &mut self.many {
            Some(many) => many,
            None => &mut self.few,
        }
    }

    /// Pins pages of the current task from `address` on: up to `want`, what fits, and what the first
    /// obstacle leaves; or what one huge entry of the page table maps there. The chunk must be empty.
    pub(crate) fn pin(&mut self, address: u64, want: u64) -> Result {
        if self.pinned != 0 {
            return Err(EBUSY);
        }
        let is_huge = || {
            // SAFETY: The current task has an address space, and it only looks.
            let leaf = unsafe {
                helpers::pinmap_leaf_pages(address as usize, ptr::null_mut(), self.write)
            };
            leaf > 1
        };
        // A wrong guess costs one short chunk.
        if want > 1 && (self.huge || is_huge()) {
            self.pin_some(address, 1)?;
            self.pin_behind(address, want)?;
            self.huge = self.behind > 0;
            Ok(())
        } else {
            self.pin_some(address, want)
        }
    }

    fn pin_some(&mut self, address: u64, want: u64) -> Result {
        let flags = bindings::FOLL_LONGTERM | if self.write { bindings::FOLL_WRITE } else { 0 };
        let room = self.room_mut();
        let want = room.len().min(usize::try_from(want).unwrap_or(usize::MAX));
        // SAFETY: There is room for `want` pointers.
        let got = unsafe {
            bindings::pin_user_pages_fast(
                address as usize,
                want as ffi::c_int,
                flags,
                room.as_mut_ptr(),
            )
        };
        to_result(got)?;
        // INVARIANT: So many are pinned.
        self.pinned = got.unsigned_abs() as usize;
        if self.pinned == 0 {
            return Err(EFAULT);
        }
        Ok(())
    }

    /// With the page at `address` pinned: pins those that follow, as far as one entry of the page
    /// table maps them together with it.
    ///
    /// That entry is looked at after the pin was taken, which is a pin of the whole folio: it can
    /// neither be split nor move nor be shared with a forked child any more. So what the entry maps is
    /// what the addresses mean. What is taken away from them later, the MMU notifier tells.
    fn pin_behind(&mut self, address: u64, want: u64) -> Result {
        let Some(&first) = self.room().first() else {
            return Ok(());
        };
        // SAFETY: It only looks; the page is pinned.
        let leaf = unsafe { helpers::pinmap_leaf_pages(address as usize, first, self.write) };
        let behind = (leaf as u64)
            .min(want)
            .min(runs::MAX_PAGES)
            .saturating_sub(1);
        if behind > 0 {
            // SAFETY: The page is pinned, and `behind` more pages of its folio follow.
            to_result(unsafe { helpers::pinmap_add_pins(first, behind as u32) })?;
            // INVARIANT: They are pinned as well.
            self.behind = behind;
        }
        Ok(())
    }

    /// Empties the chunk into `store`, as runs of neighbouring pages. If `store` fails, the rest is
    /// unpinned.
    ///
    /// Each page is compared with the one before it. Looking at the ends of a huge page only would
    /// be wrong: any page in the middle may have been replaced, and is then another one.
    // On its own, since most of the time of a large registration is spent here: a loop in few lines of the cache.
    #[inline(never)]
    pub(crate) fn take_runs(&mut self, mut store: impl FnMut(Run) -> Result) -> Result {
        let Some((&base, rest)) = self.room().get(..self.pinned).and_then(<[_]>::split_first)
        else {
            return Ok(());
        };
        // SAFETY: `base` is a page.
        let base_pfn = unsafe { helpers::pinmap_page_to_pfn(base) } as u64;
        let mut store = |first: PagePtr, pages: usize| {
            let bytes = (first.addr() as i64).wrapping_sub(base.addr() as i64);
            let frames = bytes.checked_div(size_of::<bindings::page>() as i64);
            let pfn = base_pfn.wrapping_add_signed(frames.unwrap_or(0));
            Run::new(pfn, (pages as u64).saturating_add(self.behind))
                .ok_or(ERANGE)
                .and_then(&mut store)
        };
        let (mut first, mut pages, mut done) = (base, 1_usize, 0_usize);
        let mut result = Ok(());
        for &page in rest {
            if ptr::eq(page, first.wrapping_add(pages)) {
                pages = pages.wrapping_add(1);
                continue;
            }
            result = store(first, pages);
            if result.is_err() {
                break;
            }
            done = done.wrapping_add(pages);
            (first, pages) = (page, 1);
        }
        if let Err(error) = result.and_then(|()| store(first, pages)) {
            self.unpin(done);
            return Err(error);
        }
        // INVARIANT: All of them went to `store`, which is responsible for them now.
        self.pinned = 0;
        self.behind = 0;
        Ok(())
    }

    /// Unpins all but the first `keep` pages, which went elsewhere.
    fn unpin(&mut self, keep: usize) {
        let (pinned, behind) = (self.pinned, self.behind);
        if let Some(pages) = self.room_mut().get_mut(keep..pinned) {
            if let Some(&first) = pages.first().filter(|_| behind > 0) {
                // SAFETY: Pinned by the type invariants. Nothing was written through them.
                unsafe {
                    bindings::unpin_user_page_range_dirty_lock(
                        first.wrapping_add(1),
                        behind as usize,
                        false,
                    )
                };
            }
            // SAFETY: As above.
            unsafe { bindings::unpin_user_pages(pages.as_mut_ptr(), pages.len()) };
        }
        // INVARIANT: None is left.
        self.pinned = 0;
        self.behind = 0;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.unpin(0);
    }
}

/// Pages of short runs on their way to being unpinned together: faster than run by run, and no
/// allocation, since releasing must not fail.
///
/// # Invariants
///
/// The first `filled` entries are set.
struct Unpinner {
    frames: Frames,
    pages: [MaybeUninit<PagePtr>; Unpinner::ROOM],
    filled: usize,
    dirty: bool,
}

impl Unpinner {
    const ROOM: usize = 64;
    /// Runs from this length on are unpinned by range.
    const LONG: u64 = 32;
    /// Pages unpinned by one such call: others must be able to run in between.
    const AT_ONCE: u64 = 8192;

    /// # Safety
    ///
    /// `run` must be pinned, and not be used any more.
    unsafe fn unpin(&mut self, run: Run) {
        let first = self.frames.page(run.pfn());
        if run.pages() >= Self::LONG {
            let mut done = 0;
            while done < run.pages() {
                let part = run.pages().saturating_sub(done).min(Self::AT_ONCE);
                // SAFETY: By the requirements, and inside of the run.
                unsafe {
                    bindings::unpin_user_page_range_dirty_lock(
                        first.wrapping_add(done as usize),
                        part as usize,
                        self.dirty,
                    )
                };
                done = done.saturating_add(part);
                task::cond_resched();
            }
            return;
        }
        for index in 0..run.pages() as usize {
            if self.filled == Self::ROOM {
                self.flush();
            }
            if let Some(slot) = self.pages.get_mut(self.filled) {
                slot.write(first.wrapping_add(index));
                // INVARIANT: It was set.
                self.filled = self.filled.saturating_add(1);
            }
        }
    }

    fn flush(&mut self) {
        let pages = self.pages.as_mut_ptr().cast();
        // SAFETY: The first `filled` entries are set, to pages that are pinned and not used any more.
        unsafe { bindings::unpin_user_pages_dirty_lock(pages, self.filled, self.dirty) };
        // INVARIANT: None.
        self.filled = 0;
        task::cond_resched();
    }
}

/// Unpins `runs`, marked dirty if they may have been written to. May sleep; must not be called with
/// a lock that page faults, reclaim or MMU notifiers may want.
///
/// # Safety
///
/// The runs must be pinned, by [`Chunk::pin`], be unpinned only here, and be out of reach of every
/// device.
unsafe fn unpin_runs(runs: impl Iterator<Item = Run>, dirty: bool) {
    // INVARIANT: None is set.
    let mut unpinner = Unpinner {
        frames: Frames::new(),
        pages: [const { MaybeUninit::uninit() }; Unpinner::ROOM],
        filled: 0,
        dirty,
    };
    for run in runs {
        // SAFETY: By the requirements.
        unsafe { unpinner.unpin(run) };
    }
    unpinner.flush();
}

/// Runs of pinned pages, 8 bytes a run, and the charge for them. Dropping it unpins them, then gives
/// the charge back. Whatever lets a device reach them keeps a reference: see
/// [`Mapped`](super::iommu::Mapped).
///
/// # Invariants
///
/// All runs in it are pinned.
pub(crate) struct PinnedRuns {
    /// Blocks of at most a page, so that next to nothing is copied to grow. Only the last is not full.
    blocks: KVVec<KVec<Run>>,
    /// The last one, which may still grow.
    last: Option<Run>,
    pages: u64,
    write: bool,
    _charge: Charge,
}

impl PinnedRuns {
    /// Runs in the first block, to begin with: most registrations have few.
    const FEW: usize = 8;

    /// None yet, paid for by `charge`.
    pub(crate) fn new(write: bool, charge: Charge) -> Self {
        // INVARIANT: Empty.
        Self {
            blocks: KVVec::new(),
            last: None,
            pages: 0,
            write,
            _charge: charge,
        }
    }

    /// Adds all pages of `chunk`. On failure those that could not be stored are unpinned.
    pub(crate) fn take(&mut self, chunk: &mut Chunk) -> Result {
        if chunk.write != self.write {
            return Err(EINVAL);
        }
        // INVARIANT: They are pinned, and ours from here on.
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

    /// Puts away a run that does not grow any more.
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

    /// Pages in all runs.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether they were pinned for writing.
    pub(crate) fn writable(&self) -> bool {
        self.write
    }

    /// No more are added. A single run stays where it is.
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

    /// How many blocks of runs there are.
    pub(super) fn blocks(&self) -> usize {
        let last = usize::from(self.last.is_some());
        self.blocks.len().saturating_add(last)
    }

    /// The runs in one of them.
    pub(super) fn block(&self, index: usize) -> &[Run] {
        match self.blocks.get(index) {
            Some(block) => block,
            None => self.last.as_slice(),
        }
    }

    /// The runs, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let stored = self.blocks.iter().flat_map(|block| block.iter().copied());
        Iterator::chain(stored, self.last)
    }
}

// SAFETY: The runs are pinned as long as it lives.
unsafe impl Pages for PinnedRuns {
    fn pages(&self) -> u64 {
        self.pages()
    }

    fn blocks(&self) -> usize {
        self.blocks()
    }

    fn block(&self, index: usize) -> &[Run] {
        self.block(index)
    }

    fn writable(&self) -> bool {
        self.writable()
    }
}

impl Drop for PinnedRuns {
    fn drop(&mut self) {
        // SAFETY: Pinned by the type invariants. Whatever lets a device reach them has a reference to
        // `self`, so nothing does any more.
        unsafe { unpin_runs(self.iter(), self.write) };
    }
}

/// Why the page at `address` of the current task cannot be pinned: a `PINMAP_FAIL_` reason.
pub(crate) fn explain(address: u64, write: bool) -> u32 {
    let task = kernel::current!();
    let Some(mm) = task.mm() else {
        return uapi::PINMAP_FAIL_HOLE;
    };
    let lock = mm.mmap_read_lock();
    match lock.vma_lookup(address as usize) {
        // SAFETY: The area is valid as long as the lock is held.
        Some(area) => unsafe { helpers::pinmap_explain(area.as_ptr(), write) },
        None => uapi::PINMAP_FAIL_HOLE,
    }
}

/// The first address in `span` of the current task that could not be pinned, as far as its areas tell,
/// and why: a `PINMAP_FAIL_` reason. Touches nothing.
pub(crate) fn survey(span: Span, write: bool) -> Option<(u64, u32)> {
    let mut address = 0;
    // SAFETY: Called by a task with an address space.
    let reason = unsafe {
        helpers::pinmap_survey(
            span.start() as usize,
            span.last() as usize,
            write,
            &mut address,
        )
    };
    (reason != uapi::PINMAP_FAIL_NONE).then_some((address, reason))
}
