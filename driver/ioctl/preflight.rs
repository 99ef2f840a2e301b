// SPDX-License-Identifier: GPL-2.0
//! PREFLIGHT: the answer that REGISTER would give, without registering.

use super::{
    pending::{errno, Pending},
    Request,
};
use crate::{
    claim::Claim,
    context::Context,
    failure::Failure,
    logic::{request, PAGE_SIZE},
    sys::{
        account::Account,
        gup, task,
        uapi::{self, pinmap_fail, pinmap_preflight},
    },
};
use kernel::{prelude::*, sync::Arc};

/// The checks come in the order in which REGISTER makes them.
impl Request for pinmap_preflight {
    const NR: u32 = uapi::PINMAP_CMD_PREFLIGHT;

    fn run(&mut self, context: &Arc<Context>) -> Result<Pending, Failure> {
        let plan = request::register(
            self.flags,
            self.__reserved,
            self.addr,
            self.length,
            self.device_addr,
            self.address_bits,
            task::user_last(),
        )
        .map_err(errno)?;
        context.check_caller()?;
        if plan.target.is_some() {
            Claim::check(context)?;
        }
        let needed = context.account().used().saturating_add(self.length);
        let limit = Account::limit();
        self.out_memlock_needed = needed;
        self.out_memlock_allowed = limit.unwrap_or(u64::MAX);
        let vacancy = context.try_reserve(plan.span);
        self.out_objects_needed = vacancy.needed;
        self.out_objects_allowed = vacancy.allowed;
        vacancy.result?;
        context.check_foreign(plan.span)?;
        if let Some(allowed) = limit.filter(|&allowed| needed > allowed) {
            return Err(Failure::limit(
                ENOMEM,
                uapi::PINMAP_FAIL_MEMLOCK,
                needed,
                allowed,
            ));
        }
        if let Some((address, reason)) = gup::survey(plan.span, plan.write) {
            return Err(Failure::at(EFAULT, reason, address));
        }
        if let Some(target) = plan.target {
            let tables = context.space().check_room(plan.span.length(), target)?;
            let needed = needed.saturating_add(tables.saturating_mul(PAGE_SIZE));
            self.out_memlock_needed = needed;
            if let Some(allowed) = limit.filter(|&allowed| tables != 0 && needed > allowed) {
                return Err(Failure::limit(
                    ENOMEM,
                    uapi::PINMAP_FAIL_MEMLOCK,
                    needed,
                    allowed,
                ));
            }
            context.space().check_tables(tables)?;
        }
        Ok(Pending::Done)
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}
