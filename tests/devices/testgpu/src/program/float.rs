// SPDX-License-Identifier: MIT OR Apache-2.0
//! Floating point by integers, as IEEE 754 says: every rounding mode and every flag. `fpu` uses it
//! where the host's own arithmetic does not tell all of that.

/// Inexact.
pub(super) const NX: u32 = 1;
/// Underflow: tiny after rounding, and inexact.
pub(super) const UF: u32 = 2;
/// Overflow.
pub(super) const OF: u32 = 4;
/// Division by zero.
pub(super) const DZ: u32 = 8;
/// Invalid operation.
pub(super) const NV: u32 = 16;

/// Rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    NearestEven,
    Zero,
    Down,
    Up,
    NearestAway,
}

impl Round {
    /// Returns the mode that an instruction, or `frm`, means.
    pub(super) fn decode(mode: u32) -> Option<Self> {
        Some(match mode {
            0 => Round::NearestEven,
            1 => Round::Zero,
            2 => Round::Down,
            3 => Round::Up,
            4 => Round::NearestAway,
            _ => return None,
        })
    }

    /// Returns whether a magnitude is rounded up. `odd`: its last bit is 1; `half` compares what is
    /// cut off with half of that bit.
    fn is_up(self, sign: bool, odd: bool, exact: bool, half: std::cmp::Ordering) -> bool {
        match self {
            Round::NearestEven => half.is_gt() || (half.is_eq() && odd),
            Round::NearestAway => half.is_ge(),
            Round::Zero => false,
            Round::Down => sign && !exact,
            Round::Up => !sign && !exact,
        }
    }
}

/// A format: `F` bits of fraction, `E` of exponent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format<const F: u32, const E: u32>;

/// f32.
pub(super) const SINGLE: Format<23, 8> = Format;
/// f64.
pub(super) const DOUBLE: Format<52, 11> = Format;

/// A number without its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Nan {
        signaling: bool,
    },
    Infinity,
    Zero,
    /// significand × 2^(exponent - 127); the top bit of the significand is set.
    Finite {
        exponent: i32,
        significand: u128,
    },
}
use Number::{Finite, Infinity, Nan, Zero};

/// Shifts right; the last bit tells whether anything was lost.
fn jam(value: u128, by: u32) -> u128 {
    match by {
        0 => value,
        1..128 => (value >> by) | u128::from(value << (128 - by) != 0),
        _ => u128::from(value != 0),
    }
}

/// Cuts off the low bits, and rounds.
fn cut(value: u128, by: u32, round: Round, sign: bool) -> (u128, bool) {
    let (kept, rest, half) = match by {
        0 => return (value, true),
        1..128 => (value >> by, value << (128 - by), 1 << 127),
        128 => (0, value, 1 << 127),
        // Less than a quarter of the last bit.
        _ => (0, u128::from(value != 0), 1 << 127),
    };
    let exact = rest == 0;
    let up = round.is_up(sign, kept & 1 != 0, exact, rest.cmp(&half));
    (kept + u128::from(up), exact)
}

/// Moves the top bit to its place.
fn normalize(exponent: i32, significand: u128) -> Number {
    match significand.leading_zeros() {
        128 => Zero,
        by => Finite {
            exponent: exponent - by as i32,
            significand: significand << by,
        },
    }
}

impl<const F: u32, const E: u32> Format<F, E> {
    const BIAS: i32 = (1 << (E - 1)) - 1;
    const SIGN: u64 = 1 << (F + E);
    const INFINITY: u64 = ((1 << E) - 1) << F;
    /// The NaN that every operation gives.
    pub(super) const NAN: u64 = Self::INFINITY | (1 << (F - 1));

    fn sign(bits: u64) -> bool {
        bits & Self::SIGN != 0
    }

    fn signed(sign: bool, bits: u64) -> u64 {
        bits | if sign { Self::SIGN } else { 0 }
    }

