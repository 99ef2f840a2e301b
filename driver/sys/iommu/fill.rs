// SPDX-License-Identifier: GPL-2.0
//! Maps runs in a domain: from the front on, and if there are many, another CPU maps from the back
//! at the same time.
//!
//! To enter a run of a single page takes longer than to pin the page. All of that time is spent in
//! the IOMMU driver's page tables, which several CPUs may change at once, as long as the addresses
//! differ. Measured: 1.3 times as fast with two.

use super::mapped::Use;
use crate::{
    logic::{
        runs::{self, Run},
        span::Span,
        PAGE_SHIFT, PAGE_SIZE,
    },
    sys::{
        helpers,
        mm::{
            gup::Frames,
            pages::{Pages, BLOCK},
        },
        task,
        task::work,
    },
};
use kernel::{
    bindings,
    error::to_result,
    ffi,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Entries of a scatterlist. Mapping many runs with one call tells the IOMMU once, instead of once
/// for each run.
type Scatterlist = [bindings::scatterlist];

/// Runs that are mapped without allocating memory.
const FEW: usize = 4;
/// Number of blocks from which on another CPU helps.
const SHARED: usize = 3;

/// The contiguous part of a range that is mapped so far.
#[derive(Default)]
pub(super) struct Part {
    /// Length in bytes.
    pub(super) length: u64,
    /// How often the IOMMU's cache was flushed.
    pub(super) flushes: u64,
    /// More may be mapped, and could not be unmapped.
    pub(super) stuck: bool,
}

/// State that two CPUs share while they map one buffer.
struct Filling<'a> {
    table: &'a Use,
    frames: Frames,
    pages: &'a dyn Pages,
    write: bool,
    /// Blocks that were begun, at the front and at the back together.
    begun: Atomic<usize>,
    stopped: Atomic<bool>,
}

impl Filling<'_> {
    /// Claims one more block for the caller, at either end; `false` if none is left.
    fn begin(&self) -> bool {
        !self.stopped.load(Relaxed) && self.begun.fetch_add(1, Relaxed) < self.pages.blocks()
    }

    /// Maps the block `index` and the blocks behind it, as long as `another` says so and `wanted`
    /// does not fail. All blocks before `index` are mapped, from `start` on. Sleeps.
    fn fill_front(
        &self,
        start: u64,
        list: &mut Scatterlist,
        wanted: impl Fn() -> Result,
        part: &mut Part,
        index: &mut usize,
        another: impl Fn(usize) -> bool,
    ) -> Result {
        while another(*index) {
            if *index != 0 {
                task::cond_resched();
                if task::fatal_signal_pending() {
                    return Err(EINTR);
                }
                wanted()?;
            }
            let at = start.saturating_add(part.length);
            let gfp = bindings::GFP_KERNEL_ACCOUNT;
            self.map(at, self.pages.block(*index), gfp, list, part)?;
            *index = index.saturating_add(1);
        }
        Ok(())
    }

    /// Maps blocks from the end of `whole` on, backwards, on behalf of another task. A failed
    /// allocation ends it, rather than the OOM killer, and the other task does the rest. `index`
    /// becomes that of the first block that is mapped.
    fn fill_back(
        &self,
        whole: Span,
        list: &mut Scatterlist,
        part: &mut Part,
        index: &mut usize,
    ) -> Result {
        // SAFETY: The call only returns flags.
        let gfp = unsafe { helpers::pinmap_gfp_for_another() };
        while self.begin() {
            let before = index.saturating_sub(1);
            let block = self.pages.block(before);
            let bytes = block
                .iter()
                .map(|run| run.pages())
                .fold(0, u64::saturating_add);
            let bytes = bytes.saturating_mul(PAGE_SIZE);
            let mapped = whole.tail(part.length.saturating_add(bytes));
            let at = mapped.ok_or(EINVAL)?.start();
            self.map(at, block, gfp, list, part)?;
            *index = before;
            task::cond_resched();
        }
        Ok(())
    }

    /// Maps `block` at `at`, with one flush for all of it.
    fn map(
        &self,
        at: u64,
        block: &[Run],
        gfp: bindings::gfp_t,
        list: &mut Scatterlist,
        part: &mut Part,
    ) -> Result {
        const _: () = assert!(runs::MAX_PAGES * PAGE_SIZE <= u32::MAX as u64);
        let list = list.get_mut(..block.len()).ok_or(EINVAL)?;
        for (entry, run) in list.iter_mut().zip(block) {
            // Does what sg_set_page() does: the entry is no chain, not the end, and has no offset.
            entry.page_link = self.frames.page(run.pfn()).addr();
            entry.length = run.pages().wrapping_mul(PAGE_SIZE) as u32;
        }
        let prot = self.table.prot(self.write);
        let domain = self.table.table();
        // SAFETY: The page table is valid. The entries describe pages
        // that are kept; none of them chains or ends the list before `list.len()`.
        let bytes = unsafe {
            bindings::iommu_map_sg(
                domain,
                at as usize,
                list.as_mut_ptr(),
                list.len() as u32,
                prot,
                gfp,
            )
        };
        if bytes < 0 {
            self.table.check_undone(at, part);
            return Err(Error::from_errno(bytes as i32));
        }
        part.length = part.length.saturating_add(bytes.unsigned_abs() as u64);
        part.flushes = part.flushes.saturating_add(1);
        Ok(())
    }
}

