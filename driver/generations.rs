// SPDX-License-Identifier: GPL-2.0
//! Numbers that tell user space without a system call that registrations may have gone stale.

use crate::{
    allocation,
    failure::Failure,
    logic::PAGE_SIZE,
    sys::{account::Account, folios::Folios},
    view::{MmapOffset, MmapOffsets, MmapSource},
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex, SetOnce},
};

/// How many there are.
const COUNT: u64 = PAGE_SIZE / 8;

/// The numbers of one context, once somebody has asked for them.
#[pin_data]
pub(crate) struct Generations {
    /// Read by MMU notifiers, without a lock.
    page: SetOnce<Arc<Folios>>,
    #[pin]
    shown: Mutex<Option<MmapOffset>>,
}

impl Generations {
    /// Not asked for yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            page: SetOnce::new(),
            shown <- new_mutex!(None, "pinmap_generations"),
        })
    }

    /// What `handle` names may have gone: after that can be seen by QUERY. From any context.
    pub(crate) fn bump(&self, handle: u64) {
        if let Some(page) = self.page.as_ref() {
            page.increment(handle.checked_rem(COUNT).unwrap_or(0).saturating_mul(8));
        }
    }

    /// As [`bump`](Self::bump), for whatever there is.
    pub(crate) fn bump_all(&self) {
        for handle in 0..COUNT {
            self.bump(handle);
        }
    }

    /// The offset by which `mmap()` shows the numbers. The first call allocates them, and
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
        let mmap_offset = MmapOffsets::add(offsets, PAGE_SIZE, MmapSource::ReadOnly(page.clone()))?;
        self.page.populate(page);
        Ok(shown.insert(mmap_offset).offset())
    }
}
