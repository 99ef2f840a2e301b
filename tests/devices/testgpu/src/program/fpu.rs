// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions on floating point. The host computes what it can: rounding to nearest, far from
//! overflow and underflow, where `NX` is set already or can be found out. `float` does the rest.

use super::decode::Op;
use super::float::{Round, DOUBLE, NX, SINGLE};

const BOX: u64 = 0xffff_ffff_0000_0000;
const NAN_S: u64 = 0x7fc0_0000;

/// Returns the f32 that a register holds.
pub(super) fn unbox(register: u64) -> u64 {
    match register & BOX {
        BOX => register & !BOX,
        _ => NAN_S,
    }
}

/// Returns the register that holds an f32.
pub(super) fn boxed(single: u64) -> u64 {
    single | BOX
}

/// State of the FPU: `frm` and `fflags`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Status {
    /// `frm`.
    pub(super) mode: u32,
    /// `fflags`.
    pub(super) flags: u32,
}

impl Status {
    /// Returns the rounding mode of an instruction; `None` if it is illegal.
    pub(super) fn round(&self, mode: u32) -> Option<Round> {
        Round::decode(if mode == 7 { self.mode } else { mode })
    }

    fn is_inexact(&self) -> bool {
        self.flags & NX != 0
    }
}

/// Makes the functions for a type: its sizes `$low..=$high` are far from all limits.
macro_rules! arithmetic {
    ($module:ident, $float:ty, $bits:ty, $format:ident, $low:expr, $high:expr, $is_exact:expr) => {
        /// Operations on numbers of this type.
        pub(super) mod $module {
            use super::{$format, Round, Status, NX};

            fn float(bits: u64) -> $float {
                <$float>::from_bits(bits as $bits)
            }

            fn is_far(value: $float) -> bool {
                const LOW: $float = <$float>::from_bits($low);
                const HIGH: $float = <$float>::from_bits($high);
                (LOW..HIGH).contains(&value.abs())
            }

            /// -a
            pub(in super::super) fn negate(a: u64) -> u64 {
                $format.negate(a)
            }

            fn is_quick(round: Round, result: $float) -> bool {
                round == Round::NearestEven && is_far(result)
            }

            /// a + b
            #[inline]
            pub(in super::super) fn add(a: u64, b: u64, round: Round, status: &mut Status) -> u64 {
                let (x, y) = (float(a), float(b));
                let sum = x + y;
                if !is_quick(round, sum) || x.abs() >= <$float>::from_bits($high) {
                    return $format.add(a, b, round, &mut status.flags);
                }
                if !status.is_inexact() {
                    // What was rounded off, exactly.
                    let part = sum - x;
                    let rest = (x - (sum - part)) + (y - part);
                    status.flags |= if rest == 0.0 { 0 } else { NX };
                }
                sum.to_bits().into()
            }

            /// a × b
            #[inline]
            pub(in super::super) fn multiply(
                a: u64,
                b: u64,
                round: Round,
                status: &mut Status,
            ) -> u64 {
                let (x, y) = (float(a), float(b));
                let product = x * y;
                if !is_quick(round, product) {
                    return $format.multiply(a, b, round, &mut status.flags);
                }
                if !status.is_inexact() {
                    let rest = x.mul_add(y, -product);
                    status.flags |= if rest == 0.0 { 0 } else { NX };
                }
                product.to_bits().into()
            }

            /// a × b + c
            #[inline]
            pub(in super::super) fn fused(
                (a, b, c): (u64, u64, u64),
                round: Round,
                status: &mut Status,
            ) -> u64 {
                let [x, y, z] = [a, b, c].map(float);
                let result = x.mul_add(y, z);
                if is_quick(round, result) {
                    let is_exact: Option<bool> = match status.is_inexact() {
                        true => Some(true),
                        false => $is_exact(x, y, z, result),
                    };
                    if let Some(is_exact) = is_exact {
                        status.flags |= if is_exact { 0 } else { NX };
                        return result.to_bits().into();
                    }
                }
                $format.fused((a, b, c), round, &mut status.flags)
            }

            /// a ÷ b
            pub(super) fn divide(a: u64, b: u64, round: Round, status: &mut Status) -> u64 {
                let quotient = float(a) / float(b);
                if status.is_inexact() && is_quick(round, quotient) && float(b).is_finite() {
                    return quotient.to_bits().into();
                }
                $format.divide(a, b, round, &mut status.flags)
            }

            /// The square root of a.
            pub(super) fn root(a: u64, round: Round, status: &mut Status) -> u64 {
                let root = float(a).sqrt();
                if status.is_inexact() && is_quick(round, root) {
                    return root.to_bits().into();
                }
                $format.root(a, round, &mut status.flags)
            }
        }
    };
}

