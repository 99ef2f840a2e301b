// SPDX-License-Identifier: GPL-2.0
//! Page tables of a paged device: four levels of 512 entries of 8 bytes, with leaves of 4 KiB at
//! level 0, of 2 MiB at level 1, and of 1 GiB at level 2 if the device has them. (Where pages are
//! larger, there are no paged devices, and [`LARGE`] is what a large leaf of the IOMMU covers.)
//!
//! Each device has its own [`Format`] of entries. The leaves that make up a span are the same for
//! all.

use super::{span::Span, PAGE_SHIFT, PAGE_SIZE};

/// Level of the root; the leaves are at 0, 1 and 2.
pub const ROOT_LEVEL: u32 = 3;
/// Bytes of a large leaf, which is one entry of level 1.
pub const LARGE: u64 = 1 << shift(1);
/// Level of a giant leaf.
pub const GIANT_LEVEL: u32 = 2;
/// Bytes of a giant leaf.
pub const GIANT: u64 = 1 << shift(GIANT_LEVEL);
/// Number of entries of a table.
pub const ENTRIES: u64 = 1 << (PAGE_SHIFT - 3);

/// Returns the binary logarithm of the bytes that an entry of `level` covers.
pub const fn shift(level: u32) -> u32 {
    PAGE_SHIFT.wrapping_add(level.wrapping_mul(PAGE_SHIFT - 3))
}

/// Returns the byte offset of the entry of `level` for `va` in its table.
pub const fn slot(level: u32, va: u64) -> u64 {
    let index = va.wrapping_shr(shift(level)) & (ENTRIES - 1);
    index.wrapping_mul(8)
}

/// Access that a device may have to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and write.
    Write,
    /// Read, write, and access atomically.
    Atomic,
    /// Read, and fetch packets from.
    Fetch,
}

impl Access {
    /// Returns the access to memory that nothing forbids to write, or all atomic operations on it.
    pub const fn all(write: bool) -> Self {
        if write {
            Self::Atomic
        } else {
            Self::Read
        }
    }

    /// Whether the device may write.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Atomic)
    }
}

/// Memory to which a leaf leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Host memory at this I/O virtual address.
    Host(u64),
    /// VRAM at this offset.
    Vram(u64),
}

impl Memory {
    /// Returns the address or offset.
    pub const fn address(self) -> u64 {
        match self {
            Self::Host(address) | Self::Vram(address) => address,
        }
    }

    /// Returns the memory `bytes` further on; `None` beyond the last address.
    pub const fn plus(self, bytes: u64) -> Option<Self> {
        match self {
            Self::Host(address) => match address.checked_add(bytes) {
                Some(address) => Some(Self::Host(address)),
                None => None,
            },
            Self::Vram(address) => match address.checked_add(bytes) {
                Some(address) => Some(Self::Vram(address)),
                None => None,
            },
        }
    }
}

/// Returns the addresses at which giant leaves fit into `span`.
pub fn giants(span: Span) -> impl Iterator<Item = u64> {
    let fits = move |&va: &u64| span.last() >= va && span.last().wrapping_sub(va) >= GIANT - 1;
    let first = span.start().checked_next_multiple_of(GIANT);
    core::iter::successors(first.filter(fits), move |va| {
        va.checked_add(GIANT).filter(fits)
    })
}

/// Bits of an entry, as the device defines them.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Set in an entry that is valid.
    pub valid: u64,
    /// Set if the page may be read.
    pub read: u64,
    /// Set if the page may be written.
    pub write: u64,
    /// Whether packets may be fetched from it.
    pub execute: u64,
    /// Set if the page may be accessed atomically; 0 if the device has no atomic accesses.
    pub atomic: u64,
    /// Set if the address is in host memory.
    pub host: u64,
    /// Set if accesses snoop the CPU's caches; for host memory only.
    pub snoop: u64,
    /// Set in a leaf.
    pub leaf: u64,
    /// Whether the device has giant leaves.
    pub giant: bool,
    /// Bits of the address.
    pub address: u64,
}

impl Format {
    /// Returns the entry for a table in VRAM; `None` if the offset cannot be in an entry.
    pub const fn table(&self, offset: u64) -> Option<u64> {
        if offset & !self.address != 0 {
            return None;
        }
        Some(offset | self.valid)
    }

    /// Returns the entry for a leaf; `None` if its address cannot be in an entry.
    pub const fn leaf(&self, leaf: Leaf, access: Access, snoop: bool) -> Option<u64> {
        self.entry(leaf.memory, leaf.bytes(), access, snoop)
    }

