// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of the test GPU, as section 8 of its manual defines them.
//!
//! Streams and scopes make these from typed operands. They are here for operations that this crate
//! has no methods for: see [`Work::submit_packets`](pinmap::accelerator::Work::submit_packets).
#![allow(unsafe_code)]

use pinmap::accelerator::{Condition, Direction, Packet, PacketFormat};

/// The PCI ids of the test GPU.
pub const ID: (u16, u16) = (0x1234, 0x7e57);

/// The packet format of the test GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format;

// SAFETY: Section 8 of the device's manual promises this, for packets as they are made below.
unsafe impl PacketFormat for Format {
    fn copy(&self, direction: Direction, from: u64, to: u64, bytes: u64) -> Packet {
        match direction {
            Direction::ToDevice => copy_by(0, from, to, bytes),
            Direction::ToHost => copy_by(1, from, to, bytes),
            Direction::Inside => copy(from, to, bytes),
        }
    }

    fn fill(&self, to: u64, bytes: u64, pattern: u64, log2: u8) -> Packet {
        fill(to, bytes, pattern, log2)
    }

    fn fence_write(&self, addr: u64, value: u64) -> Packet {
        fence_write(addr, value)
    }

    fn fence_wait(&self, addr: u64, value: u64) -> Packet {
        fence_wait(addr, value)
    }

    fn wait_until(&self, addr: u64, condition: Condition) -> Option<Packet> {
        Some(wait_until(addr, condition))
    }

    fn timestamp(&self, addr: u64) -> Packet {
        timestamp(addr)
    }

    fn stamp(&self, addr: u64) -> Option<Packet> {
        Some(stamp(addr))
    }

    fn interrupt(&self) -> Packet {
        interrupt()
    }
}

/// The opcodes of packets.
mod opcode {
    pub(super) const NOP: u64 = 1;
    pub(super) const COPY: u64 = 2;
    pub(super) const FILL: u64 = 3;
    pub(super) const LAUNCH: u64 = 4;
    pub(super) const FENCE_WRITE: u64 = 5;
    pub(super) const FENCE_WAIT: u64 = 6;
    pub(super) const TIMESTAMP: u64 = 7;
    pub(super) const INTERRUPT: u64 = 8;
}

const fn new(word: u64, arguments: [u64; 3]) -> Packet {
    let [one, two, three] = arguments;
    Packet::from_words([word, one, two, three, 0, 0, 0, 0])
}

/// Makes a packet that does nothing.
pub const fn nop() -> Packet {
    new(opcode::NOP, [0; 3])
}

/// Makes a packet that copies bytes between device addresses, by any copy engine. The ranges
/// must not overlap.
///
/// ```no_run
/// use pinmap::accelerator::Stream;
/// use pinmap::Allocation;
/// use pinmap_testgpu::packet;
/// # type Bytes = Allocation<u8>;
/// # fn f(stream: &Stream, from: &Bytes, to: &mut Bytes) -> pinmap::Result<()> {
/// let copy = packet::copy(from.device_addr(), to.device_addr(), from.len().min(to.len()) as u64);
/// stream.scope(|work| {
///     // SAFETY: Both are borrowed until the scope has ended, and are as long as the packet says.
///     unsafe { work.submit_packets(&[copy]) }
/// })
/// # }
/// ```
pub const fn copy(source: u64, destination: u64, bytes: u64) -> Packet {
    new(opcode::COPY, [source, destination, bytes])
}

/// Makes a packet that copies as [`copy`] does, by copy engine 0 or 1.
pub const fn copy_by(engine: u8, source: u64, destination: u64, bytes: u64) -> Packet {
    let flags = (1 + (engine & 1) as u64) << 8;
    new(opcode::COPY | flags, [source, destination, bytes])
}

/// Makes a packet that fills memory with elements of `1 << log2` bytes, by a copy engine.
/// `log2` must be 0 to 3, `bytes` a multiple of the element size, and the bits of `pattern`
/// above an element zero.
pub const fn fill(destination: u64, bytes: u64, pattern: u64, log2: u8) -> Packet {
    let flags = (log2 as u64) << 8;
    new(opcode::FILL | flags, [destination, bytes, pattern])
}

/// Makes a packet that runs a kernel, by its number.
pub const fn launch(kernel: u32, arguments: [u64; 7]) -> Packet {
    let [a, b, c, d, e, f, g] = arguments;
    let word = opcode::LAUNCH | ((kernel as u64) << 32);
    Packet::from_words([word, a, b, c, d, e, f, g])
}

/// Makes a packet that stores 8 bytes at a device address, which must be a multiple of 8.
pub const fn fence_write(addr: u64, value: u64) -> Packet {
    new(opcode::FENCE_WRITE, [addr, value, 0])
}

/// Makes a packet that waits until the 8 bytes at a device address, which must be a multiple of
/// 8, are at least `value`.
pub const fn fence_wait(addr: u64, value: u64) -> Packet {
    new(opcode::FENCE_WAIT, [addr, value, 0])
}

