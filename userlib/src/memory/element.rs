// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements: the numbers that memory shared with a device consists of.

/// A number of which device memory can consist: an integer of 8 to 64 bits, `f32` or `f64`. In
/// memory, elements are in the CPU's byte order.
pub trait Element: sealed::Element {}

pub(crate) mod sealed {
    /// The conversions that accesses need. Sealed: other crates cannot implement it.
    pub trait Element: Copy + std::fmt::Debug + Send + Sync + 'static {
        /// The value of zeroed memory.
        const ZERO: Self;
        /// Reads the element from its bytes in memory. Panics if they are not as many as its size.
        fn from_bytes(bytes: &[u8]) -> Self;
        /// Writes the bytes of the element. Panics if there is not exactly room for its size.
        fn to_bytes(self, bytes: &mut [u8]);
        /// The bits of the element, in the lowest bits of a word.
        fn bits(self) -> u64;
    }
}

macro_rules! elements {
    ($($type:ty as $bits:ty: $to_bits:expr;)*) => { $(
        impl Element for $type {}
        impl sealed::Element for $type {
            const ZERO: Self = 0 as $type;
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_ne_bytes(own)
            }
            fn to_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
            fn bits(self) -> u64 {
                let to_bits: fn($type) -> $bits = $to_bits;
                to_bits(self).into()
            }
        }
    )* };
}

elements! {
    u8 as u8: |value| value;
    u16 as u16: |value| value;
    u32 as u32: |value| value;
    u64 as u64: |value| value;
    i8 as u8: |value| value as u8;
    i16 as u16: |value| value as u16;
    i32 as u32: |value| value as u32;
    i64 as u64: |value| value as u64;
    f32 as u32: f32::to_bits;
    f64 as u64: f64::to_bits;
}

#[cfg(test)]
mod tests {
    use super::sealed::Element;

    fn there_and_back<T: Element + PartialEq>(value: T, bits: u64) {
        let mut bytes = vec![0; size_of::<T>()];
        value.to_bytes(&mut bytes);
        assert_eq!(T::from_bytes(&bytes), value);
        assert_eq!(value.bits(), bits);
        assert!(bytes.iter().any(|&byte| byte != 0));
        T::ZERO.to_bytes(&mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn elements_are_their_bytes() {
        there_and_back(0x12u8, 0x12);
        there_and_back(-1i8, 0xff);
        there_and_back(-2i16, 0xfffe);
        there_and_back(0xabcdu16, 0xabcd);
        there_and_back(-1i32, 0xffff_ffff);
        there_and_back(7u32, 7);
        there_and_back(-1i64, u64::MAX);
        there_and_back(u64::MAX, u64::MAX);
        there_and_back(1.0f32, 0x3f80_0000);
        there_and_back(-0.5f64, 0xbfe0_0000_0000_0000);
    }
}
