// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page-table walk (section 4 of the manual), without memory: the caller reads the entries.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use crate::fault::{Access, Reason};
use crate::regs;

/// Content of a valid leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Bus address, or offset in VRAM, of the page's first byte.
    pub address: u64,
    /// Level of the entry.
    pub level: u8,
    /// Whether the address is a bus address.
    pub host: bool,
    /// Whether accesses are coherent with the CPUs' caches.
    pub snoop: bool,
    /// Permission bits, at their position in the entry.
    permissions: u64,
}

impl Leaf {
    /// Returns how many bytes the leaf maps.
    pub fn size(&self) -> u64 {
        match self.level {
            0 => regs::PAGE,
            1 => regs::LARGE_PAGE,
            _ => regs::GIANT_PAGE,
        }
    }

    /// Returns whether the leaf permits an access.
    pub fn permits(&self, access: Access) -> bool {
        let bits = match access {
            Access::Read => regs::PTE_READ,
            Access::Write => regs::PTE_WRITE,
            Access::Fetch => regs::PTE_EXECUTE,
            Access::Atomic => regs::PTE_READ | regs::PTE_WRITE | regs::PTE_ATOMIC,
        };
        self.permissions & bits == bits
    }

    /// Returns where `va` is, and how many bytes of the page begin there.
    pub fn place(&self, va: u64) -> (u64, u64) {
        let offset = va & self.size().wrapping_sub(1);
        (self.address | offset, self.size().saturating_sub(offset))
    }
}

/// Error of a walk that found no leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Code of the fault.
    pub reason: Reason,
    /// Level at which the walk failed; [`crate::fault::NO_LEVEL`] if it did not begin.
    pub level: u8,
}

const PERMISSIONS: u64 = regs::PTE_READ | regs::PTE_WRITE | regs::PTE_EXECUTE | regs::PTE_ATOMIC;
const DEFINED: u64 = regs::PTE_VALID
    | PERMISSIONS
    | regs::PTE_HOST
    | regs::PTE_SNOOP
    | regs::PTE_LEAF
    | regs::PTE_ADDRESS;

/// Finds the leaf for `va` below `root`, a value of the register. `read` reads an entry, given
/// whether it is in host memory and its address there or in VRAM.
pub fn walk(
    root: u64,
    va: u64,
    mut read: impl FnMut(bool, u64) -> Result<u64, Reason>,
) -> Result<Leaf, Failure> {
    let outside = |reason| Failure {
        reason,
        level: crate::fault::NO_LEVEL,
    };
    if va >= regs::VA_END {
        return Err(outside(Reason::VaRange));
    }
    if root & regs::ROOT_ENABLE == 0 {
        return Err(outside(Reason::RootDisabled));
    }
    let mut table = root & regs::PTE_ADDRESS;
    let mut host = root & regs::ROOT_HOST != 0;
    for (level, shift) in [(3, 39_u32), (2, 30), (1, 21), (0, 12)] {
        let fail = |reason| Failure { reason, level };
        let index = va.wrapping_shr(shift) & 0x1ff;
        let entry = read(host, table | (index << 3)).map_err(fail)?;
        if entry & regs::PTE_VALID == 0 {
            return Err(fail(Reason::NotPresent));
        }
        if !is_well_formed(entry, level) {
            return Err(fail(Reason::ReservedBit));
        }
        host = entry & regs::PTE_HOST != 0;
        table = entry & regs::PTE_ADDRESS;
        if entry & regs::PTE_LEAF != 0 {
            return Ok(Leaf {
                address: table,
                level,
                host,
                snoop: entry & regs::PTE_SNOOP != 0,
                permissions: entry & PERMISSIONS,
            });
        }
    }
    // is_well_formed() lets no entry of level 0 pass that is not a leaf
    Err(Failure {
        reason: Reason::ReservedBit,
        level: 0,
    })
}

