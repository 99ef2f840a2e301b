// SPDX-License-Identifier: GPL-2.0
//! Maps runs in a domain, block by block.

use super::mapped::Use;
use crate::{
    logic::{
        runs::{self, Run},
        PAGE_SHIFT, PAGE_SIZE,
    },
    sys::{
        mm::{
            gup::Frames,
            pages::{Origin, Pages, BLOCK},
        },
        task,
    },
};
use kernel::{bindings, error::to_result, ffi, prelude::*};

/// Entries of a scatterlist. Mapping many runs with one call tells the IOMMU once, instead of once
/// for each run.
type Scatterlist = [bindings::scatterlist];

/// Bytes after which a call ends, whatever runs are left of its block. Where the IOMMU must be told
/// of new mappings (caching mode), the processor waits for the hypervisor to look at all of them,
/// with interrupts off.
const AT_ONCE: u64 = 64 << 20;

/// Runs that are mapped without allocating memory.
const FEW: usize = 4;

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

    /// The permissions and attributes of a mapping of another device's memory.
    fn prot_of_device(write: bool) -> ffi::c_int {
        let mut prot = bindings::IOMMU_READ | bindings::IOMMU_MMIO;
        if write {
            prot |= bindings::IOMMU_WRITE;
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
    fn map_run(&self, at: u64, run: Run, prot: ffi::c_int, part: &mut Part) -> Result {
        let (from, bytes) = (run.pfn() << PAGE_SHIFT, run.pages() << PAGE_SHIFT);
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

    /// Maps the first runs of `block` at `at`, with one flush for all of them. `list` has an entry
    /// for each run of the block. Returns how many they were.
    fn map_block(
        &self,
        at: u64,
        block: &[Run],
        frames: Frames,
        write: bool,
        list: &mut Scatterlist,
        part: &mut Part,
    ) -> Result<usize> {
        const _: () = assert!(runs::MAX_PAGES * PAGE_SIZE <= u32::MAX as u64);
        let (mut count, mut wanted) = (0_usize, 0_u64);
        for (entry, run) in list.iter_mut().zip(block) {
            // Does what sg_set_page() does: the entry is no chain, not the end, and has no offset.
            entry.page_link = frames.page(run.pfn()).addr();
            entry.length = run.pages().wrapping_mul(PAGE_SIZE) as u32;
            count = count.wrapping_add(1);
            wanted = wanted.wrapping_add(entry.length.into());
            if wanted >= AT_ONCE {
                break;
            }
        }
        let list = list.get_mut(..count).ok_or(EINVAL)?;
        // SAFETY: The page table is valid. The entries describe pages
        // that are kept; none of them chains or ends the list before `list.len()`.
        let bytes = unsafe {
            bindings::iommu_map_sg(
                self.table(),
                at as usize,
                list.as_mut_ptr(),
                list.len() as u32,
                self.prot(write),
                bindings::GFP_KERNEL_ACCOUNT,
            )
        };
        if bytes < 0 {
            self.check_undone(at, part);
            return Err(Error::from_errno(bytes as i32));
        }
        part.length = part.length.saturating_add(bytes.unsigned_abs() as u64);
        part.flushes = part.flushes.saturating_add(1);
        Ok(count)
    }

    /// Lets others run. Fails after a fatal signal, and when `wanted` does.
    fn pause(wanted: &impl Fn() -> Result) -> Result {
        task::cond_resched();
        if task::fatal_signal_pending() {
            return Err(EINTR);
        }
        wanted()
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
        if !matches!(pages.origin(), Origin::Host) {
            let prot = Self::prot_of_device(write);
            return pages.each(&mut |run| {
                if part.length != 0 {
                    Self::pause(&wanted)?;
                }
                let at = start.saturating_add(part.length);
                self.map_run(at, run, prot, part)
            });
        }
        if let Some(run) = pages.single() {
            return self.map_run(start, run, self.prot(write), part);
        }
        let blocks = pages.blocks();
        let entries = if blocks > 1 {
            BLOCK
        } else {
            pages.block(0).len()
        };
        let mut few = [bindings::scatterlist::default(); FEW];
        let mut many;
        let list = if entries <= FEW {
            &mut few[..]
        } else {
            let entry = bindings::scatterlist::default();
            many = KVVec::from_elem(entry, entries, GFP_KERNEL)?;
            &mut many[..]
        };
        let frames = Frames::new();
        for index in 0..blocks {
            let mut block = pages.block(index);
            while !block.is_empty() {
                if part.length != 0 {
                    Self::pause(&wanted)?;
                }
                let at = start.saturating_add(part.length);
                let mapped = self.map_block(at, block, frames, write, list, part)?;
                block = block.get(mapped..).unwrap_or_default();
            }
        }
        Ok(())
    }
}
