// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls of queues, answered by the model of the kernel.

use std::os::fd::BorrowedFd;

use crate::kernel::kernel;
use crate::nix::errno::Errno;

use super::bindings as abi;

pub(crate) fn queue_wait(
    _: BorrowedFd<'_>,
    args: &mut abi::pinmap_queue_wait,
) -> Result<(), Errno> {
    kernel().queue_wait(args.queue, args.value)
}

pub(crate) fn queue_notify(
    _: BorrowedFd<'_>,
    args: &mut abi::pinmap_queue_notify,
) -> Result<(), Errno> {
    kernel().queue_notify(args.queue, args.value, args.fd)
}

pub(crate) fn queue_query(
    _: BorrowedFd<'_>,
    args: &mut abi::pinmap_queue_query,
) -> Result<(), Errno> {
    args.out_index = kernel().queue_executed(args.queue)?;
    args.out_state = abi::PINMAP_QUEUE_READY;
    Ok(())
}

pub(crate) fn queue_query_before_destroy(
    file: BorrowedFd<'_>,
    args: &mut abi::pinmap_queue_query,
) -> Result<(), Errno> {
    queue_query(file, args)
}

pub(crate) fn queue_destroy(
    _: BorrowedFd<'_>,
    args: &mut abi::pinmap_queue_destroy,
) -> Result<(), Errno> {
    kernel().queue_destroy(args.queue)
}

pub(crate) fn queue_submit<T>(_: BorrowedFd<'_>, _: u64, _: &[T]) -> Result<(), Errno> {
    unreachable!("rings are mapped")
}
