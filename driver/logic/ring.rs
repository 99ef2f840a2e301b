// SPDX-License-Identifier: GPL-2.0
//! Sizes of rings of packets, and the free room in them.

use super::{Refusal, PAGE_SIZE};

/// Size of a packet in bytes.
pub const PACKET: u64 = 64;
/// Fewest and most packets of a ring: a page of them, and what the device can count.
const FEWEST: u32 = (PAGE_SIZE / PACKET) as u32;
const MOST: u32 = 65536;

/// A ring of a valid size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    packets: u32,
}

impl Ring {
    /// Makes a ring of `packets` packets, which must be a power of two.
    pub const fn new(packets: u32) -> Result<Self, Refusal> {
        if packets < FEWEST || packets > MOST || !packets.is_power_of_two() {
            return Err(Refusal::Invalid);
        }
        Ok(Self { packets })
    }

    /// Returns the number of packets.
    pub const fn packets(self) -> u32 {
        self.packets
    }

    /// Returns the size in bytes, which is whole pages.
    pub const fn bytes(self) -> u64 {
        (self.packets as u64).wrapping_mul(PACKET)
    }

    /// Returns the binary logarithm of the number of packets.
    pub const fn order(self) -> u32 {
        self.packets.trailing_zeros()
    }

    /// Returns the byte offset of packet `index`.
    pub const fn offset(self, index: u64) -> u64 {
        (index & (self.packets as u64).wrapping_sub(1)).wrapping_mul(PACKET)
    }

    /// Returns the write index after adding `count` packets behind `written`, when `read` packets
    /// are executed; `None` if there is no room. The indexes come from user space and may be
    /// invalid.
    pub fn add(self, written: u64, read: u64, count: u32) -> Option<u64> {
        let after = written.checked_add(count.into())?;
        let pending = after.checked_sub(read)?;
        (pending <= self.packets.into()).then_some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for packets in [0, 1, 32, 63, 65, 96, 65537, 1 << 17, u32::MAX] {
            assert_eq!(Ring::new(packets), Err(Refusal::Invalid), "{packets}");
        }
        for order in 6..=16 {
            let ring = Ring::new(1 << order).unwrap();
            assert_eq!((ring.order(), ring.bytes()), (order, 64 << order));
            assert_eq!(ring.bytes() % PAGE_SIZE, 0);
        }
    }

    #[test]
    fn room() {
        let ring = Ring::new(64).unwrap();
        assert_eq!(ring.add(0, 0, 64), Some(64));
        assert_eq!(ring.add(0, 0, 65), None);
        assert_eq!(ring.add(64, 0, 1), None);
        assert_eq!(ring.add(64, 1, 1), Some(65));
        assert_eq!(ring.add(5, 6, 1), Some(6));
        assert_eq!(ring.add(5, 7, 1), None);
        assert_eq!(ring.add(u64::MAX, u64::MAX, 1), None);
        assert_eq!(ring.offset(64), 0);
        assert_eq!(ring.offset(u64::MAX), 63 * 64);
    }

    proptest! {
        #[test]
        fn packets_stay_in_the_ring(
            order in 6u32..17, read: u64, used in 0u64..70_000, count in 1u32..70_000,
        ) {
            let ring = Ring::new(1 << order).unwrap();
            let index = read.saturating_add(used);
            prop_assert!(ring.offset(index) + PACKET <= ring.bytes());
            let after = index.checked_add(u64::from(count));
            let after = after.filter(|after| after - read <= u64::from(ring.packets()));
            prop_assert_eq!(ring.add(index, read, count), after);
        }
    }
}