    /// Returns the entry for a giant leaf, which leads to `memory`; `None` if the device has none,
    /// or its address cannot be in an entry.
    pub const fn giant(&self, memory: Memory, access: Access, snoop: bool) -> Option<u64> {
        if self.giant {
            self.entry(memory, GIANT, access, snoop)
        } else {
            None
        }
    }

    const fn entry(&self, memory: Memory, bytes: u64, access: Access, snoop: bool) -> Option<u64> {
        let address = memory.address();
        if address & !self.address != 0 || address & bytes.wrapping_sub(1) != 0 {
            return None;
        }
        let may = match access {
            Access::Read => self.read,
            Access::Write => self.read | self.write,
            Access::Atomic => self.read | self.write | self.atomic,
            Access::Fetch => self.read | self.execute,
        };
        let place = match memory {
            Memory::Host(_) if snoop => self.host | self.snoop,
            Memory::Host(_) => self.host,
            Memory::Vram(_) => 0,
        };
        Some(address | self.valid | self.leaf | may | place)
    }

    /// Decodes the entry of `level` for `va`.
    pub const fn read(&self, entry: u64, level: u32, va: u64) -> Step {
        if entry & self.valid == 0 {
            return Step::Absent;
        }
        let address = entry & self.address;
        if entry & self.leaf == 0 {
            return if level == 0 {
                Step::Absent
            } else {
                Step::Table(address)
            };
        }
        let bytes = 1_u64.wrapping_shl(shift(level));
        let target = address | va & bytes.wrapping_sub(1);
        Step::Leaf {
            memory: if entry & self.host != 0 {
                Memory::Host(target)
            } else {
                Memory::Vram(target)
            },
            bytes,
            read: entry & self.read != 0,
            write: entry & self.write != 0,
            fetch: entry & self.execute != 0,
            snoop: entry & self.snoop != 0,
        }
    }
}

/// A decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The entry is not valid.
    Absent,
    /// The next table, at this offset in VRAM.
    Table(u64),
    /// A leaf, which ends the walk.
    Leaf {
        /// Memory to which the address leads.
        memory: Memory,
        /// Bytes that the entry covers.
        bytes: u64,
        /// Whether it may be read.
        read: bool,
        /// Whether it may be written.
        write: bool,
        /// Whether packets may be fetched from it.
        fetch: bool,
        /// Whether accesses snoop the CPU's caches.
        snoop: bool,
    },
}

/// A leaf of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// First address that the leaf translates.
    pub va: u64,
    /// Memory to which the first address leads.
    pub memory: Memory,
    /// Whether the leaf covers 2 MiB and not 4 KiB.
    pub large: bool,
}

impl Leaf {
    /// Returns the level of the leaf's entry.
    pub const fn level(self) -> u32 {
        if self.large {
            1
        } else {
            0
        }
    }

    /// Returns how many bytes the leaf covers.
    pub const fn bytes(self) -> u64 {
        if self.large {
            LARGE
        } else {
            PAGE_SIZE
        }
    }
}

/// Iterator over the leaves that translate a span of whole pages to a contiguous range.
#[derive(Clone, Debug)]
pub struct Leaves {
    next: Option<u64>,
    last: u64,
    memory: Memory,
}

impl Leaves {
    /// Makes the leaves for `span`, whose first byte is at `memory`: as few as alignment allows.
    pub const fn new(span: Span, memory: Memory) -> Self {
        Self {
            next: Some(span.start()),
            last: span.last(),
            memory,
        }
    }
}

impl Iterator for Leaves {
    type Item = Leaf;

