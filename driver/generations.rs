// SPDX-License-Identifier: GPL-2.0
//! Generations: counters that tell a program, without a system call, that a registration may have
//! gone stale.
//!
//! They fill one page, which a program maps read-only. Handles share the counters, so a program
//! that sees one change must ask QUERY.

use crate::{
    allocation,
    failure::Failure,
    logic::PAGE_SIZE,
    sys::{mm::folios::Folios, task::account::Account},
    view::{MmapOffset, MmapOffsets, MmapSource},
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex, SetOnce},
};

const COUNT: u64 = PAGE_SIZE / 8;

/// The counters of a context. They are allocated when the program asks for them.
#[pin_data]
pub(crate) struct Generations {
    /// Read by MMU notifiers, without a lock.
    page: SetOnce<Arc<Folios>>,
    #[pin]
    shown: Mutex<Option<MmapOffset>>,
}

impl Generations {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            page: SetOnce::new(),
            shown <- new_mutex!(None, "pinmap_generations"),
        })
    }

    /// Increments the counter of `handle`, which may have gone stale. Called after QUERY can tell.
    /// From any context.
    pub(crate) fn bump(&self, handle: u64) {
        if let Some(page) = self.page.as_ref() {
            page.increment(handle.checked_rem(COUNT).unwrap_or(0).saturating_mul(8));
        }
    }

    /// Increments all counters.
    pub(crate) fn bump_all(&self) {
        for handle in 0..COUNT {
            self.bump(handle);
        }
    }

    /// Returns the offset by which `mmap()` shows the counters. The first call allocates them, and
    /// charges `account`.
    pub(crate) fn offset(
        &self,
        account: &Arc<Account>,
        offsets: &Arc<MmapOffsets>,
    ) -> Result<u64, Failure> {
        let mut shown = self.shown.lock();
        if let Some(mmap_offset) = &*shown {
            return Ok(mmap_offset.offset());
        }
        let page = allocation::host_memory(account, 1)?;
        let mmap_offset =
            MmapOffsets::add(offsets, PAGE_SIZE, MmapSource::Host(page.clone()), false)?;
        self.page.populate(page);
        Ok(shown.insert(mmap_offset).offset())
    }
}
