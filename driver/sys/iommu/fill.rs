// SPDX-License-Identifier: GPL-2.0
//! Mapping of runs in a domain: from the front on and, if there are many, by another processor from
//! the back.
//!
//! Mapping a run of a single page takes longer than pinning it, and all of that time is spent in
//! the IOMMU driver's page tables. Several processors may change these at once, if the addresses
//! differ.

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

/// Entries of a scatterlist by which runs are mapped. An IOMMU that needs a notice of new mappings
/// gets one for all of them.
type Window = [bindings::scatterlist];

/// Number of runs for which no memory needs to be allocated.
const FEW: usize = 4;
/// Number of blocks of runs from which on another processor helps.
const SHARED: usize = 3;

/// A part that is mapped without a gap.
#[derive(Default)]
pub(super) struct Part {
    /// Length in bytes.
    pub(super) length: u64,
    /// Flushes of the IOMMU's cache so far.
    pub(super) flushes: u64,
    /// Whether more may be mapped that could not be unmapped.
    pub(super) stuck: bool,
    /// Range that was mapped too, and was unmapped again.
    pub(super) undone: Option<Span>,
}

/// State of a mapping that two processors make.
struct Filling<'a> {
    table: &'a Use,
    frames: Frames,
    pages: &'a dyn Pages,
    write: bool,
    /// Number of blocks that were begun, at the front and at the back together.
    begun: Atomic<usize>,
    stopped: Atomic<bool>,
}

impl Filling<'_> {
    /// Takes one more block, at either end. Returns whether one was left.
    fn begin(&self) -> bool {
        !self.stopped.load(Relaxed) && self.begun.fetch_add(1, Relaxed) < self.pages.blocks()
    }

    /// Maps block `index` and those behind it, while there is `another` and it is `wanted`. All
    /// blocks before it are mapped, from `start` on. Sleeps.
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

    /// Maps blocks backwards from the end of `whole`, for another task. Gives up when memory is
    /// short, since it must not keep that task from being killed. `index` becomes that of the first
    /// block that is mapped.
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
            // As sg_set_page() does: no chain, no end, no offset.
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
        // SAFETY: The domain is valid; the entries describe pages that are kept, and none chains or
        // ends the list before `window.len()`.
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
    /// Maps `pages` from `start` on, one after the other, while it is `wanted`. Counts in `part`
    /// what is mapped, also on failure. Sleeps.
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
        // If there is no memory for a helper, there is none.
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
                // The caller does what the helper leaves.
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
        // The mapped range must have no gap.
        if let Some(mapped) = whole.tail(back.length) {
            part.flushes = part.flushes.saturating_add(1);
            part.stuck |= self.unmap(mapped.start(), mapped.length()).is_err();
            part.undone = Some(mapped);
        }
        result
    }
}
