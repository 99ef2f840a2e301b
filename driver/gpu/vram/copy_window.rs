// SPDX-License-Identifier: GPL-2.0
//! Windows: addresses on the bus where the driver's engine reaches pages of the host.
//!
//! Pages of a copy are contiguous in a window, whatever they are in memory. They are mapped there
//! for as long as the copy takes. To map and unmap single pages costs more than to copy them, so
//! scattered ones are copied by the CPU, to or from a *bounce buffer* that stays mapped. Pages of a
//! peer are always mapped.

use super::mover::{joined, on_bus, Move};
use crate::{
    address_space::{AddressSpace, IovaRange},
    logic::{block::PAGES, place::Placement, pte::LARGE, request::Target, span::Span, PAGE_SIZE},
    mmu::DmaControl,
    sys::{iommu::Lender, mm::bounce::Bounce, task},
};
use core::{iter, mem};
use kernel::{
    prelude::*,
    sync::{atomic::Atomic, Arc},
};

/// How many blocks can be copied, or wait for that, at the same time.
pub(super) const WINDOWS: usize = 4;
/// Pages of a run, on average, from which on runs are mapped.
const MAPPED: u64 = 8;

/// Parts that all windows have in common.
pub(super) struct Bus {
    range: IovaRange,
    dma_control: Arc<dyn DmaControl>,
    /// Copies up to this number may have failed, if they were not looked at before.
    pub(super) failed: Atomic<u64>,
    /// Copies up to this number are not made any more, whatever the device says.
    pub(super) given_up: Atomic<u64>,
}

impl Bus {
    /// Unmaps what was mapped at `spans`. If that fails, all DMA is blocked: whoever has the pages
    /// may let go of them.
    fn unmap(&self, lender: &Lender, spans: impl Iterator<Item = Span>) -> Result {
        let result = lender.unmap(spans);
        if result.is_err() {
            self.dma_control.clone().block_dma();
        }
        result
    }
}

/// A bounce buffer, mapped at its addresses.
struct Mapped {
    bus: Arc<Bus>,
    lender: Lender,
    span: Span,
    buffer: Bounce,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.bus.unmap(&self.lender, iter::once(self.span));
    }
}

/// How the engine reaches the pages of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// So many runs of them are mapped.
    Runs(usize),
    Bounce,
}

/// A window, of the size of a block of managed memory.
pub(super) struct CopyWindow {
    pub(super) bus: Arc<Bus>,
    /// The first page of it, counted in all windows.
    first: u64,
    /// Keeps the IOMMU's page table, from the first copy on until the window [rests](Self::rest).
    lender: Option<Lender>,
    /// Made when it is needed first.
    bounce: Option<Mapped>,
    reach: Reach,
}

