// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a queue: where packets go, how many fit, and how the device learns of them.
//!
//! The device tells how many packets it has executed only by fences, so the ring puts *markers*
//! among the packets: one at least every quarter of the ring, and one wherever somebody may wait. A
//! marker stores how many packets are executed, itself included. Room for one more marker is always
//! left.
//!
//! A marker ends with an interrupt, for those who sleep, which costs the CPU more than all the
//! rest. So where perhaps nobody will sleep, the interrupt is left out at first: the marker is
//! *quiet*. Its interrupt is put when somebody is about to sleep, or when more packets come and the
//! device has not executed the marker yet, because it must be just behind the marker. So whoever
//! sleeps is woken as soon as if every marker had one.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use crate::device::Device;
use crate::sys::ioctl;
use crate::sys::map::Map;

use super::doorbell::Doorbell;
use super::format::{Packet, PacketFormat};

/// Packets of a marker: one that stores the fence, one that interrupts for those who sleep. A quiet
/// marker keeps the place of the second one.
pub(crate) const MARKER: u64 = 2;
/// 64-bit words in a packet.
const WORDS: usize = Packet::LEN / 8;

/// A ring for a power of two packets, at least 64.
#[derive(Debug)]
pub(crate) struct Ring {
    path: Path,
    /// Packets that the ring holds: a power of two.
    capacity: u64,
    /// The quarter of it as a power of two, since dividing takes longer than all the rest.
    quarter: u32,
    /// Packets put since the beginning.
    written: u64,
    /// Packets that the device was told about.
    published: u64,
    /// The number that the last marker stores, and how many packets were put when it was complete.
    marker: (u64, u64),
    /// The last marker has no interrupt yet. Nothing was put since.
    quiet: bool,
    /// The value that the first marker stores whose interrupt is not published.
    untold: Option<u64>,
    /// Device address of the number that markers store.
    fence_addr: u64,
    format: &'static dyn PacketFormat,
    /// How often the device was told.
    #[cfg(test)]
    tellings: u64,
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
            quarter: capacity.ilog2() - 2,
            written: 0,
            published: 0,
            marker: (0, 0),
            quiet: false,
            untold: None,
            fence_addr,
            format,
            #[cfg(test)]
            tellings: 0,
        }
    }

    /// After how many packets there must be a marker.
    fn quarter(&self) -> u64 {
        1 << self.quarter
    }

    /// How many packets can be put, besides the markers among them, when `executed` are executed.
    pub(crate) fn room(&self, executed: u64) -> u64 {
        let free = (executed + self.capacity).saturating_sub(self.taken());
        // More at once would not fit into an empty ring either.
        self.without_markers(free).min(self.longest())
    }

    /// Packets put since the beginning, with the interrupt of a quiet marker.
    fn taken(&self) -> u64 {
        self.written + u64::from(self.quiet)
    }

    /// How many packets can be put at once into an empty ring.
    pub(crate) fn longest(&self) -> u64 {
        self.without_markers(self.capacity)
    }

    /// How many of `places` packets are left for others: there is a marker for each quarter, one
    /// for the packets that were there before, and one for somebody who waits.
    fn without_markers(&self, places: u64) -> u64 {
        places.saturating_sub(MARKER * ((places >> self.quarter) + 2))
    }

    /// How many packets must be executed until there is room for `count` more. A marker that is
    /// already in the ring tells when.
    pub(crate) fn room_for(&self, count: u64) -> u64 {
        (self.taken() + count + 2 * MARKER).saturating_sub(self.capacity)
    }

    /// Puts a packet, for which there must be room, and a marker if one is due. The last marker
    /// must not be quiet.
    pub(crate) fn put(&mut self, packet: &Packet) {
        self.push(packet);
        self.mark_if_due();
    }

    /// Puts two packets with nothing between them, for which there must be room, and a marker if
    /// one is due. The last marker must not be quiet.
    pub(crate) fn put_both(&mut self, first: &Packet, second: &Packet) {
        self.push(first);
        self.push(second);
        self.mark_if_due();
    }

    fn mark_if_due(&mut self) {
        debug_assert!(
            !self.quiet,
            "a packet is about to separate marker and interrupt"
        );
        if self.written - self.marker.1 >= self.quarter() {
            self.mark();
        }
    }

    /// Puts a marker, unless nothing came after the last one. Returns what the last marker stores.
    pub(crate) fn mark(&mut self) -> u64 {
        self.mark_quietly();
        self.interrupt();
        self.marker.0
    }

    /// Puts a marker as [`mark`](Self::mark) does, but leaves the interrupt for later.
    pub(crate) fn mark_quietly(&mut self) -> u64 {
        if self.written != self.marker.1 {
            let value = self.written + 1;
            self.push(&self.format.fence_write(self.fence_addr, value));
            self.marker = (value, self.written);
            self.quiet = true;
        }
        self.marker.0
    }

    /// Returns what the last marker stores, if it is quiet.
    pub(crate) fn quiet(&self) -> Option<u64> {
        self.quiet.then_some(self.marker.0)
    }

    /// Whether `executed` packets take the device to a marker whose interrupt is not put, or not
    /// published.
    #[inline]
    pub(crate) fn lacks_interrupt(&self, executed: u64) -> bool {
        // With no interrupt left to publish, only the last marker can be without.
        (self.quiet && self.marker.0 <= executed) || self.is_untold(executed)
    }

    /// Whether `executed` packets take the device to a marker whose interrupt is not published.
    pub(crate) fn is_untold(&self, executed: u64) -> bool {
        self.untold.is_some_and(|value| value <= executed)
    }

    /// Puts the interrupt of the last marker, if it is quiet.
    pub(crate) fn interrupt(&mut self) {
        if self.quiet {
            self.push(&self.format.interrupt());
            self.untold.get_or_insert(self.marker.0);
            self.need_no_interrupt();
        }
    }

    /// Notes that the last marker, if it is quiet, stays without an interrupt: it is executed.
    pub(crate) fn need_no_interrupt(&mut self) {
        self.quiet = false;
        self.marker.1 = self.written;
    }

    fn push(&mut self, packet: &Packet) {
        match &mut self.path {
            Path::Mapped { ring, .. } => {
                let at = (self.written & (self.capacity - 1)) as usize * WORDS;
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
        self.untold = None;
        #[cfg(test)]
        {
            self.tellings += 1;
        }
        Ok(())
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

        pub(crate) fn tellings(&self) -> u64 {
            self.tellings
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
    fn a_quiet_marker_interrupts_later_or_never() {
        let mut ring = ring(64);
        ring.put(&packet::nop());
        assert_eq!((ring.mark_quietly(), ring.written()), (2, 2));
        assert_eq!(ring.quiet(), Some(2));
        // The place of the interrupt is kept.
        let room = ring.room(0);
        assert_eq!((ring.mark_quietly(), ring.written()), (2, 2));
        assert_eq!((ring.mark(), ring.written()), (2, 3));
        assert_eq!((ring.packet(2), ring.quiet()), (packet::interrupt(), None));
        assert_eq!(ring.room(0), room);
        assert!(ring.is_untold(2) && !ring.is_untold(1));
        ring.publish().expect("published");
        assert!(!ring.is_untold(2));
        ring.put(&packet::nop());
        assert_eq!((ring.mark_quietly(), ring.written()), (5, 5));
        ring.need_no_interrupt();
        ring.put(&packet::nop());
        assert_eq!((ring.mark_quietly(), ring.written()), (7, 7));
        assert_eq!(ring.packet(5), packet::nop());
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
            steps in prop::collection::vec((0u64..600, 0u64..600, any::<bool>()), 1..100),
        ) {
            let mut ring = ring(1 << log2);
            let (mut executed, mut known) = (0, 0);
            for (put, run, quiet) in steps {
                let room = ring.room(known);
                prop_assert!(room <= ring.longest());
                match ring.quiet() {
                    Some(value) if known >= value => ring.need_no_interrupt(),
                    _ => ring.interrupt(),
                }
                for _ in 0..put.min(room) {
                    ring.put(&packet::nop());
                }
                match quiet {
                    true => ring.mark_quietly(),
                    false => ring.mark(),
                };
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
            (ring.capacity, ring.quarter) = (1 << log2, log2 - 2);
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
