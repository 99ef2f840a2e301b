// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types of a kernel's parameters, in numbers: the file for the device has those that its
//! compiler saw, and a launch compares them with those of the program. The text of the types is the
//! same, but by `cfg` it can mean another type, or another length.

use crate::Element;

/// Numbers of a kernel: whether it is unsafe, and the bytes that a block shares. Then those of each
/// parameter: its kind, size and alignment.
pub type Row = [u64; 3];

/// A number that a kernel takes.
///
/// # Safety
///
/// `KIND` is no other type's. Both sides have the trait for the same types.
#[diagnostic::on_unimplemented(message = "`{Self}` is no number that a kernel takes")]
pub unsafe trait Value: Copy + 'static {
    /// Which one it is.
    const KIND: u64;
}

macro_rules! values {
    ($($kind:literal: $type:ty,)*) => { $(
        // SAFETY: Each has its own number.
        unsafe impl Value for $type {
            const KIND: u64 = $kind;
        }
    )* };
}

values! {
    1: u8, 2: u16, 3: u32, 4: u64, 5: i8, 6: i16, 7: i32, 8: i64, 9: f32, 10: f64, 11: bool,
}

const fn row<T>(kind: u64) -> Row {
    [kind, size_of::<T>() as u64, align_of::<T>() as u64]
}

/// A kernel.
pub const fn kernel(is_unsafe: bool, shared: usize) -> Row {
    [is_unsafe as u64, shared as u64, 0]
}

/// A parameter that is a number.
pub const fn value<T: Value>() -> Row {
    row::<T>(T::KIND)
}

/// A parameter that is a pointer.
pub const fn pointer<T>() -> Row {
    assert!(
        size_of::<T>() == size_of::<usize>(),
        "a kernel takes no pointer to what has no fixed size"
    );
    row::<T>(12)
}

/// A parameter that is a slice of such elements.
pub const fn slice<T: Element>(is_mut: bool) -> Row {
    row::<T>(13 + is_mut as u64)
}

/// A parameter that is memory of the block.
pub const fn array<T: Element>() -> Row {
    row::<T>(15)
}

/// Bytes that a block shares, of arrays with these lengths.
pub const fn shared(arrays: &[usize]) -> usize {
    let (mut all, mut i) = (0usize, 0);
    while i < arrays.len() {
        let sum = match arrays[i].checked_next_multiple_of(16) {
            Some(bytes) => all.checked_add(bytes),
            None => None,
        };
        all = sum.expect("blocks cannot share so much memory");
        i += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_blocks_share_is_summed() {
        assert_eq!(super::shared(&[]), 0);
        assert_eq!(super::shared(&[1, 16, 17]), 16 + 16 + 32);
        for arrays in [&[usize::MAX][..], &[usize::MAX - 31, 16, 16]] {
            std::panic::catch_unwind(|| super::shared(arrays)).expect_err("too much");
        }
    }
}
