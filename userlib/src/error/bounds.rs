// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bounds of accesses to memory and registers.

use std::fmt;

use nix::errno::Errno;

use super::{Error, Operation, Result};

/// Checks that an access of `size` bytes at `offset` is inside something of `len` bytes, and
/// aligned. `what` is formatted only for an error, so that a register access costs no more than a
/// few comparisons.
///
/// # Errors
///
/// `EINVAL`.
#[inline]
pub(crate) fn check(
    verb: &str,
    what: impl fmt::Display,
    offset: usize,
    size: usize,
    align: usize,
    len: u64,
) -> Result<()> {
    let end = (offset as u64).checked_add(size as u64);
    if end.is_some_and(|end| end <= len) && offset % align == 0 {
        return Ok(());
    }
    Err(refuse(verb, &what, offset, size, align, len))
}

/// The error of an access that [`check`] refuses.
#[cold]
fn refuse(
    verb: &str,
    what: &dyn fmt::Display,
    offset: usize,
    size: usize,
    align: usize,
    len: u64,
) -> Error {
    let end = (offset as u64).checked_add(size as u64);
    let cause = if end.is_none_or(|end| end > len) {
        format!("it ends at {len:#x}")
    } else {
        format!("the offset is not a multiple of {align}")
    };
    let attempt = format!("{verb} {size} bytes at offset {offset:#x} of {what}");
    Error::refused(Operation::Access, attempt, Errno::EINVAL, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_inside_and_aligned() {
        let check = |offset, size, align| check("read", "it", offset, size, align, 16);
        for (offset, size, align) in [(0, 16, 1), (15, 1, 1), (16, 0, 1), (8, 8, 8), (12, 4, 4)] {
            assert!(
                check(offset, size, align).is_ok(),
                "{offset} {size} {align}"
            );
        }
        for (offset, size, align) in [
            (0, 17, 1),
            (16, 1, 1),
            (17, 0, 1),
            (usize::MAX, 2, 1),
            (4, 8, 8),
            (14, 4, 4),
        ] {
            let error = check(offset, size, align).expect_err("refused");
            assert_eq!(error.errno(), Errno::EINVAL as i32);
        }
        let text = check(14, 4, 4).expect_err("refused").to_string();
        assert_eq!(
            text,
            "cannot read 4 bytes at offset 0xe of it: it ends at 0x10 (EINVAL)"
        );
        let text = check(2, 4, 4).expect_err("refused").to_string();
        assert_eq!(
            text,
            "cannot read 4 bytes at offset 0x2 of it: the offset is not a multiple of 4 (EINVAL)"
        );
    }
}
