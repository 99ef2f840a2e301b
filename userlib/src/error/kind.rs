// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kinds of errors, to match on.

use nix::errno::Errno;

use super::Operation;

/// The kind of an error, for programs that act on it. Returned by
/// [`Error::kind`](crate::Error::kind).
///
/// ```no_run
/// use pinmap::{Device, ErrorKind};
///
/// let device = match Device::open("/dev/pinmap0") {
///     Ok(device) => device,
///     Err(error) if error.kind() == ErrorKind::NotFound => panic!("bind a function first"),
///     Err(error) => panic!("{error}"),
/// };
/// match device.bar(0) {
///     Err(error) if error.kind() == ErrorKind::Busy => println!("somebody else uses it"),
///     Err(error) if error.kind() == ErrorKind::Gone => println!("it was unplugged"),
///     other => drop(other),
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ErrorKind {
    /// There is no such thing: device, BAR, interrupt vector, managed memory (`ENOENT`), or the
    /// driver is not bound to the function.
    NotFound,
    /// The user may not do this, or the memory may not be accessed so (`EACCES`, `EPERM`).
    PermissionDenied,
    /// Another context owns the device, or somebody else uses the memory (`EBUSY`).
    Busy,
    /// The device is gone (`ENODEV`).
    Gone,
    /// Memory that went away is named (`ESTALE`).
    Stale,
    /// An argument makes no sense (`EINVAL`, `EOVERFLOW`).
    InvalidInput,
    /// The address names no memory that can be used so (`EFAULT`).
    BadAddress,
    /// Something already exists: a registration, a device address (`EEXIST`).
    AlreadyExists,
    /// Out of memory, or over a limit such as `RLIMIT_MEMLOCK` (`ENOMEM`, `EDQUOT`).
    OutOfMemory,
    /// No room: device addresses, the device's memory, queues, handles (`ENOSPC`).
    NoSpace,
    /// The device, the driver or the kernel cannot do this (`EOPNOTSUPP`, `ENOTTY`).
    Unsupported,
    /// The call would have to wait, which it may not do (`EAGAIN`).
    WouldBlock,
    /// The time was up (`ETIMEDOUT`).
    TimedOut,
    /// A signal came first (`EINTR`).
    Interrupted,
    /// A host function must not do this, because a stream waits for it (`EDEADLK`).
    Deadlock,
    /// A queue has stopped at a packet: [`Error::fault`](crate::Error::fault) says why (`EIO`).
    Fault,
    /// The hardware failed, or a queue was given up (`EIO`).
    Io,
    /// Another errno.
    Other,
}

impl ErrorKind {
    /// The kind of an errno that this operation returned. `has_fault`: it came with a fault.
    pub(super) fn of(operation: Operation, errno: Errno, has_fault: bool) -> Self {
        match errno {
            Errno::ENODEV if matches!(operation, Operation::Open | Operation::Find) => {
                Self::NotFound
            }
            Errno::ENOENT => Self::NotFound,
            Errno::EACCES | Errno::EPERM => Self::PermissionDenied,
            Errno::EBUSY => Self::Busy,
            Errno::ENODEV | Errno::ENXIO => Self::Gone,
            Errno::ESTALE => Self::Stale,
            Errno::EINVAL | Errno::EOVERFLOW | Errno::E2BIG => Self::InvalidInput,
            Errno::EFAULT => Self::BadAddress,
            Errno::EEXIST => Self::AlreadyExists,
            Errno::ENOMEM | Errno::EDQUOT => Self::OutOfMemory,
            Errno::ENOSPC => Self::NoSpace,
            Errno::EOPNOTSUPP | Errno::ENOTTY => Self::Unsupported,
            Errno::EAGAIN => Self::WouldBlock,
            Errno::ETIMEDOUT => Self::TimedOut,
            Errno::EINTR => Self::Interrupted,
            Errno::EDEADLK => Self::Deadlock,
            Errno::EIO if has_fault => Self::Fault,
            Errno::EIO => Self::Io,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_errno_is_of_several_kinds() {
        for (operation, errno, has_fault, kind) in [
            (Operation::Find, Errno::ENODEV, false, ErrorKind::NotFound),
            (Operation::Wait, Errno::ENODEV, false, ErrorKind::Gone),
            (Operation::Wait, Errno::EIO, true, ErrorKind::Fault),
            (Operation::Wait, Errno::EIO, false, ErrorKind::Io),
        ] {
            assert_eq!(ErrorKind::of(operation, errno, has_fault), kind);
        }
        let of = |errno| ErrorKind::of(Operation::Wait, errno, false);
        assert_eq!(of(Errno::EAGAIN), ErrorKind::WouldBlock);
        assert_eq!(of(Errno::EINTR), ErrorKind::Interrupted);
        assert_eq!(of(Errno::EXDEV), ErrorKind::Other);
    }
}
