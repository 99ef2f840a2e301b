// SPDX-License-Identifier: GPL-2.0
//! The structs of ioctls: `kernel::uaccess` reads and writes with calls for any length and any
//! position, into memory that was zeroed before.
//!
//! C header: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h).

use core::{mem::MaybeUninit, slice};
use kernel::{bindings, prelude::*, uaccess::UserPtr};

/// Reads the 4 bytes at `pointer`; `EFAULT`: they cannot be read.
fn read_u32(pointer: UserPtr) -> Result<u32> {
    let mut value = 0_u32;
    let to = (&raw mut value).cast();
    // SAFETY: `value` can be written. The call checks the other pointer.
    let left = unsafe { bindings::copy_from_user(to, pointer.as_const_ptr(), size_of_val(&value)) };
    if left != 0 {
        return Err(EFAULT);
    }
    Ok(value)
}

/// Reads a struct of `length` bytes at `pointer`, of which the first 4 are the size that the caller
/// gives, into `room`, and puts zeros behind it up to whole words. Asks `check` about that size. No
/// byte is read twice, so that the size is that of what is read. Returns the words, and the answer
/// of `check`; `EFAULT`: they cannot be read; `EINVAL`: there is no room.
pub(crate) fn read_struct<T>(
    pointer: UserPtr,
    length: usize,
    room: &mut [MaybeUninit<u64>],
    check: impl FnOnce(u32) -> Result<T>,
) -> Result<(&mut [u64], T)> {
    let count = length.div_ceil(size_of::<u64>());
    let room = room.get_mut(..count).ok_or(EINVAL)?;
    let padding = size_of_val(room).checked_sub(length).ok_or(EINVAL)?;
    let start = room.as_mut_ptr();
    // SAFETY: There is room for `length` bytes, as was just checked. The call checks the other
    // pointer.
    let left = unsafe { bindings::copy_from_user(start.cast(), pointer.as_const_ptr(), length) };
    if left != 0 {
        // Too short a struct may end before memory that cannot be read: that is said first.
        check(read_u32(pointer)?)?;
        return Err(EFAULT);
    }
    if padding != 0 {
        // SAFETY: These are the last bytes of the room.
        unsafe { start.cast::<u8>().add(length).write_bytes(0, padding) };
    }
    // SAFETY: All of it was written just now.
    let words = unsafe { slice::from_raw_parts_mut(start.cast::<u64>(), count) };
    let [a, b, c, d, ..] = words.first().ok_or(EINVAL)?.to_ne_bytes();
    let answer = check(u32::from_ne_bytes([a, b, c, d]))?;
    Ok((words, answer))
}

/// Writes `bytes` to `pointer`; `EFAULT`: they cannot be written.
pub(crate) fn write_struct(pointer: UserPtr, bytes: &[u8]) -> Result {
    // SAFETY: The bytes can be read. The call checks the other pointer.
    let left =
        unsafe { bindings::copy_to_user(pointer.as_mut_ptr(), bytes.as_ptr().cast(), bytes.len()) };
    if left != 0 {
        return Err(EFAULT);
    }
    Ok(())
}
