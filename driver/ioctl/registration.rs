// SPDX-License-Identifier: GPL-2.0
//! REGISTER, REGISTER_FD, RELEASE and QUERY.
//!
//! REGISTER is the story of the driver on one screen: reserve a handle and the user addresses,
//! watch them, charge and pin, map, answer, publish. Dropping what is there undoes it, whatever
//! fails.

use super::{
    peer,
    pending::{check_flags, done, errno, Pending},
    Request,
};
use crate::{
    buffer::{pinned, Buffer, State},
    claim::Claim,
    context::{Context, Found, Guest, SharedBuffers},
    failure::Failure,
    logic::{
        place::Placement,
        request::{self, RegisterArgs, RegisterPlan, Target},
        span::Span,
        PAGE_SIZE,
    },
    sys::{mm::memfd::MemoryFile, task},
    trace::{Timed, Tracepoint},
    uapi::{self, pinmap_fail, pinmap_query, pinmap_register, pinmap_register_fd, pinmap_release},
};
use kernel::{prelude::*, sync::Arc};

impl Request for pinmap_register {
    const NR: u32 = uapi::PINMAP_CMD_REGISTER;

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
        let claim = claim(context, &plan)?;
        let (buffer, reserved) = context.reserve_user(&plan)?;
        self.out_generation = generation(State::Live);
        match register(context, &buffer, reserved.handle(), &plan) {
            Ok((device_addr, guests)) => {
                self.device_addr = device_addr;
                self.out_handle = reserved.handle();
                Ok(Pending::Registration {
                    guests,
                    reserved,
                    claim,
                })
            }
            Err(failure) if peer::may_be(&plan, &failure) => {
                drop(reserved);
                let registered = peer::register(context, &plan, claim)?.ok_or(failure)?;
                self.device_addr = registered.device_addr;
                self.out_handle = registered.handle;
                Ok(registered.pending)
            }
            Err(failure) => Err(failure),
        }
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

/// Registers the user memory of `plan` as `buffer`, which was reserved as `handle`. The caller was
/// checked, and has claimed the device. Returns the device address, and the buffer in other
/// contexts, if it is portable.
pub(super) fn register(
    context: &Arc<Context>,
    buffer: &Arc<Buffer>,
    handle: u64,
    plan: &RegisterPlan,
) -> Result<(u64, Option<KVec<Guest>>), Failure> {
    let timed = Timed::begin(Tracepoint::Register);
    context.check_foreign(plan.span)?;
    let device_addr = Buffer::begin(buffer, context.tenant(handle), plan.target)?;
    let mut guests = None;
    if let Some(target) = plan.target.filter(|_| plan.portable) {
        guests = SharedBuffers::share(context, buffer, target, plan.write)?;
        Buffer::go_live(buffer)?;
    }
    buffer.trace_registered(&timed, device_addr);
    Ok((device_addr, guests))
}

/// REGISTER_FD has nothing to watch: nobody but its file can take the pages away.
impl Request for pinmap_register_fd {
    const NR: u32 = uapi::PINMAP_CMD_REGISTER_FD;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let plan = request::register_fd(
            self.flags,
            self.offset,
            self.length,
            self.device_addr,
            self.address_bits,
        )
        .map_err(errno)?;
        context.check_caller()?;
        let claim = claim(context, &plan)?;
        let file = MemoryFile::from_fd(self.fd, plan.write)?;
        let account = context.account();
        let pages = pinned::pin_file(account, file, plan.span, || {
            if plan.interruptible && task::signal_pending() {
                return Err(EINTR);
            }
            Ok(())
        })?;
        let buffer = Buffer::of_file(&plan, pages, account.clone(), context.events().clone())?;
        let reserved = context.reserve(&buffer)?;
        let (device_addr, guests) = map(context, &buffer, &plan)?;
        Buffer::go_live(&buffer)?;
        self.device_addr = device_addr;
        self.out_handle = reserved.handle();
        self.out_generation = generation(State::Live);
        Ok(Pending::Registration {
            guests,
            reserved,
            claim,
        })
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_release {
    const NR: u32 = uapi::PINMAP_CMD_RELEASE;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        done(context.release(self.handle))
    }
}

impl Request for pinmap_query {
    const NR: u32 = uapi::PINMAP_CMD_QUERY;
    const WAKES: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        if let Some(range) = context.find_range(self.handle)? {
            describe_range(self, range);
            return Ok(Pending::Done);
        }
        let Found {
            handle,
            buffer,
            base,
            offset,
        } = find(context, self)?;
        buffer.await_decision()?;
        let status = buffer.status(context.space());
        self.handle = handle;
        self.out_base = base;
        self.out_length = buffer.span().length();
        self.out_device_addr = status
            .device_addr
            .map_or(0, |start| start.saturating_add(offset));
        self.out_flags = 0;
        if buffer.writable() {
            self.out_flags |= uapi::PINMAP_REGISTER_WRITE;
        }
        if buffer.is_portable() {
            self.out_flags |= uapi::PINMAP_REGISTER_PORTABLE;
        }
        self.out_kind = buffer.kind();
        self.out_state = match status.state {
            State::Live if handle != 0 => uapi::PINMAP_STATE_LIVE,
            State::Building | State::Live => uapi::PINMAP_STATE_BUILDING,
            _ => uapi::PINMAP_STATE_STALE,
        };
        // Allocated memory can be mapped only from the file by which it was allocated.
        let has_offset =
            buffer.is_home(context.events()) || buffer.kind() == uapi::PINMAP_BUFFER_FILE;
        self.out_offset = if has_offset { buffer.offset() } else { 0 };
        self.out_pinned = status.pinned.saturating_mul(PAGE_SIZE);
        self.out_nr_mappings = status.mappings as u32;
        self.out_generation = generation(status.state);
        Ok(Pending::Done)
    }
}