impl CopyWindow {
    /// Makes all windows. Sleeps.
    pub(super) fn all(space: &Arc<AddressSpace>) -> Result<KVec<Self>> {
        let packed = Target {
            placement: Placement::Packed(0),
            address_bits: u64::BITS,
        };
        // Each has a second block, for its bounce buffer.
        let bytes = LARGE.saturating_mul(2).saturating_mul(WINDOWS as u64);
        let range = IovaRange::take(space, bytes, packed).map_err(|failure| failure.errno)?;
        let bus = Arc::new(
            Bus {
                dma_control: space.dma_control().clone(),
                range,
                failed: Atomic::new(0),
                given_up: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;
        let mut windows = KVec::with_capacity(WINDOWS, GFP_KERNEL)?;
        for first in (0..).step_by(2 * PAGES).take(WINDOWS) {
            let window = Self {
                bus: bus.clone(),
                first,
                lender: None,
                bounce: None,
                reach: Reach::Runs(0),
            };
            windows.push_within_capacity(window).map_err(|_| ENOMEM)?;
        }
        Ok(windows)
    }

    /// Makes a lender for all windows. Sleeps.
    pub(super) fn lender(space: &Arc<AddressSpace>, bus: &Bus) -> Result<Lender> {
        Lender::new(space.domain(), bus.range.span())
    }

    /// Has the window use what `lender` uses, from its first copy on.
    pub(super) fn use_lender(&mut self, lender: &Lender) {
        self.lender.get_or_insert_with(|| lender.another());
    }

    /// Gives back what stays between copies. A copy needs a lender again.
    pub(super) fn rest(&mut self) {
        self.bounce = None;
        self.lender = None;
    }

    /// Returns the address of page `page` of the copy that the window is open for.
    pub(super) fn address(&self, page: u64) -> u64 {
        let bounce = match self.reach {
            Reach::Bounce => PAGES as u64,
            Reach::Runs(_) => 0,
        };
        let pages = self.first.saturating_add(bounce).saturating_add(page);
        let offset = pages.saturating_mul(PAGE_SIZE);
        self.bus.range.span().start().saturating_add(offset)
    }

    /// Returns the addresses of `pages` pages of it.
    fn part(&self, page: u64, pages: u64) -> Option<Span> {
        let bytes = pages.checked_mul(PAGE_SIZE)?;
        let part = Span::new(self.address(page), bytes).ok()?;
        self.bus.range.span().covers(part).then_some(part)
    }

    /// Has the engine reach the pages of `moves`: to read them if they go to VRAM, else to write
    /// them. [`close`](Self::close) it in any case.
    #[allow(unsafe_code, reason = "what is lent for a copy is known here alone")]
    pub(super) fn open(&mut self, moves: &[Move], to_vram: bool) -> Result {
        self.reach = Reach::Runs(0);
        let pages = moves.iter().map(|run| run.pages);
        let pages = pages.fold(0, u64::saturating_add);
        let runs = joined(moves, on_bus).count() as u64;
        let is_scattered = pages < runs.saturating_mul(MAPPED);
        if is_scattered && !moves.iter().any(|run| run.peer) && self.make_bounce() {
            self.reach = Reach::Bounce;
            return if to_vram {
                self.each_page(moves, |buffer, place, from| {
                    // SAFETY: By the invariants of `Move`.
                    unsafe { buffer.fill(place, from) }
                })
            } else {
                Ok(())
            };
        }
        let lender = self.lender.as_ref().ok_or(EIO)?;
        let mut mapped = 0_usize;
        for (first, run) in joined(moves, on_bus) {
            let span = self.part(first, run.pages).ok_or(EINVAL)?;
            if run.peer {
                // SAFETY: By the invariants of `Move`; `close()` unmaps it before the copies end.
                unsafe { lender.map_peer(span, run.pfn)? };
            } else {
                // SAFETY: As above.
                unsafe { lender.map(span, run.pfn, !to_vram)? };
            }
            mapped = mapped.saturating_add(1);
            self.reach = Reach::Runs(mapped);
        }
        Ok(())
    }

    /// Ends what [`open`](Self::open) began with the same `moves`, when the engine is not at it any
    /// more. `copied`: it has copied everything, which is passed on to the pages.
    #[allow(unsafe_code, reason = "what is lent for a copy is known here alone")]
    pub(super) fn close(&mut self, moves: &[Move], to_vram: bool, copied: bool) -> Result {
        match mem::replace(&mut self.reach, Reach::Runs(0)) {
            Reach::Bounce if copied && !to_vram => self.each_page(moves, |buffer, place, to| {
                // SAFETY: By the invariants of `Move`.
                unsafe { buffer.empty(place, to) }
            }),
            Reach::Bounce => Ok(()),
            Reach::Runs(mapped) => {
                let runs = joined(moves, on_bus).take(mapped);
                let runs = runs.filter_map(|(first, run)| self.part(first, run.pages));
                let lender = self.lender.as_ref().ok_or(EIO)?;
                self.bus.unmap(lender, runs)
            }
        }
    }

    /// Returns whether it has a bounce buffer.
    fn make_bounce(&mut self) -> bool {
        if self.bounce.is_none() {
            self.bounce = self.map_bounce().ok();
        }
        self.bounce.is_some()
    }

    #[allow(unsafe_code, reason = "what is lent for a copy is known here alone")]
    fn map_bounce(&self) -> Result<Mapped> {
        let page = PAGES as u64;
        let span = self.part(page, page).ok_or(EINVAL)?;
        let buffer = Bounce::new()?;
        let lender = self.lender.as_ref().ok_or(EIO)?.another();
        // SAFETY: What owns the buffer unmaps it before it frees it.
        unsafe { lender.map(span, buffer.pfn(), true)? };
        Ok(Mapped {
            bus: self.bus.clone(),
            lender,
            span,
            buffer,
        })
    }

    /// Calls `copy` for the pages of `moves`: with their places in the bounce buffer, and their
    /// page frames.
    fn each_page(&self, moves: &[Move], copy: fn(&Bounce, u64, u64) -> Result) -> Result {
        let bounce = self.bounce.as_ref().ok_or(EINVAL)?;
        let pages = moves
            .iter()
            .flat_map(|run| (0..run.pages).map(|page| run.pfn.saturating_add(page)));
        for (place, pfn) in (0..PAGES as u64).zip(pages) {
            copy(&bounce.buffer, place, pfn)?;
            task::cond_resched();
        }
        Ok(())
    }
}
