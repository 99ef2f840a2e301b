// SPDX-License-Identifier: GPL-2.0
//! Numbers that tell user space without a system call that registrations may have gone stale.

use crate::{
    allocation,
    context::Context,
    failure::Failure,
    logic::PAGE_SIZE,
    registration::{check_flags, Pending},
    sys::{folios::Folios, uapi::pinmap_generations},
    view::{Showing, Shown, ViewTable},
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
    shown: Mutex<Option<Showing>>,
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

    /// Where `mmap()` shows them.
    fn offset(&self, context: &Context) -> core::result::Result<u64, Failure> {
        let mut shown = self.shown.lock();
        if let Some(showing) = &*shown {
            return Ok(showing.offset());
        }
        let page = allocation::host_memory(context.account(), 1)?;
        let showing = ViewTable::show(
            context.view_table(),
            PAGE_SIZE,
            Shown::ReadOnly(page.clone()),
        )?;
        self.page.populate(page);
        Ok(shown.insert(showing).offset())
    }
}

/// GENERATIONS.
pub(crate) fn generations(
    context: &Arc<Context>,
    args: &mut pinmap_generations,
) -> core::result::Result<Pending, Failure> {
    check_flags(args.flags)?;
    context.check_caller()?;
    args.out_offset = context.events().generations().offset(context)?;
    args.out_length = PAGE_SIZE;
    Ok(Pending::Done)
}
