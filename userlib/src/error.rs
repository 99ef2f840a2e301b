// SPDX-License-Identifier: MIT OR Apache-2.0
//! What went wrong: the operation, the errno, what the driver adds to it, and what to do.

use std::fmt;
use std::io;

use nix::errno::Errno;

use crate::failure::Failure;
use crate::fault::Fault;
use crate::hint;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was being done when an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Looking for devices.
    Find,
    /// Opening a device.
    Open,
    /// Asking for a device's properties or reserved ranges.
    Info,
    /// Looking up a registration.
    Query,
    /// Allocating memory: a [`Buffer`](crate::Buffer) or an [`Allocation`](crate::Allocation).
    Allocate,
    /// Registering memory.
    Register,
    /// Looking for a registration in a [`Cache`](crate::Cache).
    Cache,
    /// Releasing a registration.
    Release,
    /// Mapping a registration once more.
    Map,
    /// Removing a mapping.
    Unmap,
    /// Reading or writing registered memory or a BAR, or taking a part of a slice: a bad offset.
    Access,
    /// Mapping a BAR.
    Bar,
    /// Attaching an eventfd.
    Eventfd,
    /// Waiting for an interrupt or an event.
    Wait,
    /// Reading an event.
    Event,
    /// Resetting the function.
    Reset,
    /// Asking what a paged device can do and has done.
    Gpu,
    /// Making a queue.
    Queue,
    /// Submitting work to a queue.
    Submit,
    /// Destroying a queue.
    Destroy,
    /// Making a dma-buf.
    Export,
    /// Importing a dma-buf.
    Import,
    /// Writing back and dropping what the CPU's caches hold.
    Sync,
    /// Making, resetting or waiting with a stream or its events.
    Stream,
}

/// What went wrong. As text it is a sentence that says what failed and why, and one that says what
/// to do, where that is known.
pub struct Error(Box<Inner>);

struct Inner {
    operation: Operation,
    /// What was tried, to be read after "cannot".
    attempt: String,
    cause: String,
    errno: Errno,
    failure: Option<Failure>,
    fault: Option<Fault>,
    hint: Option<String>,
}

impl Error {
    /// A system call failed.
    pub(crate) fn new(operation: Operation, attempt: impl Into<String>, errno: Errno) -> Self {
        Self(Box::new(Inner {
            operation,
            attempt: attempt.into(),
            cause: hint::cause(operation, errno),
            errno,
            failure: None,
            fault: None,
            hint: hint::hint(operation, errno),
        }))
    }

    /// A system call of the standard library or of memmap2 failed.
    pub(crate) fn from_io(
        operation: Operation,
        attempt: impl Into<String>,
        error: &io::Error,
    ) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Self::new(operation, attempt, errno)
    }

    /// The crate itself refuses: it says why.
    pub(crate) fn refused(
        operation: Operation,
        attempt: impl Into<String>,
        errno: Errno,
        cause: impl Into<String>,
    ) -> Self {
        let attempt = attempt.into();
        let cause = cause.into();
        Self(Box::new(Inner {
            operation,
            attempt,
            cause,
            errno,
            failure: None,
            fault: None,
            hint: None,
        }))
    }

    /// With what the driver says about it, if it does.
    pub(crate) fn with_failure(mut self, failure: Option<Failure>) -> Self {
        if let Some(failure) = failure {
            self.0.cause = failure.to_string();
            self.0.hint = hint::for_failure(&failure).or(self.0.hint);
            self.0.failure = Some(failure);
        }
        self
    }

    /// With why the queue stopped.
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.0.cause = fault.to_string();
        self.0.fault = Some(fault);
        self
    }

    /// With another sentence on what to do.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// What was being done.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The errno, as in `errno.h`; its meaning is that of the table in `include/uapi/pinmap.h`.
    /// `EINVAL` also for what the crate itself refuses, such as an offset behind the end; `EAGAIN`
    /// when something would have to wait and was told not to.
    pub fn errno(&self) -> i32 {
        self.0.errno as i32
    }

    /// Why the queue stopped, if it did (`EIO`).
    pub fn fault(&self) -> Option<&Fault> {
        self.0.fault.as_ref()
    }

    /// What the driver says beyond the errno: only when registering, mapping or allocating.
    pub fn failure(&self) -> Option<&Failure> {
        self.0.failure.as_ref()
    }

    /// What to do about it, as a sentence without a full stop.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            attempt,
            cause,
            errno,
            hint,
            ..
        } = &*self.0;
        write!(f, "cannot {attempt}: {cause} ({errno:?})")?;
        if let Some(hint) = hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("operation", &self.0.operation)
            .field("errno", &self.0.errno)
            .field("failure", &self.0.failure)
            .field("fault", &self.0.fault)
            .field("message", &self.to_string())
            .finish()
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    /// Of the kind that the errno has, with the whole text.
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

/// An error that gives back the value which the failed operation had consumed.
///
/// `?` turns it into an [`Error`] and drops the value.
#[derive(Debug)]
pub struct ErrorWith<T> {
    /// What went wrong.
    pub error: Error,
    /// What the operation had consumed, as it was before.
    pub value: T,
}

impl<T> fmt::Display for ErrorWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for ErrorWith<T> {}

impl<T> From<ErrorWith<T>> for Error {
    fn from(error: ErrorWith<T>) -> Self {
        error.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Reason;

    #[test]
    fn names_what_failed_why_and_what_to_do() {
        let error = Error::new(Operation::Open, "open /dev/pinmap0", Errno::EACCES);
        let text = error.to_string();
        assert!(text.starts_with("cannot open /dev/pinmap0: "), "{text}");
        assert!(text.contains("(EACCES)"), "{text}");
        assert!(text.contains("group `pinmap`"), "{text}");
        assert_eq!(error.errno(), Errno::EACCES as i32);
        assert_eq!(error.operation(), Operation::Open);
    }

    #[test]
    fn a_failure_replaces_the_general_cause() {
        let failure = Failure {
            reason: Reason::Hole,
            addr: 0x7000,
            needed: 0,
            allowed: 0,
        };
        let error = Error::new(
            Operation::Register,
            "register 4096 bytes at 0x6000",
            Errno::EFAULT,
        )
        .with_failure(Some(failure));
        let text = error.to_string();
        assert!(text.contains("nothing is mapped at 0x7000"), "{text}");
        assert_eq!(error.failure(), Some(&failure));
    }

    #[test]
    fn what_the_crate_refuses_has_no_hint() {
        let error = Error::refused(Operation::Access, "read 4 bytes", Errno::EINVAL, "odd");
        assert_eq!(error.to_string(), "cannot read 4 bytes: odd (EINVAL)");
        assert_eq!(error.hint(), None);
    }

    #[test]
    fn becomes_an_io_error_of_the_right_kind() {
        let error = Error::new(Operation::Open, "open /dev/pinmap0", Errno::EACCES);
        assert_eq!(
            io::Error::from(error).kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    #[test]
    fn the_value_can_be_taken_back() {
        let error = Error::new(Operation::Register, "register", Errno::EBUSY);
        let with = ErrorWith { error, value: 7 };
        assert_eq!(with.value, 7);
        assert_eq!(Error::from(with).errno(), Errno::EBUSY as i32);
    }
}
