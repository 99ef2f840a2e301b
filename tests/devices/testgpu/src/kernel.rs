// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels (section 9 of the manual) with checked arguments. `compute` executes them.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use crate::fault::Reason;
use crate::packet::check_alignment;
use crate::regs;

/// Size limit of an operand, in bytes.
const OPERAND_LIMIT: u64 = 1 << 30;
/// Limit of the rows and columns of a matrix.
const MATRIX_LIMIT: u64 = 4096;

/// A kernel whose arguments are valid as far as can be judged without reading memory. Sizes are in
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kernel {
    Copy {
        destination: u64,
        source: u64,
        bytes: u64,
    },
    Fill {
        destination: u64,
        bytes: u64,
        value: u32,
    },
    Increment {
        data: u64,
        bytes: u64,
    },
    Saxpy {
        x: u64,
        y: u64,
        bytes: u64,
        a: f32,
    },
    Sum {
        data: u64,
        bytes: u64,
        destination: u64,
    },
    Histogram {
        data: u64,
        bytes: u64,
        destination: u64,
    },
    Crc {
        data: u64,
        bytes: u64,
        destination: u64,
    },
    Matmul {
        a: u64,
        b: u64,
        c: u64,
        m: usize,
        n: usize,
        k: usize,
    },
    Spin {
        nanoseconds: u64,
    },
    AtomicAdd {
        data: u64,
        bytes: u64,
        value: u64,
        times: u64,
    },
    Program {
        descriptor: u64,
    },
}

/// Checks a kernel's number and arguments.
pub fn decode(kernel: u32, arguments: [u64; 7]) -> Result<Kernel, Reason> {
    let used = match u64::from(kernel) {
        regs::KERNEL_SPIN | regs::KERNEL_PROGRAM => 1,
        regs::KERNEL_INCREMENT_F32 => 2,
        regs::KERNEL_COPY
        | regs::KERNEL_FILL
        | regs::KERNEL_SUM_F32
        | regs::KERNEL_HISTOGRAM_U8
        | regs::KERNEL_CRC32C => 3,
        regs::KERNEL_SAXPY | regs::KERNEL_ATOMIC_ADD_U64 => 4,
        regs::KERNEL_MATMUL_F32 => 6,
        _ => return Err(Reason::BadKernel),
    };
    if arguments.iter().skip(used).any(|argument| *argument != 0) {
        return Err(Reason::BadField);
    }
    let [a, b, c, d, e, f, _] = arguments;
    let word = |value: u64| u32::try_from(value).map_err(|_| Reason::BadField);
    Ok(match u64::from(kernel) {
        regs::KERNEL_COPY => Kernel::Copy {
            destination: a,
            source: b,
            bytes: length(c, 1)?,
        },
        regs::KERNEL_FILL => {
            check_alignment(a, 4)?;
            Kernel::Fill {
                destination: a,
                bytes: length(b, 4)?,
                value: word(c)?,
            }
        }
        regs::KERNEL_INCREMENT_F32 => {
            check_alignment(a, 4)?;
            Kernel::Increment {
                data: a,
                bytes: length(b, 4)?,
            }
        }
        regs::KERNEL_SAXPY => {
            check_alignment(a | b, 4)?;
            Kernel::Saxpy {
                x: a,
                y: b,
                bytes: length(c, 4)?,
                a: f32::from_bits(word(d)?),
            }
        }
        regs::KERNEL_SUM_F32 => {
            check_alignment(a | c, 4)?;
            Kernel::Sum {
                data: a,
                bytes: length(b, 4)?,
                destination: c,
            }
        }
        regs::KERNEL_HISTOGRAM_U8 => {
            check_alignment(c, 4)?;
            Kernel::Histogram {
                data: a,
                bytes: length(b, 1)?,
                destination: c,
            }
        }
        regs::KERNEL_CRC32C => {
            check_alignment(c, 4)?;
            Kernel::Crc {
                data: a,
                bytes: length(b, 1)?,
                destination: c,
            }
        }
        regs::KERNEL_MATMUL_F32 => {
            check_alignment(a | b | c, 4)?;
            Kernel::Matmul {
                a,
                b,
                c,
                m: side(d)?,
                n: side(e)?,
                k: side(f)?,
            }
        }
        regs::KERNEL_ATOMIC_ADD_U64 => {
            check_alignment(a, 8)?;
            // Progress counts the additions.
            b.checked_mul(d).ok_or(Reason::BadLength)?;
            Kernel::AtomicAdd {
                data: a,
                bytes: length(b, 8)?,
                value: c,
                times: d,
            }
        }
        regs::KERNEL_PROGRAM => {
            check_alignment(a, regs::PROGRAM_SIZE)?;
            Kernel::Program { descriptor: a }
        }
        _ => Kernel::Spin { nanoseconds: a },
    })
}

