// SPDX-License-Identifier: GPL-2.0
//! The rule for structs that can grow, as `copy_struct_from_user()` implements it.
//!
//! Source: `Documentation/process/botching-up-ioctls.rst` and iommufd's dispatcher in the kernel.

use super::{Refusal, PAGE_SIZE};

/// How to copy a struct of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Bytes to copy in and back out.
    pub copy: usize,
    /// Bytes behind them that the kernel does not know: each must be zero.
    pub tail: usize,
}

/// Decides how much of a struct of `given` bytes to copy, if its first version had `minimum` bytes
/// and the kernel knows `known` (`minimum <= known`).
///
/// Returns [`Refusal::Invalid`] if it is shorter than the first version, and [`Refusal::TooBig`] if
/// it is longer than a page.
pub const fn exchange(given: u32, minimum: usize, known: usize) -> Result<Exchange, Refusal> {
    if given as u64 > PAGE_SIZE {
        return Err(Refusal::TooBig);
    }
    // CAST: at most a page.
    let given = given as usize;
    if given < minimum {
        return Err(Refusal::Invalid);
    }
    let copy = if given < known { given } else { known };
    Ok(Exchange {
        copy,
        tail: given.saturating_sub(copy),
    })
}

/// Checks that the bytes which the kernel does not know are zero.
pub fn check_tail(tail: &[u8]) -> Result<(), Refusal> {
    if tail.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(Refusal::TooBig)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edges() {
        let table = [
            (0, Err(Refusal::Invalid)),
            (15, Err(Refusal::Invalid)),
            (16, Ok((16, 0))),
            (23, Ok((23, 0))),
            (24, Ok((24, 0))),
            (25, Ok((24, 1))),
            (4096, Ok((24, 4072))),
            (4097, Err(Refusal::TooBig)),
            (u32::MAX, Err(Refusal::TooBig)),
        ];
        for (given, want) in table {
            assert_eq!(
                exchange(given, 16, 24).map(|x| (x.copy, x.tail)),
                want,
                "{given}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost(given in 0u32..5000, minimum in 4usize..200, more in 0usize..200) {
            if let Ok(x) = exchange(given, minimum, minimum + more) {
                prop_assert_eq!(x.copy + x.tail, given as usize);
                prop_assert!(x.copy >= minimum && x.copy <= minimum + more);
                prop_assert!(x.tail == 0 || x.copy == minimum + more);
            }
        }

        #[test]
        fn tail_accepts_zeros_only(bytes in proptest::collection::vec(0u8..2, 0..32)) {
            prop_assert_eq!(check_tail(&bytes).is_ok(), !bytes.contains(&1));
        }
    }
}
