// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs that tell the result of each of their instructions. They are functions: a0 is
//! the middle of [`TABLE`] and as much scratch memory, a1 where the results go.
//!
//! x28 to x31 are the program's own: where it returns, something passing, the data, the results.

#![allow(clippy::precedence)]

/// Bytes of values before the address in a0. Of scratch memory there are as many behind it.
pub(crate) const TABLE: usize = 2048;

const FLAGS: u32 = 29;
const DATA: u32 = 30;
const TRACE: u32 = 31;

/// Pseudo-random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, count: u32) -> u32 {
        ((self.next() >> 32) * u64::from(count) >> 32) as u32
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }

    fn flip(&mut self) -> bool {
        self.next() >> 63 != 0
    }
}

/// Returns values for which instructions behave in all their ways.
pub(crate) fn table(random: &mut Random) -> Vec<u64> {
    let singles: [u32; 12] = [
        0,
        1,
        0x7f_ffff,
        0x80_0000,
        0x3f80_0000,
        0x3f80_0001,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7fc0_0000,
        0x4f00_0000,
        0x5f00_0000,
    ];
    let doubles: [u64; 12] = [
        0,
        1,
        0xf_ffff_ffff_ffff,
        0x10_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x3ff0_0000_0000_0001,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x7ff0_0000_0000_0001,
        0x7ff8_0000_0000_0000,
        0x41e0_0000_0000_0000,
        0x43e0_0000_0000_0000,
    ];
    let integers = [
        0,
        1,
        2,
        u64::MAX,
        1 << 63,
        (1 << 63) - 1,
        1 << 31,
        (1 << 31) - 1,
        1 << 32,
    ];
    let boxed = |single: u32| 0xffff_ffff_0000_0000 | u64::from(single);
    let value = |random: &mut Random| {
        let bits = random.next();
        let sign = random.next() & (1 << 63);
        match random.below(10) {
            0 => bits,
            1 => bits >> random.below(64),
            2 => random.pick(&integers),
            3 => random.pick(&doubles) | sign,
            4 => boxed(random.pick(&singles) | (sign >> 32) as u32),
            // Sizes near 1, and few bits, so that results are exact at times.
            5 => sign | ((0x3f8 + (bits & 15)) << 52) | (bits & 0xf_ffff_0000_0000 & (bits << 9)),
            6 => boxed(((sign >> 32) as u32) | (0x3e00_0000 + (bits as u32 & 0x3ff_ffff))),
            7 => boxed(bits as u32),
            // Sizes whose products and quotients are at the limits.
            8 => sign | (random.pick(&[0x1ff, 0x200, 0x5ff, 0x1, 0x3c, 0x7fd]) << 52) | bits >> 12,
            _ => boxed(
                (sign >> 32) as u32
                    | random.pick(&[0x3f, 0x40, 0xbf, 1, 0x18, 0xfd]) << 23
                    | bits as u32 >> 9,
            ),
        }
    };
    (0..TABLE / 8).map(|_| value(random)).collect()
}

/// A program, and what each of its results is of.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) halves: Vec<u16>,
    /// For each result the place of the instruction.
    pub(crate) results: Vec<usize>,
    last: usize,
}

fn r(opcode: u32, f3: u32, f7: u32, (rd, rs1, rs2): (u32, u32, u32)) -> u32 {
    opcode | rd << 7 | f3 << 12 | rs1 << 15 | rs2 << 20 | f7 << 25
}

fn i(opcode: u32, f3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    opcode | rd << 7 | f3 << 12 | rs1 << 15 | (imm as u32) << 20
}

fn s(opcode: u32, f3: u32, rs1: u32, rs2: u32, imm: i32) -> u32 {
    let imm = imm as u32;
    opcode | (imm & 31) << 7 | f3 << 12 | rs1 << 15 | rs2 << 20 | (imm >> 5) << 25
}

