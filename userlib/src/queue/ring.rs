// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a queue: where packets go, how many fit, and how the device learns of them.
//!
//! The device tells how many packets it has executed only by fences, so the ring puts *markers*
//! among the packets: one at least every quarter of the ring, and one wherever somebody waits. A
//! marker stores how many packets are executed, itself included. Room for one more marker is always
//! left.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use crate::device::Device;
use crate::sys::ioctl;
use crate::sys::map::Map;

use super::doorbell::Doorbell;
use super::format::{Packet, PacketFormat};

/// Packets of a marker: one that stores the fence, one that interrupts for those who sleep.
pub(crate) const MARKER: u64 = 2;
/// 64-bit words in a packet.
const WORDS: usize = Packet::LEN / 8;

/// A ring for a power of two packets, at least 64.
#[derive(Debug)]
pub(crate) struct Ring {
    path: Path,
    /// Packets that the ring holds.
    capacity: u64,
    /// Packets put since the beginning.
    written: u64,
    /// Packets that the device was told about.
    published: u64,
    /// The number that the last marker stores, and how many packets were put when it was complete.
    marker: (u64, u64),
    /// Device address of the number that markers store.
    fence_addr: u64,
    format: &'static dyn PacketFormat,
}

/// The way in which packets get to the device.
#[derive(Debug)]
pub(crate) enum Path {
    /// The mapped ring and the doorbell, without a system call.
    Mapped { ring: Map, doorbell: Doorbell },
    /// A system call, which copies the packets.
    Call {
        device: Device,
        queue: u64,
        /// Packets that were put, but not published.
        staged: Vec<[u64; WORDS]>,
    },
}

impl Ring {
    /// An empty ring. `fence_addr` is the device address to which markers store.
    pub(crate) fn new(
        path: Path,
        capacity: u64,
        fence_addr: u64,
        format: &'static dyn PacketFormat,
    ) -> Self {
        Self {
            path,
            capacity,
            written: 0,
            published: 0,
            marker: (0, 0),
            fence_addr,
            format,
        }
    }

    /// After how many packets there must be a marker.
    fn quarter(&self) -> u64 {
        self.capacity / 4
    }

    /// How many packets can be put, besides the markers among them, when `executed` are executed.
    pub(crate) fn room(&self, executed: u64) -> u64 {
        let free = (executed + self.capacity).saturating_sub(self.written);
        // More at once would not fit into an empty ring either.
        self.without_markers(free).min(self.longest())
    }

    /// How many packets can be put at once into an empty ring.
    pub(crate) fn longest(&self) -> u64 {
        self.without_markers(self.capacity)
    }

    /// How many of `places` packets are left for others: there is a marker for each quarter, one
    /// for the packets that were there before, and one for somebody who waits.
    fn without_markers(&self, places: u64) -> u64 {
        places.saturating_sub(MARKER * (places / self.quarter() + 2))
    }

    /// How many packets must be executed until there is room for `count` more. A marker that is
    /// already in the ring tells when.
    pub(crate) fn room_for(&self, count: u64) -> u64 {
        (self.written + count + 2 * MARKER).saturating_sub(self.capacity)
    }

    /// Puts a packet, for which there must be room, and a marker if one is due.
    pub(crate) fn put(&mut self, packet: &Packet) {
        self.push(packet);
        self.mark_if_due();
    }

    /// Puts two packets with nothing between them, for which there must be room, and a marker if
    /// one is due.
    pub(crate) fn put_both(&mut self, first: &Packet, second: &Packet) {
        self.push(first);
        self.push(second);
        self.mark_if_due();
    }

    fn mark_if_due(&mut self) {
        if self.written - self.marker.1 >= self.quarter() {
            self.mark();
        }
    }

    /// Puts a marker, unless nothing came after the last one. Returns what the last marker stores.
    pub(crate) fn mark(&mut self) -> u64 {
        if self.written != self.marker.1 {
            let value = self.written + 1;
            self.push(&self.format.fence_write(self.fence_addr, value));
            self.push(&self.format.interrupt());
            self.marker = (value, self.written);
        }
        self.marker.0
    }

    fn push(&mut self, packet: &Packet) {
        match &mut self.path {
            Path::Mapped { ring, .. } => {
                let at = (self.written % self.capacity) as usize * WORDS;
                let slot = &ring.words()[at..at + WORDS];
                for (to, word) in slot.iter().zip(packet.words()) {
                    // Published by the doorbell, which comes later.
                    to.store(word.to_le(), Ordering::Relaxed);
                }
            }
            Path::Call { staged, .. } => staged.push(packet.words().map(u64::to_le)),
        }
        self.written += 1;
    }

    /// Tells the device about all packets that were put.
    pub(crate) fn publish(&mut self) -> Result<(), Errno> {
        if self.published == self.written {
            return Ok(());
        }
        match &mut self.path {
            Path::Mapped { doorbell, .. } => doorbell.ring(self.written),
            Path::Call {
                device,
                queue,
                staged,
            } => {
                ioctl::queue_submit(device.as_fd(), *queue, staged)?;
                staged.clear();
            }
        }
        self.published = self.written;
        Ok(())
    }

