// SPDX-License-Identifier: GPL-2.0
//! Pinning user pages for DMA.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h); rules:
//! `Documentation/core-api/pin_user_pages.rst`.

use super::{account::Charge, raw};
use crate::logic::{runs::Run, span::Span, PAGE_SIZE};
use core::ptr::{self, NonNull};
use kernel::{
    bindings,
    error::to_result,
    ffi,
    mm::{Mm, MmWithUser},
    prelude::*,
};

type PagePtr = *mut bindings::page;

#[cfg(not(CONFIG_SPARSEMEM_VMEMMAP))]
compile_error!(
    "runs are found by comparing addresses of struct page: CONFIG_SPARSEMEM_VMEMMAP is needed"
);

const _: () = assert!(crate::logic::PAGE_SHIFT as usize == kernel::page::PAGE_SHIFT);

/// Room for the pages of one chunk.
///
/// # Invariants
///
/// The first `pinned` entries are pages that we hold a long-term pin of.
pub(crate) struct Chunk {
    pages: KVec<PagePtr>,
    pinned: usize,
    write: bool,
}

impl Chunk {
    /// Room for `pages` pages; `write`: they will be written to.
    pub(crate) fn new(pages: usize, write: bool) -> Result<Self> {
        let pages = KVec::from_elem(ptr::null_mut(), pages, GFP_KERNEL)?;
        // INVARIANT: None is pinned.
        Ok(Self {
            pages,
            pinned: 0,
            write,
        })
    }

    /// Pins pages of the current task from `address` on: up to `want`, what fits, and what the first
    /// obstacle leaves. The chunk must be empty. Returns how many, at least 1.
    pub(crate) fn pin(&mut self, address: u64, want: u64) -> Result<usize> {
        if self.pinned != 0 {
            return Err(EBUSY);
        }
        let want = self
            .pages
            .len()
            .min(usize::try_from(want).unwrap_or(usize::MAX));
        let flags = bindings::FOLL_LONGTERM | if self.write { bindings::FOLL_WRITE } else { 0 };
        // SAFETY: There is room for `want` pointers.
        let got = unsafe {
            bindings::pin_user_pages_fast(
                address as usize,
                want as ffi::c_int,
                flags,
                self.pages.as_mut_ptr(),
            )
        };
        to_result(got)?;
        // INVARIANT: So many are pinned.
        self.pinned = got.unsigned_abs() as usize;
        if self.pinned == 0 {
            return Err(EFAULT);
        }
        Ok(self.pinned)
    }

    /// Empties the chunk into `store`, as runs of neighbouring pages. If `store` fails, the rest is
    /// unpinned.
    ///
    /// Each page is compared with the one before it. Looking at the ends of a huge page only would
    /// be wrong: any page in the middle may have been replaced, and is then another one.
    pub(crate) fn take_runs(&mut self, mut store: impl FnMut(Run) -> Result) -> Result {
        let mut done = 0;
        while let Some((&first, rest)) = self
            .pages
            .get(done..self.pinned)
            .and_then(<[_]>::split_first)
        {
            let mut expected = first;
            let neighbours = rest
                .iter()
                .take_while(|&&page| {
                    expected = expected.wrapping_add(1);
                    ptr::eq(page, expected)
                })
                .count();
            let pages = neighbours.saturating_add(1);
            // SAFETY: `first` is a page.
            let pfn = unsafe { raw::pinmap_page_to_pfn(first) } as u64;
            if let Err(error) = Run::new(pfn, pages as u64)
                .ok_or(ERANGE)
                .and_then(&mut store)
            {
                self.unpin(done);
                return Err(error);
            }
            done = done.saturating_add(pages);
        }
        // INVARIANT: All of them went to `store`, which is responsible for them now.
        self.pinned = 0;
        Ok(())
    }

    /// Unpins all but the first `keep` pages, which went elsewhere.
    fn unpin(&mut self, keep: usize) {
        if let Some(pages) = self.pages.get_mut(keep..self.pinned) {
            // SAFETY: Pinned by the type invariants. Nothing was written through them.
            unsafe { bindings::unpin_user_pages(pages.as_mut_ptr(), pages.len()) };
        }
        // INVARIANT: None is left.
        self.pinned = 0;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.unpin(0);
    }
}

