// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes packets (section 8 of the manual): from 64 bytes to an executable form, or an error.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use crate::fault::Reason;
use crate::regs;
use crate::state::copy_kinds;

/// Size of a packet in bytes.
pub const PACKET_SIZE: usize = 64;

/// A packet whose fields are valid as far as can be judged without reading memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Packet {
    Nop,
    Copy {
        source: u64,
        destination: u64,
        bytes: u64,
        /// Engines that may execute the copy.
        kinds: u64,
    },
    Fill {
        destination: u64,
        bytes: u64,
        pattern: u64,
    },
    Launch {
        kernel: u32,
        arguments: Arguments,
    },
    FenceWrite {
        va: u64,
        value: u64,
    },
    FenceWait {
        va: u64,
        until: Condition,
    },
    Timestamp {
        va: u64,
        /// Whether the times of the packet before are stored, too.
        packet: bool,
    },
    Interrupt,
}

/// Condition of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Condition {
    AtLeast(u64),
    Equal(u64),
    And(u64),
    Nor(u64),
}

impl Condition {
    /// Whether the bytes in memory meet it.
    pub fn is_met(self, bytes: u64) -> bool {
        match self {
            Condition::AtLeast(value) => bytes >= value,
            Condition::Equal(value) => bytes == value,
            Condition::And(value) => bytes & value != 0,
            Condition::Nor(value) => !(bytes | value) != 0,
        }
    }
}

/// Place of a kernel's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// In the packet.
    Inline([u64; 7]),
    /// In memory, at this VA.
    Indirect(u64),
}

impl Packet {
    /// Returns the kinds of engine that can execute the packet.
    pub fn kinds(&self) -> u64 {
        match self {
            Packet::Copy { kinds, .. } => *kinds,
            Packet::Fill { .. } => regs::CLASS_COPY,
            Packet::Launch { .. } => regs::CLASS_COMPUTE,
            _ => regs::CLASS_COPY | regs::CLASS_COMPUTE,
        }
    }
}

/// Splits a packet into words.
pub fn words(bytes: &[u8; PACKET_SIZE]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    words
}

/// Decodes the words of a packet.
pub fn decode(words: [u64; 8]) -> Result<Packet, Reason> {
    let [head, rest @ ..] = words;
    let [a, b, c, unused @ ..] = rest;
    let opcode = head & 0xff;
    let flags = (head >> 8) & 0xff;
    let (flags_allowed, words_used) = match opcode {
        regs::NOP | regs::INTERRUPT => (0, 0),
        regs::COPY => (regs::COPY_ENGINE_0 | regs::COPY_ENGINE_1, 3),
        regs::FILL => (3, 3),
        regs::LAUNCH => (regs::LAUNCH_INDIRECT, if flags == 0 { 7 } else { 1 }),
        regs::FENCE_WRITE => (0, 2),
        regs::FENCE_WAIT => (regs::FENCE_WAIT_NOR, 2),
        regs::TIMESTAMP => (regs::TIMESTAMP_PACKET, 1),
        _ => return Err(Reason::BadOpcode),
    };
    let kernel = (head >> 32) as u32;
    let no_kernel = opcode == regs::LAUNCH || kernel == 0;
    if flags & !flags_allowed != 0 || head & 0xffff_0000 != 0 || !no_kernel {
        return Err(Reason::BadField);
    }
    if rest.iter().skip(words_used).any(|word| *word != 0) {
        return Err(Reason::BadField);
    }
    Ok(match opcode {
        regs::NOP => Packet::Nop,
        regs::INTERRUPT => Packet::Interrupt,
        regs::COPY => {
            check_length(c)?;
            Packet::Copy {
                source: a,
                destination: b,
                bytes: c,
                kinds: copy_kinds(flags),
            }
        }
        regs::FILL => {
            check_length(b)?;
            let size = 1_u64.wrapping_shl(flags as u32);
            check_alignment(a | b, size)?;
            Packet::Fill {
                destination: a,
                bytes: b,
                pattern: repeat(c, size)?,
            }
        }
        regs::LAUNCH if flags == 0 => {
            let [d, e, f, g] = unused;
            Packet::Launch {
                kernel,
                arguments: Arguments::Inline([a, b, c, d, e, f, g]),
            }
        }
        regs::LAUNCH => {
            check_alignment(a, 8)?;
            Packet::Launch {
                kernel,
                arguments: Arguments::Indirect(a),
            }
        }
        regs::TIMESTAMP => {
            let packet = flags & regs::TIMESTAMP_PACKET != 0;
            check_alignment(a, if packet { 32 } else { 8 })?;
            Packet::Timestamp { va: a, packet }
        }
        _ => {
            check_alignment(a, 8)?;
            if opcode == regs::FENCE_WRITE {
                Packet::FenceWrite { va: a, value: b }
            } else {
                let until = match flags {
                    regs::FENCE_WAIT_EQ => Condition::Equal(b),
                    regs::FENCE_WAIT_AND => Condition::And(b),
                    regs::FENCE_WAIT_NOR => Condition::Nor(b),
                    _ => Condition::AtLeast(b),
                };
                Packet::FenceWait { va: a, until }
            }
        }
    })
}