    /// How many packets were put when the last marker was, if that is executed; otherwise 0.
    pub(crate) fn idle_after(&self, executed: u64) -> u64 {
        if executed >= self.marker.0 {
            self.marker.1
        } else {
            0
        }
    }

    /// Packets put since the beginning, markers included.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sys::map::Register;
    use crate::testgpu::packet;
    use proptest::prelude::*;

    pub(crate) const FENCE: u64 = 0xfe_0000;

    /// A ring in ordinary memory, with a page as its doorbell.
    pub(crate) fn ring(capacity: u64) -> Ring {
        let bytes = capacity as usize * Packet::LEN;
        let doorbell = memmap2::MmapMut::map_anon(4096).expect("memory");
        let path = Path::Mapped {
            ring: Map::anonymous(bytes),
            doorbell: Doorbell::new(Register::new(doorbell.into())),
        };
        Ring::new(path, capacity, FENCE, &packet::Format)
    }

    impl Ring {
        /// The packet at an index.
        pub(crate) fn packet(&self, index: u64) -> Packet {
            let Path::Mapped { ring, .. } = &self.path else {
                unreachable!("rings of tests are mapped");
            };
            let at = (index % self.capacity) as usize * WORDS;
            let words = std::array::from_fn(|i| ring.words()[at + i].load(Ordering::Relaxed));
            Packet::from_words(words)
        }

        pub(crate) fn published(&self) -> u64 {
            self.published
        }
    }

    /// The number that markers have stored when a device, which had stored `known`, has executed a
    /// range of packets.
    fn told(ring: &Ring, executed: std::ops::Range<u64>, known: u64) -> u64 {
        let fences = executed.filter_map(|index| match ring.packet(index).words() {
            [5, FENCE, value, ..] => Some(value),
            _ => None,
        });
        fences.max().unwrap_or(known)
    }

    #[test]
    fn a_marker_tells_how_many_were_executed() {
        let mut ring = ring(64);
        assert_eq!((ring.mark(), ring.written()), (0, 0));
        ring.put(&packet::nop());
        assert_eq!((ring.mark(), ring.written()), (2, 3));
        assert_eq!(ring.packet(1), packet::fence_write(FENCE, 2));
        assert_eq!(ring.packet(2), packet::interrupt());
        // A second marker would tell nothing new.
        assert_eq!((ring.mark(), ring.written()), (2, 3));
    }

    #[test]
    fn only_what_is_published_is_told() {
        let mut ring = ring(64);
        ring.put(&packet::nop());
        assert_eq!(ring.published(), 0);
        ring.publish().expect("published");
        assert_eq!(ring.published(), 1);
    }

    #[test]
    fn markers_come_by_themselves() {
        let mut ring = ring(64);
        for _ in 0..16 {
            ring.put(&packet::nop());
        }
        assert_eq!(ring.written(), 18);
        assert_eq!(ring.packet(16), packet::fence_write(FENCE, 17));
        assert_eq!((ring.mark(), ring.written()), (17, 18));
    }

    proptest! {
        #[test]
        fn nothing_is_overwritten_and_there_is_always_a_way_on(
            log2 in 6u32..=9,
            steps in prop::collection::vec((0u64..600, 0u64..600), 1..100),
        ) {
            let mut ring = ring(1 << log2);
            let (mut executed, mut known) = (0, 0);
            for (put, run) in steps {
                let room = ring.room(known);
                prop_assert!(room <= ring.longest());
                for _ in 0..put.min(room) {
                    ring.put(&packet::nop());
                }
                ring.mark();
                prop_assert!(ring.written() - executed <= ring.capacity);
                // When `value` packets are executed there is room for one, and a marker tells so.
                let value = ring.room_for(1);
                prop_assert!(value <= ring.marker.0);
                prop_assert!(ring.room(value) >= 1);
                let next = (executed + run).min(ring.written());
                known = told(&ring, executed..next, known);
                prop_assert!(known <= next);
                executed = next;
            }
        }

        #[test]
        fn what_fits_at_once_leaves_room_for_a_marker(
            log2 in 6u32..=16,
            executed in 0u64..1 << 40,
        ) {
            let mut ring = ring(64);
            ring.capacity = 1 << log2;
            ring.written = executed;
            prop_assert_eq!(ring.room(executed), ring.longest());
            prop_assert!(ring.longest() >= ring.capacity / 2);
        }
    }

    #[test]
    fn a_ring_by_system_call_is_emptied_when_it_is_published() {
        let path = Path::Call {
            device: Device::fake(),
            queue: 1,
            staged: Vec::new(),
        };
        let mut ring = Ring::new(path, 64, FENCE, &packet::Format);
        assert_eq!(ring.publish(), Ok(()));
        ring.put(&packet::nop());
        assert_eq!(ring.publish(), Err(Errno::ENOTTY));
        // The packet is still to be published.
        assert_eq!(ring.publish(), Err(Errno::ENOTTY));
    }
}