/// Fills in the answer of QUERY for a managed range.
fn describe_range(args: &mut pinmap_query, range: Span) {
    *args = pinmap_query {
        size: args.size,
        flags: args.flags,
        handle: args.handle,
        addr: args.addr,
        out_base: range.start(),
        out_length: range.length(),
        out_device_addr: range.start(),
        out_kind: uapi::PINMAP_BUFFER_MANAGED,
        out_state: uapi::PINMAP_STATE_LIVE,
        out_generation: generation(State::Live),
        ..pinmap_query::default()
    };
}

/// Finds the buffer that QUERY names, by its handle or by a user address in it.
fn find(context: &Context, args: &pinmap_query) -> Result<Found> {
    if args.handle != 0 {
        let buffer = context.find(args.handle)?;
        let base = match buffer.kind() {
            uapi::PINMAP_BUFFER_USER | uapi::PINMAP_BUFFER_IMPORT => buffer.span().start(),
            _ => 0,
        };
        return Ok(Found {
            handle: args.handle,
            buffer,
            base,
            offset: 0,
        });
    }
    match context.find_address(args.addr) {
        Err(ENOENT) => context.find_view(args.addr),
        found => found,
    }
}

/// Claims the device, if the plan is to map.
pub(super) fn claim(context: &Context, plan: &RegisterPlan) -> Result<Option<Claim>> {
    Ok(match plan.target {
        Some(_) => Some(Claim::new(context)?),
        None => None,
    })
}

/// Maps a buffer that is there already as planned. Returns the device address, and the buffer in
/// other contexts.
pub(super) fn map(
    context: &Arc<Context>,
    buffer: &Arc<Buffer>,
    plan: &RegisterPlan,
) -> Result<(u64, Option<KVec<Guest>>), Failure> {
    let Some(target) = plan.target else {
        return Ok((0, None));
    };
    let device_addr = buffer.map(context.tenant(buffer.handle()), target, plan.write)?;
    let mut guests = None;
    if plan.portable {
        // A file has no user address to ask by: the device address is the same everywhere.
        let target = Target {
            placement: Placement::Fixed(device_addr),
            ..target
        };
        guests = SharedBuffers::share(context, buffer, target, plan.write)?;
    }
    Ok((device_addr, guests))
}

/// Counts how often a registration changed its state, as user space sees it.
fn generation(state: State) -> u64 {
    match state {
        State::Building | State::Live => 1,
        _ => 2,
    }
}
