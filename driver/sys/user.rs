// SPDX-License-Identifier: GPL-2.0
//! The structs of ioctls: `kernel::uaccess` reads and writes with calls for any length and any
//! position, into memory that was zeroed before.
//!
//! C header: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h).

use super::helpers;
use core::{mem::MaybeUninit, slice};
use kernel::{bindings, prelude::*, uaccess::UserPtr};

/// Reads the 4 bytes at `pointer`; `EFAULT`: they cannot be read.
fn read_u32(pointer: UserPtr) -> Result<u32> {
    let mut value = 0;
    let pointer = pointer.as_const_ptr().addr();
    // SAFETY: `value` can be written. The call checks the other pointer.
    if unsafe { helpers::pinmap_get_user_u32(pointer, &mut value) } != 0 {
        return Err(EFAULT);
    }
    Ok(value)
}

/// Reads a struct at `pointer` whose first 4 bytes are its size, and whose first version has
/// `first` bytes. Asks `plan`, with the size, how many bytes to read: at least `first`. Reads them
/// into `room`, and puts zeros behind them, up to a length of `length` bytes, rounded up to whole
/// words. No byte of these is read twice, so that the size is that of what is read. Returns the
/// words; `EFAULT`: they cannot be read; `EINVAL`: there is no room.
pub(crate) fn read_struct(
    pointer: UserPtr,
    first: usize,
    length: usize,
    room: &mut [MaybeUninit<u64>],
    plan: impl FnOnce(u32) -> Result<usize>,
) -> Result<&mut [u64]> {
    let words = length.div_ceil(size_of::<u64>());
    let room = room.get_mut(..words).ok_or(EINVAL)?;
    let size = size_of_val(room);
    if !(size_of::<u32>()..=size).contains(&first) {
        return Err(EINVAL);
    }
    let start = room.as_mut_ptr();
    // SAFETY: There is room for `first` bytes, as was just checked. The call checks the other
    // pointer.
    let left = unsafe { bindings::copy_from_user(start.cast(), pointer.as_const_ptr(), first) };
    let copy = if left == 0 {
        // SAFETY: The first bytes were written just now. Words are aligned for half a word.
        plan(unsafe { start.cast::<u32>().read() })?
    } else {
        // Too short a struct may end before memory that cannot be read: that is said first.
        plan(read_u32(pointer)?)?;
        return Err(EFAULT);
    };
    let more = copy.checked_sub(first).ok_or(EINVAL)?;
    let rest = size.checked_sub(copy).ok_or(EINVAL)?;
    if more != 0 {
        let from = pointer.as_const_ptr().wrapping_byte_add(first);
        // SAFETY: There is room for `more` bytes behind the first ones, as was just checked. The
        // call checks the other pointer.
        let left = unsafe { bindings::copy_from_user(start.byte_add(first).cast(), from, more) };
        if left != 0 {
            return Err(EFAULT);
        }
    }
    if rest != 0 {
        // SAFETY: These are the last `rest` bytes of the room.
        unsafe { start.cast::<u8>().add(copy).write_bytes(0, rest) };
    }
    // SAFETY: All of it was written just now.
    Ok(unsafe { slice::from_raw_parts_mut(start.cast(), words) })
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