/// Checks the length of a copy or fill.
pub(crate) fn check_length(bytes: u64) -> Result<(), Reason> {
    if bytes > regs::TRANSFER_LIMIT {
        return Err(Reason::BadLength);
    }
    Ok(())
}

/// Checks that a value is a multiple of `size`, a power of two.
pub(crate) fn check_alignment(value: u64, size: u64) -> Result<(), Reason> {
    if value & size.wrapping_sub(1) != 0 {
        return Err(Reason::BadAlignment);
    }
    Ok(())
}

/// Repeats an element of 1, 2, 4 or 8 bytes to fill 8.
fn repeat(pattern: u64, size: u64) -> Result<u64, Reason> {
    let (ones, mask) = match size {
        1 => (0x0101_0101_0101_0101, 0xff),
        2 => (0x0001_0001_0001_0001, 0xffff),
        4 => (0x0000_0001_0000_0001, 0xffff_ffff),
        _ => (1, u64::MAX),
    };
    if pattern & !mask != 0 {
        return Err(Reason::BadField);
    }
    Ok(pattern.wrapping_mul(ones))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_packet() {
        let bad = |words| decode(words).unwrap_err();
        assert_eq!(bad([0; 8]), Reason::BadOpcode);
        assert_eq!(bad([9, 0, 0, 0, 0, 0, 0, 0]), Reason::BadOpcode);
        assert_eq!(decode([1, 0, 0, 0, 0, 0, 0, 0]), Ok(Packet::Nop));
        assert_eq!(bad([1, 1, 0, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(
            decode([2, 1, 2, 3, 0, 0, 0, 0]),
            Ok(Packet::Copy {
                source: 1,
                destination: 2,
                bytes: 3,
                kinds: regs::CLASS_COPY
            })
        );
        let on_one =
            decode([2 | (regs::COPY_ENGINE_1 << 8), 1, 2, 3, 0, 0, 0, 0]).map(|copy| copy.kinds());
        assert_eq!(on_one, Ok(copy_kinds(regs::COPY_ENGINE_1)));
        assert_eq!(bad([2 | (4 << 8), 1, 2, 3, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(
            bad([2, 1, 2, (64 << 20) + 1, 0, 0, 0, 0]),
            Reason::BadLength
        );
        assert_eq!(bad([2, 1, 2, 3, 4, 0, 0, 0]), Reason::BadField);
        assert_eq!(bad([0x101, 0, 0, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(
            decode([0x203, 8, 16, 0x1234_5678, 0, 0, 0, 0]),
            Ok(Packet::Fill {
                destination: 8,
                bytes: 16,
                pattern: 0x1234_5678_1234_5678
            })
        );
        assert_eq!(
            bad([0x203, 8, 16, 0x1_0000_0000, 0, 0, 0, 0]),
            Reason::BadField
        );
        assert_eq!(bad([0x203, 2, 16, 0, 0, 0, 0, 0]), Reason::BadAlignment);
        assert_eq!(bad([0x203, 4, 18, 0, 0, 0, 0, 0]), Reason::BadAlignment);
        assert_eq!(bad([0x403, 4, 18, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(
            decode([(9 << 32) | 4, 1, 2, 3, 4, 5, 6, 7]),
            Ok(Packet::Launch {
                kernel: 9,
                arguments: Arguments::Inline([1, 2, 3, 4, 5, 6, 7])
            })
        );
        assert_eq!(
            decode([(9 << 32) | 0x104, 64, 0, 0, 0, 0, 0, 0]),
            Ok(Packet::Launch {
                kernel: 9,
                arguments: Arguments::Indirect(64)
            })
        );
        assert_eq!(
            bad([(9 << 32) | 0x104, 64, 1, 0, 0, 0, 0, 0]),
            Reason::BadField
        );
        assert_eq!(
            bad([(9 << 32) | 0x104, 65, 0, 0, 0, 0, 0, 0]),
            Reason::BadAlignment
        );
        assert_eq!(bad([(1 << 32) | 1, 0, 0, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(bad([(1 << 16) | 1, 0, 0, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(
            decode([5, 8, 7, 0, 0, 0, 0, 0]),
            Ok(Packet::FenceWrite { va: 8, value: 7 })
        );
        assert_eq!(
            decode([6, 8, 7, 0, 0, 0, 0, 0]),
            Ok(Packet::FenceWait {
                va: 8,
                until: Condition::AtLeast(7)
            })
        );
        for (flags, until) in [
            (regs::FENCE_WAIT_EQ, Condition::Equal(7)),
            (regs::FENCE_WAIT_AND, Condition::And(7)),
            (regs::FENCE_WAIT_NOR, Condition::Nor(7)),
        ] {
            let wait = decode([6 | (flags << 8), 8, 7, 0, 0, 0, 0, 0]);
            assert_eq!(wait, Ok(Packet::FenceWait { va: 8, until }));
        }
        assert_eq!(bad([6 | (4 << 8), 8, 7, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(bad([6, 4, 7, 0, 0, 0, 0, 0]), Reason::BadAlignment);
        assert_eq!(
            decode([7, 8, 0, 0, 0, 0, 0, 0]),
            Ok(Packet::Timestamp {
                va: 8,
                packet: false
            })
        );
        assert_eq!(
            decode([0x107, 32, 0, 0, 0, 0, 0, 0]),
            Ok(Packet::Timestamp {
                va: 32,
                packet: true
            })
        );
        assert_eq!(bad([0x107, 16, 0, 0, 0, 0, 0, 0]), Reason::BadAlignment);
        assert_eq!(bad([0x207, 32, 0, 0, 0, 0, 0, 0]), Reason::BadField);
        assert_eq!(decode([8, 0, 0, 0, 0, 0, 0, 0]), Ok(Packet::Interrupt));
    }

    #[test]
    fn each_condition() {
        let table = [
            (Condition::AtLeast(7), [(6, false), (7, true), (8, true)]),
            (Condition::Equal(7), [(6, false), (7, true), (8, false)]),
            (Condition::And(6), [(1, false), (2, true), (7, true)]),
            (Condition::Nor(!4), [(3, true), (4, false), (!0, false)]),
        ];
        for (condition, cases) in table {
            for (bytes, met) in cases {
                assert_eq!(condition.is_met(bytes), met, "{condition:?} {bytes}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_words_decode_or_have_a_reason(head in any::<u64>(), rest: [u64; 7]) {
            for head in [head, head & 0xff, head & 0x3_0000_030f] {
                let [a, b, c, d, e, f, g] = rest;
                if let Err(reason) = decode([head, a, b, c, d, e, f, g]) {
                    prop_assert!(!reason.can_be_retried());
                }
            }
        }
    }
}
