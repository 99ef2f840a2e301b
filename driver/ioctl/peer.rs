// SPDX-License-Identifier: GPL-2.0
//! REGISTER of memory of another device, which the program has mapped: a BAR, or VRAM.
//!
//! It is an EXPORT by the other device and an IMPORT by this one, without a dma-buf between them.

use super::{dmabuf::import, pending::Pending, registration};
use crate::{
    buffer::Buffer,
    claim::Claim,
    context::{Context, ReservedHandle},
    dmabuf::{self, Giver, Source},
    failure::Failure,
    logic::{request::RegisterPlan, span::Span},
    mapping::Memory,
    sys::fs::miscdevice::{self, Shown},
    uapi, view,
};
use kernel::{prelude::*, sync::Arc};

/// Memory of another device, before anybody was given it.
struct Offer {
    source: Arc<Source>,
    by: By,
    memory: Memory,
}

/// The owner of the memory, who takes it back.
enum By {
    Bar(Arc<Context>),
    Vram(Arc<Buffer>),
}

/// Registered memory of another device, which user space does not know yet.
pub(super) struct Registered<'a> {
    pub(super) device_addr: u64,
    pub(super) handle: u64,
    pub(super) pending: Pending<'a>,
}

/// Whether REGISTER has failed for a reason that does not count for memory of another device: that
/// it cannot be pinned, or paid for.
pub(super) fn may_be(plan: &RegisterPlan, failure: &Failure) -> bool {
    match failure.detail.reason {
        uapi::PINMAP_FAIL_DEVICE => failure.detail.addr == plan.span.start(),
        reason => reason == uapi::PINMAP_FAIL_MEMLOCK,
    }
}

/// Finds out what [`register`] would answer, without registering anything.
pub(super) fn check(context: &Context, plan: &RegisterPlan) -> Result<Option<()>, Failure> {
    let Some(shown) = look(context, plan) else {
        return Ok(None);
    };
    let device = shown.file.device().clone();
    let offer = device.while_bound(|| offer(context, plan, shown));
    Ok(offer.map_err(|failure| stale(context, failure))?.map(drop))
}

/// Registers memory of another device as planned. Returns `None` if it is no such memory.
pub(super) fn register<'a>(
    context: &'a Arc<Context>,
    plan: &RegisterPlan,
    claim: Option<Claim>,
) -> Result<Option<Registered<'a>>, Failure> {
    let Some(shown) = look(context, plan) else {
        return Ok(None);
    };
    let device = shown.file.device().clone();
    let taken = device.while_bound(|| {
        let offer = offer(context, plan, shown)?;
        offer.map(|offer| take(context, plan, offer)).transpose()
    });
    let taken = taken.map_err(|failure| stale(context, failure))?;
    let Some((buffer, reserved)) = taken else {
        return Ok(None);
    };
    let (device_addr, guests) = registration::map(context, &buffer, plan)?;
    Ok(Some(Registered {
        device_addr,
        handle: reserved.handle(),
        pending: Pending::Registration {
            guests,
            reserved,
            claim,
        },
    }))
}

/// Finds the area of the program that shows all addresses of `plan`, if it is of another device.
fn look(context: &Context, plan: &RegisterPlan) -> Option<Shown<Context>> {
    let shown = miscdevice::shown::<Context>(plan.span);
    let other = |shown: &Shown<Context>| !Arc::ptr_eq(shown.file.device(), context.device());
    shown.filter(other)
}

/// Finds out what the area shows: a part of a BAR, or of VRAM. `EREMOTEIO`: the bus does not let
/// the device of `context` reach it.
fn offer(
    context: &Context,
    plan: &RegisterPlan,
    shown: Shown<Context>,
) -> Result<Option<Offer>, Failure> {
    let (owner, at) = (shown.file, shown.offset);
    let part = Span::new(at, plan.span.length()).map_err(|_| EINVAL)?;
    let (parts, by) = if at < view::START {
        let Ok(flat) = owner.device().flat() else {
            return Ok(None);
        };
        owner.check_caller()?;
        (flat.parts(part)?, By::Bar(owner))
    } else {
        let Some((handle, first)) = owner.mmap_offsets().find(at) else {
            return Ok(None);
        };
        let Some(vram) = owner.find(handle).ok().filter(|buffer| buffer.is_vram()) else {
            return Ok(None);
        };
        owner.check_caller()?;
        let inside = at.saturating_sub(first);
        let part = Span::new(inside, part.length()).map_err(|_| EINVAL)?;
        let parts = vram.with_backing(|backing| backing.part_of_vram(part))??;
        (parts, By::Vram(vram))
    };
    if plan.portable {
        return Err(EOPNOTSUPP.into());
    }
    if !shown.may_read || (plan.write && !shown.may_write) {
        let start = plan.span.start();
        return Err(Failure::at(EFAULT, uapi::PINMAP_FAIL_PERMISSION, start));
    }
    let source = dmabuf::share(parts, plan.write)?;
    let memory = source.exporter().memory_for(context.device().function())?;
    Ok(Some(Offer { source, by, memory }))
}

/// Makes a buffer of what is offered, which whoever takes it back knows of.
fn take<'a>(
    context: &'a Context,
    plan: &RegisterPlan,
    offer: Offer,
) -> Result<(Arc<Buffer>, ReservedHandle<&'a Context>), Failure> {
    let giver = Giver::Export(offer.source.clone());
    let taken = import(context, plan.span, plan.write, offer.memory, giver)?;
    match &offer.by {
        By::Bar(owner) => {
            let flat = owner.device().flat()?;
            flat.add_export(owner.id(), &offer.source)?;
        }
        By::Vram(vram) => {
            vram.add_export(&offer.source)?;
            if vram.check_usable().is_err() {
                dmabuf::revoke(&offer.source);
                return Err(ESTALE.into());
            }
        }
    }
    Ok(taken)
}

/// Makes a failure of the other device, which is gone or not the program's any more, one that
/// nobody takes for a failure of this one.
fn stale(context: &Context, mut failure: Failure) -> Failure {
    let is_here = context.device().check_here().is_ok();
    if failure.errno == EBUSY || (failure.errno == ENODEV && is_here) {
        failure.errno = ESTALE;
    }
    failure
}
