// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory: where its pages are, and where they should be.

use std::ffi::{c_int, c_void};
use std::ptr;

use pinmap::accelerator::{Advice, Place};
use pinmap_dynamic::{Error, Result};

use crate::device::Device;
use crate::error::{refer, status};
use crate::options::answer;

/// To the memory of the host, as pinmap_prefetch() takes it.
pub const PINMAP_TO_HOST: u32 = 0;
/// To the memory of the device.
pub const PINMAP_TO_VRAM: u32 = 1;

/// The memory is to be on the host.
pub const PINMAP_PREFER_HOST: u32 = 1 << 0;
/// The memory is to be with the device.
pub const PINMAP_PREFER_VRAM: u32 = 1 << 1;
/// The device reaches the memory where it is, rather than have it moved.
pub const PINMAP_ACCESSED_BY_DEVICE: u32 = 1 << 2;
/// The memory is mostly read.
pub const PINMAP_READ_MOSTLY: u32 = 1 << 3;

/// The outcome for memory that was to move, in bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Prefetched {
    /// Bytes that moved.
    pub moved: u64,
    /// Bytes that were there already.
    pub there: u64,
    /// Bytes for which there was no room.
    pub no_room: u64,
    /// Bytes that stay: somebody has them pinned, shares them since fork(), or uses them just now.
    pub busy: u64,
    /// Bytes that never move: of files, shared or locked memory, addresses where nothing is.
    pub fixed: u64,
}

fn place(place: u32) -> Result<Place> {
    match place {
        PINMAP_TO_HOST => Ok(Place::Host),
        PINMAP_TO_VRAM => Ok(Place::Vram),
        _ => Err(Error::invalid(format!("there is no place {place}"))),
    }
}

fn memory(address: *const c_void, length: usize) -> *const [u8] {
    ptr::slice_from_raw_parts(address.cast::<u8>(), length)
}

/// Moves managed memory to the host or to the device: the whole pages around the range. `answer`
/// tells what became of it, and may be NULL; `size` is sizeof(struct pinmap_prefetched).
///
/// Errors: ENOENT, not all of it is managed; EINVAL, it is empty; EIO, the device did not copy it;
/// ENOMEM, out of memory; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_prefetch(
    device: *const Device,
    address: *const c_void,
    length: usize,
    to: u32,
    prefetched: *mut Prefetched,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let done = device
            .accelerator()?
            .prefetch(memory(address, length), place(to)?)?;
        if prefetched.is_null() {
            return Ok(());
        }
        let found = Prefetched {
            moved: done.moved,
            there: done.there,
            no_room: done.no_room,
            busy: done.busy,
            fixed: done.fixed,
        };
        // SAFETY: Room for `size` bytes, by the rules of C; the answer has no padding.
        unsafe { answer(prefetched, size, &found) }
    })
}

/// How much of the device's memory this program may have for managed memory, and has.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Budget {
    /// The most that it may have, in bytes. UINT64_MAX: there is no limit, as at first.
    pub limit: u64,
    /// Bytes that it has.
    pub used: u64,
    /// How many more bytes can move there now.
    pub room: u64,
}

/// Tells the budget of managed memory. `size` is sizeof(struct pinmap_budget_info).
///
/// Errors: ENOENT, nothing is managed; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_get_budget(
    device: *const Device,
    budget: *mut Budget,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let found = unsafe { refer(device, "device")? }
            .accelerator()?
            .budget()?;
        let found = Budget {
            limit: found.limit.unwrap_or(u64::MAX),
            used: found.used,
            room: found.room,
        };
        // SAFETY: Room for `size` bytes, by the rules of C; the answer has no padding.
        unsafe { answer(budget, size, &found) }
    })
}

/// Limits how many bytes of the device's memory this program has for managed memory; UINT64_MAX is
/// no limit. What is there stays. Memory beyond it stays on the host, where the device reaches it.
///
/// Errors: as for pinmap_get_budget().
#[no_mangle]
pub unsafe extern "C" fn pinmap_set_budget(device: *const Device, limit: u64) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let accelerator = unsafe { refer(device, "device")? }.accelerator()?;
        accelerator.set_budget((limit != u64::MAX).then_some(limit))?;
        Ok(())
    })
}

/// Says how managed memory is used, in place of what was said before; 0 is nothing.
///
/// Errors: ENOENT, not all of it is managed; EINVAL, it is empty, or the advice contradicts itself;
/// ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_advise(
    device: *const Device,
    address: *const c_void,
    length: usize,
    advice: u32,
) -> c_int {
    const PREFER: u32 = PINMAP_PREFER_HOST | PINMAP_PREFER_VRAM;
    const ALL: u32 = PREFER | PINMAP_ACCESSED_BY_DEVICE | PINMAP_READ_MOSTLY;
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        if advice & !ALL != 0 || advice & PREFER == PREFER {
            return Err(Error::invalid(format!("there is no advice {advice:#x}")));
        }
        let mut given = Advice::new();
        if advice & PINMAP_PREFER_HOST != 0 {
            given = given.prefer(Place::Host);
        }
        if advice & PINMAP_PREFER_VRAM != 0 {
            given = given.prefer(Place::Vram);
        }
        if advice & PINMAP_ACCESSED_BY_DEVICE != 0 {
            given = given.accessed_by_device();
        }
        if advice & PINMAP_READ_MOSTLY != 0 {
            given = given.read_mostly();
        }
        Ok(device
            .accelerator()?
            .advise(memory(address, length), given)?)
    })
}