/// Returns whether x × y + z is exact, as an f64 tells, which holds the product.
fn is_exact(x: f32, y: f32, z: f32, result: f32) -> Option<bool> {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    let part = sum - product;
    let rest = (product - (sum - part)) + (z - part);
    Some(rest == 0.0 && f64::from(result) == sum)
}

arithmetic!(
    single,
    f32,
    u32,
    SINGLE,
    0x1000_0000,
    0x7000_0000,
    super::is_exact
);
arithmetic!(
    double,
    f64,
    u64,
    DOUBLE,
    0x1000_0000_0000_0000,
    0x7000_0000_0000_0000,
    |_, _, _, _| None
);

/// Where a result goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Result {
    /// To an x register.
    Integer(u64),
    /// To an f register.
    Float(u64),
}

/// Executes an instruction of the kind `Float`. `None` if it is illegal.
pub(super) fn execute(op: Op, x1: u64, f: &[u64; 32], status: &mut Status) -> Option<Result> {
    let register = |number: u8| f[usize::from(number & 31)];
    let (a, b) = (register(op.rs1), register(op.rs2));
    if op.third & 1 != 0 {
        double_op(op, x1, (a, b), status)
    } else {
        single_op(op, x1, (a, b), status)
    }
}

/// Kinds of integers, as FCVT numbers them.
const INTEGERS: [(u32, bool); 4] = [(32, true), (32, false), (64, true), (64, false)];

fn integer(kind: u8, value: u64) -> i128 {
    match kind & 3 {
        0 => (value as i32).into(),
        1 => (value as u32).into(),
        2 => (value as i64).into(),
        _ => value.into(),
    }
}

fn sign_injected(kind: i32, a: u64, b: u64, sign: u64) -> u64 {
    let from = match kind {
        0 => b,
        1 => !b,
        _ => a ^ b,
    };
    (a & !sign) | (from & sign)
}

macro_rules! float_op {
    ($name:ident, $module:ident, $format:expr, $sign:expr, $other:expr, $take:expr, $give:expr) => {
        fn $name(op: Op, x1: u64, (raw, rb): (u64, u64), status: &mut Status) -> Option<Result> {
            let (a, b) = ($take(raw), $take(rb));
            let round = status.round(op.imm as u32);
            let flags = &mut status.flags;
            Some(Result::Float($give(match op.third & !1 {
                0x0c => $module::divide(a, b, round?, status),
                0x2c => $module::root(a, round?, status),
                0x10 => sign_injected(op.imm, a, b, $sign),
                0x14 => $format.extreme(a, b, op.imm == 1, flags),
                0x20 => return Some(Result::Float($other(raw, round?, flags))),
                0x50 => {
                    let order = $format.compare(a, b, op.imm == 2, flags);
                    return Some(Result::Integer(u64::from(order.is_some_and(
                        |order| match op.imm {
                            0 => order.is_le(),
                            1 => order.is_lt(),
                            _ => order.is_eq(),
                        },
                    ))));
                }
                0x60 => {
                    let kind = INTEGERS[usize::from(op.rs2 & 3)];
                    return Some(Result::Integer($format.to_integer(a, kind, round?, flags)));
                }
                0x68 => $format.integer(integer(op.rs2, x1), round?, flags),
                0x70 if op.imm == 1 => return Some(Result::Integer($format.class(a))),
                0x70 => return Some(Result::Integer(moved(raw, op.third & 1 != 0))),
                _ => x1 & ($sign | ($sign - 1)),
            })))
        }
    };
}

/// FMV.X.W and FMV.X.D
fn moved(raw: u64, double: bool) -> u64 {
    match double {
        true => raw,
        false => i64::from(raw as i32) as u64,
    }
}

float_op!(
    single_op,
    single,
    SINGLE,
    0x8000_0000,
    |raw, round, flags: &mut u32| boxed(DOUBLE.convert(raw, SINGLE, round, flags)),
    unbox,
    boxed
);
float_op!(
    double_op,
    double,
    DOUBLE,
    1 << 63,
    |raw, round, flags: &mut u32| SINGLE.convert(unbox(raw), DOUBLE, round, flags),
    std::convert::identity,
    std::convert::identity
);
