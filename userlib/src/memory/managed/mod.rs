// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory that moves: where it is, where it is to be, and why.
//!
//! Private anonymous memory of a managed range is in the host's memory or in the device's, and
//! moves between the two when one side touches it, or when the program says so ([`prefetch`]).
//! Addresses and contents stay the same, so moving needs no borrow, and none of this is unsafe. The
//! driver decides by fixed rules, which follow [`advice`], and tells the result ([`residency`],
//! [`statistics`]). Contents that are not needed any more are given up without moving them
//! ([`discard`]). A [value](owned) can own such memory; [`alloc`] is an allocator for it. A
//! [`window`] has addresses that the program chooses.

pub(crate) mod advice;
pub(crate) mod alloc;
pub(crate) mod budget;
pub(crate) mod discard;
pub(crate) mod owned;
pub(crate) mod prefetch;
pub(crate) mod residency;
pub(crate) mod statistics;
pub(crate) mod window;

use crate::memory::raw::outwards;
use crate::sys::map::page_size;

/// The whole pages around memory, as address and length. `None`: there are none, or no address
/// space is that large.
fn pages_around<T>(memory: *const [T]) -> Option<(usize, usize)> {
    let bytes = memory.len().checked_mul(size_of::<T>())?;
    outwards(memory.cast::<T>().addr(), bytes, page_size()).filter(|&(_, len)| len != 0)
}

/// Describes memory in an attempt.
fn words<T>(memory: *const [T]) -> String {
    let (addr, count) = (memory.cast::<T>().addr(), memory.len());
    format!("{count} elements at {addr:#x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{slice_from_raw_parts, without_provenance};

    #[test]
    fn pages_are_those_around_memory() {
        let at = |addr: usize, len| slice_from_raw_parts(without_provenance::<u64>(addr), len);
        let page = page_size();
        assert_eq!(pages_around(at(page, 1)), Some((page, page)));
        assert_eq!(pages_around(at(2 * page - 8, 2)), Some((page, 2 * page)));
        assert_eq!(pages_around(at(page, 0)), None);
        assert_eq!(pages_around(at(page, usize::MAX)), None);
        assert_eq!(words(at(0x1000, 3)), "3 elements at 0x1000");
    }
}
