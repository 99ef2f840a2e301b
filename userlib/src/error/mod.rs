// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: the operation that failed, the errno, the details from the driver, and a hint.
//!
//! An error reads as one sentence: "cannot *attempt*: *cause* (*errno*); *hint*". [`hint`] derives
//! cause and hint from operation and errno. The driver's details replace both where it gives any:
//! a [`Failure`] when registering, mapping or allocating, a [`Fault`] when a queue has stopped.

pub(crate) mod bounds;
pub(crate) mod failure;
pub(crate) mod fault;
pub(crate) mod hint;
mod kind;
mod operation;
mod register_all;

use std::fmt;
use std::io::{self, Write};
use std::panic::Location;

use nix::errno::Errno;

use crate::sys::inside;

use failure::{Failure, Reason};
use fault::Fault;
pub use kind::ErrorKind;
pub use operation::Operation;
pub(crate) use register_all::Refused;
pub use register_all::RegisterAllError;

/// Ends the process, because there would be references to memory that a device still writes.
pub(crate) fn abort(reason: impl fmt::Display) -> ! {
    // Not `eprintln!`: a test harness keeps what that prints to itself, and ends here as well.
    let _ = writeln!(io::stderr(), "pinmap: {reason}: aborting");
    std::process::abort()
}

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
///
/// Displayed, it says what failed, why, and, where that is known, what to do about it. Its
/// [`kind`](Self::kind) is there to match on. Its [source](std::error::Error::source) is an
/// [`io::Error`] with the errno.
///
/// ```
/// let error = pinmap::Device::open("/dev/null").unwrap_err();
/// assert_eq!(error.kind(), pinmap::ErrorKind::Unsupported);
/// assert!(error.to_string().starts_with("cannot open /dev/null: it is not a pinmap device"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    operation: Operation,
    /// The attempted operation, as a phrase that follows "cannot".
    attempt: String,
    cause: String,
    errno: Errno,
    source: Source,
    failure: Option<Failure>,
    fault: Option<Fault>,
    hint: Option<String>,
}

/// The errno as an error of the standard library.
struct Source(io::Error);

impl Source {
    fn new(errno: Errno) -> Self {
        Self(io::Error::from_raw_os_error(errno as i32))
    }
}

impl Clone for Source {
    fn clone(&self) -> Self {
        Self(io::Error::from_raw_os_error(
            self.0.raw_os_error().unwrap_or_default(),
        ))
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.0.raw_os_error() == other.0.raw_os_error()
    }
}

impl Eq for Source {}

impl Error {
    /// The error of a system call.
    pub(crate) fn new(operation: Operation, attempt: impl Into<String>, errno: Errno) -> Self {
        Self(Box::new(Inner {
            operation,
            attempt: attempt.into(),
            cause: hint::cause(operation, errno),
            errno,
            source: Source::new(errno),
            failure: None,
            fault: None,
            hint: hint::hint(operation, errno),
        }))
    }