impl Program {
    /// Makes a program of so many instructions that are looked at.
    pub(crate) fn new(random: &mut Random, steps: usize) -> Self {
        let mut this = Self::default();
        this.word(i(0x13, 0, DATA, 10, 0));
        this.word(i(0x13, 0, TRACE, 11, 0));
        this.word(i(0x13, 0, 28, 1, 0));
        for register in 1..28 {
            this.word(i(0x03, 3, register, DATA, Self::place(random)));
        }
        for register in 0..32 {
            this.word(i(0x07, 3, register, DATA, Self::place(random)));
        }
        for _ in 0..steps {
            this.step(random);
        }
        this.word(i(0x67, 0, 0, 28, 0));
        this
    }

    fn word(&mut self, word: u32) {
        self.halves.extend([word as u16, (word >> 16) as u16]);
    }

    /// Adds the instruction that is looked at.
    fn test(&mut self, word: u32) {
        self.last = self.halves.len();
        self.word(word);
    }

    fn short(&mut self, half: u32) {
        self.last = self.halves.len();
        self.halves.push(half as u16);
    }

    fn place(random: &mut Random) -> i32 {
        8 * random.below(TABLE as u32 / 8) as i32 - TABLE as i32
    }

    fn result(&mut self, word: u32) {
        self.word(word);
        self.word(i(0x13, 0, TRACE, TRACE, 8));
        self.results.push(self.last);
    }

    fn integer_result(&mut self, register: u32) {
        self.result(s(0x23, 3, TRACE, register, 0));
    }

    fn float_result(&mut self, register: u32) {
        self.result(s(0x27, 3, TRACE, register, 0));
    }

    fn step(&mut self, random: &mut Random) {
        let [rd, rs1, rs2] = [(); 3].map(|()| random.below(28));
        let imm = (random.next() as i32) >> 20;
        let registers = (rd, rs1, rs2);
        match random.below(16) {
            0 | 1 => {
                let register = 1 + random.below(27);
                self.test(i(0x03, 3, register, DATA, Self::place(random)));
                self.word(i(0x07, 3, random.below(32), DATA, Self::place(random)));
                self.integer_result(register);
            }
            2 => {
                let (f7, f3) = random.pick(&[(0, 8), (0, 8), (1, 8), (0x20, 0), (0x20, 5)]);
                let f3 = if f3 == 8 { random.below(8) } else { f3 };
                self.test(r(0x33, f3, f7, registers));
                self.integer_result(rd);
            }
            3 => {
                let kinds = [
                    (0, 0),
                    (0, 1),
                    (0, 5),
                    (0x20, 0),
                    (0x20, 5),
                    (1, 0),
                    (1, 4),
                    (1, 5),
                    (1, 6),
                    (1, 7),
                ];
                let (f7, f3) = random.pick(&kinds);
                self.test(r(0x3b, f3, f7, registers));
                self.integer_result(rd);
            }
            4 => {
                let word = match random.below(11) {
                    0 => i(0x13, 1, rd, rs1, imm & 63),
                    1 => i(0x13, 5, rd, rs1, imm & 63),
                    2 => i(0x13, 5, rd, rs1, imm & 63 | 0x400),
                    3 => i(0x1b, 0, rd, rs1, imm),
                    4 => i(0x1b, 1, rd, rs1, imm & 31),
                    5 => i(0x1b, 5, rd, rs1, imm & 31),
                    6 => i(0x1b, 5, rd, rs1, imm & 31 | 0x400),
                    7 => 0x37 | rd << 7 | (random.next() as u32) << 12,
                    8 => 0x17 | rd << 7 | (random.next() as u32) << 12,
                    _ => i(0x13, random.pick(&[0, 2, 3, 4, 6, 7]), rd, rs1, imm),
                };
                self.test(word);
                self.integer_result(rd);
            }
            5 => self.memory(random, rd, rs2),
            6 => self.atomic(random, rd, rs2),
            7 => self.jump(random, (rd.max(1), rs1, rs2)),
            8 => self.csr(random, rd, rs1),
            9 | 10 => self.compressed(random),
            _ => self.float(random),
        }
    }

