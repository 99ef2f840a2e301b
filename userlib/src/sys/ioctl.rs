// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls as typed calls: the one place where pointers go to the driver.
//!
//! Every struct is passed as `&mut`, because the driver writes to all of them, even when it fails.
//! Inside a host function a call fails with `EDEADLK`, unless its row is marked `allowed_inside`:
//! a host function may drop what it owns, and dropping makes those calls.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

use super::bindings as abi;
use super::inside;

/// Whether the mark of a row allows the call inside a host function.
macro_rules! allowed {
    () => {
        false
    };
    (allowed_inside) => {
        true
    };
}

/// Declares the calls, one in each row: its name, its number, its struct, and perhaps a mark. The
/// first group is safe with any argument.
macro_rules! ioctls {
    (
        safe { $($safe:ident = $number:ident($type:ident) $($mark:ident)?;)* }
        unsafe { $($(#[$doc:meta])* $unsafe:ident = $code:ident($args:ident) $($also:ident)?;)* }
    ) => {
        /// The calls as nix makes them, untyped as to the file.
        mod raw {
            use super::abi;

            ioctls!(@raw $($safe = $number($type);)* $($unsafe = $code($args);)*);
        }

        $(
            pub(crate) fn $safe(
                file: BorrowedFd<'_>,
                args: &mut abi::$type,
            ) -> Result<(), Errno> {
                ioctls!(@call $safe, file, args, allowed!($($mark)?))
            }
        )*

        $(
            $(#[$doc])*
            pub(crate) unsafe fn $unsafe(
                file: BorrowedFd<'_>,
                args: &mut abi::$args,
            ) -> Result<(), Errno> {
                ioctls!(@call $unsafe, file, args, allowed!($($also)?))
            }
        )*
    };
    (@raw $($name:ident = $number:ident($type:ident);)*) => { $(
        nix::ioctl_readwrite_bad!(
            $name,
            nix::request_code_none!(abi::PINMAP_IOCTL_TYPE, abi::$number),
            abi::$type
        );
    )* };
    // Sets the struct's size and makes the call.
    (@call $name:ident, $file:expr, $args:expr, $allowed:expr) => {{
        if !$allowed && inside::is_inside() {
            return Err(Errno::EDEADLK);
        }
        $args.size = size_of_val($args) as u32;
        // SAFETY:
        // - `$args` is a `&mut` to a struct that begins with its size, set above, so the driver
        //   reads and writes nothing beyond it.
        // - The driver keeps no pointer to it. What the struct points to (memory to register,
        //   packets) is covered by the requirements of the unsafe calls.
        // - A file that is not the driver's answers the number, which is the driver's own, with
        //   ENOTTY.
        unsafe { raw::$name($file.as_raw_fd(), $args) }.map(drop)
    }};
}

ioctls! {
    safe {
        get_info = PINMAP_CMD_GET_INFO(pinmap_info);
        get_reserved = PINMAP_CMD_GET_RESERVED(pinmap_reserved);
        release = PINMAP_CMD_RELEASE(pinmap_release) allowed_inside;
        query = PINMAP_CMD_QUERY(pinmap_query);
        // Asked by a release that failed, which a drop may make.
        query_after_release = PINMAP_CMD_QUERY(pinmap_query) allowed_inside;
        // Maps only registered memory, with at most the access of the registration.
        map = PINMAP_CMD_MAP(pinmap_map);
        unmap = PINMAP_CMD_UNMAP(pinmap_unmap) allowed_inside;
        set_eventfd = PINMAP_CMD_SET_EVENTFD(pinmap_set_eventfd);
        // Made when an interrupt is dropped.
        clear_eventfd = PINMAP_CMD_SET_EVENTFD(pinmap_set_eventfd) allowed_inside;
        reset = PINMAP_CMD_RESET(pinmap_reset);
        stay_awake = PINMAP_CMD_STAY_AWAKE(pinmap_stay_awake);
        // New memory of the driver's own, which nothing in this process refers to.
        alloc = PINMAP_CMD_ALLOC(pinmap_alloc);
        gpu_info = PINMAP_CMD_GPU_INFO(pinmap_gpu_info);
        gpu_counters = PINMAP_CMD_GPU_COUNTERS(pinmap_gpu_counters);
        gpu_walk = PINMAP_CMD_GPU_WALK(pinmap_gpu_walk);
        queue_create = PINMAP_CMD_QUEUE_CREATE(pinmap_queue_create);
        queue_destroy = PINMAP_CMD_QUEUE_DESTROY(pinmap_queue_destroy) allowed_inside;
        queue_wait = PINMAP_CMD_QUEUE_WAIT(pinmap_queue_wait);
        queue_query = PINMAP_CMD_QUEUE_QUERY(pinmap_queue_query);
        // Asked before a queue is destroyed, which a drop may do.
        queue_query_before_destroy = PINMAP_CMD_QUEUE_QUERY(pinmap_queue_query) allowed_inside;
        get_totals = PINMAP_CMD_GET_TOTALS(pinmap_get_totals);
        // Memory that was exported, to which nothing refers.
        import = PINMAP_CMD_IMPORT(pinmap_import);
        sync = PINMAP_CMD_SYNC(pinmap_sync);
        // Pages of a file: whoever may write to the file can do so without this, too.
        register_fd = PINMAP_CMD_REGISTER_FD(pinmap_register_fd);
        preflight = PINMAP_CMD_PREFLIGHT(pinmap_preflight);
        generations = PINMAP_CMD_GENERATIONS(pinmap_generations);
        queue_notify = PINMAP_CMD_QUEUE_NOTIFY(pinmap_queue_notify);
        // Memory is then reached by what packets name: operands that are borrowed, or whatever raw
        // packets say, which are unsafe to submit.
        manage = PINMAP_CMD_MANAGE(pinmap_manage);
        // Contents and addresses stay the same.
        prefetch = PINMAP_CMD_PREFETCH(pinmap_prefetch);
        // Made by host functions of the crate. The driver's copies wait for no stream.
        prefetch_inside = PINMAP_CMD_PREFETCH(pinmap_prefetch) allowed_inside;
        advise = PINMAP_CMD_ADVISE(pinmap_advise);
        statistics = PINMAP_CMD_STATISTICS(pinmap_statistics);
        budget = PINMAP_CMD_BUDGET(pinmap_budget);
    }
    unsafe {
        /// Makes memory of this process reachable for the device.
        ///
        /// # Safety
        ///
        /// On success the device may read the memory at any time until it is released, and write
        /// it if `PINMAP_REGISTER_WRITE` is set. Until then there must be no reference to any of
        /// it, except to atomics.
        register = PINMAP_CMD_REGISTER(pinmap_register);
        /// Makes memory reachable for whoever gets the descriptor.
        ///
        /// # Safety
        ///
        /// On success others may read the memory at any time, for as long as it exists, and write
        /// it if `PINMAP_EXPORT_WRITE` is set. Until then there must be no reference to any of it,
        /// except to atomics.
        export = PINMAP_CMD_EXPORT(pinmap_export);
        /// Submits packets.
        ///
        /// # Safety
        ///
        /// `packets` must point to `count` packets that can be read during the call.
        submit = PINMAP_CMD_QUEUE_SUBMIT(pinmap_queue_submit);
        /// Asks where managed memory is.
        ///
        /// # Safety
        ///
        /// `runs` must point to `capacity` structs that nobody else uses during the call.
        residency_at = PINMAP_CMD_RESIDENCY(pinmap_residency);
        /// Makes several ranges of memory of this process reachable for the device.
        ///
        /// # Safety
        ///
        /// As for `register`, for each range. `buffers` must point to `count` structs that nobody
        /// else uses during the call.
        register_buffers_at = PINMAP_CMD_REGISTER_BUFFERS(pinmap_register_buffers);
        /// Releases several buffers.
        ///
        /// # Safety
        ///
        /// `handles` must point to `count` handles that can be read during the call.
        release_buffers_at = PINMAP_CMD_RELEASE_BUFFERS(pinmap_release_buffers) allowed_inside;
    }
}

/// Makes several ranges of memory of this process reachable for the device, all or none. After a
/// failure, `out_failed` is the index of the one that failed, or their number.
///
/// # Safety
///
/// As for [`register`], for each range.
pub(crate) unsafe fn register_buffers(
    file: BorrowedFd<'_>,
    args: &mut abi::pinmap_register_buffers,
    buffers: &mut [abi::pinmap_registration],
) -> Result<(), Errno> {
    args.count = u32::try_from(buffers.len()).map_err(|_| Errno::EINVAL)?;
    // Stays so if the call fails before the driver looks at any.
    args.out_failed = args.count;
    // Exposed, because the driver gets the address as a number.
    args.buffers = buffers.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: As the caller promises; the structs are borrowed exclusively for the time of the
    // call, and can be any bytes.
    unsafe { register_buffers_at(file, args) }
}

/// Releases several buffers, all or none; after `EIO` none of the handles is known any more.
pub(crate) fn release_buffers(file: BorrowedFd<'_>, handles: &[u64]) -> Result<(), Errno> {
    let mut args = abi::pinmap_release_buffers {
        // Exposed, because the driver gets the address as a number. It only reads there.
        handles: handles.as_ptr().expose_provenance() as u64,
        count: u32::try_from(handles.len()).map_err(|_| Errno::EINVAL)?,
        ..Default::default()
    };
    // SAFETY: The handles are borrowed for the time of the call.
    unsafe { release_buffers_at(file, &mut args) }
}

/// Asks where managed memory is. The runs are written to `room`; if that is empty, only the sums
/// are told.
pub(crate) fn residency(
    file: BorrowedFd<'_>,
    args: &mut abi::pinmap_residency,
    room: &mut [abi::pinmap_run],
) -> Result<(), Errno> {
    args.capacity = u32::try_from(room.len()).map_err(|_| Errno::EINVAL)?;
    // Exposed, because the driver gets the address as a number.
    args.runs = match room {
        [] => 0,
        room => room.as_mut_ptr().expose_provenance() as u64,
    };
    // SAFETY: The room is borrowed exclusively for the time of the call, and a run can be any
    // bytes.
    unsafe { residency_at(file, args) }
}

/// Submits packets to a queue whose ring is not mapped, and returns the queue's new index. Where
/// the packets let the device write is the concern of whoever makes them.
pub(crate) fn queue_submit(
    file: BorrowedFd<'_>,
    queue: u64,
    packets: &[[u64; 8]],
) -> Result<u64, Errno> {
    let mut args = abi::pinmap_queue_submit {
        queue,
        // Exposed, because the driver gets the address as a number. It only reads there.
        packets: packets.as_ptr().expose_provenance() as u64,
        count: u32::try_from(packets.len()).map_err(|_| Errno::EINVAL)?,
        ..Default::default()
    };
    // SAFETY: The packets are borrowed for the time of the call.
    unsafe { submit(file, &mut args)? };
    Ok(args.out_index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_header() {
        assert_eq!(
            nix::request_code_none!(abi::PINMAP_IOCTL_TYPE, abi::PINMAP_CMD_GET_INFO),
            0xbc00
        );
        assert_eq!(
            nix::request_code_none!(abi::PINMAP_IOCTL_TYPE, abi::PINMAP_CMD_RESET),
            0xbc08
        );
        assert_eq!(
            nix::request_code_none!(abi::PINMAP_IOCTL_TYPE, abi::PINMAP_CMD_QUEUE_SUBMIT),
            0xbc10
        );
        assert_eq!(
            nix::request_code_none!(abi::PINMAP_IOCTL_TYPE, abi::PINMAP_CMD_SYNC),
            0xbc13
        );
    }

    #[test]
    fn a_struct_tells_its_size_first() {
        let file = std::fs::File::open("/dev/null").expect("there is always /dev/null");
        let file = std::os::fd::AsFd::as_fd(&file);
        let mut info = abi::pinmap_info::default();
        assert_eq!(get_info(file, &mut info), Err(Errno::ENOTTY));
        assert_eq!(info.size as usize, size_of_val(&info));
        assert_eq!(std::mem::offset_of!(abi::pinmap_info, size), 0);
        let mut release_args = abi::pinmap_release::default();
        assert_eq!(release(file, &mut release_args), Err(Errno::ENOTTY));
        assert_eq!(release_args.size, 16);
    }

    #[test]
    fn inside_a_host_function_only_marked_calls_are_made() {
        let file = std::fs::File::open("/dev/null").expect("there is always /dev/null");
        let file = std::os::fd::AsFd::as_fd(&file);
        inside::run(|| {
            let mut query_args = abi::pinmap_queue_query::default();
            assert_eq!(queue_query(file, &mut query_args), Err(Errno::EDEADLK));
            // Made, it is answered by the file.
            let answer = queue_query_before_destroy(file, &mut query_args);
            assert_eq!(answer, Err(Errno::ENOTTY));
            let answer = release(file, &mut abi::pinmap_release::default());
            assert_eq!(answer, Err(Errno::ENOTTY));
            assert_eq!(release_buffers(file, &[1, 2]), Err(Errno::ENOTTY));
            assert_eq!(queue_submit(file, 1, &[]), Err(Errno::EDEADLK));
        });
        assert!(!inside::is_inside());
    }
}
