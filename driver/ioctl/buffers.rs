// SPDX-License-Identifier: GPL-2.0
//! REGISTER_BUFFERS and RELEASE_BUFFERS: several buffers by one call.

use super::{
    pending::{check_flags, errno, Pending, Publish},
    registration, Request,
};
use crate::{
    claim::Claim,
    context::{Context, ReservedBuffers},
    failure::Failure,
    logic::request::{self, RegisterArgs, RegisterPlan},
    sys::task,
    uapi::{
        self, pinmap_fail, pinmap_register_buffers, pinmap_registration, pinmap_release_buffers,
    },
};
use kernel::{
    prelude::*,
    sync::Arc,
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice},
};

/// Buffers that are registered before other tasks may run and a fatal signal is looked for.
const TURN: usize = 8;

/// An array of the caller's.
struct Array(UserPtr);

impl Array {
    fn new(address: u64) -> Result<Self> {
        let address = usize::try_from(address).map_err(|_| EFAULT)?;
        Ok(Self(UserPtr::from_addr(address)))
    }

    fn read<T: AsBytes + FromBytes + Default + Clone>(&self, count: u32) -> Result<KVVec<T>> {
        let mut entries = KVVec::from_elem(T::default(), count as usize, GFP_KERNEL_ACCOUNT)?;
        let bytes = AsBytes::as_bytes_mut(&mut *entries);
        UserSlice::new(self.0, bytes.len())
            .reader()
            .read_slice(bytes)?;
        Ok(entries)
    }

    /// Writes the entries back.
    fn write<T: AsBytes + FromBytes>(&self, entries: &[T]) -> Result {
        let bytes = AsBytes::as_bytes(entries);
        UserSlice::new(self.0, bytes.len())
            .writer()
            .write_slice(bytes)
    }
}

fn check_count(count: u32) -> Result {
    if (1..=uapi::PINMAP_MAX_BUFFERS).contains(&count) {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

impl pinmap_register_buffers {
    /// Checks the arguments of one of the buffers. `user_last`: the last address that a user has.
    fn plan(&self, entry: &pinmap_registration, user_last: u64) -> Result<RegisterPlan> {
        let args = RegisterArgs {
            flags: self.flags,
            reserved: self.__reserved,
            address: entry.addr,
            length: entry.length,
            device_address: entry.device_addr,
            address_bits: self.address_bits,
        };
        request::register(&args, user_last).map_err(errno)
    }
}

impl Request for pinmap_register_buffers {
    const NR: u32 = uapi::PINMAP_CMD_REGISTER_BUFFERS;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        self.out_failed = self.count;
        check_count(self.count)?;
        let array = Array::new(self.buffers)?;
        let mut entries: KVVec<pinmap_registration> = array.read(self.count)?;
        let mut plans = KVVec::with_capacity(entries.len(), GFP_KERNEL_ACCOUNT)?;
        let user_last = task::user_last();
        for (index, entry) in (0..).zip(&entries) {
            let plan = self
                .plan(entry, user_last)
                .inspect_err(|_| self.out_failed = index)?;
            // There is room.
            let _ = plans.push_within_capacity(plan);
        }
        context.check_caller()?;
        let first = plans.first().ok_or(EINVAL)?;
        let claim = registration::claim(context, first)?;
        let mut registered = context.reserve_users(plans.len())?;
        for (index, (entry, plan)) in entries.iter_mut().zip(&plans).enumerate() {
            self.out_failed = index as u32;
            if registered.buffers.len() == index {
                registered.fill(plans.get(index..).unwrap_or_default())?;
            }
            let one = registered.buffers.get_mut(index).ok_or(ENOMEM)?;
            (entry.device_addr, one.guests) =
                registration::register(context, &one.buffer, one.handle, plan)?;
            entry.out_handle = one.handle;
            if index % TURN == TURN - 1 {
                task::cond_resched();
                if task::fatal_signal_pending() {
                    self.out_failed = self.count;
                    return Err(EINTR.into());
                }
            }
        }
        self.out_failed = self.count;
        array.write(&entries)?;
        let registrations = Registrations { registered, claim };
        Ok(Pending::Other(KBox::new(
            registrations,
            GFP_KERNEL_ACCOUNT,
        )?))
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

/// Registrations under handles that cannot be used yet. Dropped in this order.
struct Registrations {
    registered: ReservedBuffers,
    claim: Option<Claim>,
}

impl Publish for Registrations {
    fn publish(&mut self) -> Result {
        self.registered.publish()?;
        if let Some(claim) = self.claim.take() {
            claim.keep();
        }
        Ok(())
    }
}

impl Request for pinmap_release_buffers {
    const NR: u32 = uapi::PINMAP_CMD_RELEASE_BUFFERS;
    const ANSWERS: bool = false;
    const ANSWERS_FAILURE: bool = true;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        self.out_failed = self.count;
        check_flags(self.flags)?;
        check_count(self.count)?;
        let handles: KVVec<u64> = Array::new(self.handles)?.read(self.count)?;
        context
            .release_all(&handles)
            .inspect_err(|&(_, failed)| self.out_failed = failed as u32)
            .map_err(|(errno, _)| errno)?;
        Ok(Pending::Done)
    }
}