    fn memory(&mut self, random: &mut Random, rd: u32, rs2: u32) {
        let at = random.below(TABLE as u32 - 8) as i32;
        let f3 = random.below(4);
        let double = 2 + random.below(2);
        match random.below(4) {
            0 => {
                self.test(i(0x03, random.below(7), rd, DATA, at));
                self.integer_result(rd);
            }
            1 => {
                self.test(s(0x23, f3, DATA, rs2, at));
                self.word(i(0x03, 3, FLAGS, DATA, at & !7));
                self.integer_result(FLAGS);
            }
            2 => {
                self.test(i(0x07, double, rd, DATA, at));
                self.float_result(rd);
            }
            _ => {
                self.test(s(0x27, double, DATA, rs2, at));
                self.word(i(0x03, 3, FLAGS, DATA, at & !7));
                self.integer_result(FLAGS);
            }
        }
    }

    fn atomic(&mut self, random: &mut Random, rd: u32, rs2: u32) {
        let size = 2 + random.below(2);
        let at = random.below(TABLE as u32 - 8) as i32 & !7;
        self.word(i(0x13, 0, FLAGS, DATA, at));
        let order = random.below(4);
        let kind = random.pick(&[0, 1, 2, 3, 4, 8, 12, 16, 20, 24, 28]);
        let operand = if kind == 2 { 0 } else { rs2 };
        self.test(r(0x2f, size, kind << 2 | order, (rd, FLAGS, operand)));
        self.integer_result(rd);
        // QEMU lets SC succeed that is of another size than its LR.
        if kind == 2 {
            self.test(r(0x2f, size, 3 << 2 | order, (rd, FLAGS, rs2)));
            self.integer_result(rd);
        }
        self.word(i(0x03, 3, FLAGS, FLAGS, 0));
        self.integer_result(FLAGS);
    }

    fn jump(&mut self, random: &mut Random, (rd, rs1, rs2): (u32, u32, u32)) {
        match random.below(4) {
            0 => self.test(0x6f | rd << 7 | 8 << 20),
            1 => {
                self.word(0x17 | FLAGS << 7);
                self.test(i(0x67, 0, rd, FLAGS, 13 - random.below(2) as i32));
            }
            _ => {
                let f3 = random.pick(&[0, 1, 4, 5, 6, 7]);
                let rs2 = if random.flip() { rs2 } else { rs1 };
                self.test(0x63 | f3 << 12 | rs1 << 15 | rs2 << 20 | 8 << 7);
            }
        }
        self.word(i(0x13, 0, rd, rd, 1));
        self.integer_result(rd);
    }

    fn csr(&mut self, random: &mut Random, rd: u32, rs1: u32) {
        let number = random.pick(&[1, 2, 3]);
        let f3 = random.pick(&[1, 2, 3, 5, 6, 7]);
        self.test(i(0x73, f3, rd, rs1, number));
        self.integer_result(rd);
        self.word(i(0x73, 2, FLAGS, 0, 3));
        self.integer_result(FLAGS);
        // A rounding mode that is valid.
        self.word(i(0x73, 5, 0, random.below(5), 2));
    }

    fn float(&mut self, random: &mut Random) {
        let [rd, rs1, rs2, rs3] = [(); 4].map(|()| random.below(32));
        let double = random.below(2);
        let mode = random.pick(&[0, 0, 1, 2, 3, 4, 7]);
        let registers = (rd, rs1, rs2);
        let flags = if random.flip() { 0 } else { random.below(32) };
        self.word(i(0x73, 5, 0, flags, 1));
        if random.below(4) == 0 {
            self.word(i(0x73, 5, 0, random.below(5), 2));
        }
        let x = random.below(28);
        let mut to_integer = None;
        let word = match random.below(16) {
            0..5 => r(0x53, mode, random.below(4) << 2 | double, registers),
            5..8 => r(
                random.pick(&[0x43, 0x47, 0x4b, 0x4f]),
                mode,
                rs3 << 2 | double,
                registers,
            ),
            8 => r(0x53, mode, 0x2c | double, (rd, rs1, 0)),
            9 => r(0x53, random.below(3), 0x10 | double, registers),
            10 => r(0x53, random.below(2), 0x14 | double, registers),
            11 => r(0x53, mode, 0x20 | double, (rd, rs1, 1 - double)),
            12 => r(0x53, mode, 0x68 | double, (rd, x, random.below(4))),
            13 => r(0x53, 0, 0x78 | double, (rd, x, 0)),
            14 => {
                to_integer = Some(x);
                r(0x53, mode, 0x60 | double, (x, rs1, random.below(4)))
            }
            _ => {
                to_integer = Some(x);
                match random.flip() {
                    true => r(0x53, random.below(2), 0x70 | double, (x, rs1, 0)),
                    false => r(0x53, random.below(3), 0x50 | double, (x, rs1, rs2)),
                }
            }
        };
        self.test(word);
        match to_integer {
            Some(register) => self.integer_result(register),
            None => self.float_result(rd),
        }
        self.word(i(0x73, 2, FLAGS, 0, 1));
        self.integer_result(FLAGS);
    }

