// SPDX-License-Identifier: GPL-2.0
//! ADVISE, BUDGET, RESIDENCY and STATISTICS: where managed memory is to be, where it is, and why.

use super::{
    manage::{bounds, managing},
    pending::{errno, Pending},
    Request,
};
use crate::{
    context::Context,
    failure::Failure,
    logic::{request::managed, PAGE_SIZE},
    uapi::{
        self, pinmap_advise, pinmap_budget, pinmap_fail, pinmap_residency, pinmap_run,
        pinmap_statistics,
    },
};
use kernel::{
    prelude::*,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
};

impl Request for pinmap_advise {
    const NR: u32 = uapi::PINMAP_CMD_ADVISE;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let bounds = bounds(context)?;
        let (range, advice) = managed::advise(
            self.flags,
            self.__reserved,
            self.addr,
            self.length,
            self.advice,
            bounds,
        )
        .map_err(errno)?;
        let managing = managing(context)?;
        managing.advise(managing.mm(), range, advice)?;
        Ok(Pending::Done)
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_residency {
    const NR: u32 = uapi::PINMAP_CMD_RESIDENCY;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let bounds = bounds(context)?;
        let range = managed::residency(self.flags, self.addr, self.length, self.runs, bounds)
            .map_err(errno)?;
        let managing = managing(context)?;
        let bytes = (self.capacity as usize).saturating_mul(size_of::<pinmap_run>());
        let mut out = UserSlice::new(UserPtr::from_addr(self.runs as usize), bytes).writer();
        let told = managing.residency(managing.mm(), range, self.capacity, |run| out.write(run))?;
        self.out_count = told.count;
        self.out_end = told.end;
        self.out_absent = told.absent;
        self.out_host = told.host;
        self.out_device = told.device;
        Ok(Pending::Done)
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_statistics {
    const NR: u32 = uapi::PINMAP_CMD_STATISTICS;
    const WAKES: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        context.device().gpu()?;
        if self.flags != 0 {
            return Err(EOPNOTSUPP.into());
        }
        context.managed_range(self.handle)?.describe(self);
        Ok(Pending::Done)
    }
}

impl Request for pinmap_budget {
    const NR: u32 = uapi::PINMAP_CMD_BUDGET;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        context.device().gpu()?;
        let limit = managed::budget(self.flags, self.bytes).map_err(errno)?;
        let managing = managing(context)?;
        let budget = managing.budget();
        if let Some(limit) = limit {
            budget.set_limit(limit);
        }
        self.out_bytes = budget.limit();
        self.out_used = budget.used();
        self.out_room = budget.room(managing.mm()).saturating_mul(PAGE_SIZE);
        Ok(Pending::Done)
    }
}
