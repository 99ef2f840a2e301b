// SPDX-License-Identifier: GPL-2.0
//! The ioctls: the table, the dispatcher, and a file of handlers for each noun of the ABI.
//!
//! A call takes three steps. The dispatcher finds its row and reads the caller's struct, once, by
//! the size rule of `logic/size.rs`. The handler, which is the struct's [`Request`], does the work
//! and returns a [`Pending`]: its effect, which no other task can see yet. Then the dispatcher
//! writes the struct back and publishes the effect; if the struct cannot be written, the effect is
//! dropped, and so undone. A call that only takes something away, such as RELEASE, does so in the
//! handler and returns [`Pending::Done`].
//!
//! Handlers stand above all objects of the driver: only `file.rs` imports this module.

use crate::{
    context::Context,
    failure::Failure,
    logic::size,
    sys::fs::user,
    uapi::{
        self, pinmap_advise, pinmap_alloc, pinmap_budget, pinmap_export, pinmap_fail,
        pinmap_generations, pinmap_get_totals, pinmap_gpu_counters, pinmap_gpu_info,
        pinmap_gpu_walk, pinmap_import, pinmap_info, pinmap_manage, pinmap_map, pinmap_prefetch,
        pinmap_preflight, pinmap_query, pinmap_queue_create, pinmap_queue_destroy,
        pinmap_queue_notify, pinmap_queue_query, pinmap_queue_submit, pinmap_queue_wait,
        pinmap_register, pinmap_register_buffers, pinmap_register_fd, pinmap_release,
        pinmap_release_buffers, pinmap_reserved, pinmap_reset, pinmap_residency,
        pinmap_set_eventfd, pinmap_statistics, pinmap_stay_awake, pinmap_sync, pinmap_unmap,
    },
};
use core::mem::MaybeUninit;
use kernel::{
    ioctl::_IO,
    prelude::*,
    sync::Arc,
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice},
};

mod alloc;
mod buffers;
mod device;
mod dmabuf;
mod generations;
#[cfg(not(pinmap_flat))]
mod gpu;
#[cfg(pinmap_mirror)]
mod manage;
mod mapping;
mod peer;
mod pending;
#[cfg(pinmap_mirror)]
mod prefetch;
mod preflight;
#[cfg(not(pinmap_flat))]
mod queue;
mod registration;
#[cfg(pinmap_mirror)]
mod residence;
#[cfg(not(pinmap_mirror))]
mod unsupported;

use pending::Pending;

/// The struct of one ioctl, and its handler.
trait Request: FromBytes + AsBytes + Sized {
    /// Number within our type.
    const NR: u32;

    /// Whether the struct is written back after a success.
    const ANSWERS: bool = true;

    /// Whether the struct is written back after a failure. [`detail`](Self::detail) implies it.
    const ANSWERS_FAILURE: bool = false;

    /// Whether the call needs a paged device to be awake.
    const WAKES: bool = true;

    /// Handles the call. Fills in the struct's answers.
    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure>;

    /// The place for a failure's detail, in the structs that have one.
    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        None
    }
}

/// One row of the table.
struct Command {
    /// The number passed to `ioctl()`, which does not contain the struct's size.
    number: u32,
    size: usize,
    wakes: bool,
    run: fn(&Arc<Context>, &mut [u64], UserPtr) -> Result,
}

/// Room for any of the structs, aligned for all.
type Room = [MaybeUninit<u64>; 64];

const fn command<T: Request>() -> Command {
    assert!(size_of::<T>() <= size_of::<Room>());
    Command {
        number: _IO(uapi::PINMAP_IOCTL_TYPE, T::NR),
        size: size_of::<T>(),
        wakes: T::WAKES,
        run: run::<T>,
    }
}