    fn compressed(&mut self, random: &mut Random) {
        let rd = 1 + random.below(27);
        let [high, low] = [(); 2].map(|()| random.below(8));
        let immediate = random.next() as u32;
        let six = (immediate & 31) << 2 | (immediate >> 5 & 1) << 12;
        let mut register = rd;
        match random.below(22) {
            0 => self.short(0x0001 | rd << 7 | six),
            1 => self.short(0x2001 | rd << 7 | six),
            2 => self.short(0x4001 | rd << 7 | six),
            3 => {
                register = if rd == 2 { 3 } else { rd };
                self.short(0x6001 | register << 7 | six | 4);
            }
            4 => self.short(0x0002 | rd << 7 | six),
            5 => {
                register = 8 + high;
                self.short(0x8001 | high << 7 | random.below(3) << 10 | six);
            }
            6 => {
                register = 8 + high;
                self.short(0x8c01 | high << 7 | low << 2 | random.below(4) << 5);
            }
            7 => {
                register = 8 + high;
                self.short(0x9c01 | high << 7 | low << 2 | random.below(2) << 5);
            }
            8 => self.short(0x8002 | rd << 7 | (1 + random.below(27)) << 2),
            9 => self.short(0x9002 | rd << 7 | (1 + random.below(27)) << 2),
            10 => {
                register = 8 + low;
                self.short(low << 2 | (immediate & 0xff | 1) << 5);
            }
            11 => {
                register = 2;
                self.short(0x6101 | six | 4);
            }
            // Loads and stores, relative to a register and to sp.
            kind @ 12..20 => {
                let base = if kind < 16 { 8 + high } else { 2 };
                self.word(i(0x13, 0, base, DATA, 0));
                let load = match (kind, random.flip()) {
                    (12, _) => {
                        0x4000 | high << 7 | low << 2 | (immediate & 0x1c00) | immediate & 0x60
                    }
                    (13, true) => {
                        0x2000 | high << 7 | low << 2 | (immediate & 0x1c00) | immediate & 0x60
                    }
                    (13..16, _) => {
                        0x6000 | high << 7 | low << 2 | (immediate & 0x1c00) | immediate & 0x60
                    }
                    (16, true) => 0x2002 | rd << 7 | six,
                    (17, _) => 0x4002 | rd << 7 | six,
                    _ => 0x6002 | rd << 7 | six,
                };
                let is_store = random.flip();
                let half = match (is_store, kind < 16) {
                    (false, _) => load,
                    (true, true) => load | 0x8000,
                    (true, false) => (load & 0xe003) | 0x8000 | rd << 2 | (immediate & 0x1f80),
                };
                self.short(half);
                let is_float = half & 0x6000 == 0x2000;
                let to = if kind < 16 { 8 + low } else { rd };
                if is_store {
                    let at = 8 * random.below(64) as i32;
                    self.word(i(0x03, 3, FLAGS, DATA, at));
                    register = FLAGS;
                } else if is_float {
                    self.float_result(to);
                    return;
                } else {
                    register = to;
                }
            }
            20 => {
                register = 8 + high;
                self.short(random.pick(&[0xc001, 0xe001]) | high << 7 | 6 << 2);
                self.word(i(0x13, 0, register, register, 1));
            }
            _ => {
                self.short(0xa001 | 6 << 2);
                self.word(i(0x13, 0, register, register, 1));
            }
        }
        self.integer_result(register);
        if self.halves.len() % 2 == 1 && random.flip() {
            self.halves.push(1);
        }
    }
}