    fn next(&mut self) -> Option<Leaf> {
        let va = self.next.filter(|&va| va <= self.last)?;
        let left = self.last.wrapping_sub(va);
        let aligned = (va | self.memory.address()) & (LARGE - 1) == 0;
        let leaf = Leaf {
            va,
            memory: self.memory,
            large: aligned && left >= LARGE - 1,
        };
        // At the end of the address space there is no next one.
        self.next = va.checked_add(leaf.bytes());
        match self.memory.plus(leaf.bytes()) {
            Some(memory) => self.memory = memory,
            None => self.next = None,
        }
        Some(leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::FORMAT;

    fn leaves(start: u64, length: u64, memory: Memory) -> Vec<Leaf> {
        Leaves::new(Span::new(start, length).unwrap(), memory).collect()
    }

    #[test]
    fn indexes() {
        let va = 0x8123_4567_8000;
        assert_eq!(slot(3, va), ((va >> 39) & 511) * 8);
        assert_eq!(slot(0, va), ((va >> 12) & 511) * 8);
        assert_eq!(shift(1), 21);
    }

    #[test]
    fn interior_leaves_are_large() {
        let got = leaves(
            LARGE - 0x1000,
            LARGE + 0x2000,
            Memory::Host(3 * LARGE - 0x1000),
        );
        assert_eq!(got.len(), 3);
        assert_eq!(
            got[1],
            Leaf {
                va: LARGE,
                memory: Memory::Host(3 * LARGE),
                large: true
            }
        );
        // Not congruent, so all leaves are small.
        assert_eq!(leaves(LARGE, LARGE, Memory::Host(0x1000)).len(), 512);
        // One page short of a large leaf.
        assert_eq!(leaves(LARGE, LARGE - 0x1000, Memory::Vram(0)).len(), 511);
    }

    #[test]
    fn giant_leaves_are_whole() {
        let at = |start, length| giants(Span::new(start, length).unwrap()).collect::<Vec<_>>();
        assert_eq!(at(0, GIANT), [0]);
        assert_eq!(at(0, GIANT - PAGE_SIZE), []);
        assert_eq!(at(PAGE_SIZE, 3 * GIANT), [GIANT, 2 * GIANT]);
        let last = GIANT.wrapping_neg();
        assert_eq!(at(last, GIANT), [last]);
        assert_eq!(at(last + PAGE_SIZE, GIANT - PAGE_SIZE), []);
    }

    #[test]
    fn the_last_leaf_ends() {
        assert_eq!(leaves(u64::MAX - 0xfff, 0x1000, Memory::Host(0)).len(), 1);
        assert_eq!(leaves(0, 0x3000, Memory::Host(u64::MAX - 0xfff)).len(), 1);
    }

    #[test]
    fn entries() {
        let leaf = |address, large| Leaf {
            va: 0,
            memory: Memory::Host(address),
            large,
        };
        let local = |offset| Leaf {
            va: 0,
            memory: Memory::Vram(offset),
            large: false,
        };
        assert_eq!(FORMAT.table(0x3000), Some(0x3001));
        assert_eq!(FORMAT.table(0x3001), None);
        let write = FORMAT.leaf(leaf(0x5000, false), Access::Write, true);
        assert_eq!(write, Some(0x5077));
        let atomic = FORMAT.leaf(leaf(0x5000, false), Access::Atomic, true);
        assert_eq!(atomic, Some(0x50f7));
        let without = Format {
            atomic: 0,
            ..FORMAT
        };
        let plain = without.leaf(leaf(0x5000, false), Access::Atomic, true);
        assert_eq!(plain, write);
        for (access, writes) in [
            (Access::all(false), false),
            (Access::all(true), true),
            (Access::Write, true),
            (Access::Fetch, false),
        ] {
            assert_eq!(access.is_write(), writes);
            let entry = FORMAT.leaf(local(0x7000), access, true).unwrap();
            assert_eq!(entry & FORMAT.write != 0, writes);
            assert_eq!(entry & FORMAT.atomic != 0, access == Access::Atomic);
        }
        let fetch = FORMAT.leaf(leaf(0x5000, false), Access::Fetch, false);
        assert_eq!(fetch, Some(0x505b));
        assert_eq!(FORMAT.leaf(leaf(0x5000, true), Access::Read, true), None);
        assert_eq!(FORMAT.leaf(leaf(1 << 52, false), Access::Read, true), None);
        assert_eq!(FORMAT.leaf(local(0x7000), Access::Read, true), Some(0x7043));
        let giant = |at| FORMAT.giant(Memory::Host(at), Access::Read, true);
        assert_eq!(giant(3 * GIANT), Some((3 * GIANT) | 0x73));
        assert_eq!(giant(3 * GIANT + LARGE), None);
        let step = FORMAT.read((3 * GIANT) | 0x73, GIANT_LEVEL, 7 * GIANT + 0x1234);
        assert!(
            matches!(step, Step::Leaf { memory: Memory::Host(at), bytes: GIANT, .. }
            if at == 3 * GIANT + 0x1234)
        );
        let none = Format {
            giant: false,
            ..FORMAT
        };
        assert_eq!(none.giant(Memory::Host(0), Access::Read, true), None);
    }
}