const TABLE: &[Command] = &[
    command::<pinmap_info>(),
    command::<pinmap_reserved>(),
    command::<pinmap_register>(),
    command::<pinmap_release>(),
    command::<pinmap_query>(),
    command::<pinmap_map>(),
    command::<pinmap_unmap>(),
    command::<pinmap_set_eventfd>(),
    command::<pinmap_reset>(),
    command::<pinmap_alloc>(),
    command::<pinmap_gpu_info>(),
    command::<pinmap_gpu_counters>(),
    command::<pinmap_queue_create>(),
    command::<pinmap_queue_destroy>(),
    command::<pinmap_queue_wait>(),
    command::<pinmap_queue_query>(),
    command::<pinmap_queue_submit>(),
    command::<pinmap_queue_notify>(),
    command::<pinmap_gpu_walk>(),
    command::<pinmap_get_totals>(),
    command::<pinmap_export>(),
    command::<pinmap_import>(),
    command::<pinmap_sync>(),
    command::<pinmap_register_fd>(),
    command::<pinmap_preflight>(),
    command::<pinmap_generations>(),
    command::<pinmap_manage>(),
    command::<pinmap_prefetch>(),
    command::<pinmap_advise>(),
    command::<pinmap_residency>(),
    command::<pinmap_statistics>(),
    command::<pinmap_budget>(),
    command::<pinmap_register_buffers>(),
    command::<pinmap_release_buffers>(),
    command::<pinmap_stay_awake>(),
];

/// Runs the handler, writes the struct back, publishes.
fn run<T: Request>(context: &Arc<Context>, buffer: &mut [u64], argument: UserPtr) -> Result {
    let bytes = AsBytes::as_bytes_mut(buffer);
    let request = bytes.get_mut(..size_of::<T>()).and_then(T::from_bytes_mut);
    let request = request.ok_or(EINVAL)?;
    if let Some(detail) = request.detail() {
        *detail = pinmap_fail::default();
    }
    let failure = match request.run(context) {
        Ok(pending) => {
            if T::ANSWERS {
                // If the struct cannot be written, `pending` is dropped, and so undone.
                user::write_struct(argument, AsBytes::as_bytes(request))?;
            }
            return match pending {
                Pending::Done => Ok(()),
                pending => pending.publish(),
            };
        }
        Err(failure) => failure,
    };
    if failure.errno == ENODEV {
        // A caller that is told ENODEV relies on the device reaching none of its memory.
        context.device().await_end();
    }
    let detail = request.detail();
    let respond = detail.is_some() || T::ANSWERS_FAILURE;
    if let Some(detail) = detail {
        *detail = failure.detail;
    }
    if respond {
        // The failure counts, whether it can be explained or not.
        let _ = user::write_struct(argument, AsBytes::as_bytes(request));
    }
    Err(failure.errno)
}

/// Dispatches an ioctl: the only code that touches the pointer that user space passed. A result is
/// published only after the caller has been told.
pub(crate) fn dispatch(context: &Arc<Context>, command: u32, argument: UserPtr) -> Result {
    let row = TABLE
        .iter()
        .find(|row| row.number == command)
        .ok_or(ENOTTY)?;

    let mut room: Room = [const { MaybeUninit::uninit() }; 64];
    let (buffer, tail) = user::read_struct(argument, row.size, &mut room, |given| {
        size::tail(given, row.size).map_err(pending::errno)
    })?;
    if tail != 0 {
        check_tail(argument, row.size, tail)?;
    }
    let wakes = row.wakes || !context.is_admitted();
    let _awake = if wakes {
        context.device().awake(context)?
    } else {
        None
    };
    context.admit()?;
    (row.run)(context, buffer, argument)
}

/// Fails with `E2BIG` if one of the `left` bytes behind the `known` ones is not zero.
fn check_tail(argument: UserPtr, known: usize, mut left: usize) -> Result {
    let mut reader = UserSlice::new(argument, known.saturating_add(left)).reader();
    reader.skip(known)?;
    let mut piece = [0_u8; 64];
    while left != 0 {
        let length = left.min(piece.len());
        let part = piece.get_mut(..length).ok_or(EINVAL)?;
        reader.read_slice(part)?;
        size::check_tail(part).map_err(pending::errno)?;
        left = left.saturating_sub(length);
    }
    Ok(())
}
