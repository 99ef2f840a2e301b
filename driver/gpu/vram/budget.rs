// SPDX-License-Identifier: GPL-2.0
//! How much of VRAM is taken by pages that a context has moved there, and how much may be.
//!
//! Pages outlive the context that moved them. So each page of VRAM has the number of an *owner*,
//! and each owner a count. A context that manages memory is an owner; its number can be another
//! context's once that one is closed and the last of its pages is gone. Numbers are shared out by
//! user (see `logic/share.rs`): contexts of a user who has its share of them have one together.
//!
//! Pages on the device stay charged to the memory cgroup of their process, where nothing can
//! reclaim them. So that its limit does not end the process while other memory could still be
//! reclaimed, the pages of each context are at most half of the smallest limit that holds for it.
//! Several contexts of one cgroup can have more together.

use super::zeros;
use crate::{
    gpu::Gpu,
    logic::{share, PAGE_SIZE},
    sys::task::cgroup,
};
use kernel::{
    mm::Mm,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Owners that are told apart, and the number that stands for all others.
const OWNERS: usize = 1024;
const OTHERS: u32 = 0;

/// The owner of a number.
#[derive(Clone, Default)]
struct Holder {
    contexts: u32,
    /// The user whose contexts these are, and whose are the pages that they left.
    uid: u32,
    /// The memory of the last of these, from which the pages came, as long as there may be some.
    mm: Option<ARef<Mm>>,
}

#[pin_data]
pub(super) struct Owners {
    #[pin]
    holders: Mutex<KVVec<Holder>>,
    /// The pages of each.
    pages: KVVec<Atomic<u64>>,
    /// The owner of each page of VRAM.
    of_page: KVVec<Atomic<u32>>,
}

impl Owners {
    pub(super) fn new(vram: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let count = usize::try_from(vram / PAGE_SIZE).map_err(|_| ENODEV)?;
            let mut of_page = KVVec::with_capacity(count, GFP_KERNEL)?;
            for _ in 0..count {
                of_page.push(Atomic::new(OTHERS), GFP_KERNEL)?;
            }
            let holders = KVVec::from_elem(Holder::default(), OWNERS, GFP_KERNEL)?;
            let pages = zeros(OWNERS as u64)?;
            Ok(try_pin_init!(Self {
                holders <- new_mutex!(holders, "pinmap_owners"),
                pages,
                of_page,
            }? Error))
        })
    }

    fn pages_of(&self, owner: u32) -> Option<&Atomic<u64>> {
        self.pages.get(owner as usize)
    }

    /// Gives a context of the user `uid`, whose memory is `mm`, a number: one that nobody has, or,
    /// if the user has its share of these, the one of its own that the fewest of its contexts have.
    fn take_number(&self, uid: u32, mm: &Mm) -> u32 {
        let mut holders = self.holders.lock();
        let (mut free, mut has) = (0_u64, 0_u64);
        let (mut unused, mut own) = (None, None);
        for ((number, holder), pages) in (0..).zip(holders.iter()).zip(&self.pages).skip(1) {
            if holder.contexts == 0 && pages.load(Relaxed) == 0 {
                free = free.saturating_add(1);
                unused = unused.or(Some(number));
            } else if holder.uid == uid {
                has = has.saturating_add(1);
                let this = (holder.contexts, number);
                own = Some(own.map_or(this, |least| this.min(least)));
            }
        }
        let own = own.map(|(_, number)| number);
        let number = if share::has_owner(free, has) {
            unused
        } else {
            own
        };
        let number = number.unwrap_or(OTHERS);
        if let Some(holder) = holders.get_mut(number as usize) {
            holder.contexts = holder.contexts.saturating_add(1);
            holder.uid = uid;
            holder.mm = Some(mm.into());
        }
        number
    }

    /// Gives page `number` of VRAM to `owner`. Called by one task at a time.
    pub(super) fn take(&self, number: u64, owner: u32) {
        if let Some(page) = self.of_page.get(number as usize) {
            page.store(owner, Relaxed);
        }
        if let Some(pages) = self.pages_of(owner) {
            pages.fetch_add(1, Relaxed);
        }
    }

    /// Takes page `number` of VRAM from its owner. From any context.
    pub(super) fn give(&self, number: u64) {
        if let Some(pages) = self.pages_of(self.of(number)) {
            pages.fetch_sub(1, Relaxed);
        }
    }

    /// The owner of page `number` of VRAM, if it has one.
    pub(super) fn of(&self, number: u64) -> u32 {
        let page = self.of_page.get(number as usize);
        page.map_or(OTHERS, |owner| owner.load(Relaxed))
    }

    /// The memory from which the pages of `owner` came; a child may have them, too, or alone.
    pub(super) fn mm(&self, owner: u32) -> Option<ARef<Mm>> {
        let holders = self.holders.lock();
        holders.get(owner as usize)?.mm.clone()
    }
}

/// The share of VRAM that a context may have for pages that it moves there.
pub(crate) struct Budget {
    gpu: Arc<Gpu>,
    pub(super) owner: u32,
    /// Bytes.
    limit: Atomic<u64>,
}

impl Budget {
    /// Makes the budget of a context of the user `uid`, whose memory is `mm`, without a limit.
    /// Sleeps.
    pub(crate) fn new(gpu: &Arc<Gpu>, uid: u32, mm: &Mm) -> Self {
        Self {
            gpu: gpu.clone(),
            owner: gpu.private.owners.take_number(uid, mm),
            limit: Atomic::new(u64::MAX),
        }
    }

    /// Bytes of VRAM that the pages have of all contexts with this one's number; 0 if there are too
    /// many users to tell.
    pub(crate) fn used(&self) -> u64 {
        if self.owner == OTHERS {
            return 0;
        }
        let pages = self.gpu.private.owners.pages_of(self.owner);
        pages.map_or(0, |pages| pages.load(Relaxed).saturating_mul(PAGE_SIZE))
    }

    /// The limit in bytes; `u64::MAX`: none.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets the limit. What is there already stays.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Pages that the context, whose memory is `mm`, can have at most beyond those that it has:
    /// for which there is room, or for which others can go home.
    pub(crate) fn room(&self, mm: &Mm) -> u64 {
        let memory_limit = cgroup::memory_limit(mm);
        if self.owner == OTHERS && (self.limit() != u64::MAX || memory_limit != u64::MAX) {
            // What it has cannot be told, nor then be limited.
            return 0;
        }
        let limit = self.limit().min(memory_limit / 2);
        let left = limit.saturating_sub(self.used()) / PAGE_SIZE;
        left.min(self.gpu.room())
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let owners = &self.gpu.private.owners;
        let pages = owners.pages_of(self.owner);
        let mut holders = owners.holders.lock();
        if let Some(holder) = holders.get_mut(self.owner as usize) {
            holder.contexts = holder.contexts.saturating_sub(1);
            if holder.contexts == 0 && pages.is_none_or(|pages| pages.load(Relaxed) == 0) {
                holder.mm = None;
            }
        }
    }
}
