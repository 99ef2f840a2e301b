// SPDX-License-Identifier: GPL-2.0
//! Decisions of the driver, without the kernel: no allocation, no `unsafe`, no I/O.
//!
//! The same files are a host crate (`host.rs`) with unit and property tests. Addresses are `u64`
//! wherever they come from; spans are inclusive at both ends, so that the last byte of the address
//! space has a name. Nothing here can overflow or panic, whatever the arguments: in the kernel
//! either would be an oops.
#![forbid(unsafe_code)]

pub mod advised;
pub mod bitmap;
pub mod block;
pub mod burst;
pub mod changes;
pub mod contiguity;
pub mod fault_around;
pub mod footprint;
pub mod gaps;
pub mod handle;
pub mod image;
pub mod msix;
pub mod place;
pub mod pte;
pub mod request;
pub mod residence;
pub mod ring;
pub mod runs;
pub mod share;
pub mod size;
pub mod slots;
pub mod span;
pub mod suspect;
pub mod trouble;
pub mod usage;

/// Reason for which a request is refused; the driver turns it into the errno of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EINVAL`: a value that makes no sense.
    Invalid,
    /// `E2BIG`: a longer struct than known, with something in it.
    TooBig,
    /// `EOPNOTSUPP`: an unknown flag or a reserved field in use.
    Unsupported,
    /// `EOVERFLOW`: an address plus a length leaves the 64-bit range.
    Overflow,
}

/// Bytes in a page.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Binary logarithm of [`PAGE_SIZE`], which the kernel's configuration has. On the host it is 12.
pub const PAGE_SHIFT: u32 = if cfg!(CONFIG_PAGE_SHIFT = "16") {
    16
} else if cfg!(CONFIG_PAGE_SHIFT = "14") {
    14
} else {
    12
};

/// Returns the smallest of an IOMMU's pages, whose sizes are a bitmap, if it is larger than the
/// kernel's: then no single page can be mapped.
pub const fn too_large_page(page_sizes: u64) -> Option<u64> {
    let smallest = page_sizes & page_sizes.wrapping_neg();
    if smallest > PAGE_SIZE {
        Some(smallest)
    } else {
        None
    }
}

/// Returns whether `value` is a whole number of pages.
pub const fn is_page_aligned(value: u64) -> bool {
    value & (PAGE_SIZE - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_an_iommu_fit_the_kernels_or_are_told() {
        // SMMUs with pages of 4, of all, of 16 and of 64 KiB, and larger ones; virtio's, which have
        // all sizes from the smallest on.
        assert_eq!(too_large_page(0x4020_1000), None);
        assert_eq!(too_large_page(0x6031_1000), None);
        assert_eq!(too_large_page(!(PAGE_SIZE - 1)), None);
        assert_eq!(too_large_page(!(PAGE_SIZE / 4 - 1)), None);
        assert_eq!(too_large_page(0x200_4000), Some(16 << 10));
        assert_eq!(too_large_page(0x2001_0000), Some(64 << 10));
        assert_eq!(too_large_page(!(4 * PAGE_SIZE - 1)), Some(4 * PAGE_SIZE));
    }
}