/// Makes a packet that waits until the 8 bytes at a device address, which must be a multiple of
/// 8, meet a condition.
pub const fn wait_until(addr: u64, condition: Condition) -> Packet {
    let (flags, value) = match condition {
        Condition::AtLeast(value) => (0, value),
        Condition::Equal(value) => (1, value),
        Condition::And(value) => (2, value),
        Condition::Nor(value) => (3, value),
    };
    new(opcode::FENCE_WAIT | (flags << 8), [addr, value, 0])
}

/// Makes a packet that stores the device's clock, 8 bytes, at a device address, which must be a
/// multiple of 8.
pub const fn timestamp(addr: u64) -> Packet {
    new(opcode::TIMESTAMP, [addr, 0, 0])
}

/// Makes a packet that stores a [stamp](PacketFormat::stamp), 32 bytes, at a device address, which
/// must be a multiple of 32.
pub const fn stamp(addr: u64) -> Packet {
    new(opcode::TIMESTAMP | (1 << 8), [addr, 0, 0])
}

/// Makes a packet that interrupts the driver.
pub const fn interrupt() -> Packet {
    new(opcode::INTERRUPT, [0; 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a packet from its words, as the manual numbers them.
    fn bytes(words: &[(usize, [u8; 8])]) -> [u8; 64] {
        let mut bytes = [0; 64];
        for &(number, word) in words {
            bytes[8 * number..][..8].copy_from_slice(&word);
        }
        bytes
    }

    const ADDR: u64 = 0x0000_7f12_3456_7890;
    const ADDR_BYTES: [u8; 8] = [0x90, 0x78, 0x56, 0x34, 0x12, 0x7f, 0, 0];
    const OTHER: u64 = 0x0000_0011_2233_4455;
    const OTHER_BYTES: [u8; 8] = [0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0];

    #[test]
    fn every_packet_has_the_bytes_of_the_manual() {
        let nothing = [0; 8];
        let first = |opcode| [opcode, 0, 0, 0, 0, 0, 0, 0];
        let value = 0x0102_0304_0506_0708;
        let value_bytes = [8, 7, 6, 5, 4, 3, 2, 1];
        let table = [
            (nop(), vec![(0, first(1))]),
            (
                copy(ADDR, OTHER, 0x0400_0001),
                vec![
                    (0, first(2)),
                    (1, ADDR_BYTES),
                    (2, OTHER_BYTES),
                    (3, [1, 0, 0, 4, 0, 0, 0, 0]),
                ],
            ),
            (
                copy_by(1, ADDR, OTHER, 7),
                vec![
                    (0, [2, 2, 0, 0, 0, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, OTHER_BYTES),
                    (3, [7, 0, 0, 0, 0, 0, 0, 0]),
                ],
            ),
            (
                fill(ADDR, 16, 0x1234_5678, 2),
                vec![
                    (0, [3, 2, 0, 0, 0, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, [16, 0, 0, 0, 0, 0, 0, 0]),
                    (3, [0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0]),
                ],
            ),
            (
                launch(8, [ADDR, OTHER, 0, 0, 0, 0, value]),
                vec![
                    (0, [4, 0, 0, 0, 8, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, OTHER_BYTES),
                    (7, value_bytes),
                ],
            ),
            (
                fence_write(ADDR, value),
                vec![(0, first(5)), (1, ADDR_BYTES), (2, value_bytes)],
            ),
            (
                fence_wait(ADDR, value),
                vec![(0, first(6)), (1, ADDR_BYTES), (2, value_bytes)],
            ),
            (
                wait_until(ADDR, Condition::Nor(value)),
                vec![
                    (0, [6, 3, 0, 0, 0, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, value_bytes),
                ],
            ),
            (
                timestamp(ADDR),
                vec![(0, first(7)), (1, ADDR_BYTES), (2, nothing)],
            ),
            (interrupt(), vec![(0, first(8))]),
        ];
        for (packet, words) in table {
            assert_eq!(packet.to_bytes(), bytes(&words), "{packet:?}");
            assert_eq!(Packet::from_words(packet.words()), packet);
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_manual() {
        let manual = super::super::manual();
        let section = manual.split("## 8.").nth(1).expect("section 8");
        for (number, name) in [
            (opcode::NOP, "NOP"),
            (opcode::COPY, "COPY"),
            (opcode::FILL, "FILL"),
            (opcode::LAUNCH, "LAUNCH"),
            (opcode::FENCE_WRITE, "FENCE_WRITE"),
            (opcode::FENCE_WAIT, "FENCE_WAIT"),
            (opcode::TIMESTAMP, "TIMESTAMP"),
            (opcode::INTERRUPT, "INTERRUPT"),
        ] {
            let row = format!("| `{number}` | `{name}` |");
            assert!(section.contains(&row), "{row}");
        }
    }
}
