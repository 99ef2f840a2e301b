// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of the test GPU, as section 8 of its manual defines them.

/// A packet for a queue of the test GPU: 64 bytes.
///
/// [`Scope`](crate::Scope) makes packets from typed operands, which it checks. A program that makes
/// a packet itself, a *raw* one, can use operations that `Scope` has no methods for. Submitting it
/// is unsafe, because the device then writes wherever the packet says, as far as the context lets
/// it: see [`Scope::submit`](crate::Scope::submit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet([u64; 8]);

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

impl Packet {
    /// Length of a packet in bytes.
    pub const LEN: usize = 64;

    /// Makes a packet from its eight words, in the CPU's byte order.
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

    const fn new(word: u64, arguments: [u64; 3]) -> Self {
        let [one, two, three] = arguments;
        Self([word, one, two, three, 0, 0, 0, 0])
    }

    /// Makes a packet that does nothing.
    pub const fn nop() -> Self {
        Self::new(opcode::NOP, [0; 3])
    }

    /// Makes a packet that copies bytes between device addresses, by any copy engine. The ranges
    /// must not overlap.
    pub const fn copy(source: u64, destination: u64, bytes: u64) -> Self {
        Self::new(opcode::COPY, [source, destination, bytes])
    }

    /// Makes a packet that copies as [`copy`](Self::copy) does, by copy engine 0 or 1.
    pub const fn copy_by(engine: u8, source: u64, destination: u64, bytes: u64) -> Self {
        let flags = (1 + (engine & 1) as u64) << 8;
        Self::new(opcode::COPY | flags, [source, destination, bytes])
    }

    /// Makes a packet that fills memory with elements of `1 << log2` bytes, by a copy engine.
    /// `log2` must be 0 to 3, `bytes` a multiple of the element size, and the bits of `pattern`
    /// above an element zero.
    pub const fn fill(destination: u64, bytes: u64, pattern: u64, log2: u8) -> Self {
        let flags = (log2 as u64) << 8;
        Self::new(opcode::FILL | flags, [destination, bytes, pattern])
    }

    /// Makes a packet that runs a kernel, by its number.
    pub const fn launch(kernel: u32, arguments: [u64; 7]) -> Self {
        let [a, b, c, d, e, f, g] = arguments;
        let word = opcode::LAUNCH | ((kernel as u64) << 32);
        Self([word, a, b, c, d, e, f, g])
    }

    /// Makes a packet that stores 8 bytes at a device address, which must be a multiple of 8.
    pub const fn fence_write(addr: u64, value: u64) -> Self {
        Self::new(opcode::FENCE_WRITE, [addr, value, 0])
    }

    /// Makes a packet that waits until the 8 bytes at a device address, which must be a multiple of
    /// 8, are at least `value`.
    pub const fn fence_wait(addr: u64, value: u64) -> Self {
        Self::new(opcode::FENCE_WAIT, [addr, value, 0])
    }

    /// Makes a packet that stores the device's clock, 8 bytes, at a device address, which must be a
    /// multiple of 8.
    pub const fn timestamp(addr: u64) -> Self {
        Self::new(opcode::TIMESTAMP, [addr, 0, 0])
    }

    /// Makes a packet that interrupts the driver.
    pub const fn interrupt() -> Self {
        Self::new(opcode::INTERRUPT, [0; 3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testgpu::tests::manual;

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
            (Packet::nop(), vec![(0, first(1))]),
            (
                Packet::copy(ADDR, OTHER, 0x0400_0001),
                vec![
                    (0, first(2)),
                    (1, ADDR_BYTES),
                    (2, OTHER_BYTES),
                    (3, [1, 0, 0, 4, 0, 0, 0, 0]),
                ],
            ),
            (
                Packet::copy_by(1, ADDR, OTHER, 7),
                vec![
                    (0, [2, 2, 0, 0, 0, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, OTHER_BYTES),
                    (3, [7, 0, 0, 0, 0, 0, 0, 0]),
                ],
            ),
            (
                Packet::fill(ADDR, 16, 0x1234_5678, 2),
                vec![
                    (0, [3, 2, 0, 0, 0, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, [16, 0, 0, 0, 0, 0, 0, 0]),
                    (3, [0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0]),
                ],
            ),
            (
                Packet::launch(8, [ADDR, OTHER, 0, 0, 0, 0, value]),
                vec![
                    (0, [4, 0, 0, 0, 8, 0, 0, 0]),
                    (1, ADDR_BYTES),
                    (2, OTHER_BYTES),
                    (7, value_bytes),
                ],
            ),
            (
                Packet::fence_write(ADDR, value),
                vec![(0, first(5)), (1, ADDR_BYTES), (2, value_bytes)],
            ),
            (
                Packet::fence_wait(ADDR, value),
                vec![(0, first(6)), (1, ADDR_BYTES), (2, value_bytes)],
            ),
            (
                Packet::timestamp(ADDR),
                vec![(0, first(7)), (1, ADDR_BYTES), (2, nothing)],
            ),
            (Packet::interrupt(), vec![(0, first(8))]),
        ];
        for (packet, words) in table {
            assert_eq!(packet.to_bytes(), bytes(&words), "{packet:?}");
            assert_eq!(Packet::from_words(packet.words()), packet);
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_manual() {
        let Some(manual) = manual() else { return };
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
