// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of kernels, as the standard calling convention (LP64D) passes them.

use std::fmt;
use std::marker::PhantomData;

use pinmap::accelerator::{DeviceSlice, DeviceSliceMut, Operands};
use pinmap::{Element, Result};

/// How many registers there are for integers and pointers, and as many for floats.
const REGISTERS: usize = 8;
/// Words in the descriptor's arguments: those of the registers, and 496 on the stack.
const MOST: usize = 512;

type Operand<'r> = Box<dyn FnOnce(&mut Operands<'_>) -> Result<u64> + 'r>;

enum Argument<'r> {
    Integer(u64),
    Float(u64),
    Shared(usize),
    Operand(Operand<'r>),
}

/// The arguments of a kernel, in the order of its parameters.
///
/// A slice is passed as a pointer to its first element; its length is an argument of its own. There
/// are at most 7 slices. They live as long as the work, `'w`.
pub struct Arguments<'w, 'r> {
    list: Vec<Argument<'r>>,
    /// Makes `'w` invariant: an operand cannot live for less.
    work: PhantomData<&'w mut &'w ()>,
}

impl<'w, 'r> Arguments<'w, 'r> {
    /// No arguments.
    #[expect(clippy::new_without_default, reason = "it is the begin of a list")]
    pub fn new() -> Self {
        Self {
            list: Vec::new(),
            work: PhantomData,
        }
    }

    /// Adds a number.
    pub fn value(mut self, value: impl Value) -> Self {
        self.list.push(if value.is_float() {
            Argument::Float(value.bits())
        } else {
            Argument::Integer(value.bits())
        });
        self
    }

    /// Adds a pointer to elements that the kernel reads.
    pub fn read<'a: 'w + 'r, T: Element>(self, slice: DeviceSlice<'a, T>) -> Self {
        self.operand(Box::new(move |operands| operands.read(&slice)))
    }

    /// Adds a pointer to elements that the kernel writes, and perhaps also reads. They must not
    /// overlap with any other slice.
    pub fn write<'a: 'w + 'r, T: Element>(self, slice: &'r mut DeviceSliceMut<'a, T>) -> Self {
        self.operand(Box::new(move |operands| operands.write(slice)))
    }

    /// Adds a pointer to so many bytes of what the threads of a block share, as a parameter in
    /// local memory is in OpenCL C. All such arguments of a launch, each rounded up to a multiple
    /// of 16, must fit into [`Grid::shared_bytes`](super::Grid::shared_bytes).
    pub fn shared(mut self, bytes: usize) -> Self {
        self.list.push(Argument::Shared(bytes));
        self
    }

    fn operand(mut self, operand: Operand<'r>) -> Self {
        self.list.push(Argument::Operand(operand));
        self
    }

    /// Checks the operands, and puts all arguments where the device wants them: the registers of
    /// integers, those of floats, and the stack. An even number of words. What the threads of a
    /// block share begins at `shared` and has `shared_bytes`.
    pub(super) fn place(
        self,
        operands: &mut Operands<'_>,
        shared: u64,
        shared_bytes: usize,
    ) -> Result<Vec<u64>> {
        let mut used = 0usize;
        let mut words = vec![0; 2 * REGISTERS];
        let (mut integers, mut floats) = (0, 0);
        for argument in self.list {
            let (is_float, bits) = match argument {
                Argument::Integer(bits) => (false, bits),
                Argument::Float(bits) => (true, bits),
                Argument::Shared(bytes) => {
                    let begin = used;
                    let rounded = bytes.checked_next_multiple_of(16);
                    let end = rounded.and_then(|bytes| begin.checked_add(bytes));
                    used = end.filter(|&end| end <= shared_bytes).ok_or_else(|| {
                        operands.refuse("the arguments have more shared memory than the grid")
                    })?;
                    (false, shared + begin as u64)
                }
                Argument::Operand(operand) => (false, operand(operands)?),
            };
            // Floats for which no register is left go where integers go.
            if is_float && floats < REGISTERS {
                words[REGISTERS + floats] = bits;
                floats += 1;
            } else if integers < REGISTERS {
                words[integers] = bits;
                integers += 1;
            } else {
                words.push(bits);
            }
        }
        words.resize(words.len().next_multiple_of(2), 0);
        if words.len() > MOST {
            return Err(operands.refuse("the arguments have more than 4096 bytes"));
        }
        Ok(words)
    }
}

impl fmt::Debug for Arguments<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = self.list.iter().map(|argument| match argument {
            Argument::Integer(bits) => format!("{bits:#x}"),
            Argument::Float(bits) => format!("float {bits:#x}"),
            Argument::Shared(bytes) => format!("{bytes} bytes, shared"),
            Argument::Operand(_) => "slice".to_owned(),
        });
        f.debug_list().entries(list).finish()
    }
}

mod sealed {
    pub trait Bits {
        /// The bits, as in a register of 64.
        fn bits(self) -> u64;

        /// Whether the register is one of floats.
        fn is_float(&self) -> bool {
            false
        }
    }
}
use sealed::Bits;

/// A number that a kernel takes as an argument: an integer of 1 to 8 bytes, `bool`, `f32` or
/// `f64`. Its type must be that of the parameter.
pub trait Value: Bits {}

macro_rules! values {
    ($($type:ty: $self:ident => $bits:expr;)*) => {
        $(
            impl Bits for $type {
                fn bits($self) -> u64 {
                    $bits
                }
            }
            impl Value for $type {}
        )*
    };
}

// Integers of 4 bytes are sign-extended, whether they have a sign or not; shorter ones by their
// kind.
values! {
    bool: self => u64::from(self);
    u8: self => u64::from(self);
    u16: self => u64::from(self);
    u32: self => i64::from(self as i32) as u64;
    u64: self => self;
    usize: self => self as u64;
    i8: self => i64::from(self) as u64;
    i16: self => i64::from(self) as u64;
    i32: self => i64::from(self) as u64;
    i64: self => self as u64;
    isize: self => self as u64;
}

impl Bits for f32 {
    fn bits(self) -> u64 {
        u64::from(self.to_bits()) | (u64::MAX << 32)
    }

    fn is_float(&self) -> bool {
        true
    }
}
impl Value for f32 {}

impl Bits for f64 {
    fn bits(self) -> u64 {
        self.to_bits()
    }

    fn is_float(&self) -> bool {
        true
    }
}
impl Value for f64 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_in_registers() {
        assert_eq!(0xffu8.bits(), 0xff);
        assert_eq!((-1i8).bits(), u64::MAX);
        assert_eq!(0x8000_0000u32.bits(), 0xffff_ffff_8000_0000);
        assert_eq!((-2i32).bits(), u64::MAX - 1);
        assert_eq!(1.0f32.bits(), 0xffff_ffff_3f80_0000);
        assert_eq!(1.0f64.bits(), 0x3ff0_0000_0000_0000);
        assert!(1.0f32.is_float() && !1u32.is_float());
    }
}
