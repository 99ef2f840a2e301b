// SPDX-License-Identifier: GPL-2.0
//! PREFLIGHT: what REGISTER would answer, without doing it.

use crate::{
    backend::Claim,
    context::Context,
    failure::Failure,
    logic::{request, PAGE_SIZE},
    registration::{errno, Pending},
    sys::{
        account::Account,
        gup, task,
        uapi::{self, pinmap_preflight},
    },
};
use kernel::{prelude::*, sync::Arc};

/// PREFLIGHT, in the order of REGISTER.
pub(crate) fn preflight(
    context: &Arc<Context>,
    args: &mut pinmap_preflight,
) -> core::result::Result<Pending, Failure> {
    let plan = request::register(
        args.flags,
        args.__reserved,
        args.addr,
        args.length,
        args.device_addr,
        args.address_bits,
        task::user_last(),
    )
    .map_err(errno)?;
    context.check_caller()?;
    if plan.target.is_some() {
        Claim::check(context)?;
    }
    let needed = context.account().used().saturating_add(args.length);
    let limit = Account::limit();
    args.out_memlock_needed = needed;
    args.out_memlock_allowed = limit.unwrap_or(u64::MAX);
    let (objects, allowed, reserved) = context.try_reserve(plan.span);
    args.out_objects_needed = objects;
    args.out_objects_allowed = allowed;
    reserved?;
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
        args.out_memlock_needed = needed;
        if let Some(allowed) = limit.filter(|&allowed| tables != 0 && needed > allowed) {
            return Err(Failure::limit(
                ENOMEM,
                uapi::PINMAP_FAIL_MEMLOCK,
                needed,
                allowed,
            ));
        }
    }
    Ok(Pending::Done)
}
