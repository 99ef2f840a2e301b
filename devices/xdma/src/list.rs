// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of descriptors (PG195, "Descriptors").
//!
//! A core fetches descriptors that are adjacent in memory at once, as a block: at most 64, which
//! cross no multiple of 4 KiB. A descriptor says how many are left of the block behind the next.
//! Blocks here begin at multiples of 64 descriptors, so that half a page is one.

/// Descriptors of a block.
const BLOCK: usize = 64;
/// The upper half of a descriptor's first word.
const MAGIC: u32 = 0xad4b_0000;
const STOP: u32 = 1;
const COUNT: u32 = 1 << 1;
const END_OF_PACKET: u32 = 1 << 4;

pinmap::element! {
    /// A descriptor.
    #[derive(Debug, Default, PartialEq)]
    pub(crate) struct Entry {
        control: u32,
        len: u32,
        source: u64,
        target: u64,
        next: u64,
    }
}

/// How many descriptors are left of a block behind the one at `index`, in a list of `count`.
pub(crate) fn adjacent(index: usize, count: usize) -> u32 {
    let end = (index / BLOCK * BLOCK + BLOCK).min(count);
    (end - index - 1) as u32
}

impl Entry {
    /// A descriptor.
    pub(crate) fn new(source: u64, target: u64, len: usize) -> Self {
        Self {
            control: MAGIC,
            len: len as u32,
            source,
            target,
            next: 0,
        }
    }
}

/// Makes a list of descriptors that lie at a device address one behind the other: links them, and
/// makes the last one stop the channel. `ends` a packet there.
pub(crate) fn link(entries: &mut [Entry], start: u64, ends: bool) {
    let count = entries.len();
    for (index, entry) in entries.iter_mut().enumerate() {
        let next = index + 1;
        if next == count {
            entry.control |= STOP | COUNT | if ends { END_OF_PACKET } else { 0 };
        } else {
            entry.next = start + (next * size_of::<Entry>()) as u64;
            entry.control |= adjacent(next, count) << 8;
        }
    }
}

/// Makes a list of descriptors that lie at a device address one behind the other have no end: the
/// core counts each, and begins again.
pub(crate) fn close(entries: &mut [Entry], start: u64) {
    let count = entries.len();
    for (index, entry) in entries.iter_mut().enumerate() {
        let next = (index + 1) % count;
        entry.next = start + (next * size_of::<Entry>()) as u64;
        entry.control |= COUNT | (adjacent(next, count) << 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_is_as_the_manual_lays_it_out() {
        assert_eq!(size_of::<Entry>(), 32);
        let mut entries = [Entry::new(0x11, 0x22, 0x33); 2];
        link(&mut entries, 0x1000, true);
        let [first, last] = entries;
        assert_eq!((first.control, first.next), (0xad4b_0000, 0x1020));
        assert_eq!((last.control, last.next), (0xad4b_0013, 0));
        assert_eq!((last.len, last.source, last.target), (0x33, 0x11, 0x22));
        link(&mut entries[..1], 0x1000, false);
        assert_eq!(entries[0].control, 0xad4b_0003);
    }

    #[test]
    fn each_descriptor_tells_what_is_left_behind_the_next() {
        for count in [1, 2, 63, 64, 65, 66, 128, 129, 300] {
            let mut entries = vec![Entry::new(0, 0, 64); count];
            link(&mut entries, 0x8000, false);
            // As a core goes through the list.
            let (mut at, mut left) = (0, adjacent(0, count) as usize + 1);
            for (index, entry) in entries.iter().enumerate() {
                assert!(at / 128 == (at + left - 1) / 128 && left <= BLOCK);
                left -= 1;
                let more = (entry.control >> 8) as usize & 0x3f;
                if index + 1 == count {
                    assert_eq!((left, entry.control & 3), (0, 3));
                } else if left == 0 {
                    left = more + 1;
                } else {
                    assert_eq!(more, left - 1, "{index} of {count}");
                }
                at += 1;
            }
        }
    }
}
