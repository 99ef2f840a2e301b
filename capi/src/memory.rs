// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device can reach: where it is, and its release.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic::{Error, Result};

use crate::device::Device;
use crate::error::{destroy, enter, refer, size, status, store};

/// Memory that a device can reach, which work in flight shares.
#[derive(Debug)]
pub struct Memory(pub(crate) Arc<pinmap_dynamic::Memory>);

/// Returns the address of the memory in this program; NULL for a registered file.
#[no_mangle]
pub unsafe extern "C" fn pinmap_address(memory: *const Memory) -> *mut c_void {
    enter(ptr::null_mut(), || {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        Ok(ptr::with_exposed_provenance_mut(memory.0.addr()))
    })
}

/// Returns the length of the memory in bytes.
#[no_mangle]
pub unsafe extern "C" fn pinmap_length(memory: *const Memory) -> usize {
    enter(0, || {
        // SAFETY: Memory, by the rules of C.
        Ok(unsafe { refer(memory, "memory")? }.0.len())
    })
}

/// Returns the number by which events name the memory.
#[no_mangle]
pub unsafe extern "C" fn pinmap_memory_id(memory: *const Memory) -> u64 {
    enter(0, || {
        // SAFETY: Memory, by the rules of C.
        Ok(unsafe { refer(memory, "memory")? }.0.id())
    })
}

/// Stores the address at which the device finds the byte at `offset`.
///
/// Errors: EINVAL, the memory has no such byte; ESTALE, it is released.
#[no_mangle]
pub unsafe extern "C" fn pinmap_device_address(
    memory: *const Memory,
    offset: usize,
    device_address: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        let found = memory.0.device_addr(offset)?;
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store(device_address, found, "device_address") }
    })
}

/// Stores the device address of a pointer into any memory of the device's, whoever registered it in
/// this program.
///
/// Errors: ENOENT, nothing of the device's is there, or nothing that is mapped.
#[no_mangle]
pub unsafe extern "C" fn pinmap_translate(
    device: *const Device,
    address: *const c_void,
    device_address: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let found = device.device.query(address.addr())?;
        let found = found.and_then(|info| info.device_addr).ok_or_else(|| {
            let text = format!("no memory of {} is at {address:p}", device.device);
            Error::new(Errno::ENOENT, ErrorKind::NotFound, text)
        })?;
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store(device_address, found, "device_address") }
    })
}

/// Has the device see what the CPU wrote to these bytes. Needed only if the device lacks
/// PINMAP_DEVICE_INFO_COHERENT; otherwise this does nothing.
///
/// Errors: EINVAL, the memory has no such bytes; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_sync_for_device(
    memory: *const Memory,
    offset: usize,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        memory.0.sync(offset, length, true)
    })
}

/// Has the CPU see what the device wrote to these bytes: see pinmap_sync_for_device().
///
/// Errors: as for pinmap_sync_for_device().
#[no_mangle]
pub unsafe extern "C" fn pinmap_sync_for_cpu(
    memory: *const Memory,
    offset: usize,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        memory.0.sync(offset, length, false)
    })
}

/// Takes memory away from the device, or frees it, when the work in flight that names it is done.
/// NULL is none. The memory is gone even if this fails, but for EBUSY and EDEADLK.
///
/// Errors: EBUSY, there are mappings of it (pinmap_map()), a transfer has it (pinmap_xdma_start()),
/// or the device does not end the work that names it, and nothing was done; EDEADLK, this is a host
/// function, and there is work in flight that names it, and nothing was done; EIO, the IOMMU or the
/// device failed: the device is cut off from all memory, and will soon be gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_release(memory: *mut Memory) -> c_int {
    status(|| {
        if memory.is_null() {
            return Ok(());
        }
        // SAFETY: Memory, by the rules of C.
        let Memory(held) = unsafe { refer(memory, "memory")? };
        let released = held.release();
        if let Err(error) = &released {
            match error.kind() {
                ErrorKind::Busy if held.is_mapped() => {
                    let hint = "`pinmap_unmap()` takes a mapping away";
                    return Err(error.clone().with_hint(hint));
                }
                ErrorKind::Busy | ErrorKind::Deadlock => return released,
                _ => {}
            }
        }
        // SAFETY: It comes from `make`, and is not used again, by the rules of C.
        unsafe { destroy(memory) };
        released
    })
}

/// Byte counts of C as those of Rust.
pub(crate) fn bytes(count: u64, width: usize) -> Result<usize> {
    let bytes = count.checked_mul(width as u64);
    let bytes = bytes.ok_or_else(|| Error::invalid(format!("{count} elements")))?;
    size(bytes, "the length")
}
