// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread of a program, and the instructions that it executes.

use super::decode::{Kind, Op, MOVES};
use super::float::Round;
use super::fpu::{self, boxed, double, single, unbox, Status};
use super::memory::{Code, Data, Miss};
use crate::fault::Reason;
use crate::regs;
use std::sync::atomic::{fence, Ordering};

const INSTRET: u32 = regs::CSR_INSTRET as u32;

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not begun.
    New,
    Running,
    /// Waits at a barrier.
    Waiting,
    Ended,
}

/// Value that LR has read, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) va: u64,
    pub(super) value: u64,
    /// 4 or 8; 0: there is none.
    pub(super) bytes: usize,
}

/// A thread.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    /// The registers; results for x0 go to 32. Numbers have 6 bits, so that none is out of bounds.
    pub(super) x: [u64; 64],
    pub(super) f: [u64; 32],
    pub(super) pc: u64,
    pub(super) status: Status,
    /// Instructions executed.
    pub(super) executed: u64,
    pub(super) reservation: Reservation,
}

impl Default for Thread {
    fn default() -> Self {
        Self {
            x: [0; 64],
            f: [0; 32],
            pc: 0,
            status: Status::default(),
            executed: 0,
            reservation: Reservation::default(),
        }
    }
}

/// Why a thread stopped executing instructions. Its pc is at the instruction that it could not
/// execute, or at the next one if that was all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// The thread has executed as many as it should.
    Enough,
    /// PAUSE was executed.
    Pause,
    /// ECALL is next.
    Call,
    /// FENCE.I was executed.
    Synchronize,
    /// An access cannot be made.
    Miss(Miss),
    /// The instruction is not there.
    Fetch,
    /// An error, and the value for the report.
    Trap(Reason, u64),
}

/// Knows what is no part of the thread: reads such a CSR, given how many instructions were executed
/// in this call.
pub(super) trait Csrs {
    fn read(&self, number: u32, executed: u64) -> Option<u64>;

    /// Whether sp of the thread can be this.
    fn is_stack(&self, sp: u64) -> bool;
}

fn sign32(value: u64) -> u64 {
    i64::from(value as i32) as u64
}

/// The parts of FMADD and its like: the sign of the product and that of the addend.
fn fused_signs(imm: i32) -> (bool, bool) {
    match imm >> 4 {
        0 => (false, false),
        1 => (false, true),
        2 => (true, false),
        _ => (true, true),
    }
}

fn divide(a: i64, b: i64) -> i64 {
    match b {
        0 => -1,
        _ => a.wrapping_div(b),
    }
}

fn remainder(a: i64, b: i64) -> i64 {
    match b {
        0 => a,
        _ => a.wrapping_rem(b),
    }
}

/// Returns the number that an AMO stores.
fn combine(kind: u8, bytes: usize, before: u64, operand: u64) -> u64 {
    let (before, operand) = match bytes {
        8 => (before, operand),
        _ => (sign32(before), sign32(operand)),
    };
    let (signed_before, signed_operand) = (before as i64, operand as i64);
    match kind {
        0 => before.wrapping_add(operand),
        1 => operand,
        4 => before ^ operand,
        8 => before | operand,
        12 => before & operand,
        16 => signed_before.min(signed_operand) as u64,
        20 => signed_before.max(signed_operand) as u64,
        // Signs of 32 bits order unsigned numbers, too.
        24 => before.min(operand),
        _ => before.max(operand),
    }
}

impl Thread {
    /// Makes it one that has not begun.
    pub(super) fn clear(&mut self) {
        self.x[..32].fill(0);
        self.f.fill(0);
        self.status = Status::default();
        self.executed = 0;
        self.reservation = Reservation::default();
    }

    /// Executes instructions, at most `left`, which counts down.
    pub(super) fn run<D: Data>(
        &mut self,
        code: &mut Code,
        data: &mut D,
        csrs: &impl Csrs,
        left: &mut u32,
    ) -> Exit {
        let budget = *left;
        let exit = self.execute(code, data, csrs, left);
        self.executed += u64::from(budget - *left);
        exit
    }

