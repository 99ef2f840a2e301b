// SPDX-License-Identifier: MIT OR Apache-2.0
//! BARs: registers and memory of a device that are mapped in the program.

use std::ffi::c_int;

use pinmap::Word;
use pinmap_dynamic::Result;

use crate::device::Device;
use crate::error::{destroy, enter, make, refer, size, status, store};

/// A BAR that is mapped.
#[derive(Debug)]
pub struct Bar(pinmap::Bar);

/// Maps a BAR, 0 to 5. On a flat device this makes the program its owner. Once the device is gone,
/// an access raises SIGBUS.
///
/// Errors: ENOENT, the function has no such BAR, or none that can be mapped; EBUSY, another program
/// owns the device; ENODEV, it is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_map(device: *const Device, number: u32) -> *mut Bar {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        Ok(Bar(device.device.bar(number as usize)?))
    })
}

/// Unmaps a BAR. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_unmap(bar: *mut Bar) {
    // SAFETY: It comes from `pinmap_bar_map`, and is not used again, by the rules of C.
    unsafe { destroy(bar) };
}

/// Returns the length of a BAR in bytes; 0 with an error.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_length(bar: *const Bar) -> u64 {
    enter(0, || {
        // SAFETY: A BAR, by the rules of C.
        Ok(unsafe { refer(bar, "bar")? }.0.len())
    })
}

/// # Safety
///
/// The pointers are those that the rules of C allow.
unsafe fn read<T: Word>(bar: *const Bar, offset: u64, value: *mut T) -> c_int {
    status(|| {
        // SAFETY: As the caller promises.
        let bar = unsafe { refer(bar, "bar")? };
        let read = bar.0.read(size(offset, "the offset")?)?;
        // SAFETY: As the caller promises.
        unsafe { store(value, read, "value") }
    })
}

/// # Safety
///
/// The pointer is one that the rules of C allow.
unsafe fn write<T: Word>(bar: *const Bar, offset: u64, value: T) -> c_int {
    status(|| {
        // SAFETY: As the caller promises.
        let bar = unsafe { refer(bar, "bar")? };
        bar.0.write(size(offset, "the offset")?, value)?;
        Ok(())
    })
}

/// Reads a register of 8 bits: one load, which no other access is merged with.
///
/// Errors: EINVAL, the BAR has no such register.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_read8(bar: *const Bar, offset: u64, value: *mut u8) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { read(bar, offset, value) }
}

/// Reads a register of 16 bits: see pinmap_bar_read8().
///
/// Errors: EINVAL, the BAR has no such register, or the offset is not aligned.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_read16(bar: *const Bar, offset: u64, value: *mut u16) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { read(bar, offset, value) }
}

/// Reads a register of 32 bits: see pinmap_bar_read16().
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_read32(bar: *const Bar, offset: u64, value: *mut u32) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { read(bar, offset, value) }
}

/// Reads a register of 64 bits: see pinmap_bar_read16().
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_read64(bar: *const Bar, offset: u64, value: *mut u64) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { read(bar, offset, value) }
}

/// Writes a register of 8 bits: one store. What the program stored to memory before is visible to
/// the device when the write reaches it.
///
/// Errors: EINVAL, the BAR has no such register.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_write8(bar: *const Bar, offset: u64, value: u8) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { write(bar, offset, value) }
}

/// Writes a register of 16 bits: see pinmap_bar_write8().
///
/// Errors: EINVAL, the BAR has no such register, or the offset is not aligned.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_write16(bar: *const Bar, offset: u64, value: u16) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { write(bar, offset, value) }
}

/// Writes a register of 32 bits: see pinmap_bar_write16().
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_write32(bar: *const Bar, offset: u64, value: u32) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { write(bar, offset, value) }
}

/// Writes a register of 64 bits: see pinmap_bar_write16().
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_write64(bar: *const Bar, offset: u64, value: u64) -> c_int {
    // SAFETY: By the rules of C.
    unsafe { write(bar, offset, value) }
}

/// Reads `count` words of 32 bits that follow each other, each by one load.
///
/// Errors: EINVAL, they do not lie in the BAR, or the offset is not aligned.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_read_words(
    bar: *const Bar,
    offset: u64,
    to: *mut u32,
    count: usize,
) -> c_int {
    status(|| {
        // SAFETY: By the rules of C.
        let (bar, to) = unsafe { (refer(bar, "bar")?, words(to, count)?) };
        Ok(bar.0.read_slice(size(offset, "the offset")?, to)?)
    })
}

/// Writes `count` words of 32 bits that follow each other, each by one store.
///
/// Errors: as for pinmap_bar_read_words().
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_write_words(
    bar: *const Bar,
    offset: u64,
    from: *const u32,
    count: usize,
) -> c_int {
    status(|| {
        // SAFETY: By the rules of C; they are only read.
        let (bar, from) = unsafe { (refer(bar, "bar")?, words(from.cast_mut(), count)?) };
        Ok(bar.0.write_slice(size(offset, "the offset")?, from)?)
    })
}

/// The words of C that are to be copied.
///
/// # Safety
///
/// There are so many words, to which nothing else refers meanwhile.
unsafe fn words<'a>(start: *mut u32, count: usize) -> Result<&'a mut [u32]> {
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: As the caller promises.
    unsafe {
        refer(start, "the words")?;
        Ok(std::slice::from_raw_parts_mut(start, count))
    }
}

/// Has the device see all writes to a BAR that were made before: reads a register of it.
#[no_mangle]
pub unsafe extern "C" fn pinmap_bar_flush(bar: *const Bar) -> c_int {
    status(|| {
        // SAFETY: A BAR, by the rules of C.
        unsafe { refer(bar, "bar")? }.0.flush();
        Ok(())
    })
}