fn length(count: u64, size: u64) -> Result<u64, Reason> {
    let bytes = count.checked_mul(size).ok_or(Reason::BadLength)?;
    if bytes > OPERAND_LIMIT {
        return Err(Reason::BadLength);
    }
    Ok(bytes)
}

fn side(value: u64) -> Result<usize, Reason> {
    if value > MATRIX_LIMIT {
        return Err(Reason::BadLength);
    }
    usize::try_from(value).map_err(|_| Reason::BadLength)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn checks() {
        let kernel = |kernel: u64, arguments| decode(kernel as u32, arguments);
        assert_eq!(kernel(0, [0; 7]), Err(Reason::BadKernel));
        assert_eq!(kernel(12, [0; 7]), Err(Reason::BadKernel));
        assert_eq!(
            kernel(regs::KERNEL_INCREMENT_F32, [4, 5, 0, 0, 0, 0, 0]),
            Ok(Kernel::Increment { data: 4, bytes: 20 })
        );
        let too_long = [0, (1 << 28) + 1, 0, 0, 0, 0, 0];
        assert_eq!(
            kernel(regs::KERNEL_INCREMENT_F32, too_long),
            Err(Reason::BadLength)
        );
        let wraps = [0, 1 << 62, 0, 0, 0, 0, 0];
        assert_eq!(
            kernel(regs::KERNEL_INCREMENT_F32, wraps),
            Err(Reason::BadLength)
        );
        let unused = [0, 0, 1, 0, 0, 0, 0];
        assert_eq!(
            kernel(regs::KERNEL_INCREMENT_F32, unused),
            Err(Reason::BadField)
        );
        let unaligned = [2, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            kernel(regs::KERNEL_INCREMENT_F32, unaligned),
            Err(Reason::BadAlignment)
        );
        let wide = [0, 0, 1 << 32, 0, 0, 0, 0];
        assert_eq!(kernel(regs::KERNEL_FILL, wide), Err(Reason::BadField));
        let atomic = |arguments| kernel(regs::KERNEL_ATOMIC_ADD_U64, arguments);
        assert_eq!(
            atomic([8, 2, u64::MAX, 1 << 62, 0, 0, 0]),
            Ok(Kernel::AtomicAdd {
                data: 8,
                bytes: 16,
                value: u64::MAX,
                times: 1 << 62
            })
        );
        for (arguments, reason) in [
            ([4, 1, 1, 1, 0, 0, 0], Reason::BadAlignment),
            ([8, (1 << 27) + 1, 1, 1, 0, 0, 0], Reason::BadLength),
            ([8, 4, 1, 1 << 62, 0, 0, 0], Reason::BadLength),
            ([8, 1, 1, 1, 1, 0, 0], Reason::BadField),
        ] {
            assert_eq!(atomic(arguments), Err(reason));
        }
        let big = [0, 0, 0, 1, 1, 4097, 0];
        assert_eq!(kernel(regs::KERNEL_MATMUL_F32, big), Err(Reason::BadLength));
    }

    proptest! {
        #[test]
        fn any_arguments(number in 0..14_u32, arguments: [u64; 7]) {
            let _ = decode(number, arguments);
            let _ = decode(number, arguments.map(|argument| (argument >> 32) & !3));
        }
    }
}
