// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes instructions to a form that is quick to execute.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

/// Operation of an instruction. Names are the manual's of RISC-V; `I`: with an immediate operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    /// Not decoded yet.
    #[default]
    Unknown,
    Illegal,
    Lui,
    Auipc,
    Jal,
    Jalr,
    Beq,
    Bne,
    Blt,
    Bge,
    Bltu,
    Bgeu,
    Lb,
    Lh,
    Lw,
    Ld,
    Lbu,
    Lhu,
    Lwu,
    Sb,
    Sh,
    Sw,
    Sd,
    AddI,
    SltI,
    SltuI,
    XorI,
    OrI,
    AndI,
    SllI,
    SrlI,
    SraI,
    AddwI,
    SllwI,
    SrlwI,
    SrawI,
    Add,
    Sub,
    Sll,
    Slt,
    Sltu,
    Xor,
    Srl,
    Sra,
    Or,
    And,
    Addw,
    Subw,
    Sllw,
    Srlw,
    Sraw,
    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
    Mulw,
    Divw,
    Divuw,
    Remw,
    Remuw,
    Fence,
    FenceI,
    Pause,
    Ecall,
    Ebreak,
    Csr,
    Lr,
    Sc,
    Amo,
    Flw,
    Fld,
    Fsw,
    Fsd,
    FmaS,
    FmaD,
    FaddS,
    FsubS,
    FmulS,
    FaddD,
    FsubD,
    FmulD,
    /// An instruction by which compilers move sp: `third` says which, as the place in [`MOVES`].
    Stack,
    /// The other instructions on floating point: `third` says which.
    Float,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Op {
    /// Operation.
    pub kind: Kind,
    /// Register for the result: 32 instead of x0, whose value nobody reads.
    pub rd: u8,
    /// First operand.
    pub rs1: u8,
    /// Second operand.
    pub rs2: u8,
    /// Immediate operand, CSR, or rounding mode.
    pub imm: i32,
    /// Third operand, or more of what it does.
    pub third: u8,
    /// Length in bytes.
    pub length: u8,
}

/// The sink for results that nobody reads.
pub const SINK: u8 = 32;

/// Bits `high..=low`.
fn bits(word: u32, high: u32, low: u32) -> u32 {
    let mask = u32::MAX.wrapping_shr(31_u32.wrapping_sub(high.wrapping_sub(low)));
    word.wrapping_shr(low) & mask
}

/// Bits `high..=low`, of which `high` is the sign.
fn signed(word: u32, high: u32, low: u32) -> i32 {
    let up = 31_u32.wrapping_sub(high);
    (word.wrapping_shl(up) as i32).wrapping_shr(up.wrapping_add(low))
}

/// Kinds that [`Kind::Stack`] stands for.
pub const MOVES: [Kind; 5] = [Kind::AddI, Kind::AndI, Kind::SllI, Kind::Add, Kind::Sub];

/// Decodes an instruction of 4 bytes. What needs 16 bits has to be expanded before.
pub fn decode(word: u32) -> Op {
    let op = decode_any(word);
    match (0..)
        .zip(MOVES)
        .find(|(_, kind)| op.rd == 2 && *kind == op.kind)
    {
        Some((number, _)) => Op {
            kind: Kind::Stack,
            third: number,
            ..op
        },
        None => op,
    }
}

