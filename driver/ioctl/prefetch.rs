// SPDX-License-Identifier: GPL-2.0
//! PREFETCH.

use super::{
    manage::{bounds, managing},
    pending::{errno, Pending},
    Request,
};
use crate::{
    context::Context,
    failure::Failure,
    logic::request::managed,
    uapi::{self, pinmap_fail, pinmap_prefetch},
};
use kernel::{prelude::*, sync::Arc};

impl Request for pinmap_prefetch {
    const NR: u32 = uapi::PINMAP_CMD_PREFETCH;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let bounds = bounds(context)?;
        let plan = managed::prefetch(self.flags, self.addr, self.length, bounds).map_err(errno)?;
        let managing = managing(context)?;
        let done = if plan.preflight {
            managing.preflight(managing.mm(), plan.range, plan.home)?
        } else {
            managing.prefetch(managing.mm(), plan.range, plan.home)?
        };
        self.out_moved = done.moved;
        self.out_there = done.there;
        self.out_no_room = done.no_room;
        self.out_busy = done.busy;
        self.out_fixed = done.fixed;
        Ok(Pending::Done)
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}
