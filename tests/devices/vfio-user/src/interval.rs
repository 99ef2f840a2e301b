// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of address ranges, from which any part can be removed.

use std::collections::BTreeMap;

/// Value of a range, at its first byte.
pub(crate) trait Skip {
    /// Returns the value for the rest of the range, `bytes` further on.
    fn skip(&self, bytes: u64) -> Self;
}

/// Ranges that do not overlap.
///
/// Ranges are `first..=last`, because one may end with the address space.
#[derive(Debug)]
pub(crate) struct Intervals<T> {
    /// Maps the first address of a range to its last address and value.
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }
}

impl<T: Skip> Intervals<T> {
    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Adds a range and replaces what was there.
    pub(crate) fn insert(&mut self, first: u64, last: u64, value: T) {
        self.remove(first, last);
        self.ranges.insert(first, (last, value));
    }

    /// Removes all ranges, and parts of ranges, between two addresses.
    pub(crate) fn remove(&mut self, first: u64, last: u64) {
        while let Some((&start, &(end, _))) = self.ranges.range(..=last).next_back() {
            if end < first {
                break;
            }
            let Some((_, value)) = self.ranges.remove(&start) else {
                break;
            };
            if let Some(after) = last.checked_add(1).filter(|after| *after <= end) {
                self.ranges.insert(after, (end, value.skip(after - start)));
            }
            if start < first {
                self.ranges.insert(start, (first - 1, value));
                break;
            }
        }
    }

    /// Removes all ranges.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Finds the range that contains an address. Returns its value, the offset of the address in
    /// it, and how many bytes of it follow, including the one at the address.
    pub(crate) fn find(&self, address: u64) -> Option<(&T, u64, u64)> {
        let (start, (end, value)) = self.ranges.range(..=address).next_back()?;
        let left = end.checked_sub(address)?.saturating_add(1);
        Some((value, address - start, left))
    }

    /// Iterates over the ranges that follow each other without a gap from an address on, each as
    /// [`Self::find`] returns it.
    pub(crate) fn follow(&self, address: u64) -> impl Iterator<Item = (&T, u64, u64)> {
        let before = self.ranges.range(..=address).next_back();
        let first = before.map_or(address, |(start, _)| *start);
        let mut at = Some(address);
        self.ranges
            .range(first..)
            .map_while(move |(start, (end, value))| {
                let offset = at?.checked_sub(*start)?;
                let left = end.checked_sub(at?)?.saturating_add(1);
                at = end.checked_add(1);
                Some((value, offset, left))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Place(u64);
    impl Skip for Place {
        fn skip(&self, bytes: u64) -> Self {
            Place(self.0 + bytes)
        }
    }

    fn look(table: &Intervals<Place>, address: u64) -> Option<u64> {
        table
            .find(address)
            .map(|(place, offset, _)| place.0 + offset)
    }

    #[test]
    fn the_end_of_the_address_space() {
        let mut table = Intervals::default();
        table.insert(u64::MAX - 9, u64::MAX, Place(0));
        assert_eq!(table.find(u64::MAX).unwrap().2, 1);
        table.insert(0, 9, Place(100));
        table.remove(0, u64::MAX);
        assert_eq!(table.len(), 0);
        table.insert(0, u64::MAX, Place(0));
        assert_eq!(table.find(0).unwrap().2, u64::MAX);
        table.remove(5, 5);
        assert_eq!(
            (look(&table, 4), look(&table, 5), look(&table, 6)),
            (Some(4), None, Some(6))
        );
    }

    proptest! {
        #[test]
        fn as_an_array_would(
            steps in proptest::collection::vec((any::<bool>(), 0..64_u64, 0..64_u64), 0..40),
        ) {
            let mut table = Intervals::default();
            let mut array = [None; 128];
            for (number, (add, first, size)) in steps.into_iter().enumerate() {
                let last = first + size;
                let base = 1000 * number as u64;
                if add {
                    table.insert(first, last, Place(base));
                } else {
                    table.remove(first, last);
                }
                for at in first..=last {
                    array[at as usize] = add.then_some(base + at - first);
                }
            }
            for at in 0..128 {
                prop_assert_eq!(look(&table, at), array[at as usize]);
                let mut followed = at;
                for (place, offset, left) in table.follow(at) {
                    prop_assert_eq!(Some(place.0 + offset), array[followed as usize]);
                    followed += left;
                }
                prop_assert!(array.get(followed as usize).is_none_or(Option::is_none));
            }
        }
    }
}