fn scatterlist(entries: usize) -> Result<KVVec<bindings::scatterlist>> {
    let entry = bindings::scatterlist::default();
    Ok(KVVec::from_elem(entry, entries, GFP_KERNEL)?)
}

impl Use {
    /// The permissions and attributes of a mapping.
    pub(super) fn prot(&self, write: bool) -> ffi::c_int {
        let mut prot = bindings::IOMMU_READ;
        if write {
            prot |= bindings::IOMMU_WRITE;
        }
        if self.domain.coherent {
            prot |= bindings::IOMMU_CACHE;
        }
        prot as ffi::c_int
    }

    /// Looks whether anything is mapped at `at` after a call has failed to map there. Such a call
    /// unmaps what it has mapped, and does not check whether that worked.
    fn check_undone(&self, at: u64, part: &mut Part) {
        // SAFETY: The page table is valid.
        if unsafe { bindings::iommu_iova_to_phys(self.table(), at) } != 0 {
            self.domain.lose(0, PAGE_SIZE);
            part.stuck = true;
        }
    }

    /// Maps a single run, without a list.
    fn map_run(&self, at: u64, run: Run, write: bool, part: &mut Part) -> Result {
        let (from, bytes) = (run.pfn() << PAGE_SHIFT, run.pages() << PAGE_SHIFT);
        let prot = self.prot(write);
        // SAFETY: The page table is valid, and the pages are kept.
        let error = unsafe {
            bindings::iommu_map(
                self.table(),
                at as usize,
                from,
                bytes as usize,
                prot,
                bindings::GFP_KERNEL_ACCOUNT,
            )
        };
        if error != 0 {
            self.check_undone(at, part);
            return to_result(error);
        }
        part.length = part.length.saturating_add(bytes);
        part.flushes = part.flushes.saturating_add(1);
        Ok(())
    }

    /// Maps `pages` from `start` on, as long as `wanted` does not fail. Counts in `part` what is
    /// mapped, also on failure. Sleeps.
    pub(super) fn fill(
        &self,
        start: u64,
        pages: &dyn Pages,
        write: bool,
        wanted: impl Fn() -> Result,
        part: &mut Part,
    ) -> Result {
        if let Some(run) = pages.single() {
            return self.map_run(start, run, write, part);
        }
        let filling = Filling {
            table: self,
            frames: Frames::new(),
            pages,
            write,
            begun: Atomic::new(0),
            stopped: Atomic::new(false),
        };
        let blocks = pages.blocks();
        let mut front = 0;
        let entries = if blocks > 1 {
            BLOCK
        } else {
            pages.block(0).len()
        };
        if entries <= FEW {
            let mut few = [bindings::scatterlist::default(); FEW];
            let another = |index| index < blocks;
            return filling.fill_front(start, &mut few, wanted, part, &mut front, another);
        }
        let mut entries_here = scatterlist(entries)?;
        // If there is no memory for a helper's entries, this CPU does all.
        let helper = (blocks >= SHARED)
            .then(|| scatterlist(entries).ok())
            .flatten();
        let Some(mut entries_there) = helper else {
            let another = |index| index < blocks;
            return filling.fill_front(start, &mut entries_here, wanted, part, &mut front, another);
        };
        let length = pages.pages().saturating_mul(PAGE_SIZE);
        let whole = Span::new(start, length).map_err(|_| EINVAL)?;
        let (mut back, mut behind) = (Part::default(), blocks);
        let mut result = Ok(());
        work::beside(
            &mut || {
                let another = |_| filling.begin();
                let list = &mut entries_here;
                result = filling.fill_front(start, list, &wanted, part, &mut front, another);
                if result.is_err() {
                    filling.stopped.store(true, Relaxed);
                }
            },
            &mut || {
                // What the helper leaves is mapped below.
                let _ = filling.fill_back(whole, &mut entries_there, &mut back, &mut behind);
            },
        );
        part.flushes = part.flushes.saturating_add(back.flushes);
        part.stuck |= back.stuck;
        if part.stuck {
            result = result.and(Err(EIO));
        }
        let another = |index| index < behind;
        let list = &mut entries_here;
        result = result
            .and_then(|()| filling.fill_front(start, list, &wanted, part, &mut front, another));
        if result.is_ok() {
            part.length = part.length.saturating_add(back.length);
            return Ok(());
        }
        // What stays mapped must have no gap, so the back is unmapped.
        if let Some(mapped) = whole.tail(back.length) {
            part.flushes = part.flushes.saturating_add(1);
            part.stuck |= self.unmap(mapped.start(), mapped.length()).is_err();
            self.note(mapped);
        }
        result
    }
}