fn decode_any(word: u32) -> Op {
    let funct3 = bits(word, 14, 12);
    let funct7 = bits(word, 31, 25);
    let rd = bits(word, 11, 7) as u8;
    let rs2 = bits(word, 24, 20) as u8;
    let op = |kind, imm| Op {
        kind,
        rd: if rd == 0 { SINK } else { rd },
        rs1: bits(word, 19, 15) as u8,
        rs2,
        imm,
        third: bits(word, 31, 27) as u8,
        length: 4,
    };
    let immediate = signed(word, 31, 20);
    let store = signed(word, 31, 25).wrapping_shl(5) | bits(word, 11, 7) as i32;
    match bits(word, 6, 0) {
        0x37 => op(Kind::Lui, (word & 0xffff_f000) as i32),
        0x17 => op(Kind::Auipc, (word & 0xffff_f000) as i32),
        0x6f => op(Kind::Jal, jump(word)),
        0x67 if funct3 == 0 => op(Kind::Jalr, immediate),
        0x63 => op(pick(funct3, BRANCHES), branch(word)),
        0x03 => op(pick(funct3, LOADS), immediate),
        0x23 => op(pick(funct3, STORES), store),
        0x13 => op(
            immediate_kind(word, 6),
            shifted(funct3, word, 0x3f, immediate),
        ),
        0x1b => op(
            word_immediate_kind(word),
            shifted(funct3, word, 0x1f, immediate),
        ),
        0x33 => op(register_kind(funct3, funct7), 0),
        0x3b => op(word_register_kind(funct3, funct7), 0),
        0x0f => op(fence(word, funct3), 0),
        0x73 => system(word, funct3, op(Kind::Csr, bits(word, 31, 20) as i32)),
        0x2f => atomic(word, funct3, op(Kind::Amo, if funct3 == 2 { 4 } else { 8 })),
        0x07 => float(pick(funct3, FLOAT_LOADS), rd, op(Kind::Illegal, immediate)),
        0x27 => op(pick(funct3, FLOAT_STORES), store),
        // FMADD, FMSUB, FNMSUB, FNMADD: the sign of the product, and that of the addend.
        0x43 | 0x47 | 0x4b | 0x4f => {
            let signs = bits(word, 3, 2).wrapping_shl(4) as i32;
            let kind = match bits(word, 26, 25) {
                0 => Kind::FmaS,
                1 => Kind::FmaD,
                _ => Kind::Illegal,
            };
            float(kind, rd, op(kind, funct3 as i32 | signs))
        }
        0x53 => float_kind(word, funct3, funct7, rd, op(Kind::Float, funct3 as i32)),
        _ => op(Kind::Illegal, 0),
    }
}

/// An instruction whose result is in a register for floating point, where 0 is like any other.
fn float(kind: Kind, rd: u8, op: Op) -> Op {
    Op { kind, rd, ..op }
}

fn pick(funct3: u32, kinds: [Kind; 8]) -> Kind {
    kinds.get(funct3 as usize).copied().unwrap_or(Kind::Illegal)
}

const NONE: Kind = Kind::Illegal;
const BRANCHES: [Kind; 8] = {
    use Kind::{Beq, Bge, Bgeu, Blt, Bltu, Bne};
    [Beq, Bne, NONE, NONE, Blt, Bge, Bltu, Bgeu]
};
const LOADS: [Kind; 8] = {
    use Kind::{Lb, Lbu, Ld, Lh, Lhu, Lw, Lwu};
    [Lb, Lh, Lw, Ld, Lbu, Lhu, Lwu, NONE]
};
const STORES: [Kind; 8] = {
    use Kind::{Sb, Sd, Sh, Sw};
    [Sb, Sh, Sw, Sd, NONE, NONE, NONE, NONE]
};
const FLOAT_LOADS: [Kind; 8] = {
    use Kind::{Fld, Flw};
    [NONE, NONE, Flw, Fld, NONE, NONE, NONE, NONE]
};
const FLOAT_STORES: [Kind; 8] = {
    use Kind::{Fsd, Fsw};
    [NONE, NONE, Fsw, Fsd, NONE, NONE, NONE, NONE]
};

fn jump(word: u32) -> i32 {
    signed(word, 31, 31).wrapping_shl(20)
        | (word & 0xf_f000) as i32
        | bits(word, 20, 20).wrapping_shl(11) as i32
        | bits(word, 30, 21).wrapping_shl(1) as i32
}

fn branch(word: u32) -> i32 {
    signed(word, 31, 31).wrapping_shl(12)
        | bits(word, 7, 7).wrapping_shl(11) as i32
        | bits(word, 30, 25).wrapping_shl(5) as i32
        | bits(word, 11, 8).wrapping_shl(1) as i32
}

/// The immediate operand: of a shift the bits that count.
fn shifted(funct3: u32, word: u32, mask: u32, immediate: i32) -> i32 {
    match funct3 {
        1 | 5 => (bits(word, 25, 20) & mask) as i32,
        _ => immediate,
    }
}

fn immediate_kind(word: u32, shift_bits: u32) -> Kind {
    use Kind::{AddI, AndI, Illegal, OrI, SllI, SltI, SltuI, SraI, SrlI, XorI};
    let high = bits(word, 31, shift_bits.wrapping_add(20));
    match (bits(word, 14, 12), high) {
        (0, _) => AddI,
        (1, 0) => SllI,
        (2, _) => SltI,
        (3, _) => SltuI,
        (4, _) => XorI,
        (5, 0) => SrlI,
        (5, 0x10) => SraI,
        (6, _) => OrI,
        (7, _) => AndI,
        _ => Illegal,
    }
}