fn is_well_formed(entry: u64, level: u8) -> bool {
    let leaf = entry & regs::PTE_LEAF != 0;
    let kind = match level {
        0 => leaf,
        1 => !leaf || entry & regs::PTE_ADDRESS & regs::LARGE_PAGE.wrapping_sub(1) == 0,
        2 => !leaf || entry & regs::PTE_ADDRESS & regs::GIANT_PAGE.wrapping_sub(1) == 0,
        _ => !leaf,
    };
    let permissions = leaf || entry & PERMISSIONS == 0;
    let snoop = entry & regs::PTE_SNOOP == 0 || entry & regs::PTE_HOST != 0;
    kind && permissions && snoop && entry & !DEFINED == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::NO_LEVEL;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const V: u64 = regs::PTE_VALID;
    const L: u64 = regs::PTE_LEAF;
    const RW: u64 = regs::PTE_READ | regs::PTE_WRITE;
    const ROOT: u64 = 0x10000 | regs::ROOT_ENABLE;

    /// Walks over entries that are given by (host, address). Missing entries are invalid.
    fn run(entries: &[(bool, u64, u64)], va: u64) -> Result<Leaf, Failure> {
        let map: HashMap<_, _> = entries.iter().map(|(h, a, e)| ((*h, *a), *e)).collect();
        walk(ROOT, va, |host, address| {
            assert_eq!(address % 8, 0);
            Ok(map.get(&(host, address)).copied().unwrap_or(0))
        })
    }

    const VA: u64 = 0x7fab_cdef_1234;

    fn indexes() -> [u64; 4] {
        [39, 30, 21, 12].map(|shift| ((VA >> shift) & 511) * 8)
    }

    #[test]
    fn four_levels_in_vram_and_host_memory_mixed() {
        let [a, b, c, d] = indexes();
        let host = regs::PTE_HOST | regs::PTE_SNOOP;
        let entries = [
            (false, 0x10000 + a, V | 0x20000 | host),
            (true, 0x20000 + b, V | 0x30000),
            (false, 0x30000 + c, V | 0x40000 | host),
            (true, 0x40000 + d, V | L | RW | host | 0xabc_d000),
        ];
        let leaf = run(&entries, VA).unwrap();
        assert_eq!((leaf.address, leaf.level, leaf.host), (0xabc_d000, 0, true));
        assert_eq!(leaf.place(VA), (0xabc_d234, 0x1000 - 0x234));
        assert!(leaf.permits(Access::Write) && !leaf.permits(Access::Fetch));
        for (missing, level) in [(0, 3), (1, 2), (2, 1), (3, 0)] {
            let mut holes = entries;
            holes[missing].2 &= !V;
            let failure = run(&holes, VA).unwrap_err();
            assert_eq!((failure.reason, failure.level), (Reason::NotPresent, level));
        }
    }

    #[test]
    fn large_leaves() {
        let [a, b, c, _] = indexes();
        let mut entries = [
            (false, 0x10000 + a, V | 0x20000),
            (false, 0x20000 + b, V | 0x30000),
            (false, 0x30000 + c, V | L | regs::PTE_READ | 0x40_0000),
        ];
        let leaf = run(&entries, VA).unwrap();
        assert_eq!(leaf.place(VA).0, 0x40_0000 | VA & 0x1f_ffff);
        assert!(!leaf.permits(Access::Write));
        for bits in 0..8 {
            let of = |bit, set| if bits & bit == 0 { 0 } else { set };
            let rights = of(1, regs::PTE_READ) | of(2, regs::PTE_WRITE) | of(4, regs::PTE_ATOMIC);
            let (table, at, _) = entries[2];
            let leaf = V | L | rights | 0x40_0000;
            let leaf = run(&[entries[0], entries[1], (table, at, leaf)], VA).unwrap();
            assert_eq!(leaf.permits(Access::Atomic), bits == 7);
        }
        entries[2].2 |= 0x1000;
        assert_eq!(run(&entries, VA).unwrap_err().reason, Reason::ReservedBit);
    }

    #[test]
    fn giant_leaves() {
        let [a, b, ..] = indexes();
        let mut entries = [
            (false, 0x10000 + a, V | 0x20000),
            (false, 0x20000 + b, V | L | regs::PTE_READ | (3 << 30)),
        ];
        let leaf = run(&entries, VA).unwrap();
        assert_eq!(leaf.level, 2);
        let offset = VA & 0x3fff_ffff;
        assert_eq!(leaf.place(VA), ((3 << 30) | offset, (1 << 30) - offset));
        entries[1].2 |= 0x20_0000;
        assert_eq!(run(&entries, VA).unwrap_err().reason, Reason::ReservedBit);
        // The root has no leaves.
        let root = [(false, 0x10000 + a, V | L | regs::PTE_READ)];
        assert_eq!(run(&root, VA).unwrap_err().level, 3);
    }

    #[test]
    fn malformed_entries() {
        let [a, ..] = indexes();
        for bad in [
            L,
            regs::PTE_READ,
            regs::PTE_EXECUTE,
            regs::PTE_SNOOP,
            regs::PTE_ATOMIC,
            1 << 8,
            1 << 11,
            1 << 52,
            1 << 63,
        ] {
            let failure = run(&[(false, 0x10000 + a, V | 0x20000 | bad)], VA).unwrap_err();
            assert_eq!(
                (failure.reason, failure.level),
                (Reason::ReservedBit, 3),
                "{bad:#x}"
            );
        }
    }

    #[test]
    fn no_walk() {
        let none = |_, _| -> Result<u64, Reason> { panic!("an entry was read") };
        let failure = |root, va| walk(root, va, none).unwrap_err();
        let expected = |reason| Failure {
            reason,
            level: NO_LEVEL,
        };
        assert_eq!(failure(ROOT, 1 << 48), expected(Reason::VaRange));
        assert_eq!(failure(ROOT, u64::MAX), expected(Reason::VaRange));
        assert_eq!(failure(0x10000, 0), expected(Reason::RootDisabled));
    }

    proptest! {
        /// Whatever the tables hold, a walk ends after at most four entries, all aligned, and a
        /// leaf keeps its promises.
        #[test]
        fn any_tables(
            root: u64, va: u64, mask: u64, entries in proptest::collection::vec(any::<u64>(), 4),
        ) {
            let mut read = 0;
            let result = walk(root, va, |_, address| {
                assert_eq!(address & !(regs::PTE_ADDRESS | 0xff8), 0);
                read += 1;
                // mostly well-formed, so that walks get deep
                Ok(entries[read - 1] & (mask | regs::PTE_ADDRESS) | V)
            });
            prop_assert!(read <= 4);
            if let Ok(leaf) = result {
                let (address, left) = leaf.place(va);
                prop_assert!(left > 0 && left <= leaf.size());
                prop_assert_eq!(address % leaf.size(), va % leaf.size());
                prop_assert!(address < 1 << 52);
            }
        }
    }
}
