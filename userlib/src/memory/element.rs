// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements: the plain data that memory shared with a device consists of.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Plain data of which device memory can consist: numbers, arrays of them, and structs that are
/// declared with [`element!`](crate::element). In memory, numbers are in the CPU's byte order.
///
/// With the features `bytemuck` and `zerocopy`, [`element!`](crate::element) takes types that have
/// the traits of these crates. The feature `half` implements the trait for `f16` and `bf16`.
///
/// Such a type takes that one line: `pinmap::element!(bytemuck: Descriptor);`. It is no element by
/// itself, because an implementation for every `T: bytemuck::Pod` would exclude all others: the
/// compiler would refuse a second one for `zerocopy`, and those for numbers, arrays and the structs
/// of [`element!`](crate::element) besides. Whether a type is an element would also depend on which
/// features another crate of the program has switched on.
///
/// # Safety
///
/// Any bytes must be a valid value, all bytes of a value must be initialised (no padding), and the
/// type must have neither references nor interior mutability.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no plain data that a device can share",
    note = "declare a struct with `pinmap::element!`, or name a type that is `bytemuck::Pod` there"
)]
pub unsafe trait Element: Copy + Send + Sync + 'static {}

/// A number that a device can be told as a value, for instance to
/// [fill](crate::accelerator::Work::fill) memory with it: an integer of 8 to 64 bits, `f32` or
/// `f64`, and with the feature `half` also `f16` and `bf16`.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap::Result;
/// use pinmap::accelerator::Number;
///
/// fn clear<T: Number + Default>(stream: &Stream, numbers: &mut Pinned<T>) -> Result<()> {
///     stream.scope(|work| work.fill(numbers, T::default()))
/// }
/// ```
pub trait Number: Element + sealed::Bits {}

pub(crate) mod sealed {
    /// The conversion that packets need. Sealed: other crates cannot implement it.
    pub trait Bits {
        /// The bits of the number, in the lowest bits of a word.
        fn bits(self) -> u64;
    }
}

macro_rules! numbers {
    ($($type:ty as $bits:ty: $to_bits:expr;)*) => { $(
        // SAFETY: A number has no padding, and any bytes are one.
        unsafe impl Element for $type {}
        impl Number for $type {}
        impl sealed::Bits for $type {
            fn bits(self) -> u64 {
                let to_bits: fn($type) -> $bits = $to_bits;
                to_bits(self).into()
            }
        }
    )* };
}

numbers! {
    u8 as u8: |value| value;
    u16 as u16: |value| value;
    u32 as u32: |value| value;
    u64 as u64: |value| value;
    usize as u64: |value| value as u64;
    i8 as u8: |value| value as u8;
    i16 as u16: |value| value as u16;
    i32 as u32: |value| value as u32;
    i64 as u64: |value| value as u64;
    isize as u64: |value| value as u64;
    f32 as u32: f32::to_bits;
    f64 as u64: f64::to_bits;
}

#[cfg(feature = "half")]
numbers! {
    half::f16 as u16: half::f16::to_bits;
    half::bf16 as u16: half::bf16::to_bits;
}

// SAFETY: A number has no padding, and any bytes are one.
unsafe impl Element for u128 {}
// SAFETY: As for `u128`.
unsafe impl Element for i128 {}
// SAFETY: An array is its elements, without anything in between.
unsafe impl<T: Element, const N: usize> Element for [T; N] {}