    fn unpack(bits: u64) -> Number {
        let fraction = bits & ((1 << F) - 1);
        let exponent = (bits >> F) & ((1 << E) - 1);
        match (exponent, fraction) {
            (0, 0) => Zero,
            (0, _) => normalize(1 - Self::BIAS, u128::from(fraction) << (127 - F)),
            (_, 0) if exponent == (1 << E) - 1 => Infinity,
            _ if exponent == (1 << E) - 1 => Nan {
                signaling: fraction >> (F - 1) == 0,
            },
            _ => Finite {
                exponent: exponent as i32 - Self::BIAS,
                significand: u128::from(fraction | (1 << F)) << (127 - F),
            },
        }
    }

    /// Rounds significand × 2^(exponent - 127).
    fn pack(sign: bool, number: Number, round: Round, flags: &mut u32) -> u64 {
        let (exponent, significand) = match number {
            Nan { .. } => return Self::NAN,
            Infinity => return Self::signed(sign, Self::INFINITY),
            Zero => return Self::signed(sign, 0),
            Finite {
                exponent,
                significand,
            } => (exponent, significand),
        };
        let least = 1 - Self::BIAS;
        let below = (least - exponent).clamp(0, 200) as u32;
        let (kept, exact) = cut(significand, 127 - F + below, round, sign);
        let biased = u128::from((exponent.max(least) + Self::BIAS - 1) as u32);
        let bits = (biased << F) + kept;
        if bits >= u128::from(Self::INFINITY) {
            *flags |= OF | NX;
            let up = round.is_up(sign, true, false, std::cmp::Ordering::Greater);
            return Self::signed(sign, Self::INFINITY - u64::from(!up));
        }
        if !exact {
            *flags |= NX;
            // Tiny is what would be below the least normal number with any exponent allowed.
            let (wide, _) = cut(significand, 127 - F, round, sign);
            if below > 1 || (below == 1 && wide >> (F + 1) == 0) {
                *flags |= UF;
            }
        }
        Self::signed(sign, bits as u64)
    }

    /// Handles NaNs among the operands.
    fn nan(operands: &[u64], flags: &mut u32) -> Option<u64> {
        let mut found = None;
        for &bits in operands {
            if let Nan { signaling } = Self::unpack(bits) {
                found = Some(Self::NAN);
                *flags |= if signaling { NV } else { 0 };
            }
        }
        found
    }

    fn invalid(flags: &mut u32) -> u64 {
        *flags |= NV;
        Self::NAN
    }

    /// Adds numbers with signs, of which none is a NaN.
    fn sum(a: (bool, Number), b: (bool, Number), round: Round, flags: &mut u32) -> u64 {
        let (x, y) = match (a.1, b.1) {
            (Infinity, Infinity) if a.0 != b.0 => return Self::invalid(flags),
            (Infinity, _) => return Self::signed(a.0, Self::INFINITY),
            (_, Infinity) => return Self::signed(b.0, Self::INFINITY),
            (Zero, Zero) if a.0 == b.0 => return Self::signed(a.0, 0),
            (Zero, Zero) => return Self::signed(round == Round::Down, 0),
            (Zero, _) => return Self::pack(b.0, b.1, round, flags),
            (_, Zero) => return Self::pack(a.0, a.1, round, flags),
            (
                Finite {
                    exponent: x,
                    significand: s,
                },
                Finite {
                    exponent: y,
                    significand: t,
                },
            ) => ((x, s >> 1), (y, t >> 1)),
            (Nan { .. }, _) | (_, Nan { .. }) => return Self::NAN,
        };
        // A significand has at most 106 bits, so that one bit less loses nothing.
        let exponent = x.0.max(y.0);
        let x = jam(x.1, (exponent - x.0) as u32);
        let y = jam(y.1, (exponent - y.0) as u32);
        let (sign, sum) = match a.0 == b.0 {
            true => (a.0, x + y),
            false if x >= y => (a.0, x - y),
            false => (b.0, y - x),
        };
        match normalize(exponent + 1, sum) {
            Zero => Self::signed(round == Round::Down, 0),
            number => Self::pack(sign, number, round, flags),
        }
    }

