// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page table of Intel's IOMMU for a function, as debugfs shows it to root.

use std::fs;
use std::io;

use pinmap::PciAddress;

/// The bits of an entry that hold the address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The bit that allows writing, in both kinds of tables.
const WRITE: u64 = 1 << 1;

/// A leaf of the IOMMU's page table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf {
    /// First I/O virtual address.
    pub(crate) iova: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Whether the device may write.
    pub(crate) writable: bool,
    /// Frame number of the first page, to compare only.
    frame: u64,
}

/// Reads all leaves of a function.
pub(crate) fn leaves(pci: PciAddress) -> io::Result<Vec<Leaf>> {
    let path = format!("/sys/kernel/debug/iommu/intel/{pci}/domain_translation_struct");
    let text = fs::read_to_string(path)?;
    Ok(text.lines().filter_map(parse).collect())
}

/// Parses "IOVA-frame | level-5 level-4 level-3 [level-2 [level-1]]", where the last is the leaf.
fn parse(line: &str) -> Option<Leaf> {
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (iova, levels) = line.split_once('|')?;
    let levels: Option<Vec<_>> = levels.split_whitespace().map(hex).collect();
    let levels = levels?;
    let len = match levels.len() {
        3 => 1 << 30,
        4 => 2 << 20,
        5 => 4 << 10,
        _ => return None,
    };
    let leaf = *levels.last()?;
    Some(Leaf {
        iova: hex(iova.trim())? << 12,
        len,
        writable: leaf & WRITE != 0,
        frame: (leaf & ADDRESS) >> 12,
    })
}

impl Leaf {
    /// Whether the leaf translates an I/O virtual address.
    pub(crate) fn covers(&self, iova: u64) -> bool {
        iova.checked_sub(self.iova)
            .is_some_and(|offset| offset < self.len)
    }

    /// The frame number to which an address leads that the leaf [covers](Self::covers).
    pub(crate) fn frame_at(&self, iova: u64) -> u64 {
        self.frame + ((iova - self.iova) >> 12)
    }
}
