// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls as typed calls: the one place where pointers go to the driver.
//!
//! Every struct is `&mut`, for the driver writes to each of them, also when it fails.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

use crate::host;
use crate::sys;

mod raw {
    //! What nix makes of the numbers; untyped as to the file.
    use crate::sys;

    macro_rules! ioctls {
        ($($name:ident = $number:ident($type:ident);)*) => { $(
            nix::ioctl_readwrite_bad!(
                $name,
                nix::request_code_none!(sys::PINMAP_IOCTL_TYPE, sys::$number),
                sys::$type
            );
        )* };
    }

    ioctls! {
        get_info = PINMAP_CMD_GET_INFO(pinmap_info);
        get_reserved = PINMAP_CMD_GET_RESERVED(pinmap_reserved);
        register = PINMAP_CMD_REGISTER(pinmap_register);
        release = PINMAP_CMD_RELEASE(pinmap_release);
        query = PINMAP_CMD_QUERY(pinmap_query);
        map = PINMAP_CMD_MAP(pinmap_map);
        unmap = PINMAP_CMD_UNMAP(pinmap_unmap);
        set_eventfd = PINMAP_CMD_SET_EVENTFD(pinmap_set_eventfd);
        reset = PINMAP_CMD_RESET(pinmap_reset);
        alloc = PINMAP_CMD_ALLOC(pinmap_alloc);
        gpu_info = PINMAP_CMD_GPU_INFO(pinmap_gpu_info);
        gpu_counters = PINMAP_CMD_GPU_COUNTERS(pinmap_gpu_counters);
        gpu_walk = PINMAP_CMD_GPU_WALK(pinmap_gpu_walk);
        queue_create = PINMAP_CMD_QUEUE_CREATE(pinmap_queue_create);
        queue_destroy = PINMAP_CMD_QUEUE_DESTROY(pinmap_queue_destroy);
        queue_wait = PINMAP_CMD_QUEUE_WAIT(pinmap_queue_wait);
        queue_query = PINMAP_CMD_QUEUE_QUERY(pinmap_queue_query);
        queue_submit = PINMAP_CMD_QUEUE_SUBMIT(pinmap_queue_submit);
        get_totals = PINMAP_CMD_GET_TOTALS(pinmap_get_totals);
        export = PINMAP_CMD_EXPORT(pinmap_export);
        import = PINMAP_CMD_IMPORT(pinmap_import);
        sync = PINMAP_CMD_SYNC(pinmap_sync);
        register_fd = PINMAP_CMD_REGISTER_FD(pinmap_register_fd);
        preflight = PINMAP_CMD_PREFLIGHT(pinmap_preflight);
        generations = PINMAP_CMD_GENERATIONS(pinmap_generations);
        queue_notify = PINMAP_CMD_QUEUE_NOTIFY(pinmap_queue_notify);
    }
}

/// Sets the struct's size and makes the call.
macro_rules! call {
    ($name:ident, $file:expr, $args:expr) => {{
        if host::is_inside() && !matches!(stringify!($name), "release" | "unmap" | "queue_destroy") {
            // What is dropped there may still end.
            return Err(Errno::EDEADLK);
        }
        $args.size = size_of_val($args) as u32;
        // SAFETY:
        // - `$args` is a `&mut` to a struct that begins with its size, set above, so the driver
        //   reads and writes nothing beyond it.
        // - The driver keeps no pointer to it. Where it has one to more memory (packets), that is only
        //   read, and borrowed by the caller, all of it.
        // - A file that is not the driver's answers the number, which is the driver's own, with
        //   ENOTTY.
        unsafe { raw::$name($file.as_raw_fd(), $args) }.map(drop)
    }};
}

/// The calls that are safe with any argument.
macro_rules! safe {
    ($($name:ident($type:ident);)*) => { $(
        pub(crate) fn $name(file: BorrowedFd<'_>, args: &mut sys::$type) -> Result<(), Errno> {
            call!($name, file, args)
        }
    )* };
}

