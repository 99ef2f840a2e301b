// SPDX-License-Identifier: GPL-2.0
//! Mapping runs in a domain: from the front on, and if there are many, another processor begins at the
//! back meanwhile.
//!
//! Entering a run that is a single page takes longer than pinning it, all of it in the IOMMU driver's
//! page tables; and those may be changed by several processors at once, as long as the addresses differ.

use super::Use;
use crate::{
    logic::{
        runs::{self, Run},
        span::Span,
        PAGE_SIZE,
    },
    sys::{
        gup::Frames,
        helpers,
        pages::{Pages, BLOCK},
        task, work,
    },
};
use kernel::{
    bindings, ffi,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Entries of a scatterlist, by which runs are mapped: an IOMMU that has to be told of what is mapped is
/// told once for all of them.
type Window = [bindings::scatterlist];

/// Runs for which no memory needs to be allocated.
const FEW: usize = 4;
/// From so many blocks of runs on, another processor helps.
const SHARED: usize = 3;

/// What is mapped, without a gap.
#[derive(Default)]
pub(super) struct Part {
    /// In bytes.
    pub(super) length: u64,
    /// Of the IOMMU's cache, so far.
    pub(super) flushes: u64,
    /// More may be mapped, and could not be taken away.
    pub(super) stuck: bool,
    /// This was mapped, too, and was taken away.
    pub(super) undone: Option<Span>,
}

/// What two processors map at once.
struct Filling<'a> {
    table: &'a Use,
    frames: Frames,
    pages: &'a dyn Pages,
    write: bool,
    /// Blocks that somebody has begun: so many at the front and at the back together.
    begun: Atomic<usize>,
    stopped: Atomic<bool>,
}

impl Filling<'_> {
    /// Whether one more block is left, at whichever end; it is the caller's then.
    fn begin(&self) -> bool {
        !self.stopped.load(Relaxed) && self.begun.fetch_add(1, Relaxed) < self.pages.blocks()
    }

    /// Maps the block `index` and those behind it, as long as there is `another` and it is `wanted`. All
    /// before are mapped, from `start` on. Sleeps.
    fn fill_front(
        &self,
        start: u64,
        window: &mut Window,
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
            self.map(at, self.pages.block(*index), gfp, window, part)?;
            *index = index.saturating_add(1);
        }
        Ok(())
    }

    /// The same from the end of `whole` on, backwards, for another task: it must not be what keeps that
    /// task from being killed, and gives up instead. `index` becomes that of the first block that is
    /// mapped.
    fn fill_back(
        &self,
        whole: Span,
        window: &mut Window,
        part: &mut Part,
        index: &mut usize,
    ) -> Result {
        // SAFETY: It only tells a number.
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
            self.map(at, block, gfp, window, part)?;
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
        window: &mut Window,
        part: &mut Part,
    ) -> Result {
        const _: () = assert!(runs::MAX_PAGES * PAGE_SIZE <= u32::MAX as u64);
        let window = window.get_mut(..block.len()).ok_or(EINVAL)?;
        for (entry, run) in window.iter_mut().zip(block) {
            // As sg_set_page(): no chain, no end, no offset.
            entry.page_link = self.frames.page(run.pfn()).addr();
            entry.length = run.pages().wrapping_mul(PAGE_SIZE) as u32;
        }
        let mut prot = bindings::IOMMU_READ;
        if self.write {
            prot |= bindings::IOMMU_WRITE;
        }
        if self.table.domain.coherent {
            prot |= bindings::IOMMU_CACHE;
        }
        let domain = self.table.table.as_ptr();
        // SAFETY: The domain is valid; the entries describe pages that are kept, and none chains or ends
        // the list before `window.len()`.
        let bytes = unsafe {
            bindings::iommu_map_sg(
                domain,
                at as usize,
                window.as_mut_ptr(),
                window.len() as u32,
                prot as ffi::c_int,
                gfp,
            )
        };
        if bytes < 0 {
            // On failure the call unmaps what it mapped, and does not look whether that worked.
            // SAFETY: The domain is valid.
            if unsafe { bindings::iommu_iova_to_phys(domain, at) } != 0 {
                self.table.domain.lose(0, PAGE_SIZE);
                part.stuck = true;
            }
            return Err(Error::from_errno(bytes as i32));
        }
        part.length = part.length.saturating_add(bytes.unsigned_abs() as u64);
        part.flushes = part.flushes.saturating_add(1);
        Ok(())
    }
}

fn window(entries: usize) -> Result<KVVec<bindings::scatterlist>> {
    let entry = bindings::scatterlist::default();
    Ok(KVVec::from_elem(entry, entries, GFP_KERNEL)?)
}

impl Use {
    /// Maps `pages` from `start` on, one after the other, as long as it is `wanted`. Counts in `part` what
    /// is mapped, also on failure. Sleeps.
    pub(super) fn fill(
        &self,
        start: u64,
        pages: &dyn Pages,
        write: bool,
        wanted: impl Fn() -> Result,
        part: &mut Part,
    ) -> Result {
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
        let mut entries_here = window(entries)?;
        // Without memory for a helper it goes without one.
        let helper = (blocks >= SHARED).then(|| window(entries).ok()).flatten();
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
                let window = &mut entries_here;
                result = filling.fill_front(start, window, &wanted, part, &mut front, another);
                if result.is_err() {
                    filling.stopped.store(true, Relaxed);
                }
            },
            &mut || {
                // What it leaves is done here.
                let _ = filling.fill_back(whole, &mut entries_there, &mut back, &mut behind);
            },
        );
        part.flushes = part.flushes.saturating_add(back.flushes);
        part.stuck |= back.stuck;
        if part.stuck {
            result = result.and(Err(EIO));
        }
        let another = |index| index < behind;
        let window = &mut entries_here;
        result = result
            .and_then(|()| filling.fill_front(start, window, &wanted, part, &mut front, another));
        if result.is_ok() {
            part.length = part.length.saturating_add(back.length);
            return Ok(());
        }
        // What is mapped is to have no gap.
        if let Some(mapped) = whole.tail(back.length) {
            part.flushes = part.flushes.saturating_add(1);
            part.stuck |= self.unmap(mapped.start(), mapped.length()).is_err();
            part.undone = Some(mapped);
        }
        result
    }
}
