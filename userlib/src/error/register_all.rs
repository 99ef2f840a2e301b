// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of registering several pieces of memory, all or none.

use std::{fmt, io};

use super::Error;

/// An error of registering several pieces of memory: none of them is registered, and all of them
/// are here again.
///
/// Returned by [`Accelerator::register_all`](crate::accelerator::Accelerator::register_all) and
/// [`Device::register_all`](crate::Device::register_all). `?` converts it into an [`Error`] and
/// drops the memory. That of borrowed memory has the borrow in it; a function whose error is a
/// `Box<dyn std::error::Error>` converts it first, by `.map_err(pinmap::Error::from)?`.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator, mut batch: Vec<Vec<f32>>) -> pinmap::Result<()> {
/// let registered = loop {
///     match gpu.register_all(batch) {
///         Ok(registered) => break registered,
///         Err(failed) => {
///             println!("{failed}");
///             batch = failed.memory; // all of it, in its order
///             match failed.index {
///                 Some(index) => drop(batch.remove(index)), // does without it
///                 None => return Err(failed.error),
///             }
///         }
///     }
/// };
/// # drop(registered); Ok(()) }
/// ```
#[derive(Debug)]
pub struct RegisterAllError<M> {
    /// The error itself, which has all that the error of a single registration has. Displayed, it
    /// tells the index, too.
    pub error: Error,
    /// Which piece could not be registered, counted from 0. `None`: it was not a single one, as
    /// when the device is gone or somebody else owns it.
    pub index: Option<usize>,
    /// All of the memory, unchanged and in its order.
    pub memory: Vec<M>,
}

impl<M> RegisterAllError<M> {
    /// Returns the error alone, and drops the memory. So does `?` in a function that returns
    /// [`Error`].
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl<M> fmt::Display for RegisterAllError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M: fmt::Debug> std::error::Error for RegisterAllError<M> {
    /// The source of the error itself, whose text this has as well.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<M> From<RegisterAllError<M>> for Error {
    fn from(error: RegisterAllError<M>) -> Self {
        error.error
    }
}

impl<M> From<RegisterAllError<M>> for io::Error {
    /// As for [`Error`]. Drops the memory.
    fn from(error: RegisterAllError<M>) -> Self {
        error.error.into()
    }
}

/// The reason why none of several pieces of memory was registered.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// The piece that could not be registered, if it was a single one.
    pub(crate) index: Option<usize>,
}

impl Refused {
    /// The error for the caller: it names the piece of `ranges`, which are addresses and lengths,
    /// and gives all memory back.
    pub(crate) fn with<M>(
        self,
        device: &impl fmt::Display,
        ranges: &[(usize, usize)],
        memory: Vec<M>,
    ) -> RegisterAllError<M> {
        let Self { error, index } = self;
        let number = ranges.len();
        let attempt = match index.and_then(|index| Some((index, ranges.get(index)?))) {
            Some((index, (addr, len))) => {
                format!(
                    "register {len} bytes at {addr:#x}, index {index} of {number}, with {device}"
                )
            }
            None => format!("register {number} pieces of memory with {device}"),
        };
        RegisterAllError {
            error: error.with_attempt(attempt),
            index,
            memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Operation;
    use nix::errno::Errno;

    fn refused(index: Option<usize>) -> RegisterAllError<u8> {
        let error = Error::new(Operation::Register, "register", Errno::ENOSPC);
        let ranges = [(0x1000, 100), (0x7000, 200)];
        Refused { error, index }.with(&"the device", &ranges, vec![1, 2])
    }

    #[test]
    fn tells_which_piece_it_was() {
        let error = refused(Some(1));
        let text = error.to_string();
        let start = "cannot register 200 bytes at 0x7000, index 1 of 2, with the device: ";
        assert!(text.starts_with(start), "{text}");
        assert_eq!((error.index, &error.memory[..]), (Some(1), &[1, 2][..]));
        // A chain of errors does not tell the sentence twice.
        let source = std::error::Error::source(&error).expect("the errno");
        assert!(source.to_string().contains("os error 28"), "{source}");
        assert_eq!(Error::from(error).errno(), Errno::ENOSPC as i32);
    }

    #[test]
    fn or_that_it_was_no_single_one() {
        let error = refused(None);
        let text = error.to_string();
        assert!(
            text.starts_with("cannot register 2 pieces of memory with "),
            "{text}"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
    }
}
