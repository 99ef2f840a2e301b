// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identify: what a controller tells about itself and its namespaces, in pages of 4 KiB.

use std::ops::Range;
use std::sync::Arc;

use crate::admin::Shared;
use crate::error::{demand, Result};
use crate::PAGE;

/// The properties of a controller. Returned by
/// [`Controller::identity`](crate::Controller::identity).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version of the specification: major, minor and tertiary number.
    pub version: (u16, u8, u8),
    /// Bytes that one command can read or write.
    pub max_transfer: usize,
    /// Whether commands tell where memory is in one piece (SGL); otherwise they list its pages.
    pub sgl: bool,
    /// Memory begins at multiples of this: 1 byte with some SGLs, otherwise 4 bytes.
    pub alignment: u64,
    /// Whether written blocks may be in a cache, which a flush empties.
    pub volatile_cache: bool,
    /// The commands that a controller need not have.
    pub optional: Optional,
    /// Entries that the error log has, of those in one page.
    pub(crate) logged: u32,
}

/// Commands that a controller need not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Optional {
    /// Whether there is compare.
    pub compare: bool,
    /// Whether there is dataset management, by which blocks are deallocated.
    pub deallocate: bool,
    /// Whether there is write zeroes.
    pub write_zeroes: bool,
    /// Whether there is verify.
    pub verify: bool,
}

/// Bytes that one command of this crate can have: the first page, and those in a list of one page,
/// wherever in a page the memory begins.
const MOST: usize = PAGE / 8 * PAGE;

/// Reads little-endian numbers of a page.
pub(crate) fn number(page: &[u8], bytes: Range<usize>) -> u64 {
    let bytes = page[bytes].iter().rev();
    bytes.fold(0, |number, &byte| (number << 8) | u64::from(byte))
}

impl Identity {
    /// Decodes the page for a controller.
    pub(crate) fn of(page: &[u8], version: u32) -> Self {
        let text = |bytes| String::from_utf8_lossy(&page[bytes]).trim().to_owned();
        let most = match page[77] {
            0 => MOST,
            power => 1usize.checked_shl(12 + u32::from(power)).unwrap_or(MOST),
        };
        let sgl = page[536] & 3;
        let has = |bit: u32| number(page, 520..522) & (1 << bit) != 0;
        Self {
            serial: text(4..24),
            model: text(24..64),
            firmware: text(64..72),
            version: ((version >> 16) as u16, (version >> 8) as u8, version as u8),
            max_transfer: most.min(MOST),
            sgl: matches!(sgl, 1 | 2),
            alignment: if sgl == 1 { 1 } else { 4 },
            volatile_cache: page[525] & 1 != 0,
            optional: Optional {
                compare: has(0),
                deallocate: has(2),
                write_zeroes: has(3),
                verify: has(7),
            },
            logged: u32::from(page[262]).min(63) + 1,
        }
    }
}

/// A namespace: blocks of a controller. Makes the commands for them.
///
/// Made by [`Controller::namespace`](crate::Controller::namespace).
#[derive(Debug, Clone)]
pub struct Namespace {
    pub(crate) controller: Arc<Shared>,
    pub(crate) id: u32,
    pub(crate) blocks: u64,
    /// Power of two of the bytes of a block.
    pub(crate) shift: u8,
}

impl Namespace {
    /// The number of the namespace.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes of a block.
    pub fn block_len(&self) -> usize {
        1 << self.shift
    }
}

/// Decodes the page for a namespace: how many blocks it has, and the power of two of their bytes.
///
/// # Errors
///
/// `Error::Invalid`: there is no such namespace; `Error::Unsupported`: its format is not one of
/// plain blocks.
pub(crate) fn format(id: u32, page: &[u8]) -> Result<(u64, u8)> {
    let blocks = number(page, 0..8);
    demand!(Invalid, blocks != 0 => "there is no namespace {id}");
    let index = usize::from((page[26] & 0xf) | ((page[26] >> 1) & 0x30));
    let at = 128 + 4 * index;
    let (metadata, shift) = (number(page, at..at + 2), page[at + 2]);
    demand!(Unsupported, metadata == 0 => "{metadata} bytes of metadata for each block of \
        namespace {id}, which would be lost");
    let is_usual = (9..=16).contains(&shift);
    demand!(Unsupported, is_usual => "blocks of 2^{shift} bytes in namespace {id}");
    Ok((blocks, shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_tell_their_names_and_limits() {
        let mut page = [0; PAGE];
        page[4..72].fill(b' ');
        page[24..31].copy_from_slice(b"A model");
        page[520] = 0b1000_0101;
        let mut of = |power| {
            page[77] = power;
            Identity::of(&page, 0x0001_0400)
        };
        let identity = of(7);
        assert_eq!((&*identity.serial, &*identity.model), ("", "A model"));
        assert_eq!(identity.version, (1, 4, 0));
        let optional = identity.optional;
        assert!(optional.compare && optional.deallocate && optional.verify);
        assert!(!optional.write_zeroes && !identity.volatile_cache);
        assert_eq!((identity.sgl, identity.alignment), (false, 4));
        let kibibytes = [0, 1, 7, 9, 63, 64, 255].map(|power| of(power).max_transfer >> 10);
        assert_eq!(kibibytes, [2048, 8, 512, 2048, 2048, 2048, 2048]);
        let sgls = [0, 1, 2, 3].map(|bits| {
            page[536] = 0xfc | bits;
            let identity = Identity::of(&page, 0);
            (identity.sgl, identity.alignment)
        });
        assert_eq!(sgls, [(false, 4), (true, 1), (true, 4), (false, 4)]);
    }

    #[test]
    fn formats_of_namespaces() {
        let mut page = [0; PAGE];
        let none = format(7, &page).expect_err("no blocks").to_string();
        assert_eq!(none, "there is no namespace 7");
        page[..2].copy_from_slice(&[0x34, 0x12]);
        page[26] = 0x21; // the upper half of the number, too
        let at = 128 + 4 * 17;
        page[at + 2] = 12;
        assert_eq!(format(1, &page).expect("plain blocks"), (0x1234, 12));
        page[at] = 8;
        let metadata = format(1, &page).expect_err("metadata").to_string();
        assert!(metadata.contains("8 bytes of metadata"), "{metadata}");
        (page[at], page[at + 2]) = (0, 3);
        let small = format(1, &page).expect_err("small blocks").to_string();
        assert!(small.contains("2^3"), "{small}");
    }
}
