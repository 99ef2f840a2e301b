// SPDX-License-Identifier: GPL-2.0
//! MANAGE.

use super::{
    pending::{errno, Pending, Publish},
    Request,
};
use crate::{
    claim::Claim,
    context::{Context, ReservedRange},
    failure::Failure,
    logic::{request::managed, span::Span},
    managed::{Managed, Managing},
    uapi::{self, pinmap_fail, pinmap_manage},
};
use kernel::{prelude::*, sync::Arc};

/// Returns the addresses that `context` can manage; fails unless its device is paged.
pub(super) fn bounds(context: &Context) -> Result<Span> {
    context.device().gpu()?;
    Managed::bounds(context.space()).ok_or(EINVAL)
}

/// Returns what manages the memory of `context`, whose program is the caller.
pub(super) fn managing(context: &Context) -> Result<Arc<Managing>> {
    context.check_caller()?;
    context.managing_now().ok_or(ENOENT)
}

impl Request for pinmap_manage {
    const NR: u32 = uapi::PINMAP_CMD_MANAGE;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let bounds = bounds(context)?;
        let plan = managed::manage(self.flags, self.addr, self.length, bounds).map_err(errno)?;
        context.check_caller()?;
        let claim = Claim::new(context)?;
        let range = context.manage(&plan)?;
        self.out_handle = range.handle();
        let fresh = Fresh {
            range,
            claim: Some(claim),
        };
        Ok(Pending::Other(KBox::new(fresh, GFP_KERNEL_ACCOUNT)?))
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

/// A managed range that user space does not know yet.
struct Fresh {
    range: ReservedRange,
    claim: Option<Claim>,
}

impl Publish for Fresh {
    fn publish(&mut self) -> Result {
        self.range.publish()?;
        if let Some(claim) = self.claim.take() {
            claim.keep();
        }
        Ok(())
    }
}
