// SPDX-License-Identifier: GPL-2.0
//! REGISTER, RELEASE, QUERY, MAP and UNMAP.

use crate::{
    backend::Claim,
    buffer::{Buffer, State},
    context::{Context, Reserved},
    failure::Failure,
    logic::{
        place::Wish,
        request::{self, RegisterPlan, Target},
        Refusal, PAGE_SIZE,
    },
    pinned,
    portable::{Guest, Peers},
    sys::{
        compat,
        memfd::MemoryFile,
        task,
        uapi::{
            self, pinmap_map, pinmap_query, pinmap_register, pinmap_register_fd, pinmap_release,
            pinmap_unmap,
        },
    },
    trace::{Timed, What},
};
use core::mem;
use kernel::{prelude::*, sync::Arc};

/// What a call did and has not answered yet. Dropping it undoes it.
pub(crate) enum Pending {
    /// Nothing that could be undone.
    Done,
    /// A registration under a handle that cannot be used yet.
    Registration(Reserved, Option<Claim>),
    /// The same, and in other contexts.
    Portable(KVec<Guest>, Reserved, Option<Claim>),
    /// A mapping that nobody knows yet.
    Mapping(FreshMapping, Claim),
    /// Something of another kind.
    Other(KBox<dyn Publish>),
}

/// Something that is not visible yet. Dropping it undoes it.
pub(crate) trait Publish {
    /// The answer has reached the caller.
    fn publish(&mut self) -> Result;
}

impl Pending {
    /// The answer has reached the caller.
    pub(crate) fn publish(self) -> Result {
        match self {
            Self::Done => {}
            Self::Registration(reserved, claim) => {
                reserved.publish()?;
                if let Some(claim) = claim {
                    claim.keep();
                }
            }
            Self::Portable(guests, reserved, claim) => {
                reserved.publish()?;
                if let Some(claim) = claim {
                    claim.keep();
                }
                for guest in guests {
                    guest.publish();
                }
            }
            Self::Mapping(mut fresh, claim) => {
                if let Some(buffer) = fresh.buffer.take() {
                    buffer.publish(fresh.name);
                }
                for guest in mem::replace(&mut fresh.guests, KVec::new()) {
                    guest.publish();
                }
                claim.keep();
            }
            Self::Other(mut other) => other.publish()?,
        }
        Ok(())
    }
}

/// Undoes a mapping when dropped.
pub(crate) struct FreshMapping {
    buffer: Option<Arc<Buffer>>,
    name: u64,
    /// Where else it is, of a portable allocation; and the context that has shared it so.
    guests: KVec<Guest>,
    sharer: Option<Arc<Context>>,
}

impl Drop for FreshMapping {
    fn drop(&mut self) {
        if let Some(buffer) = &self.buffer {
            if let Some(sharer) = &self.sharer {
                Peers::unshare(sharer, buffer);
            }
            // If it failed, somebody else has undone it.
            let _ = buffer.unmap_fresh(self.name);
        }
    }
}

/// The errno of a refusal.
pub(crate) fn errno(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Invalid => EINVAL,
        Refusal::TooBig => E2BIG,
        Refusal::Unsupported => compat::unsupported(),
        Refusal::Overflow => EOVERFLOW,
    }
}

/// REGISTER: watch, account, pin, map; and a handle, once the caller knows it.
pub(crate) fn register(
    context: &Arc<Context>,
    args: &mut pinmap_register,
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
    let timed = Timed::begin(What::Register);
    context.check_caller()?;
    let claim = match plan.target {
        Some(_) => Some(Claim::new(context)?),
        None => None,
    };
    let account = context.account().clone();
    let buffer = Buffer::new(
        &plan,
        account,
        context.events().clone(),
        context.lookout().clone(),
    )?;
    let reserved = context.reserve(&buffer)?;
    context.check_foreign(plan.span)?;
    Buffer::pin(&buffer)?;
    let (device_addr, guests) = begin(context, &buffer, &plan)?;
    buffer.trace_registered(&timed, device_addr);
    args.device_addr = device_addr;
    args.out_handle = reserved.handle();
    args.out_generation = generation(State::Live);
    Ok(pending(guests, reserved, claim))
}

/// REGISTER_FD: the same for a part of a file, which nobody needs to watch.
pub(crate) fn register_fd(
    context: &Arc<Context>,
    args: &mut pinmap_register_fd,
) -> core::result::Result<Pending, Failure> {
    let plan = request::register_fd(
        args.flags,
        args.offset,
        args.length,
        args.device_addr,
        args.address_bits,
    )
    .map_err(errno)?;
    context.check_caller()?;
    let claim = match plan.target {
        Some(_) => Some(Claim::new(context)?),
        None => None,
    };
    let file = MemoryFile::from_fd(args.fd, plan.write)?;
    let account = context.account();
    let pages = pinned::pin_file(account, file, plan.span, || {
        if plan.interruptible && task::signal_pending() {
            return Err(EINTR);
        }
        Ok(())
    })?;
    let buffer = Buffer::of_file(&plan, pages, account.clone(), context.events().clone())?;
    let reserved = context.reserve(&buffer)?;
    let (device_addr, guests) = begin(context, &buffer, &plan)?;
    args.device_addr = device_addr;
    args.out_handle = reserved.handle();
    args.out_generation = generation(State::Live);
    Ok(pending(guests, reserved, claim))
}

