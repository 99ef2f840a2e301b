// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expands instructions of 2 bytes (C) to those of 4 bytes that do the same.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

/// Takes bits of an instruction: each pair is the highest bit of a run of so many, and the place of
/// the run's lowest bit in the result.
fn gather(half: u32, runs: &[(u32, u32, u32)]) -> u32 {
    runs.iter().fold(0, |value, &(high, count, to)| {
        let low = high.wrapping_add(1).wrapping_sub(count);
        let mask = 1_u32.wrapping_shl(count).wrapping_sub(1);
        value | (half.wrapping_shr(low) & mask).wrapping_shl(to)
    })
}

/// Extends a number of `bits` bits by its sign.
fn extend(value: u32, bits: u32) -> u32 {
    let up = 32_u32.wrapping_sub(bits);
    (value.wrapping_shl(up) as i32).wrapping_shr(up) as u32
}

fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: u32) -> u32 {
    opcode
        | rd.wrapping_shl(7)
        | funct3.wrapping_shl(12)
        | rs1.wrapping_shl(15)
        | imm.wrapping_shl(20)
}

fn s(opcode: u32, funct3: u32, rs1: u32, rs2: u32, imm: u32) -> u32 {
    let high = imm.wrapping_shr(5).wrapping_shl(25);
    opcode
        | (imm & 0x1f).wrapping_shl(7)
        | funct3.wrapping_shl(12)
        | rs1.wrapping_shl(15)
        | rs2.wrapping_shl(20)
        | high
}

fn r(opcode: u32, funct3: u32, funct7: u32, (rd, rs1, rs2): (u32, u32, u32)) -> u32 {
    i(opcode, funct3, rd, rs1, rs2) | funct7.wrapping_shl(25)
}

fn b(funct3: u32, rs1: u32, imm: u32) -> u32 {
    0x63 | funct3.wrapping_shl(12)
        | rs1.wrapping_shl(15)
        | gather(imm, &[(12, 1, 31), (10, 6, 25), (4, 4, 8), (11, 1, 7)])
}

fn j(rd: u32, imm: u32) -> u32 {
    0x6f | rd.wrapping_shl(7) | gather(imm, &[(20, 1, 31), (10, 10, 21), (11, 1, 20), (19, 8, 12)])
}

/// Expands an instruction whose last two bits are not 3. `None`: there is no such one.
pub fn expand(half: u16) -> Option<u32> {
    let half = u32::from(half);
    let rd = gather(half, &[(11, 5, 0)]);
    let rs2 = gather(half, &[(6, 5, 0)]);
    // The registers x8 to x15.
    let high = gather(half, &[(9, 3, 0)]) | 8;
    let low = gather(half, &[(4, 3, 0)]) | 8;
    let six = extend(gather(half, &[(12, 1, 5), (6, 5, 0)]), 6);
    let word = gather(half, &[(12, 3, 3), (6, 1, 2), (5, 1, 6)]);
    let double = gather(half, &[(12, 3, 3), (6, 2, 6)]);
    let shift = six & 0x3f;
    Some(match (half & 3, half.wrapping_shr(13) & 7) {
        (0, 0) => {
            let imm = gather(half, &[(12, 2, 4), (10, 4, 6), (6, 1, 2), (5, 1, 3)]);
            if imm == 0 {
                return None;
            }
            i(0x13, 0, low, 2, imm)
        }
        (0, 1) => i(0x07, 3, low, high, double),
        (0, 2) => i(0x03, 2, low, high, word),
        (0, 3) => i(0x03, 3, low, high, double),
        (0, 5) => s(0x27, 3, high, low, double),
        (0, 6) => s(0x23, 2, high, low, word),
        (0, 7) => s(0x23, 3, high, low, double),
        (1, 0) => i(0x13, 0, rd, rd, six),
        (1, 1) if rd != 0 => i(0x1b, 0, rd, rd, six),
        (1, 2) => i(0x13, 0, rd, 0, six),
        (1, 3) if six == 0 => return None,
        (1, 3) if rd == 2 => {
            let places = [(12, 1, 9), (6, 1, 4), (5, 1, 6), (4, 2, 7), (2, 1, 5)];
            i(0x13, 0, 2, 2, extend(gather(half, &places), 10))
        }
        (1, 3) => 0x37 | rd.wrapping_shl(7) | six.wrapping_shl(12),
        (1, 4) => match (half.wrapping_shr(10) & 3, half.wrapping_shr(12) & 1) {
            (0, _) => i(0x13, 5, high, high, shift),
            (1, _) => i(0x13, 5, high, high, shift | 0x400),
            (2, _) => i(0x13, 7, high, high, six),
            (_, wide) => {
                let registers = (high, high, low);
                match (wide, half.wrapping_shr(5) & 3) {
                    (0, 0) => r(0x33, 0, 0x20, registers),
                    (0, 1) => r(0x33, 4, 0, registers),
                    (0, 2) => r(0x33, 6, 0, registers),
                    (0, _) => r(0x33, 7, 0, registers),
                    (_, 0) => r(0x3b, 0, 0x20, registers),
                    (_, 1) => r(0x3b, 0, 0, registers),
                    _ => return None,
                }
            }
        },
        (1, 5) => {
            let places = [
                (12, 1, 11),
                (11, 1, 4),
                (10, 2, 8),
                (8, 1, 10),
                (7, 1, 6),
                (6, 1, 7),
                (5, 3, 1),
                (2, 1, 5),
            ];
            j(0, extend(gather(half, &places), 12))
        }
        (1, unequal @ (6 | 7)) => {
            let places = [(12, 1, 8), (11, 2, 3), (6, 2, 6), (4, 2, 1), (2, 1, 5)];
            b(unequal & 1, high, extend(gather(half, &places), 9))
        }
        (2, 0) => i(0x13, 1, rd, rd, shift),
        (2, 1) => i(0x07, 3, rd, 2, stack_double(half)),
        (2, 2) if rd != 0 => {
            let imm = gather(half, &[(12, 1, 5), (6, 3, 2), (3, 2, 6)]);
            i(0x03, 2, rd, 2, imm)
        }
        (2, 3) if rd != 0 => i(0x03, 3, rd, 2, stack_double(half)),
        (2, 4) => match (half.wrapping_shr(12) & 1, rd, rs2) {
            (0, 0, 0) => return None,
            (0, _, 0) => i(0x67, 0, 0, rd, 0),
            (0, _, _) => r(0x33, 0, 0, (rd, 0, rs2)),
            (_, 0, 0) => 0x0010_0073,
            (_, _, 0) => i(0x67, 0, 1, rd, 0),
            _ => r(0x33, 0, 0, (rd, rd, rs2)),
        },
        (2, 5) => s(0x27, 3, 2, rs2, gather(half, &[(12, 3, 3), (9, 3, 6)])),
        (2, 6) => s(0x23, 2, 2, rs2, gather(half, &[(12, 4, 2), (8, 2, 6)])),
        (2, 7) => s(0x23, 3, 2, rs2, gather(half, &[(12, 3, 3), (9, 3, 6)])),
        _ => return None,
    })
}

fn stack_double(half: u32) -> u32 {
    gather(half, &[(12, 1, 5), (6, 2, 3), (4, 3, 6)])
}