    /// Multiplies exactly. `None`: infinity times zero.
    fn product(a: Number, b: Number) -> Option<Number> {
        Some(match (a, b) {
            (Infinity, Zero) | (Zero, Infinity) => return None,
            (Infinity, _) | (_, Infinity) => Infinity,
            (
                Finite {
                    exponent: x,
                    significand: s,
                },
                Finite {
                    exponent: y,
                    significand: t,
                },
            ) => normalize(x + y + 1, (s >> 64) * (t >> 64)),
            _ => Zero,
        })
    }

    /// a + b
    pub(super) fn add(self, a: u64, b: u64, round: Round, flags: &mut u32) -> u64 {
        if let Some(nan) = Self::nan(&[a, b], flags) {
            return nan;
        }
        let [a, b] = [a, b].map(|bits| (Self::sign(bits), Self::unpack(bits)));
        Self::sum(a, b, round, flags)
    }

    /// -a
    pub(super) fn negate(self, a: u64) -> u64 {
        a ^ Self::SIGN
    }

    /// a × b
    pub(super) fn multiply(self, a: u64, b: u64, round: Round, flags: &mut u32) -> u64 {
        if let Some(nan) = Self::nan(&[a, b], flags) {
            return nan;
        }
        let sign = Self::sign(a) != Self::sign(b);
        match Self::product(Self::unpack(a), Self::unpack(b)) {
            Some(number) => Self::pack(sign, number, round, flags),
            None => Self::invalid(flags),
        }
    }

    /// a × b + c, rounded once
    pub(super) fn fused(self, (a, b, c): (u64, u64, u64), round: Round, flags: &mut u32) -> u64 {
        let product = match Self::nan(&[a, b], flags) {
            Some(_) => Some(Nan { signaling: false }),
            None => Self::product(Self::unpack(a), Self::unpack(b)),
        };
        let nan = Self::nan(&[c], flags);
        match (product, nan) {
            (None, _) => Self::invalid(flags),
            (Some(Nan { .. }), _) | (_, Some(_)) => Self::NAN,
            (Some(product), None) => {
                let sign = Self::sign(a) != Self::sign(b);
                let addend = (Self::sign(c), Self::unpack(c));
                Self::sum((sign, product), addend, round, flags)
            }
        }
    }

    /// a ÷ b
    pub(super) fn divide(self, a: u64, b: u64, round: Round, flags: &mut u32) -> u64 {
        if let Some(nan) = Self::nan(&[a, b], flags) {
            return nan;
        }
        let sign = Self::sign(a) != Self::sign(b);
        let quotient = match (Self::unpack(a), Self::unpack(b)) {
            (Infinity, Infinity) | (Zero, Zero) => return Self::invalid(flags),
            (Infinity, _) => Infinity,
            (Zero, _) | (_, Infinity) => Zero,
            (
                Finite {
                    exponent: x,
                    significand: s,
                },
                Finite {
                    exponent: y,
                    significand: t,
                },
            ) => {
                let by = t >> 64;
                let (bits, rest) = (s / by, s % by);
                // The quotient has 64 or 65 bits.
                normalize(x - y + 62, (bits << 1) | u128::from(rest != 0))
            }
            _ => {
                *flags |= DZ;
                Infinity
            }
        };
        Self::pack(sign, quotient, round, flags)
    }

    /// The square root.
    pub(super) fn root(self, a: u64, round: Round, flags: &mut u32) -> u64 {
        if let Some(nan) = Self::nan(&[a], flags) {
            return nan;
        }
        match Self::unpack(a) {
            Finite {
                exponent,
                significand,
            } if !Self::sign(a) => {
                // The exponent of a square is even.
                let odd = exponent & 1 == 0;
                let square = if odd { significand >> 1 } else { significand };
                let root = square.isqrt();
                let rest = root * root != square;
                let exponent = (exponent + i32::from(odd) - 1) / 2 + 63;
                let number = normalize(exponent, (root << 1) | u128::from(rest));
                Self::pack(false, number, round, flags)
            }
            Zero => a,
            Infinity if !Self::sign(a) => a,
            _ => Self::invalid(flags),
        }
    }

