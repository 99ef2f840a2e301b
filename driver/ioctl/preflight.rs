// SPDX-License-Identifier: GPL-2.0
//! PREFLIGHT: the answer that REGISTER would give, without registering.

use super::{
    peer,
    pending::{errno, Pending},
    Request,
};
use crate::{
    claim::Claim,
    context::Context,
    failure::Failure,
    logic::{
        request::{self, RegisterArgs},
        PAGE_SIZE,
    },
    sys::{mm::gup, task, task::account::Account},
    uapi::{self, pinmap_fail, pinmap_preflight},
};
use kernel::{prelude::*, sync::Arc};

/// The checks come in the order in which REGISTER makes them.
impl Request for pinmap_preflight {
    const NR: u32 = uapi::PINMAP_CMD_PREFLIGHT;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let args = RegisterArgs {
            flags: self.flags,
            reserved: self.__reserved,
            address: self.addr,
            length: self.length,
            device_address: self.device_addr,
            address_bits: self.address_bits,
        };
        let plan = request::register(&args, task::user_last()).map_err(errno)?;
        context.check_caller()?;
        if plan.target.is_some() {
            Claim::check(context)?;
        }
        let mut needed = context.account().used().saturating_add(self.length);
        let limit = Account::limit();
        let check_limit = |needed| match limit.filter(|&allowed| needed > allowed) {
            Some(allowed) => {
                let reason = uapi::PINMAP_FAIL_MEMLOCK;
                Err(Failure::limit(ENOMEM, reason, needed, allowed))
            }
            None => Ok(()),
        };
        self.out_memlock_needed = needed;
        self.out_memlock_allowed = limit.unwrap_or(u64::MAX);
        let vacancy = context.try_reserve(plan.span);
        self.out_objects_needed = vacancy.needed;
        self.out_objects_allowed = vacancy.allowed;
        vacancy.result?;
        context.check_foreign(plan.span)?;
        let pinned = check_limit(needed).and_then(|()| {
            gup::survey(plan.span, plan.write).map_or(Ok(()), |(address, reason)| {
                Err(Failure::at(EFAULT, reason, address))
            })
        });
        if let Err(failure) = pinned {
            if !peer::may_be(&plan, &failure) || peer::check(context, &plan)?.is_none() {
                return Err(failure);
            }
            // Nothing is pinned, so nothing is charged but tables.
            needed = needed.saturating_sub(self.length);
            self.out_memlock_needed = needed;
        }
        if let Some(target) = plan.target {
            let tables = context.space().check_room(plan.span.length(), target)?;
            let needed = needed.saturating_add(tables.saturating_mul(PAGE_SIZE));
            self.out_memlock_needed = needed;
            check_limit(needed)?;
            context.space().check_tables(tables)?;
        }
        Ok(Pending::Done)
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}