/// Pages of short runs on their way to being unpinned together: faster than run by run, and no
/// allocation, since releasing must not fail.
struct Unpinner {
    pages: [PagePtr; Unpinner::ROOM],
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
        // SAFETY: A pinned run consists of pages.
        let first = unsafe { raw::pinmap_pfn_to_page(run.pfn() as usize) };
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
                breathe();
            }
            return;
        }
        for index in 0..run.pages() as usize {
            if self.filled == Self::ROOM {
                self.flush();
            }
            if let Some(slot) = self.pages.get_mut(self.filled) {
                *slot = first.wrapping_add(index);
                self.filled = self.filled.saturating_add(1);
            }
        }
    }

    fn flush(&mut self) {
        // SAFETY: The first `filled` pages are pinned and not used any more.
        unsafe {
            bindings::unpin_user_pages_dirty_lock(self.pages.as_mut_ptr(), self.filled, self.dirty)
        };
        self.filled = 0;
        breathe();
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
    let mut unpinner = Unpinner {
        pages: [ptr::null_mut(); Unpinner::ROOM],
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
    /// Blocks of at most a page, so that nothing is ever copied to grow.
    blocks: KVVec<KVec<Run>>,
    pages: u64,
    write: bool,
    _charge: Charge,
}

impl PinnedRuns {
    /// Runs in a block.
    const BLOCK: usize = PAGE_SIZE as usize / size_of::<Run>();

    /// None yet, paid for by `charge`.
    pub(crate) fn new(write: bool, charge: Charge) -> Self {
        // INVARIANT: Empty.
        Self {
            blocks: KVVec::new(),
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
        if let Some(last) = self.blocks.last_mut().and_then(|block| block.last_mut()) {
            if let Some(joined) = last.join(run) {
                *last = joined;
                self.pages = self.pages.saturating_add(run.pages());
                return Ok(());
            }
        }
        let full = self
            .blocks
            .last()
            .is_none_or(|block| block.len() == Self::BLOCK);
        if full {
            // The first block is small, since most registrations have few runs.
            let room = if self.blocks.is_empty() {
                4
            } else {
                Self::BLOCK
            };
            self.blocks.push(
                KVec::with_capacity(room, GFP_KERNEL_ACCOUNT)?,
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        let block = self.blocks.last_mut().ok_or(ENOMEM)?;
        block.push(run, GFP_KERNEL_ACCOUNT)?;
        self.pages = self.pages.saturating_add(run.pages());
        Ok(())
    }

    /// Pages in all runs.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether they were pinned for writing.
    pub(crate) fn writable(&self) -> bool {
        self.write
    }

    /// The runs, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.blocks.iter().flat_map(|block| block.iter().copied())
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
        return raw::PINMAP_FAIL_HOLE;
    };
    let lock = mm.mmap_read_lock();
    match lock.vma_lookup(address as usize) {
        // SAFETY: The area is valid as long as the lock is held.
        Some(area) => unsafe { raw::pinmap_explain(area.as_ptr(), write) },
        None => raw::PINMAP_FAIL_HOLE,
    }
}

/// The last address that user space has.
pub(crate) fn user_last() -> u64 {
    // SAFETY: No requirements.
    (unsafe { raw::pinmap_task_size() } as u64).saturating_sub(1)
}

/// Lets others run; in loops whose length user space chooses.
pub(crate) fn breathe() {
    // SAFETY: May sleep here, as the callers say of themselves.
    unsafe { raw::pinmap_cond_resched() };
}

/// Whether a fatal signal waits for the current task.
pub(crate) fn must_die() -> bool {
    // SAFETY: No requirements.
    unsafe { raw::pinmap_fatal_signal_pending() }
}

/// Whether any signal waits for the current task.
pub(crate) fn has_signal() -> bool {
    // SAFETY: No requirements.
    unsafe { raw::pinmap_signal_pending() }
}

/// The first address in `span` of the current task that could not be pinned, as far as its areas tell,
/// and why: a `PINMAP_FAIL_` reason. Touches nothing.
pub(crate) fn survey(span: Span, write: bool) -> Option<(u64, u32)> {
    let mut address = 0;
    // SAFETY: Called by a task with an address space.
    let reason = unsafe {
        raw::pinmap_survey(
            span.start() as usize,
            span.last() as usize,
            write,
            &mut address,
        )
    };
    (reason != raw::PINMAP_FAIL_NONE).then_some((address, reason))
}

/// An inode, with a reference.
struct Inode(NonNull<bindings::inode>);

impl Drop for Inode {
    fn drop(&mut self) {
        // SAFETY: We own a reference.
        unsafe { bindings::iput(self.0.as_ptr()) };
    }
}

/// Where a page is that was pinned at some address.
enum Whereabouts {
    /// Still there.
    Here,
    /// Not there, and it will not come back.
    Gone,
    /// Cannot be told now: somebody holds a lock.
    Busy,
}

/// How long to try for a lock before giving up, in steps of a millisecond. User space can hold these
/// locks for as long as it likes, by a FUSE daemon that does not answer; nobody may wait for that.
const PATIENCE_MS: u32 = 200;

/// Whether `page`, pinned at `address` of `mm`, is still what the address means. Gives up, and says
/// no, if that cannot be found out in bounded time. Sleeps.
///
/// A page table that now holds the page, or nothing while the page still belongs to its file, means
/// that nothing happened. A page table that holds another page, or nothing for an anonymous page,
/// means that the memory went away.
///
/// # Safety
///
/// `page` must be pinned.
unsafe fn is_still_at(mm: &Mm, address: u64, page: PagePtr) -> bool {
    for _ in 0..PATIENCE_MS {
        // SAFETY: By the requirements.
        match unsafe { whereabouts(mm, address, page) } {
            Whereabouts::Here => return true,
            Whereabouts::Gone => return false,
            // SAFETY: May sleep here.
            Whereabouts::Busy => unsafe { raw::pinmap_sleep_ms(1) },
        }
    }
    false
}

/// # Safety
///
/// `page` must be pinned.
unsafe fn whereabouts(mm: &Mm, address: u64, page: PagePtr) -> Whereabouts {
    // If it is the last reference, the address space is taken apart later and elsewhere.
    let Some(user) = mm.mmget_not_zero().map(MmWithUser::into_mmput_async) else {
        return Whereabouts::Gone;
    };
    let Some(lock) = user.mmap_read_trylock() else {
        return Whereabouts::Busy;
    };
    match page_at(user.as_raw(), address) {
        Some(found) if ptr::eq(found, page) => return Whereabouts::Here,
        Some(_) => return Whereabouts::Gone,
        None => {}
    }
    // Migration attempts and reclaim empty the page table for as long as they hold the page lock.
    // SAFETY: The page is pinned.
    if !unsafe { raw::pinmap_page_trylock(page) } {
        return Whereabouts::Busy;
    }
    let found = page_at(user.as_raw(), address);
    // SAFETY: The page is pinned and locked.
    let (anonymous, inode) = unsafe {
        let anonymous = raw::pinmap_page_is_anon(page);
        let inode = if found.is_none() && !anonymous {
            NonNull::new(raw::pinmap_page_grab_inode(page)).map(Inode)
        } else {
            None
        };
        raw::pinmap_page_unlock(page);
        (anonymous, inode)
    };
    // The last reference to an inode must not be dropped under the lock.
    drop(lock);
    match (found, inode) {
        (Some(found), _) if ptr::eq(found, page) => Whereabouts::Here,
        // SAFETY: The page is pinned.
        (None, Some(inode)) if !anonymous => unsafe { in_file(&inode, page) },
        _ => Whereabouts::Gone,
    }
}

/// Whether `page` is still a page of `inode`. Truncation and hole punching hold the inode's lock
/// exclusively, from before they tell us to after they have taken the page out of the file.
///
/// # Safety
///
/// `page` must be pinned.
unsafe fn in_file(inode: &Inode, page: PagePtr) -> Whereabouts {
    let inode = inode.0.as_ptr();
    // SAFETY: The inode and the page are valid.
    unsafe {
        if !raw::pinmap_inode_trylock_shared(inode) {
            return Whereabouts::Busy;
        }
        let belongs = raw::pinmap_page_belongs_to(page, inode);
        raw::pinmap_inode_unlock_shared(inode);
        if belongs {
            Whereabouts::Here
        } else {
            Whereabouts::Gone
        }
    }
}

/// The page that the page table holds for `address`, if any, without faulting one in. The result is
/// for comparing only. The mmap lock of `mm` must be held.
fn page_at(mm: *mut bindings::mm_struct, address: u64) -> Option<PagePtr> {
    let mut page = ptr::null_mut();
    let mut locked = 1;
    // FOLL_FORCE, because mprotect(PROT_NONE) does not take a page away. Nothing is read from it.
    // SAFETY: The lock is held, and there is room for one page.
    let got = unsafe {
        bindings::get_user_pages_remote(
            mm,
            address as usize,
            1,
            bindings::FOLL_NOFAULT | bindings::FOLL_FORCE,
            &mut page,
            &mut locked,
        )
    };
    if got != 1 {
        return None;
    }
    // SAFETY: We were given a reference.
    unsafe { raw::pinmap_put_page(page) };
    Some(page)
}

impl PinnedRuns {
    /// Whether the pages, pinned from `start` of `mm` on, are still what these addresses mean, as far
    /// as `range` goes, or `wanted` is not interested any more. In bounded time a page. Sleeps.
    pub(crate) fn are_still_at(
        &self,
        mm: &Mm,
        start: u64,
        range: Span,
        wanted: impl Fn() -> bool,
    ) -> bool {
        let mut at = start;
        for run in self.iter() {
            let Ok(span) = Span::new(at, run.pages().saturating_mul(PAGE_SIZE)) else {
                return false;
            };
            at = at.saturating_add(span.length());
            let Some(part) = span.intersection(range) else {
                continue;
            };
            let skipped = part.start().saturating_sub(span.start()) / PAGE_SIZE;
            // SAFETY: A pinned run consists of pages.
            let first = unsafe { raw::pinmap_pfn_to_page(run.pfn() as usize) };
            for index in 0..part.pages() {
                if !wanted() {
                    return true;
                }
                breathe();
                let page = first.wrapping_add(skipped.saturating_add(index) as usize);
                let address = part.start().saturating_add(index.saturating_mul(PAGE_SIZE));
                // SAFETY: Part of a run that is pinned by the type invariants.
                if !unsafe { is_still_at(mm, address, page) } {
                    return false;
                }
            }
        }
        true
    }
}
