// SPDX-License-Identifier: GPL-2.0
//! ALLOC: memory that the driver provides.

use crate::{
    backend::Claim,
    buffer::{Backing, Buffer},
    context::Context,
    failure::Failure,
    logic::request,
    registration::{errno, Pending},
    sys::{
        account::{Account, Charge},
        compat,
        folios::{Folios, Kind},
        uapi::{self, pinmap_alloc},
    },
    view::{Shown, ViewTable},
};
use kernel::{prelude::*, sync::Arc};

/// `pages` zeroed pages of host memory, charged to `account`. Sleeps; a fatal signal stops it.
pub(crate) fn host_memory(
    account: &Arc<Account>,
    pages: u64,
) -> core::result::Result<Arc<Folios>, Failure> {
    host_memory_of_kind(account, pages, Kind::default())
}

fn host_memory_of_kind(
    account: &Arc<Account>,
    pages: u64,
    kind: Kind,
) -> core::result::Result<Arc<Folios>, Failure> {
    let charge = Charge::new(account, pages)?;
    Ok(Arc::new(
        Folios::new(pages, kind, charge)?,
        GFP_KERNEL_ACCOUNT,
    )?)
}

/// ALLOC: memory, an offset to view it by, and a handle once the caller knows it.
pub(crate) fn alloc(
    context: &Arc<Context>,
    args: &mut pinmap_alloc,
) -> core::result::Result<Pending, Failure> {
    let plan = request::alloc(args.flags, args.__reserved, args.length, args.node);
    let plan = plan.map_err(errno)?;
    let device = context.device();
    if plan.local && !device.backend().has_memory() {
        return Err(compat::unsupported().into());
    }
    context.check_caller()?;
    let (backing, claim) = if plan.local {
        let claim = Claim::new(context)?;
        let memory = device.backend().allocate(plan.span.length());
        let memory = memory.map_err(|errno| match errno {
            ENOSPC => Failure::at(errno, uapi::PINMAP_FAIL_FULL, 0),
            _ => errno.into(),
        })?;
        let shown = Shown::Device(memory.pages);
        let showing = ViewTable::show(context.view_table(), plan.span.length(), shown)?;
        (Backing::Local(memory.local, showing), Some(claim))
    } else {
        let kind = Kind {
            write_combined: plan.write_combined,
            node: plan.node,
        };
        let folios = host_memory_of_kind(context.account(), plan.span.pages(), kind)?;
        let shown = Shown::Host(folios.clone());
        let showing = ViewTable::show(context.view_table(), plan.span.length(), shown)?;
        (Backing::Host(folios, showing), None)
    };
    let offset = backing.offset();
    let account = context.account().clone();
    let buffer = Buffer::allocated(plan.span, true, backing, account, context.events().clone())?;
    if plan.portable {
        buffer.make_portable();
    }
    let reserved = context.reserve(&buffer)?;
    Buffer::go_live(&buffer)?;
    context.view_table().name(offset, reserved.handle());
    args.out_handle = reserved.handle();
    args.out_offset = offset;
    Ok(Pending::Registration(reserved, claim))
}