    #[allow(clippy::too_many_lines)]
    fn execute<D: Data>(
        &mut self,
        code: &mut Code,
        data: &mut D,
        csrs: &impl Csrs,
        left: &mut u32,
    ) -> Exit {
        let budget = *left;
        let mut remaining = budget;
        let mut pc = self.pc;
        let mut base = pc & !(regs::PAGE - 1);
        let Some(mut page) = code.find(pc) else {
            return Exit::Fetch;
        };
        let exit = 'run: loop {
            if remaining == 0 {
                break Exit::Enough;
            }
            if pc ^ base >= regs::PAGE {
                match code.find(pc) {
                    Some(found) => page = found,
                    None => break Exit::Fetch,
                }
                base = pc & !(regs::PAGE - 1);
            }
            let place = (pc / 2) as usize % (regs::PAGE as usize / 2);
            let op: Op = page.ops[place];
            let mut next = pc.wrapping_add(u64::from(op.length));
            let immediate = i64::from(op.imm) as u64;

            macro_rules! x1 {
                () => {
                    self.x[usize::from(op.rs1 & 63)]
                };
            }
            macro_rules! x2 {
                () => {
                    self.x[usize::from(op.rs2 & 63)]
                };
            }
            macro_rules! set {
                ($value:expr) => {{
                    let value: u64 = $value;
                    self.x[usize::from(op.rd & 63)] = value;
                }};
            }
            macro_rules! f {
                ($register:expr) => {
                    self.f[usize::from($register & 31)]
                };
            }
            macro_rules! check {
                ($result:expr) => {
                    match $result {
                        Ok(value) => value,
                        Err(miss) => break 'run Exit::Miss(miss),
                    }
                };
            }
            macro_rules! branch {
                ($condition:expr) => {
                    if $condition {
                        next = pc.wrapping_add(immediate);
                    }
                };
            }
            macro_rules! load {
                ($bytes:literal, $narrow:ty, $type:ty) => {{
                    let value = check!(data.load::<$bytes>(x1!().wrapping_add(immediate)));
                    set!(<$type>::from(value as $narrow) as u64)
                }};
            }
            macro_rules! store {
                ($bytes:literal, $value:expr) => {
                    check!(data.store::<$bytes>(x1!().wrapping_add(immediate), $value))
                };
            }
            macro_rules! illegal {
                () => {
                    break 'run Exit::Trap(Reason::IllegalInstruction, code.raw(pc))
                };
            }
            macro_rules! round {
                () => {
                    match self.status.round(op.imm as u32 & 7) {
                        Some(round) => round,
                        None => illegal!(),
                    }
                };
            }
            macro_rules! float_single {
                ($operation:path, $b:expr) => {{
                    let (a, b) = (unbox(f!(op.rs1)), $b);
                    let round: Round = round!();
                    f!(op.rd) = boxed($operation(a, b, round, &mut self.status));
                }};
            }
            macro_rules! float_double {
                ($operation:path, $b:expr) => {{
                    let (a, b) = (f!(op.rs1), $b);
                    let round: Round = round!();
                    f!(op.rd) = $operation(a, b, round, &mut self.status);
                }};
            }

            match op.kind {
                Kind::Unknown => {
                    if page.decode(place).is_none() {
                        break Exit::Fetch;
                    }
                    continue;
                }
                Kind::Illegal => illegal!(),
                Kind::Lui => set!(immediate),
                Kind::Auipc => set!(pc.wrapping_add(immediate)),
                Kind::Jal => {
                    set!(next);
                    next = pc.wrapping_add(immediate);
                }
                Kind::Jalr => {
                    let target = x1!().wrapping_add(immediate) & !1;
                    set!(next);
                    next = target;
                }
                Kind::Beq => branch!(x1!() == x2!()),
                Kind::Bne => branch!(x1!() != x2!()),
                Kind::Blt => branch!((x1!() as i64) < (x2!() as i64)),
                Kind::Bge => branch!((x1!() as i64) >= (x2!() as i64)),
                Kind::Bltu => branch!(x1!() < x2!()),
                Kind::Bgeu => branch!(x1!() >= x2!()),
                Kind::Lb => load!(1, i8, i64),
                Kind::Lh => load!(2, i16, i64),
                Kind::Lw => load!(4, i32, i64),
                Kind::Ld => load!(8, u64, u64),
                Kind::Lbu => load!(1, u64, u64),
                Kind::Lhu => load!(2, u64, u64),
                Kind::Lwu => load!(4, u64, u64),
                Kind::Sb => store!(1, x2!()),
                Kind::Sh => store!(2, x2!()),
                Kind::Sw => store!(4, x2!()),
                Kind::Sd => store!(8, x2!()),
                Kind::AddI => set!(x1!().wrapping_add(immediate)),
                Kind::SltI => set!(u64::from((x1!() as i64) < i64::from(op.imm))),
                Kind::SltuI => set!(u64::from(x1!() < immediate)),
                Kind::XorI => set!(x1!() ^ immediate),
                Kind::OrI => set!(x1!() | immediate),
                Kind::AndI => set!(x1!() & immediate),
                Kind::SllI => set!(x1!() << (op.imm & 63)),
                Kind::SrlI => set!(x1!() >> (op.imm & 63)),
                Kind::SraI => set!(((x1!() as i64) >> (op.imm & 63)) as u64),
                Kind::AddwI => set!(sign32(x1!().wrapping_add(immediate))),
                Kind::SllwI => set!(sign32(x1!() << (op.imm & 31))),
                Kind::SrlwI => set!(sign32(((x1!() as u32) >> (op.imm & 31)).into())),
                Kind::SrawI => set!(i64::from((x1!() as i32) >> (op.imm & 31)) as u64),
                Kind::Add => set!(x1!().wrapping_add(x2!())),
                Kind::Sub => set!(x1!().wrapping_sub(x2!())),
                Kind::Sll => set!(x1!() << (x2!() & 63)),
                Kind::Slt => set!(u64::from((x1!() as i64) < (x2!() as i64))),
                Kind::Sltu => set!(u64::from(x1!() < x2!())),
                Kind::Xor => set!(x1!() ^ x2!()),
                Kind::Srl => set!(x1!() >> (x2!() & 63)),
                Kind::Sra => set!(((x1!() as i64) >> (x2!() & 63)) as u64),
                Kind::Or => set!(x1!() | x2!()),
                Kind::And => set!(x1!() & x2!()),
                Kind::Addw => set!(sign32(x1!().wrapping_add(x2!()))),
                Kind::Subw => set!(sign32(x1!().wrapping_sub(x2!()))),
                Kind::Sllw => set!(sign32(x1!() << (x2!() & 31))),
                Kind::Srlw => set!(sign32(((x1!() as u32) >> (x2!() & 31)).into())),
                Kind::Sraw => set!(i64::from((x1!() as i32) >> (x2!() & 31)) as u64),
                Kind::Mul => set!(x1!().wrapping_mul(x2!())),
                Kind::Mulh => {
                    let product = i128::from(x1!() as i64) * i128::from(x2!() as i64);
                    set!((product >> 64) as u64);
                }
                Kind::Mulhsu => {
                    let product = i128::from(x1!() as i64) * i128::from(x2!());
                    set!((product >> 64) as u64);
                }
                Kind::Mulhu => {
                    let product = u128::from(x1!()) * u128::from(x2!());
                    set!((product >> 64) as u64);
                }
                Kind::Div => set!(divide(x1!() as i64, x2!() as i64) as u64),
                Kind::Divu => set!(x1!().checked_div(x2!()).unwrap_or(u64::MAX)),
                Kind::Rem => set!(remainder(x1!() as i64, x2!() as i64) as u64),
                Kind::Remu => set!(x1!().checked_rem(x2!()).unwrap_or(x1!())),
                Kind::Mulw => set!(sign32(x1!().wrapping_mul(x2!()))),
                Kind::Divw => {
                    let quotient = divide((x1!() as i32).into(), (x2!() as i32).into());
                    set!(sign32(quotient as u64));
                }
                Kind::Divuw => {
                    let quotient = (x1!() as u32).checked_div(x2!() as u32);
                    set!(sign32(quotient.unwrap_or(u32::MAX).into()));
                }
                Kind::Remw => {
                    let rest = remainder((x1!() as i32).into(), (x2!() as i32).into());
                    set!(sign32(rest as u64));
                }
                Kind::Remuw => {
                    let rest = (x1!() as u32).checked_rem(x2!() as u32);
                    set!(sign32(rest.unwrap_or(x1!() as u32).into()));
                }
                Kind::Fence => fence(Ordering::SeqCst),
                Kind::FenceI | Kind::Pause => {
                    pc = next;
                    remaining -= 1;
                    break match op.kind {
                        Kind::Pause => Exit::Pause,
                        _ => Exit::Synchronize,
                    };
                }
                Kind::Ecall => break Exit::Call,
                Kind::Ebreak => break Exit::Trap(Reason::Breakpoint, 0),
                Kind::Csr => {
                    let executed = u64::from(budget - remaining);
                    match self.csr(op, executed, csrs) {
                        Some(value) => set!(value),
                        None => illegal!(),
                    }
                }
                Kind::Lr | Kind::Sc | Kind::Amo => {
                    let va = x1!();
                    if va % op.imm as u64 != 0 {
                        break Exit::Trap(Reason::Misaligned, va);
                    }
                    set!(check!(self.atomic(op, va, data)));
                }
                Kind::Flw => {
                    let value = check!(data.load::<4>(x1!().wrapping_add(immediate)));
                    f!(op.rd) = boxed(value);
                }
                Kind::Fld => {
                    f!(op.rd) = check!(data.load::<8>(x1!().wrapping_add(immediate)));
                }
                Kind::Fsw => store!(4, f!(op.rs2)),
                Kind::Fsd => store!(8, f!(op.rs2)),
                Kind::FaddS => float_single!(single::add, unbox(f!(op.rs2))),
                Kind::FsubS => float_single!(single::add, single::negate(unbox(f!(op.rs2)))),
                Kind::FmulS => float_single!(single::multiply, unbox(f!(op.rs2))),
                Kind::FaddD => float_double!(double::add, f!(op.rs2)),
                Kind::FsubD => float_double!(double::add, double::negate(f!(op.rs2))),
                Kind::FmulD => float_double!(double::multiply, f!(op.rs2)),
                Kind::FmaS | Kind::FmaD => {
                    let round = round!();
                    let (product, addend) = fused_signs(op.imm);
                    let operands = [op.rs1, op.rs2, op.third].map(|register| f!(register));
                    f!(op.rd) = match op.kind {
                        Kind::FmaS => {
                            let [a, b, c] = operands.map(unbox);
                            let a = if product { single::negate(a) } else { a };
                            let c = if addend { single::negate(c) } else { c };
                            boxed(single::fused((a, b, c), round, &mut self.status))
                        }
                        _ => {
                            let [a, b, c] = operands;
                            let a = if product { double::negate(a) } else { a };
                            let c = if addend { double::negate(c) } else { c };
                            double::fused((a, b, c), round, &mut self.status)
                        }
                    };
                }
                Kind::Stack => {
                    let sp = match MOVES[usize::from(op.third) % MOVES.len()] {
                        Kind::AddI => x1!().wrapping_add(immediate),
                        Kind::AndI => x1!() & immediate,
                        Kind::SllI => x1!() << (op.imm & 63),
                        Kind::Add => x1!().wrapping_add(x2!()),
                        _ => x1!().wrapping_sub(x2!()),
                    };
                    if !csrs.is_stack(sp) {
                        break Exit::Trap(Reason::StackOverflow, sp);
                    }
                    set!(sp);
                }
                Kind::Float => match fpu::execute(op, x1!(), &self.f, &mut self.status) {
                    Some(fpu::Result::Integer(value)) => set!(value),
                    Some(fpu::Result::Float(value)) => f!(op.rd) = value,
                    None => illegal!(),
                },
            }
            pc = next;
            remaining -= 1;
        };
        self.pc = pc;
        *left = remaining;
        exit
    }

    /// Reads and writes a CSR; `None` if that is illegal.
    fn csr(&mut self, op: Op, executed: u64, csrs: &impl Csrs) -> Option<u64> {
        let number = op.imm as u32;
        let before = match number {
            INSTRET => self.executed + executed,
            1 => self.status.flags.into(),
            2 => self.status.mode.into(),
            3 => u64::from(self.status.flags | (self.status.mode << 5)),
            _ => csrs.read(number, executed)?,
        };
        let operand = match op.third & 4 {
            0 => self.x[usize::from(op.rs1 & 63)],
            _ => op.rs1.into(),
        };
        let after = match op.third & 3 {
            1 => operand,
            // Setting or clearing nothing is no write.
            _ if op.rs1 == 0 => return Some(before),
            2 => before | operand,
            _ => before & !operand,
        } as u32;
        match number {
            1 => self.status.flags = after & 0x1f,
            2 => self.status.mode = after & 7,
            3 => (self.status.flags, self.status.mode) = (after & 0x1f, (after >> 5) & 7),
            _ => return None,
        }
        Some(before)
    }

    /// Executes an atomic instruction; returns its result.
    fn atomic<D: Data>(&mut self, op: Op, va: u64, data: &mut D) -> Result<u64, Miss> {
        let bytes = op.imm as usize;
        let operand = self.x[usize::from(op.rs2 & 63)];
        let extend = |value| if bytes == 8 { value } else { sign32(value) };
        match op.kind {
            Kind::Lr => {
                let value = data.update(va, bytes, |_| None)?;
                self.reservation = Reservation { va, value, bytes };
                Ok(extend(value))
            }
            Kind::Sc => {
                let Reservation {
                    va: reserved,
                    value,
                    bytes: size,
                } = self.reservation;
                if (reserved, size) != (va, bytes) {
                    self.reservation = Reservation::default();
                    return Ok(1);
                }
                let before =
                    data.update(va, bytes, |before| (before == value).then_some(operand))?;
                self.reservation = Reservation::default();
                Ok((before != value).into())
            }
            _ => {
                let kind = op.third;
                let before = data.update(va, bytes, |before| {
                    Some(combine(kind, bytes, before, operand))
                })?;
                Ok(extend(before))
            }
        }
    }
}