/// Declares structs of plain data, which device memory can consist of: descriptors, records, work
/// items. They get `#[repr(C)]`, `Clone` and `Copy`, and the compiler refuses them if they have
/// padding, or a field that is no [`Element`](crate::Element).
///
/// ```
/// pinmap::element! {
///     /// A descriptor, as the manual of the hardware defines it.
///     #[derive(Debug, Default, PartialEq)]
///     pub struct Descriptor {
///         pub source: u64,
///         pub target: u64,
///         pub len: u32,
///         pub status: u32,
///     }
/// }
///
/// fn ring(device: &pinmap::Device) -> pinmap::Result<pinmap::Allocation<Descriptor>> {
///     device.alloc(256)
/// }
/// ```
///
/// Padding is refused:
///
/// ```compile_fail,E0080
/// pinmap::element! {
///     struct Padded { short: u8, long: u32 }
/// }
/// ```
///
/// A field that an attribute removes is refused, too:
///
/// ```compile_fail,E0609
/// pinmap::element! {
///     struct Descriptor { short: u8, #[cfg(any())] gone: [u8; 3], long: u32 }
/// }
/// ```
///
/// The macro can be used where unsafe code is forbidden:
///
/// ```
/// #![forbid(unsafe_code)]
/// pinmap::element! {
///     struct Pair { first: u32, second: u32 }
/// }
/// ```
///
/// With the feature `zerocopy`, a type that has the traits `FromBytes`, `IntoBytes`, `Immutable`
/// of that crate and `Copy` becomes an element by `pinmap::element!(zerocopy: Descriptor)`. With
/// the feature `bytemuck`, a `Pod` becomes one by `pinmap::element!(bytemuck: Descriptor)`.
#[macro_export]
macro_rules! element {
    (zerocopy: $($type:ty),+ $(,)?) => { $(
        const _: () = $crate::__private::is_zerocopy::<$type>();
        // SAFETY: Any bytes are a value (`FromBytes`), all of its bytes are initialised
        // (`IntoBytes`), and nothing changes behind a shared reference (`Immutable`).
        unsafe impl $crate::Element for $type {}
    )+ };
    (bytemuck: $($type:ty),+ $(,)?) => { $(
        const _: () = $crate::__private::is_pod::<$type>();
        // SAFETY: `Pod` promises all of it.
        unsafe impl $crate::Element for $type {}
    )+ };
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $field_type:ty),*
            $(,)?
        }
    )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $field_type,)*
        }
        const _: () = {
            // An attribute may have removed a field, added one, or given one another type.
            #[allow(dead_code)]
            fn fields(value: $name) {
                let $name { $($field,)* } = value;
                $(let _: $field_type = $field;)*
            }
            $($crate::__private::is_element::<$field_type>();)*
            let end = 0;
            $(
                ::core::assert!(
                    ::core::mem::offset_of!($name, $field) == end,
                    "the struct has padding"
                );
                let end = end + ::core::mem::size_of::<$field_type>();
            )*
            ::core::assert!(end == ::core::mem::size_of::<$name>(), "the struct has padding");
        };
        // SAFETY: All fields are elements, and there is nothing between them.
        unsafe impl $crate::Element for $name {}
    )+ };
}

/// Fails to compile for elements that memory cannot consist of, although they are plain data.
pub(crate) const fn check_layout<T: Element>() {
    const {
        assert!(size_of::<T>() != 0, "an element must have a size");
        assert!(
            align_of::<T>() <= 4096,
            "an element must not be aligned to more than a page"
        );
    }
}

/// The element of which all bytes are zero.
pub(crate) fn zero<T: Element>() -> T {
    // SAFETY: Any bytes are a valid value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The bytes of elements.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    let start = elements.as_ptr().cast();
    // SAFETY: All bytes of an element are initialised, and do not change as long as it is borrowed.
    unsafe { std::slice::from_raw_parts(start, size_of_val(elements)) }
}

/// The bytes of elements, for writing.
pub(crate) fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let start = elements.as_mut_ptr().cast();
    // SAFETY: As for `bytes_of`, and any bytes that are written are valid elements.
    unsafe { std::slice::from_raw_parts_mut(start, size_of_val(elements)) }
}

#[cfg(test)]
mod tests {
    use super::sealed::Bits;
    use super::*;

    fn there_and_back<T: Element + Bits + PartialEq + std::fmt::Debug>(value: T, bits: u64) {
        let mut copy = [zero::<T>()];
        assert!(bytes_of(&copy).iter().all(|&byte| byte == 0));
        bytes_of_mut(&mut copy).copy_from_slice(bytes_of(&[value]));
        assert_eq!(copy, [value]);
        assert_eq!(value.bits(), bits);
        assert!(bytes_of(&copy).iter().any(|&byte| byte != 0));
    }

    #[test]
    fn numbers_are_their_bytes() {
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
        #[cfg(feature = "half")]
        there_and_back(half::f16::ONE, 0x3c00);
    }

    #[test]
    fn structs_are_their_bytes() {
        crate::element! {
            #[derive(Debug, PartialEq)]
            struct Descriptor { addr: u64, words: [u16; 3], flags: u8, more: u8 }
        }
        let value = Descriptor {
            addr: 0x0807_0605_0403_0201,
            words: [1, 2, 3],
            flags: 0xaa,
            more: 0,
        };
        let bytes = bytes_of(std::slice::from_ref(&value));
        assert_eq!((bytes.len(), bytes[14]), (16, 0xaa));
        let mut copy = [zero::<Descriptor>()];
        bytes_of_mut(&mut copy).copy_from_slice(bytes);
        assert_eq!(copy[0], value);
    }
}
