// SPDX-License-Identifier: GPL-2.0
//! The device as mappings see it: its MMU, if it has one, and control over its DMA.
//!
//! A paged device translates addresses itself, before the IOMMU does. Its page tables are changed
//! in two steps, because the device goes on using what it has cached: entries are cleared and the
//! device is told to forget them (a [`Removal`]), and later it confirms that it has. Only then is
//! the memory unpinned or the addresses used again. [`Entries`] is one mapping's part of that; it
//! outlives the mapping where that was removed by somebody who cannot wait for the device.

use crate::{
    failure::Failure,
    logic::{
        pte::{self, Access},
        span::Span,
    },
    sys::task::account::Charge,
};
use core::mem;
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{Arc, Mutex},
};

/// Control over the DMA of a device that cannot be trusted any more.
pub(crate) trait DmaControl: Send + Sync {
    /// Queues a worker that blocks the device's DMA and takes the device for gone: a mapping could
    /// not be removed. From any context.
    fn schedule_removal(self: Arc<Self>);

    /// Blocks the device's DMA, then does as [`schedule_removal`](Self::schedule_removal). When
    /// this returns, no DMA of the device reaches any memory. Sleeps. A failure is reported to a
    /// program only after this.
    fn block_dma(self: Arc<Self>);
}

/// The MMU of a device, as one of its contexts sees it.
pub(crate) trait Mmu: Send + Sync {
    /// Maps `memory`, contiguous, at `span`, where nothing is mapped. On failure nothing of it is.
    /// Sleeps, and may wait for the device.
    fn enter(&self, span: Span, memory: pte::Memory, access: Access) -> Result<(), Failure>;

    /// The number of page tables that it would take to map memory at `span` now. All are charged.
    /// `EINTR`: a fatal signal came.
    fn tables_due(&self, span: Span) -> Result<u64>;

    /// Fails with `ENOSPC` if so many page tables cannot be had: what is left is for others.
    fn check_tables(&self, count: u64) -> Result;

    /// Unmaps what was entered at `span`, and tells the device to forget it. Sleeps; where the
    /// device has no room for a command, waits until it has, for up to two seconds. `Err`: the
    /// device does not answer.
    fn remove(&self, span: Span) -> Result<Removal>;

    /// Waits until the device has forgotten what `removal` unmapped, and completed all accesses
    /// that it had translated before. `Err`: it did not say so in time.
    fn finish(&self, removal: Removal) -> Result;
}

/// Entries that were cleared, and that the device may use until it confirms that it forgot them.
pub(crate) struct Removal {
    /// The number of the command that was given to the device; `None`: it had nothing to forget.
    pub(crate) command: Option<u64>,
    /// Page tables that became empty.
    pub(crate) tables: RBTree<u64, Table>,
}

/// A page table of a device's MMU.
pub(crate) struct Table {
    /// Offset in VRAM.
    pub(crate) offset: u64,
    /// Number of valid entries, and of those who store to it themselves.
    pub(crate) used: u64,
    /// Whether a giant leaf stands in the table above in place of the entry that leads here. The
    /// entries of this table say the same.
    pub(crate) folded: bool,
    /// Tables of mappings are charged, because a program decides how many there are. Those of
    /// managed memory can be taken away.
    pub(crate) _charge: Option<Charge>,
}

/// How far a removal has come.
enum State {
    Present,
    /// The device was told to forget. Whoever drops the entries has called
    /// [`Entries::remove`]: a mapping does so when it is dropped, and an address range that waits
    /// for the entries ([`IovaRange::leave`](crate::address_space::IovaRange::leave)) as well.
    Leaving(Removal),
    Forgotten,
    /// The device never said whether it has forgotten. Its DMA is blocked.
    Lost,
}

/// The entries of a mapping in a device's MMU. They outlive the mapping until the device has
/// forgotten them.
#[pin_data]
pub(crate) struct Entries {
    mmu: Arc<dyn Mmu>,
    dma_control: Arc<dyn DmaControl>,
    span: Span,
    #[pin]
    state: Mutex<State>,
}

impl Entries {
    /// Maps `memory` at `span` of `mmu`.
    pub(crate) fn new(
        mmu: Arc<dyn Mmu>,
        dma_control: Arc<dyn DmaControl>,
        span: Span,
        memory: pte::Memory,
        access: Access,
    ) -> Result<Arc<Self>, Failure> {
        let this = Arc::pin_init(
            pin_init!(Self {
                mmu,
                dma_control,
                span,
                state <- new_mutex!(State::Present, "pinmap_entries"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        this.mmu.enter(span, memory, access)?;
        Ok(this)
    }

    /// Makes the device begin to forget the entries, once. To be followed by
    /// [`remove`](Self::remove). A caller that removes many begins with all of them first, and so
    /// waits for about as long as for one.
    pub(crate) fn begin_removal(&self) {
        self.begin(&mut self.state.lock());
    }

    fn begin(&self, state: &mut State) {
        if let State::Present = state {
            *state = match self.mmu.remove(self.span) {
                Ok(removal) => State::Leaving(removal),
                Err(_) => self.lose(),
            };
        }
    }

    /// Removes the entries, once. When this returns `Ok`, the device has forgotten them; after an
    /// error its DMA is blocked. Waits for the device: never called in an MMU notifier, nor with a
    /// lock that one takes.
    pub(crate) fn remove(&self) -> Result {
        let mut state = self.state.lock();
        self.begin(&mut state);
        *state = match mem::replace(&mut *state, State::Lost) {
            State::Leaving(removal) => match self.mmu.finish(removal) {
                Ok(()) => State::Forgotten,
                Err(_) => self.lose(),
            },
            state => state,
        };
        match *state {
            State::Lost => Err(EIO),
            _ => Ok(()),
        }
    }

    /// Whether the device has forgotten them, as far as can be told without waiting.
    pub(crate) fn are_forgotten(&self) -> bool {
        let state = self.state.try_lock();
        state.is_some_and(|state| matches!(*state, State::Forgotten))
    }

    /// Blocks the DMA of a device that does not answer: no memory may be let go of before.
    fn lose(&self) -> State {
        self.dma_control.clone().block_dma();
        State::Lost
    }
}