fn word_immediate_kind(word: u32) -> Kind {
    match (bits(word, 14, 12), bits(word, 31, 25)) {
        (0, _) => Kind::AddwI,
        (1, 0) => Kind::SllwI,
        (5, 0) => Kind::SrlwI,
        (5, 0x20) => Kind::SrawI,
        _ => Kind::Illegal,
    }
}

fn register_kind(funct3: u32, funct7: u32) -> Kind {
    use Kind::{Add, And, Or, Sll, Slt, Sltu, Srl, Xor};
    use Kind::{Div, Divu, Mul, Mulh, Mulhsu, Mulhu, Rem, Remu};
    match (funct7, funct3) {
        (0, _) => pick(funct3, [Add, Sll, Slt, Sltu, Xor, Srl, Or, And]),
        (1, _) => pick(funct3, [Mul, Mulh, Mulhsu, Mulhu, Div, Divu, Rem, Remu]),
        (0x20, 0) => Kind::Sub,
        (0x20, 5) => Kind::Sra,
        _ => Kind::Illegal,
    }
}

fn word_register_kind(funct3: u32, funct7: u32) -> Kind {
    use Kind::{Addw, Divuw, Divw, Mulw, Remuw, Remw, Sllw, Srlw};
    match (funct7, funct3) {
        (0, _) => pick(funct3, [Addw, Sllw, NONE, NONE, NONE, Srlw, NONE, NONE]),
        (1, _) => pick(funct3, [Mulw, NONE, NONE, NONE, Divw, Divuw, Remw, Remuw]),
        (0x20, 0) => Kind::Subw,
        (0x20, 5) => Kind::Sraw,
        _ => Kind::Illegal,
    }
}

fn fence(word: u32, funct3: u32) -> Kind {
    match funct3 {
        0 if word == 0x0100_000f => Kind::Pause,
        // Fields that are not defined are ignored, as RISC-V wants it.
        0 => Kind::Fence,
        1 => Kind::FenceI,
        _ => Kind::Illegal,
    }
}

fn system(word: u32, funct3: u32, op: Op) -> Op {
    let kind = match (word, funct3) {
        (0x73, _) => Kind::Ecall,
        (0x0010_0073, _) => Kind::Ebreak,
        (_, 0 | 4) => Kind::Illegal,
        _ => Kind::Csr,
    };
    Op {
        kind,
        third: funct3 as u8,
        ..op
    }
}

fn atomic(word: u32, funct3: u32, op: Op) -> Op {
    let kind = match (bits(word, 31, 27), funct3) {
        (2, 2 | 3) if op.rs2 == 0 => Kind::Lr,
        (3, 2 | 3) => Kind::Sc,
        (0 | 1 | 4 | 8 | 12 | 16 | 20 | 24 | 28, 2 | 3) => Kind::Amo,
        _ => Kind::Illegal,
    };
    Op { kind, ..op }
}

fn float_kind(word: u32, funct3: u32, funct7: u32, rd: u8, op: Op) -> Op {
    let double = funct7 & 1 != 0;
    let rs2 = op.rs2;
    let kind = match (funct7 & !1, double) {
        (0x00, false) => Kind::FaddS,
        (0x00, true) => Kind::FaddD,
        (0x04, false) => Kind::FsubS,
        (0x04, true) => Kind::FsubD,
        (0x08, false) => Kind::FmulS,
        (0x08, true) => Kind::FmulD,
        (0x0c, _) => Kind::Float,
        (0x2c, _) if rs2 == 0 => Kind::Float,
        (0x10, _) if funct3 < 3 => Kind::Float,
        (0x14, _) if funct3 < 2 => Kind::Float,
        (0x50, _) if funct3 < 3 => Kind::Float,
        (0x20, false) if rs2 == 1 => Kind::Float,
        (0x20, true) if rs2 == 0 => Kind::Float,
        (0x60 | 0x68, _) if rs2 < 4 => Kind::Float,
        (0x70, _) if rs2 == 0 && funct3 < 2 => Kind::Float,
        (0x78, _) if rs2 == 0 && funct3 == 0 => Kind::Float,
        _ => Kind::Illegal,
    };
    // FEQ and its like, FCVT to an integer, FMV and FCLASS have their result in an x register.
    let integer = matches!(funct7 & !1, 0x50 | 0x60 | 0x70);
    let op = Op {
        kind,
        third: bits(word, 31, 25) as u8,
        ..op
    };
    if integer {
        op
    } else {
        float(kind, rd, op)
    }
}
