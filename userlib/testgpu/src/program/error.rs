// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of programs.

use std::error::Error;
use std::fmt;

use pinmap::accelerator::FaultCode;

/// An error of a [`Program`](super::Program) or of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramError {
    /// An error that is not of a program, such as of memory or of a stream.
    Pinmap(pinmap::Error),
    /// A kernel stopped its stream.
    Stopped(pinmap::Error, Trap),
    /// Something that is not possible, and why.
    Refused(String),
}

/// Where a kernel stopped, as the device reports it. Threads of the same block and blocks behind it
/// may not have run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trap {
    /// The reason.
    pub code: FaultCode,
    /// The name of the kernel.
    pub kernel: String,
    /// Device address of the instruction.
    pub pc: u64,
    /// The function in which it is, and the offset there, as in `saxpy+0x1c`.
    pub function: Option<String>,
    /// The address that could not be accessed; the instruction that is none; the number of the call
    /// that there is not; or the value with which the kernel aborted.
    pub value: u64,
    /// Number of the block.
    pub block: u64,
    /// Number of the thread in its block.
    pub thread: u64,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            pc,
            value,
            block,
            thread,
            ..
        } = self;
        write!(f, "kernel {kernel}, block {block}, thread {thread}, at ")?;
        match &self.function {
            Some(function) => write!(f, "{function} ({pc:#x})")?,
            None => write!(f, "{pc:#x}")?,
        }
        match self.code {
            FaultCode::Aborted => write!(f, ", with the value {value}"),
            FaultCode::IllegalInstruction => write!(f, ", the instruction {value:#x}"),
            FaultCode::BadCall => write!(f, ", call {value}"),
            FaultCode::StackOverflow => write!(f, ", which moved sp to {value:#x}"),
            FaultCode::Misaligned => write!(f, ", the address {value:#x}"),
            // The error has the address that could not be accessed; other codes have no value.
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinmap(error) => error.fmt(f),
            Self::Stopped(error, trap) => write!(f, "{error}; {trap}"),
            Self::Refused(cause) => f.write_str(cause),
        }
    }
}

impl Error for ProgramError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Pinmap(error) | Self::Stopped(error, _) => Some(error),
            Self::Refused(_) => None,
        }
    }
}

impl From<pinmap::Error> for ProgramError {
    fn from(error: pinmap::Error) -> Self {
        Self::Pinmap(error)
    }
}