safe! {
    get_info(pinmap_info);
    get_reserved(pinmap_reserved);
    release(pinmap_release);
    query(pinmap_query);
    // Only what was registered can be mapped, and no more than allowed then.
    map(pinmap_map);
    unmap(pinmap_unmap);
    set_eventfd(pinmap_set_eventfd);
    reset(pinmap_reset);
    // New memory of the driver's own, which nothing in this process refers to.
    alloc(pinmap_alloc);
    gpu_info(pinmap_gpu_info);
    gpu_counters(pinmap_gpu_counters);
    gpu_walk(pinmap_gpu_walk);
    queue_create(pinmap_queue_create);
    queue_destroy(pinmap_queue_destroy);
    queue_wait(pinmap_queue_wait);
    queue_query(pinmap_queue_query);
    get_totals(pinmap_get_totals);
    // Memory that was exported, to which nothing refers.
    import(pinmap_import);
    sync(pinmap_sync);
    // Pages of a file, which whoever has it open for writing can write to without this as well.
    register_fd(pinmap_register_fd);
    preflight(pinmap_preflight);
    generations(pinmap_generations);
    queue_notify(pinmap_queue_notify);
}

/// Submits packets to a queue whose ring is not mapped. Whatever they have the device do, it
/// reaches only what is registered or allocated.
pub(crate) fn queue_submit(
    file: BorrowedFd<'_>,
    queue: u64,
    packets: &[[u64; 8]],
) -> Result<u64, Errno> {
    let mut args = sys::pinmap_queue_submit {
        queue,
        // Exposed, for the driver gets it as a number. It only reads there.
        packets: packets.as_ptr().expose_provenance() as u64,
        count: u32::try_from(packets.len()).map_err(|_| Errno::EINVAL)?,
        ..Default::default()
    };
    let args = &mut args;
    call!(queue_submit, file, args)?;
    Ok(args.out_index)
}

/// Makes memory of this process reachable for the device.
///
/// # Safety
///
/// When it succeeds, the device may read the memory at any time until it is released, and write it
/// if `PINMAP_REGISTER_WRITE` is set: until then there must be no reference to any of it, except to
/// atomics.
pub(crate) unsafe fn register(
    file: BorrowedFd<'_>,
    args: &mut sys::pinmap_register,
) -> Result<(), Errno> {
    call!(register, file, args)
}

/// Makes memory reachable for whoever gets the descriptor.
///
/// # Safety
///
/// When it succeeds, others may read the memory at any time, for as long as it exists, and write it if
/// `PINMAP_EXPORT_WRITE` is set: until then there must be no reference to any of it, except to
/// atomics.
pub(crate) unsafe fn export(
    file: BorrowedFd<'_>,
    args: &mut sys::pinmap_export,
) -> Result<(), Errno> {
    call!(export, file, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_header() {
        assert_eq!(
            nix::request_code_none!(sys::PINMAP_IOCTL_TYPE, sys::PINMAP_CMD_GET_INFO),
            0xbc00
        );
        assert_eq!(
            nix::request_code_none!(sys::PINMAP_IOCTL_TYPE, sys::PINMAP_CMD_RESET),
            0xbc08
        );
        assert_eq!(
            nix::request_code_none!(sys::PINMAP_IOCTL_TYPE, sys::PINMAP_CMD_QUEUE_SUBMIT),
            0xbc10
        );
        assert_eq!(
            nix::request_code_none!(sys::PINMAP_IOCTL_TYPE, sys::PINMAP_CMD_SYNC),
            0xbc13
        );
    }

    #[test]
    fn a_struct_tells_its_size_first() {
        let file = std::fs::File::open("/dev/null").expect("there is always /dev/null");
        let file = std::os::fd::AsFd::as_fd(&file);
        let mut info = sys::pinmap_info::default();
        assert_eq!(get_info(file, &mut info), Err(Errno::ENOTTY));
        assert_eq!(info.size as usize, size_of_val(&info));
        assert_eq!(std::mem::offset_of!(sys::pinmap_info, size), 0);
        let mut release_args = sys::pinmap_release::default();
        assert_eq!(release(file, &mut release_args), Err(Errno::ENOTTY));
        assert_eq!(release_args.size, 16);
    }
}
