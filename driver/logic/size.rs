// SPDX-License-Identifier: GPL-2.0
//! The rule for structs that can grow: longer ones are taken as `copy_struct_from_user()` does it.
//!
//! Source: `Documentation/process/botching-up-ioctls.rst` and iommufd's dispatcher in the kernel.

use super::{Refusal, PAGE_SIZE};

/// Returns how many bytes of a struct of `given` bytes are behind the `known` ones, for
/// [`check_tail`]; [`Refusal::Invalid`]: it is shorter than these; [`Refusal::TooBig`]: it is
/// longer than a page.
pub const fn tail(given: u32, known: usize) -> Result<usize, Refusal> {
    if given as u64 > PAGE_SIZE {
        return Err(Refusal::TooBig);
    }
    // CAST: at most a page.
    match (given as usize).checked_sub(known) {
        Some(tail) => Ok(tail),
        None => Err(Refusal::Invalid),
    }
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
            (23, Err(Refusal::Invalid)),
            (24, Ok(0)),
            (25, Ok(1)),
            (4096, Ok(4072)),
            (4097, Err(Refusal::TooBig)),
            (u32::MAX, Err(Refusal::TooBig)),
        ];
        for (given, want) in table {
            assert_eq!(tail(given, 24), want, "{given}");
        }
    }

    proptest! {
        #[test]
        fn tail_accepts_zeros_only(bytes in proptest::collection::vec(0u8..2, 0..32)) {
            prop_assert_eq!(check_tail(&bytes).is_ok(), !bytes.contains(&1));
        }
    }
}
