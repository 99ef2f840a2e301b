// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: of the driver pinmap, of the controller, and of what was asked for.

use std::fmt;

use pinmap::{ErrorKind, ErrorWith};

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns an [`Error`] with words if something is not so.
macro_rules! demand {
    ($error:ident, $condition:expr => $($words:tt)*) => {
        if !$condition {
            return Err($crate::Error::$error(format!($($words)*)));
        }
    };
}
pub(crate) use demand;

/// An error of this crate.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The crate pinmap could not do something.
    Pinmap(pinmap::Error),
    /// The controller lacks something.
    Unsupported(String),
    /// The request makes no sense; nothing was begun.
    Invalid(String),
    /// As many commands are in flight as the queue has room for.
    Full,
    /// The controller has executed the command, and reports an error.
    Status(Status),
    /// A command took too long. One of a queue was aborted, or the controller was reset; after one
    /// of the admin queue it has to be.
    TimedOut,
    /// The controller was reset while the command was in flight. It may have been executed.
    Reset,
    /// The controller has failed, as its status register says (CFS).
    Fatal,
    /// The controller completed a command that was not in flight, and was reset for that.
    Confused,
    /// The controller did not come up after a reset, or its admin queue has not answered.
    /// [`Controller::reset`](crate::Controller::reset) tries once more.
    Down,
    /// The controller was unplugged, or unbound from pinmap.
    Gone,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinmap(error) => error.fmt(f),
            Self::Unsupported(what) => write!(f, "the controller has {what}"),
            Self::Invalid(what) => f.write_str(what),
            Self::Full => f.write_str("the queue is full: wait for a command first"),
            Self::Status(status) => write!(f, "the controller reports: {status}"),
            Self::TimedOut => f.write_str("the controller did not answer in time"),
            Self::Reset => f.write_str("the controller was reset before it had answered"),
            Self::Fatal => f.write_str("the controller has failed (CSTS.CFS)"),
            Self::Confused => f.write_str("the controller answered what nobody had asked"),
            Self::Down => f.write_str("the controller is not up: it has to be reset"),
            Self::Gone => f.write_str("the controller is gone"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pinmap(error) => error.source(),
            _ => None,
        }
    }
}

impl From<pinmap::Error> for Error {
    fn from(error: pinmap::Error) -> Self {
        match error.kind() {
            ErrorKind::Gone => Self::Gone,
            _ => Self::Pinmap(error),
        }
    }
}

impl<T> From<ErrorWith<T>> for Error {
    fn from(error: ErrorWith<T>) -> Self {
        error.into_error().into()
    }
}

/// An error that a command ended with, and the memory that it had.
#[derive(Debug)]
pub struct Failed<M> {
    /// The error.
    pub error: Error,
    /// The memory of the command, unless it had none, or the controller still works on it.
    pub memory: Option<M>,
}

impl<M> fmt::Display for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M: fmt::Debug> std::error::Error for Failed<M> {}

impl<M> From<Failed<M>> for Error {
    fn from(failed: Failed<M>) -> Self {
        failed.error
    }
}

/// The status of a command: a type and a code of the specification, as completions have them behind
/// the phase bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub(crate) u16);

impl Status {
    /// The status code type: 0 generic, 1 of this command, 2 of the medium, 3 of the path.
    pub fn kind(self) -> u8 {
        ((self.0 >> 8) & 7) as u8
    }

    /// The status code.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// Whether the same command would fail again.
    pub fn do_not_retry(self) -> bool {
        self.0 & (1 << 14) != 0
    }

    fn words(self) -> Option<&'static str> {
        Some(match (self.kind(), self.code()) {
            (0, 0x01) => "there is no such command",
            (0, 0x02) => "a field of the command is invalid",
            (0, 0x04) => "the memory could not be read or written",
            (0, 0x06) => "an internal error",
            (0, 0x07) => "the command was aborted",
            (0, 0x08) => "the command was aborted, because its queue was deleted",
            (0, 0x0b) => "there is no such namespace",
            (0, 0x80) => "a block is beyond the end",
            (0, 0x81) => "the capacity is exceeded",
            (0, 0x82) => "the namespace is not ready",
            (1, 0x82) => "a block cannot be written",
            (2, 0x80) => "the medium cannot be written",
            (2, 0x81) => "the medium cannot be read",
            (2, 0x85) => "the blocks differ",
            (2, 0x86) => "access is denied",
            (2, 0x87) => "a block was never written",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(words) = self.words() {
            write!(f, "{words} ")?;
        }
        let retry = ["", ", for good"][usize::from(self.do_not_retry())];
        let (kind, code) = (self.kind(), self.code());
        write!(f, "(type {kind}, code {code:#04x}{retry})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_in_words() {
        let words = |bits| Status(bits).to_string();
        let end = "a block is beyond the end (type 0, code 0x80, for good)";
        assert_eq!(words(0x4080), end);
        assert_eq!(words(0x0285), "the blocks differ (type 2, code 0x85)");
        assert_eq!(words(0x07ff), "(type 7, code 0xff)");
    }
}