    /// Converts to an integer of `bits` bits. The result is extended to 64 bits by the sign of its
    /// last 32 if `bits` is 32.
    pub(super) fn to_integer(
        self,
        a: u64,
        (bits, signed): (u32, bool),
        round: Round,
        flags: &mut u32,
    ) -> u64 {
        let sign = Self::sign(a);
        let (least, most): (i128, i128) = match signed {
            true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            false => (0, (1 << bits) - 1),
        };
        let extend = |value: i128| match bits {
            32 => i64::from(value as i32) as u64,
            _ => value as u64,
        };
        let (magnitude, exact) = match Self::unpack(a) {
            Zero => return 0,
            Finite {
                exponent,
                significand,
            } if exponent < 64 => cut(significand, (127 - exponent) as u32, round, sign),
            number => {
                *flags |= NV;
                let negative = sign && !matches!(number, Nan { .. });
                return extend(if negative { least } else { most });
            }
        };
        let value = magnitude as i128 * if sign { -1 } else { 1 };
        if value < least || value > most {
            *flags |= NV;
            return extend(value.clamp(least, most));
        }
        *flags |= if exact { 0 } else { NX };
        extend(value)
    }

    /// Converts an integer to this format.
    pub(super) fn integer(self, value: i128, round: Round, flags: &mut u32) -> u64 {
        let number = normalize(127, value.unsigned_abs());
        Self::pack(value < 0, number, round, flags)
    }

    /// Converts a number of this format to another one.
    pub(super) fn convert<const G: u32, const H: u32>(
        self,
        a: u64,
        _: Format<G, H>,
        round: Round,
        flags: &mut u32,
    ) -> u64 {
        if Self::nan(&[a], flags).is_some() {
            return Format::<G, H>::NAN;
        }
        Format::<G, H>::pack(Self::sign(a), Self::unpack(a), round, flags)
    }

    /// Orders two numbers; `None` if one is a NaN. `quiet`: only signaling NaNs are invalid.
    pub(super) fn compare(
        self,
        a: u64,
        b: u64,
        quiet: bool,
        flags: &mut u32,
    ) -> Option<std::cmp::Ordering> {
        if Self::nan(&[a, b], flags).is_some() {
            *flags |= if quiet { 0 } else { NV };
            return None;
        }
        Some(Self::key(a).cmp(&Self::key(b)))
    }

    /// Returns an integer that is ordered like the number.
    fn key(bits: u64) -> i64 {
        let magnitude = (bits & !Self::SIGN) as i64;
        if Self::sign(bits) {
            -magnitude
        } else {
            magnitude
        }
    }

    /// Returns the smaller number, or the larger one.
    pub(super) fn extreme(self, a: u64, b: u64, larger: bool, flags: &mut u32) -> u64 {
        let is_nan = |bits| matches!(Self::unpack(bits), Nan { .. });
        Self::nan(&[a, b], flags);
        match (is_nan(a), is_nan(b)) {
            (true, true) => Self::NAN,
            (true, false) => b,
            (false, true) => a,
            _ => {
                // -0 is less than +0 here.
                let first = (Self::key(a), !Self::sign(a)) < (Self::key(b), !Self::sign(b));
                if first != larger {
                    a
                } else {
                    b
                }
            }
        }
    }

    /// Returns the class of a number, as FCLASS has it.
    pub(super) fn class(self, a: u64) -> u64 {
        let place = match Self::unpack(a) {
            Nan { signaling: true } => return 1 << 8,
            Nan { signaling: false } => return 1 << 9,
            Infinity => 0,
            Finite { exponent, .. } if exponent >= 1 - Self::BIAS => 1,
            Finite { .. } => 2,
            Zero => 3,
        };
        1 << if Self::sign(a) { place } else { 7 - place }
    }
}