fn pending(guests: Option<KVec<Guest>>, reserved: Reserved, claim: Option<Claim>) -> Pending {
    match guests {
        Some(guests) => Pending::Portable(guests, reserved, claim),
        None => Pending::Registration(reserved, claim),
    }
}

/// What is pinned is mapped as planned, and goes live. Returns the device address, and where else it is.
fn begin(
    context: &Arc<Context>,
    buffer: &Arc<Buffer>,
    plan: &RegisterPlan,
) -> core::result::Result<(u64, Option<KVec<Guest>>), Failure> {
    let mut guests = None;
    let device_addr = match plan.target {
        Some(target) => {
            let device_addr = buffer.map(context.tenant(buffer.handle()), target, plan.write)?;
            if plan.portable {
                let target = if buffer.is_user_memory() {
                    target
                } else {
                    // Others cannot ask for it by an address: it is the same everywhere.
                    Target {
                        wish: Wish::Exactly(device_addr),
                        ..target
                    }
                };
                guests = Peers::share(context, buffer, target, plan.write)?;
            }
            device_addr
        }
        None => 0,
    };
    Buffer::go_live(buffer)?;
    Ok((device_addr, guests))
}

/// RELEASE.
pub(crate) fn release(context: &Arc<Context>, args: &mut pinmap_release) -> Result {
    check_flags(args.flags)?;
    let (buffer, guest) = context.take(args.handle)?;
    if guest {
        return Buffer::leave(&buffer, context.space());
    }
    let result = Peers::end(context, &buffer, State::Released);
    buffer.withdraw_event();
    result
}

/// QUERY.
pub(crate) fn query(context: &Arc<Context>, args: &mut pinmap_query) -> Result {
    check_flags(args.flags)?;
    let (handle, buffer, base, offset) = if args.handle != 0 {
        let buffer = context.find(args.handle)?;
        let base = if buffer.is_user_memory() {
            buffer.span().start()
        } else {
            0
        };
        (args.handle, buffer, base, 0)
    } else {
        match context.find_address(args.addr) {
            Err(ENOENT) => {
                let (handle, buffer, offset) = context.find_view(args.addr)?;
                (handle, buffer, args.addr.saturating_sub(offset), offset)
            }
            found => {
                let (handle, buffer) = found?;
                let base = buffer.span().start();
                (handle, buffer, base, args.addr.saturating_sub(base))
            }
        }
    };
    buffer.settle()?;
    let status = buffer.status(context.space());
    args.handle = handle;
    args.out_base = base;
    args.out_length = buffer.span().length();
    args.out_device_addr = status
        .device_addr
        .map_or(0, |start| start.saturating_add(offset));
    args.out_flags = 0;
    if buffer.writable() {
        args.out_flags |= uapi::PINMAP_REGISTER_WRITE;
    }
    if buffer.is_portable() {
        args.out_flags |= uapi::PINMAP_REGISTER_PORTABLE;
    }
    args.out_kind = buffer.kind();
    args.out_state = match status.state {
        State::Live if handle != 0 => uapi::PINMAP_STATE_LIVE,
        State::Building | State::Live => uapi::PINMAP_STATE_BUILDING,
        _ => uapi::PINMAP_STATE_STALE,
    };
    // Only the file that the memory was allocated by shows it.
    args.out_offset = if buffer.tells(context.events()) || buffer.kind() == uapi::PINMAP_BUFFER_FILE
    {
        buffer.offset()
    } else {
        0
    };
    args.out_pinned = status.pinned.saturating_mul(PAGE_SIZE);
    args.out_nr_mappings = status.mappings as u32;
    args.out_generation = generation(status.state);
    Ok(())
}

/// MAP.
pub(crate) fn map(
    context: &Arc<Context>,
    args: &mut pinmap_map,
) -> core::result::Result<Pending, Failure> {
    let plan = request::map(
        args.flags,
        args.__reserved,
        args.device_addr,
        args.address_bits,
    )
    .map_err(errno)?;
    let buffer = context.find(args.handle)?;
    if plan.write && !buffer.writable() {
        return Err(EACCES.into());
    }
    let target = plan.target(buffer.span()).map_err(errno)?;
    buffer.check_usable()?;
    let claim = Claim::new(context)?;
    let (device_addr, name) = buffer.map_fresh(context.tenant(args.handle), target, plan.write)?;
    args.device_addr = device_addr;
    let mut fresh = FreshMapping {
        buffer: Some(buffer.clone()),
        name,
        guests: KVec::new(),
        sharer: None,
    };
    // What was registered so is there already.
    if buffer.is_portable() && !buffer.is_user_memory() && buffer.tells(context.events()) {
        if let Some(guests) = Peers::share(context, &buffer, target, plan.write)? {
            fresh.guests = guests;
            fresh.sharer = Some(context.clone());
        }
    }
    // A guest may have been let go of meanwhile, which has removed what was mapped until then.
    context.find(args.handle)?;
    Ok(Pending::Mapping(fresh, claim))
}

/// UNMAP.
pub(crate) fn unmap(context: &Arc<Context>, args: &mut pinmap_unmap) -> Result {
    check_flags(args.flags)?;
    let buffer = context.find(args.handle)?;
    buffer.unmap(context.space(), args.device_addr)
}

/// No flags are known.
pub(crate) fn check_flags(flags: u32) -> Result {
    if flags == 0 {
        Ok(())
    } else {
        Err(compat::unsupported())
    }
}

/// Counts the times that a registration changed state.
fn generation(state: State) -> u64 {
    match state {
        State::Building | State::Live => 1,
        _ => 2,
    }
}
