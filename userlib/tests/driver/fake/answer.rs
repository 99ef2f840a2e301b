// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `ioctl()` of this program, which answers for the made-up driver.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::libc;

use super::buffers::count;
use super::{fakes, State, PAGE};
use crate::machine::{Machine, FENCES};
use crate::sys;

/// Takes the argument of an ioctl.
///
/// # Safety
///
/// The argument must point to a `T` that nobody else uses.
unsafe fn take<'a, T>(arg: *mut c_void) -> &'a mut T {
    // SAFETY: As the caller promises.
    unsafe { &mut *arg.cast::<T>() }
}

/// Answers an ioctl.
///
/// # Safety
///
/// `arg` must be of the type that belongs to the number.
unsafe fn answer(
    state: &mut State,
    file: &File,
    number: u32,
    arg: *mut c_void,
) -> Result<(), Errno> {
    if state.gone && number != sys::PINMAP_CMD_GET_INFO {
        return Err(Errno::ENODEV);
    }
    let reach = state.reach_of_device();
    // SAFETY: As the caller promises.
    let machine = |it: &mut Machine| unsafe { it.answer(number, arg, &reach) };
    if let Some(answered) = state.machine.as_mut().and_then(machine) {
        return answered;
    }
    match number {
        sys::PINMAP_CMD_GET_INFO => {
            // SAFETY: As the caller promises, here and below.
            let info = unsafe { take::<sys::pinmap_info>(arg) };
            info.out_kind = sys::PINMAP_KIND_PAGED;
            info.out_vendor = 0x1234;
            info.out_device = if state.foreign { 0x5678 } else { 0x7e57 };
            if state.synced.is_none() {
                info.out_flags |= sys::PINMAP_INFO_COHERENT;
            }
            if state.gone {
                info.out_flags |= sys::PINMAP_INFO_GONE;
            }
        }
        sys::PINMAP_CMD_GPU_INFO => {
            // SAFETY: As above.
            let info = unsafe { take::<sys::pinmap_gpu_info>(arg) };
            info.out_nr_queues = 64;
            info.out_nr_slots = 8;
            info.out_nr_copy_engines = 2;
            info.out_max_transfer = 1 << 30;
        }
        sys::PINMAP_CMD_QUEUE_CREATE => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_queue_create>(arg) };
            args.out_queue = state.handle();
            args.out_ring_length = u64::from(args.packets) * 64;
            args.out_ring_offset = state.space(file, args.out_ring_length);
            args.out_doorbell_offset = state.space(file, PAGE);
            args.out_fence_offset = state.space(file, PAGE);
            args.out_fence_addr = FENCES + args.out_fence_offset;
            state.queues.insert(args.out_queue, args.out_fence_offset);
            if let Some(machine) = &mut state.machine {
                machine.create(args);
            }
        }
        sys::PINMAP_CMD_QUEUE_DESTROY => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_queue_destroy>(arg) };
            if state.stuck {
                return Err(Errno::EIO);
            }
            state.queues.remove(&args.queue).ok_or(Errno::ESTALE)?;
        }
        sys::PINMAP_CMD_QUEUE_QUERY => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_queue_query>(arg) };
            args.out_state = sys::PINMAP_QUEUE_READY;
            args.out_index = u64::MAX;
        }
        sys::PINMAP_CMD_QUEUE_WAIT => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_queue_wait>(arg) };
            if state.stuck {
                return Err(Errno::EIO);
            }
            state.reach(file, args.queue, args.fence, args.value)?;
        }
        sys::PINMAP_CMD_QUEUE_NOTIFY => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_queue_notify>(arg) };
            state.reach(file, args.queue, args.fence, args.value)?;
            let one = 1u64.to_ne_bytes();
            // SAFETY: The bytes are there; the descriptor is the caller's.
            unsafe { libc::write(args.fd, one.as_ptr().cast(), one.len()) };
        }
        sys::PINMAP_CMD_ALLOC => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_alloc>(arg) };
            args.out_handle = state.handle();
            args.out_offset = state.space(file, args.length);
        }
        sys::PINMAP_CMD_GENERATIONS => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_generations>(arg) };
            args.out_offset = state.space(file, PAGE);
            args.out_length = PAGE;
        }
        sys::PINMAP_CMD_REGISTER => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_register>(arg) };
            state.calls += 1;
            let (flags, addr, length) = (args.flags, args.addr, args.length);
            args.out_handle = state.register(flags, addr, length, &mut args.fail)?;
            if flags & sys::PINMAP_REGISTER_FIXED == 0 {
                args.device_addr = addr;
            }
        }
        sys::PINMAP_CMD_REGISTER_BUFFERS => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_register_buffers>(arg) };
            state.calls += 1;
            let count = count(args.count)?;
            let buffers = std::ptr::with_exposed_provenance_mut(args.buffers as usize);
            // SAFETY: As above; the caller lends the array for the call.
            let buffers = unsafe { std::slice::from_raw_parts_mut(buffers, count) };
            state.register_buffers(args, buffers)?;
        }
        sys::PINMAP_CMD_RELEASE_BUFFERS => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_release_buffers>(arg) };
            state.calls += 1;
            let count = count(args.count)?;
            let handles = std::ptr::with_exposed_provenance(args.handles as usize);
            // SAFETY: As above; the caller lends the array for the call.
            let handles = unsafe { std::slice::from_raw_parts(handles, count) };
            state.release_buffers(args, handles)?;
        }
        sys::PINMAP_CMD_MANAGE => {
            // SAFETY: As above.
            state.manage(unsafe { take::<sys::pinmap_manage>(arg) })?;
        }
        sys::PINMAP_CMD_PREFETCH => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_prefetch>(arg) };
            state.check_managed(args.addr, args.length)?;
            state.pages.prefetch(args)?;
        }
        sys::PINMAP_CMD_ADVISE => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_advise>(arg) };
            state.check_managed(args.addr, args.length)?;
            state.pages.advise(args)?;
        }
        sys::PINMAP_CMD_RESIDENCY => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_residency>(arg) };
            state.check_managed(args.addr, args.length)?;
            state.pages.residency(args)?;
        }
        sys::PINMAP_CMD_BUDGET => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_budget>(arg) };
            if state.managed.is_empty() {
                return Err(Errno::ENOENT);
            }
            state.pages.budget(args)?;
        }
        sys::PINMAP_CMD_STATISTICS => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_statistics>(arg) };
            state.managed.get(&args.handle).ok_or(Errno::ENOENT)?;
            state.pages.statistics(args);
        }
        sys::PINMAP_CMD_RELEASE => {
            state.calls += 1;
            // SAFETY: As above.
            state.release(unsafe { take::<sys::pinmap_release>(arg) }.handle)?;
        }
        sys::PINMAP_CMD_UNMAP => {
            // SAFETY: As above.
            state.find(unsafe { take::<sys::pinmap_unmap>(arg) }.handle)?;
            if state.broken.is_some() {
                return Err(Errno::EIO);
            }
        }
        sys::PINMAP_CMD_SYNC => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_sync>(arg) };
            let synced = state.synced.as_mut().ok_or(Errno::EINVAL)?;
            synced.push((args.flags, args.offset, args.length));
        }
        sys::PINMAP_CMD_QUERY => {
            // SAFETY: As above.
            let args = unsafe { take::<sys::pinmap_query>(arg) };
            (args.out_base, args.out_length) = state.find(args.handle)?;
            args.out_state = sys::PINMAP_STATE_LIVE;
        }
        sys::PINMAP_CMD_MAP => {}
        _ => return Err(Errno::ENOTTY),
    }
    Ok(())
}

/// The function that the crate calls instead of that of the C library.
///
/// # Safety
///
/// `arg` must be of the type that belongs to the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: RawFd, request: c_ulong, arg: *mut c_void) -> c_int {
    let number = (request & 0xff) as u32;
    // SAFETY: The descriptor belongs to the caller, for the time of the call.
    let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let file = file.try_clone_to_owned().map(File::from);
    if request >> 8 == sys::PINMAP_IOCTL_TYPE.into() {
        if let Ok(file) = file {
            let name = file.metadata().map_or(0, |metadata| metadata.ino());
            if let Some(state) = fakes().get_mut(&name) {
                // SAFETY: As the caller promises.
                return match unsafe { answer(state, &file, number, arg) } {
                    Ok(()) => 0,
                    Err(errno) => {
                        errno.set();
                        -1
                    }
                };
            }
        }
    }
    // SAFETY: As the caller promises.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, arg) as c_int }
}
