// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments: the pieces of memory that a device takes, for its descriptors or scatter lists.
//!
//! A registration or an allocation has consecutive device addresses, but the formats of devices
//! have limits: an entry of NVMe's lists is at most a page and does not cross one, a descriptor has
//! a field for the length. Segments keep such limits, and are found by arithmetic alone.

use std::ops::Range;

use nix::errno::Errno;

use crate::error::{bounds, Error, Operation, Result};
use crate::memory::allocation::Allocation;
use crate::memory::registration::Registration;

impl<M> Registration<M> {
    /// The pieces of these bytes in order, each as device address and length: a piece crosses no
    /// multiple of `page`, a power of two, and has at most `most` bytes.
    ///
    /// ```no_run
    /// # fn f(memory: &pinmap::Registration) -> pinmap::Result<()> {
    /// // For a device whose descriptors cross no page of 4 KiB.
    /// for (addr, len) in memory.segments(100..10_000, 4096, 4096)? {
    ///     println!("{len} bytes at {addr:#x}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the memory, `page` is no power of two, `most` is 0,
    /// or the memory was registered [`unmapped`](crate::RegisterOptions::unmapped).
    pub fn segments(
        &self,
        bytes: Range<usize>,
        page: u64,
        most: usize,
    ) -> Result<impl Iterator<Item = (u64, usize)> + Clone> {
        segments(self.device_addr()?, self.len(), bytes, page, most)
    }
}

impl<T> Allocation<T> {
    /// The pieces of these bytes in order, each as device address and length, as for a
    /// [registration](Registration::segments).
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the memory, `page` is no power of two, or `most` is
    /// 0.
    pub fn segments(
        &self,
        bytes: Range<usize>,
        page: u64,
        most: usize,
    ) -> Result<impl Iterator<Item = (u64, usize)> + Clone> {
        let len = self.len() * size_of::<T>();
        segments(self.device_addr(), len, bytes, page, most)
    }
}

/// The pieces of some bytes of memory that begins at a device address.
fn segments(
    start: u64,
    len: usize,
    bytes: Range<usize>,
    page: u64,
    most: usize,
) -> Result<impl Iterator<Item = (u64, usize)> + Clone> {
    let Range { start: first, end } = bytes;
    let wanted = end.saturating_sub(first);
    bounds::check("take", "the memory", first, wanted, 1, len as u64)?;
    if !page.is_power_of_two() || most == 0 {
        let attempt = format!("take pieces of at most {most} bytes in pages of {page}");
        let cause = "a page is a power of two, and a piece has bytes";
        return Err(Error::refused(
            Operation::Access,
            attempt,
            Errno::EINVAL,
            cause,
        ));
    }
    let (mut addr, mut left) = (start + first as u64, wanted);
    Ok(std::iter::from_fn(move || {
        let in_page = usize::try_from(page - (addr & (page - 1))).unwrap_or(usize::MAX);
        let piece = (addr, left.min(in_page).min(most));
        addr = addr.wrapping_add(piece.1 as u64);
        left -= piece.1;
        (piece.1 != 0).then_some(piece)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_all_bytes_in_order_within_the_limits(
            start in 0..u64::MAX - 0x10_0000,
            len in 0..0x1_0000usize,
            first in 0..0x1_0000usize,
            bits in 6..64u32,
            most in 16..0x2_0000usize,
        ) {
            let (first, page) = (first.min(len), 1 << bits);
            let pieces = segments(start, len, first..len, page, most).expect("inside");
            let mut next = start + first as u64;
            for (addr, piece) in pieces {
                prop_assert_eq!(addr, next);
                prop_assert!((1..=most).contains(&piece));
                next += piece as u64;
                prop_assert_eq!(addr / page, (next - 1) / page);
                let ends = next == start + len as u64;
                prop_assert!(ends || piece == most || next % page == 0, "longer is possible");
            }
            prop_assert_eq!(next, start + len as u64);
        }
    }

    #[test]
    fn what_is_outside_or_makes_no_sense_is_refused() {
        for (bytes, page, most) in [
            (0..101, 4096, 1),
            (101..101, 4096, 1),
            (0..4, 4095, 1),
            (0..4, 0, 1),
            (0..4, 4096, 0),
        ] {
            let error = segments(0, 100, bytes, page, most).err().expect("refused");
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{error}");
        }
        // A range that ends before it begins is empty, as elsewhere.
        #[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
        let mut none = segments(0, 100, 9..4, 4096, 1).expect("nothing");
        assert_eq!(none.next(), None);
    }
}
