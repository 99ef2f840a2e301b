// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: of the driver pinmap, of the core, and of what was asked for.

use std::fmt;

use pinmap::{ErrorKind, ErrorWith};

use crate::discovery::{ChannelInfo, Direction};

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The crate pinmap could not do something.
    Pinmap(pinmap::Error),
    /// The core, or the device, lacks something.
    Unsupported(String),
    /// The request makes no sense; nothing was begun.
    Invalid(String),
    /// The channel has a transfer already, or is taken.
    Busy,
    /// The channel has stopped at an error.
    Status(Status),
    /// A transfer took too long, and the channel was told to stop.
    TimedOut,
    /// The channel says that it is done, but not with what it was given.
    Confused,
    /// The card was unplugged, or unbound from pinmap.
    Gone,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinmap(error) => error.fmt(f),
            Self::Unsupported(what) => write!(f, "the card has {what}"),
            Self::Invalid(what) => f.write_str(what),
            Self::Busy => f.write_str("the channel is busy"),
            Self::Status(status) => status.fmt(f),
            Self::TimedOut => f.write_str("the transfer was not done in time"),
            Self::Confused => f.write_str("the channel is done, but not with what it was given"),
            Self::Gone => f.write_str("the card is gone"),
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

/// An error that a transfer ended with, and the memory that it had.
pub struct Failed<M> {
    /// The error.
    pub error: Error,
    /// The memory of the transfer, unless the channel still works on it.
    pub memory: Option<M>,
}

impl<M> Failed<M> {
    /// An error after which the channel has what it had.
    pub(crate) fn without(error: impl Into<Error>) -> Self {
        Self {
            error: error.into(),
            memory: None,
        }
    }
}

impl<M> fmt::Debug for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failed").field(&self.error).finish()
    }
}

impl<M> fmt::Display for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for Failed<M> {}

impl<M> From<Failed<M>> for Error {
    fn from(failed: Failed<M>) -> Self {
        failed.error
    }
}

/// The status of a channel that has stopped at an error: the channel, and the bits of its register
/// (PG195, "Channel Status").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status {
    channel: ChannelInfo,
    bits: u32,
}

impl Status {
    pub(crate) fn new(channel: ChannelInfo, bits: u32) -> Self {
        Self { channel, bits }
    }

    /// The channel.
    pub fn channel(&self) -> ChannelInfo {
        self.channel
    }

    /// The bits of the register.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The meaning of a bit, for a channel of this direction.
    fn words(self, bit: u32) -> Option<&'static str> {
        Some(match (bit, self.channel.direction) {
            (3, _) => "align_mismatch: memory and address are not aligned to each other",
            (4, _) => "magic_stopped: a descriptor was overwritten",
            (5, _) => "invalid_length: a stream cannot have such a length",
            (9, Direction::H2c) => "read_error 0: the host refused a read of memory",
            (10, Direction::H2c) => "read_error 1: the host aborted a read of memory",
            (11, Direction::H2c) => "read_error 2: parity, while memory was read",
            (12, Direction::H2c) => "read_error 3: memory was read with an error (EP)",
            (13, Direction::H2c) => "read_error 4: an unexpected answer from memory",
            (14, Direction::H2c) => "write_error 0: the card has nothing at the address",
            (15, Direction::H2c) => "write_error 1: an error of the card at the address",
            (9, Direction::C2h) => "read_error 0: the card has nothing at the address",
            (10, Direction::C2h) => "read_error 1: an error of the card at the address",
            (19, _) => "descr_error 0: the host refused a read of a descriptor",
            (20, _) => "descr_error 1: the host aborted a read of a descriptor",
            (21, _) => "descr_error 2: parity, while a descriptor was read",
            (22, _) => "descr_error 3: a descriptor was read with an error (EP)",
            (23, _) => "descr_error 4: an unexpected answer for a descriptor",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has the status {:#x}", self.channel, self.bits)?;
        let named = (0..32).filter(|bit| self.bits & (1 << bit) != 0);
        let mut before = ": ";
        for words in named.filter_map(|bit| self.words(bit)) {
            write!(f, "{before}{words}")?;
            before = "; ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_in_words() {
        let info = |direction| ChannelInfo::of(direction, 1, 0, 0);
        let words = |direction, bits| Status::new(info(direction), bits).to_string();
        assert_eq!(
            words(Direction::H2c, 0x4000),
            "H2C 1 has the status 0x4000: write_error 0: the card has nothing at the address"
        );
        assert_eq!(
            words(Direction::C2h, 0x8_0208),
            "C2H 1 has the status 0x80208: \
             align_mismatch: memory and address are not aligned to each other; \
             read_error 0: the card has nothing at the address; \
             descr_error 0: the host refused a read of a descriptor"
        );
        assert_eq!(words(Direction::C2h, 0x4001), "C2H 1 has the status 0x4001");
    }
}