    /// The error of a system call that the standard library or memmap2 made.
    pub(crate) fn from_io(
        operation: Operation,
        attempt: impl Into<String>,
        error: &io::Error,
    ) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Self::new(operation, attempt, errno)
    }

    /// The error of something that the crate itself refuses, with its own cause and no hint.
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
            source: Source::new(errno),
            failure: None,
            fault: None,
            hint: None,
        }))
    }

    /// Replaces cause and hint by the details that the driver gave, if it gave any.
    pub(crate) fn with_failure(mut self, failure: Option<Failure>) -> Self {
        if let Some(failure) = failure {
            self.0.cause = failure.to_string();
            self.0.hint = hint::for_failure(&failure).or(self.0.hint);
            self.0.failure = Some(failure);
        }
        self
    }

    /// Replaces the cause by the fault that stopped the queue, and the hint by one for its reason.
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.0.cause = fault.to_string();
        let hint = fault.reason.and_then(hint::for_fault);
        self.0.hint = hint.map(str::to_owned).or(self.0.hint);
        self.0.fault = Some(fault);
        self
    }

    /// Adds to the cause where the program submitted the work.
    pub(crate) fn submitted_at(mut self, at: &Location<'_>) -> Self {
        self.0.cause = format!("{} (submitted at {at})", self.0.cause);
        self
    }

    /// Adds to what is needed where the limit of locked memory is in the way: the rest of a call,
    /// of which the driver has refused a part.
    pub(crate) fn with_more_locked(self, bytes: u64) -> Self {
        let failure = self.0.failure.map(|failure| match failure.reason {
            Reason::Memlock => Failure {
                needed: failure.needed.saturating_add(bytes),
                ..failure
            },
            _ => failure,
        });
        self.with_failure(failure)
    }

    /// Replaces the cause.
    pub(crate) fn with_cause(mut self, cause: impl Into<String>) -> Self {
        self.0.cause = cause.into();
        self
    }

    /// Replaces the attempt.
    pub(crate) fn with_attempt(mut self, attempt: impl Into<String>) -> Self {
        self.0.attempt = attempt.into();
        self
    }

    /// Replaces the hint.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The operation that failed.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::of(self.0.operation, self.0.errno, self.0.fault.is_some())
    }

    /// Returns an error of the standard library that carries only the errno.
    /// [`io::Error::from`] keeps the whole text instead, and with it only the kind.
    pub fn to_io_error(&self) -> io::Error {
        self.0.source.clone().0
    }

    /// The errno, with the number from `errno.h` and the meaning from the table in
    /// `include/uapi/linux/pinmap.h`.
    ///
    /// The crate itself returns `EINVAL` for what it refuses, such as an offset behind the end,
    /// `EAGAIN` for what would have to wait but must not, and `EDEADLK` for what a host function
    /// must not do.
    pub fn errno(&self) -> i32 {
        self.0.errno as i32
    }

    /// The fault that stopped the queue, if one did (`EIO`).
    pub fn fault(&self) -> Option<&Fault> {
        self.0.fault.as_ref()
    }

    /// The driver's details beyond the errno, when registering, mapping or allocating failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.0.failure.as_ref()
    }

    /// Returns advice on the error, if there is any, as a sentence without a full stop.
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

/// The words, as a program prints them whose `main` returns the error; with `{:#?}` all there is.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("operation", &self.0.operation)
            .field("errno", &self.0.errno)
            .field("failure", &self.0.failure)
            .field("fault", &self.0.fault)
            .field("message", &self.to_string())
            .finish()
    }
}

impl std::error::Error for Error {
    /// The errno, as an [`io::Error`].
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.source.0)
    }
}

impl<T> From<ErrorWith<T>> for io::Error {
    /// As for [`Error`]. Drops the value.
    fn from(error: ErrorWith<T>) -> Self {
        error.error.into()
    }
}

impl From<Error> for io::Error {
    /// Makes an error of the kind that belongs to the errno, and keeps the whole text.
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

/// An error together with the value that the failed operation had consumed.
///
/// `?` converts it into an [`Error`] and drops the value.
pub struct ErrorWith<T> {
    /// The error itself.
    pub error: Error,
    /// The value, unchanged.
    pub value: T,
}

impl<T> fmt::Debug for ErrorWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> ErrorWith<T> {
    pub(crate) fn new(error: Error, value: T) -> Self {
        Self { error, value }
    }

    /// Returns the error alone, and drops the value. So does `?` in a function that returns
    /// [`Error`].
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl<T> fmt::Display for ErrorWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for ErrorWith<T> {
    /// The source of the error itself, whose text this has as well.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<ErrorWith<T>> for Error {
    fn from(error: ErrorWith<T>) -> Self {
        error.error
    }
}

/// Fails if the time was up before a wait was over.
///
/// # Errors
///
/// `ETIMEDOUT`.
pub(crate) fn in_time(done: bool, attempt: impl FnOnce() -> String) -> Result<()> {
    match done {
        true => Ok(()),
        false => Err(Error::new(Operation::Wait, attempt(), Errno::ETIMEDOUT)),
    }
}

/// Fails inside a host function, for which a stream waits.
///
/// # Errors
///
/// `EDEADLK`.
pub(crate) fn check_outside(operation: Operation, attempt: impl FnOnce() -> String) -> Result<()> {
    if inside::is_inside() {
        return Err(Error::new(operation, attempt(), Errno::EDEADLK));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
