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
    /// A kernel stopped its stream. The error is that of the result that was given to
    /// [`Launcher::finish`](super::Launcher::finish), if it was one.
    Stopped(Option<pinmap::Error>, Trap),
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
    /// The words of a panic of a kernel in Rust: "panicked at", the place and the reason.
    pub panic: Option<String>,
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
        write!(f, "kernel {kernel}, block {block}, thread {thread}")?;
        if let Some(panic) = &self.panic {
            return write!(f, " {panic}");
        }
        f.write_str(", at ")?;
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

/// Whether it is the code of an access, so that the value of a trap is the address.
fn is_of_memory(code: FaultCode) -> bool {
    use FaultCode::*;
    matches!(
        code,
        NotPresent | Permission | ReservedBit | RootDisabled | AddressRange | Bus | VramRange
    )
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinmap(error) => error.fmt(f),
            Self::Stopped(error, trap) => {
                let code = trap.code;
                let fault = error.as_ref().and_then(pinmap::Error::fault);
                if let Some(error) = error {
                    write!(f, "{error}; ")?;
                }
                match fault {
                    Some(fault) if fault.code == code => return trap.fmt(f),
                    // The error, if there is one, is not about this launch.
                    _ => f.write_str("a kernel stopped its queue: ")?,
                }
                if is_of_memory(code) {
                    write!(f, "it could not access {:#x}, ", trap.value)?;
                }
                write!(f, "{code}; {trap}")
            }
            Self::Refused(cause) => f.write_str(cause),
        }
    }
}

impl Error for ProgramError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Pinmap(error) | Self::Stopped(Some(error), _) => Some(error),
            Self::Stopped(None, _) | Self::Refused(_) => None,
        }
    }
}

impl From<pinmap::Error> for ProgramError {
    fn from(error: pinmap::Error) -> Self {
        Self::Pinmap(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_told_without_an_error_too() {
        let trap = |code, panic: Option<&str>| Trap {
            code,
            kernel: "wild".into(),
            pc: 0x7000,
            function: Some("wild+0x4".into()),
            value: 0x10,
            block: 2,
            thread: 3,
            panic: panic.map(str::to_owned),
        };
        let text = |trap| ProgramError::Stopped(None, trap).to_string();
        assert_eq!(
            text(trap(FaultCode::NotPresent, None)),
            "a kernel stopped its queue: it could not access 0x10, nothing is mapped there \
             (NOT_PRESENT); kernel wild, block 2, thread 3, at wild+0x4 (0x7000)"
        );
        assert_eq!(
            text(trap(FaultCode::Aborted, Some("panicked at a.rs:1:2: no"))),
            "a kernel stopped its queue: a program aborted (ABORTED); kernel wild, block 2, \
             thread 3 panicked at a.rs:1:2: no"
        );
        let other = pinmap::Device::open("/dev/null").expect_err("no device");
        let both = ProgramError::Stopped(Some(other.clone()), trap(FaultCode::Aborted, None));
        let text = both.to_string();
        assert!(text.starts_with(&other.to_string()), "{text}");
        assert!(text.contains("; a kernel stopped its queue: "), "{text}");
    }
}
