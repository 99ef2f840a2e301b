// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packet formats: how an accelerator is told what to do.
//!
//! A queue is a ring of packets of 64 bytes. Which bytes mean what, the device decides: its
//! [`PacketFormat`] makes the packets that every queue needs. A [`Kernel`] makes those of the work
//! that the device is there for. The crate `pinmap-testgpu` has both for the test
//! GPU; the crate of another device brings its own.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::fmt;

use crate::error::Result;

use super::operand::Operands;

/// A packet for a queue: 64 bytes, the meaning of which the [format](PacketFormat) of the device
/// defines.
///
/// Scopes and streams make packets from typed operands, which they check. A program can also make a
/// *raw* packet itself. Submitting it is unsafe, because the device then writes wherever the packet
/// says, as far as the context lets it: see
/// [`Work::submit_packets`](crate::accelerator::Work::submit_packets).
///
/// ```
/// use pinmap::accelerator::Packet;
///
/// // Operation 0x42 of a device of the program's own, with an address and a count.
/// let packet = Packet::from_words([0x42, 0x7f00_0000_1000, 16, 0, 0, 0, 0, 0]);
/// assert_eq!(packet.to_bytes()[..8], [0x42, 0, 0, 0, 0, 0, 0, 0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet([u64; 8]);

impl Packet {
    /// Length of a packet in bytes.
    pub const LEN: usize = 64;

    /// Makes a packet from its eight words, in the CPU's byte order. In the ring they are
    /// little-endian.
    pub const fn from_words(words: [u64; 8]) -> Self {
        Self(words)
    }

    /// The eight words of the packet, in the CPU's byte order.
    pub const fn words(&self) -> [u64; 8] {
        self.0
    }

    /// The bytes of the packet, as they stand in a ring.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (word, to) in self.0.iter().zip(bytes.chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The direction of a copy. A device may have a copy engine for each direction of its link, so that
/// copies in and copies out do not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From host memory to the device's.
    ToDevice,
    /// From the device's memory to the host's.
    ToHost,
    /// Both ends are on one side.
    Inside,
}

/// A condition for 8 bytes of memory, for which a stream waits: see
/// [`Work::wait_until`](crate::accelerator::Work::wait_until).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// They are at least this, unsigned.
    AtLeast(u64),
    /// They are this.
    Equal(u64),
    /// At least one of these bits is set.
    And(u64),
    /// At least one of the bits that are not set here is not set there either: for one bit `b`,
    /// `Nor(!b)` waits until it is clear.
    Nor(u64),
}

/// The packets that every stream of an accelerator needs. Device addresses are those of the
/// context; all of them lie in memory that the context has mapped or managed.
///
/// Given to [`Device::accelerator_with`](crate::Device::accelerator_with). The guide
/// [`accelerators`](crate::guide::accelerators) shows the whole crate of a device.
///
/// # Safety
///
/// The device executes the packets of a queue in order, and each of them:
///
/// - accesses nothing but what its arguments name, and writes nothing but the target;
/// - begins when those before it are done, and what they wrote is visible to it.
///
/// `fence_write` stores when all packets before it are done, and when what they wrote is visible to
/// the CPU. Scopes and streams rely on that: when the number is there, they give memory back.
///
/// The device executes every [`Kernel`] whose [`Format`](Kernel::Format) has this [`id`](Self::id).
///
/// # Locks
///
/// The methods are called while the queue is locked, so they must not use it, nor its stream. (For
/// [`Kernel::encode`] nothing is locked.)
pub unsafe trait PacketFormat: fmt::Debug + Send + Sync + 'static {
    /// Identifies the format. A wrapper returns the id of the format it wraps.
    fn id(&self) -> TypeId {
        TypeId::of::<Self>()
    }

    /// Copies `bytes` from one device address to another. The ranges do not overlap, and `bytes` is
    /// at most
    /// [`AcceleratorInfo::max_transfer`](crate::accelerator::AcceleratorInfo::max_transfer).
    fn copy(&self, direction: Direction, from: u64, to: u64, bytes: u64) -> Packet;

    /// Fills `bytes` from a device address on with elements of `1 << log2` bytes, 1 to 8, which are
    /// the lowest bits of `pattern`. A single element is stored in one access.
    fn fill(&self, to: u64, bytes: u64, pattern: u64, log2: u8) -> Packet;

    /// Stores 8 bytes, little-endian, at a device address, which is a multiple of 8.
    fn fence_write(&self, device_addr: u64, value: u64) -> Packet;

    /// Waits until the 8 bytes at a device address, little-endian, are at least `value`.
    fn fence_wait(&self, device_addr: u64, value: u64) -> Packet;

    /// Waits until the 8 bytes at a device address, little-endian, meet a condition. `None`: the
    /// device cannot wait for that, as by default for all but [`Condition::AtLeast`].
    fn wait_until(&self, device_addr: u64, condition: Condition) -> Option<Packet> {
        match condition {
            Condition::AtLeast(value) => Some(self.fence_wait(device_addr, value)),
            _ => None,
        }
    }

    /// Stores the device's clock in nanoseconds, 8 bytes, little-endian, at a device address.
    fn timestamp(&self, device_addr: u64) -> Packet;

    /// Stores a *stamp* at a device address, which is a multiple of 32: four numbers of 8 bytes,
    /// little-endian. First the device's clock; then, of the packet before this one in the queue,
    /// the clock when an engine took it, the clock when it was done, and the number of the engine.
    /// If those are not known, the second number is 0. Engines are numbered from 0, copy engines
    /// first.
    ///
    /// [Traces](crate::inspect::trace) use it. For a device that cannot do that it is `None`, as it
    /// is by default, and traces tell less.
    fn stamp(&self, device_addr: u64) -> Option<Packet> {
        let _ = device_addr;
        None
    }

    /// Interrupts the driver, which wakes those who wait for a fence.
    fn interrupt(&self) -> Packet;
}

/// A kernel with its operands, which live as long as the scope in which it is launched.
///
/// The crate `pinmap-testgpu` has those of the test GPU. The guide
/// [`accelerators`](crate::guide::accelerators) shows how another one is written.
///
/// # Safety
///
/// The packet must have every device of that format access nothing but elements of operands that
/// were added to `operands`, and write only those that were added by [`Operands::write`]. Each of
/// these operands must outlive `'scope`, as `'a: 's` says above.
pub unsafe trait Kernel<'scope> {
    /// The format of the devices that have the kernel. Others refuse it.
    type Format: PacketFormat;

    /// The name of the kernel in errors, as in "cannot submit the kernel negate".
    const NAME: &'static str;

    /// How many bytes an operand may have.
    const LONGEST: u64 = u64::MAX;

    /// Checks the operands and makes the packet.
    ///
    /// # Errors
    ///
    /// Errors of the [operands](Operands), and what else the kernel [refuses](Operands::refuse).
    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet>;
}
