// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TLB (section 4 of the manual). An entry stays until it is replaced or invalidated.

use crate::pagetable::Leaf;
use crate::regs;

const WAYS: usize = 4;
const SMALL_SETS: usize = 256;
const LARGE_SETS: usize = 32;
const GIANT_SETS: usize = 4;

/// Number of entries for 4 KiB pages.
pub const SMALL_ENTRIES: usize = WAYS * SMALL_SETS;

#[derive(Clone, Copy, Debug)]
struct Entry {
    vmid: usize,
    page: u64,
    leaf: Leaf,
}

#[derive(Clone, Debug, Default)]
struct Set {
    ways: [Option<Entry>; WAYS],
    next: usize,
}

/// The TLB.
#[derive(Debug)]
pub struct Tlb {
    small: Vec<Set>,
    large: Vec<Set>,
    giant: Vec<Set>,
}

impl Default for Tlb {
    fn default() -> Self {
        Self {
            small: vec![Set::default(); SMALL_SETS],
            large: vec![Set::default(); LARGE_SETS],
            giant: vec![Set::default(); GIANT_SETS],
        }
    }
}

fn lookup(sets: &[Set], vmid: usize, page: u64) -> Option<Leaf> {
    // The number of sets is a power of two.
    let set = &sets[page as usize & (sets.len() - 1)];
    let hit = |entry: &&Entry| entry.vmid == vmid && entry.page == page;
    set.ways.iter().flatten().find(hit).map(|entry| entry.leaf)
}

impl Tlb {
    /// Returns the leaf for an address, if it is cached.
    pub fn lookup(&self, vmid: usize, va: u64) -> Option<Leaf> {
        lookup(&self.small, vmid, va / regs::PAGE)
            .or_else(|| lookup(&self.large, vmid, va / regs::LARGE_PAGE))
            .or_else(|| lookup(&self.giant, vmid, va / regs::GIANT_PAGE))
    }

    /// Caches a leaf that a walk for `va` found.
    pub fn insert(&mut self, vmid: usize, va: u64, leaf: Leaf) {
        let page = va / leaf.size();
        let sets = match leaf.level {
            0 => &mut self.small,
            1 => &mut self.large,
            _ => &mut self.giant,
        };
        if lookup(sets, vmid, page).is_some() {
            // Two engines walked at once. The cached entry stays, as if the second had found it.
            return;
        }
        let count = sets.len();
        let set = &mut sets[page as usize % count];
        let way = set
            .ways
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                let way = set.next;
                set.next = (way + 1) % WAYS;
                way
            });
        set.ways[way] = Some(Entry { vmid, page, leaf });
    }

    /// Drops the entries that overlap `first..=last` in one address space or in all. Returns the
    /// first dropped leaf that `wanted` picks.
    pub fn invalidate(
        &mut self,
        vmid: Option<usize>,
        first: u64,
        last: u64,
        wanted: impl Fn(&Leaf) -> bool,
    ) -> Option<Leaf> {
        let mut found = None;
        for way in self
            .small
            .iter_mut()
            .chain(&mut self.large)
            .chain(&mut self.giant)
            .flat_map(|set| &mut set.ways)
        {
            let Some(entry) = way else { continue };
            let start = entry.page * entry.leaf.size();
            let end = start + (entry.leaf.size() - 1);
            if vmid.is_none_or(|vmid| vmid == entry.vmid)
                && start <= last
                && end >= first
                && first <= last
            {
                if found.is_none() && wanted(&entry.leaf) {
                    found = Some(entry.leaf);
                }
                *way = None;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagetable::walk;

    fn leaf(address: u64, end: u8) -> Leaf {
        let mut level = 4;
        walk(regs::ROOT_ENABLE, 0, |_, _| {
            level -= 1;
            let bits = if level == end {
                regs::PTE_LEAF | regs::PTE_READ | address
            } else {
                0
            };
            Ok(regs::PTE_VALID | bits)
        })
        .unwrap()
    }

    #[test]
    fn keeps_until_invalidated() {
        let mut tlb = Tlb::default();
        tlb.insert(1, 0x5123, leaf(0x1000, 0));
        tlb.insert(1, 0x5000, leaf(0x2000, 0));
        tlb.insert(2, 0x60_0000, leaf(0x20_0000, 1));
        tlb.insert(2, 5 << 30, leaf(3 << 30, 2));
        assert_eq!(tlb.lookup(1, 0x5fff).unwrap().address, 0x1000);
        assert_eq!(tlb.lookup(2, 0x5fff), None);
        assert_eq!(tlb.lookup(2, 0x7f_ffff).unwrap().address, 0x20_0000);
        assert_eq!(tlb.lookup(2, (5 << 30) + 0x4567).unwrap().address, 3 << 30);
        tlb.invalidate(Some(2), (6 << 30) - 1, 6 << 30, |_| false);
        assert_eq!(tlb.lookup(2, 5 << 30), None);
        tlb.invalidate(Some(2), 0, u64::MAX, |_| false);
        assert_eq!(tlb.lookup(2, 0x7f_ffff), None);
        tlb.invalidate(Some(1), 0x6000, u64::MAX, |_| false);
        tlb.invalidate(Some(1), 0, 0x4fff, |_| false);
        tlb.invalidate(Some(1), 0x5800, 0x57ff, |_| false);
        assert!(tlb.lookup(1, 0x5000).is_some());
        let dropped = tlb.invalidate(None, 0x5800, 0x5800, |_| true);
        assert_eq!(dropped.unwrap().address, 0x1000);
        assert!(tlb.lookup(1, 0x5000).is_none());
    }

    #[test]
    fn a_full_set_replaces_in_turn() {
        let mut tlb = Tlb::default();
        let va = |i: u64| i * 256 * 4096;
        for i in 0..6 {
            tlb.insert(0, va(i), leaf(i << 12, 0));
        }
        let cached: Vec<_> = (0..6).map(|i| tlb.lookup(0, va(i)).is_some()).collect();
        assert_eq!(cached, [false, false, true, true, true, true]);
    }
}
