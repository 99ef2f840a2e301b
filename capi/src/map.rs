// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings: device addresses that memory has besides its first one.

use std::ffi::c_int;

use crate::error::{make, refer, status, store};
use crate::memory::Memory;
use crate::options::{options, MemoryOptions, PINMAP_AT_ADDRESS, PINMAP_READ_ONLY};
use crate::register::register_options;

/// A device address that memory has besides its first one.
#[derive(Debug)]
pub struct MemoryMapping(pinmap_dynamic::MemoryMapping);

/// Gives registered memory or a registered file one more device address.
///
/// Flags: PINMAP_READ_ONLY, PINMAP_AT_ADDRESS.
///
/// Errors: EOPNOTSUPP, this kind of memory cannot be mapped again; otherwise as for
/// pinmap_register().
#[no_mangle]
pub unsafe extern "C" fn pinmap_map(
    memory: *const Memory,
    memory_options: *const MemoryOptions,
) -> *mut MemoryMapping {
    make(|| {
        // SAFETY: Memory and options, by the rules of C.
        let (memory, given) = unsafe { (refer(memory, "memory")?, options(memory_options)?) };
        given.check(PINMAP_READ_ONLY | PINMAP_AT_ADDRESS)?;
        Ok(MemoryMapping(memory.0.map(register_options(&given))?))
    })
}

/// Stores the device address of the first byte of a mapping.
#[no_mangle]
pub unsafe extern "C" fn pinmap_mapping_address(
    mapping: *const MemoryMapping,
    device_address: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: A mapping, by the rules of C.
        let mapping = unsafe { refer(mapping, "mapping")? };
        let found = mapping.0.device_addr();
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store(device_address, found, "device_address") }
    })
}

/// Takes a device address away from memory. The mapping is gone even if this fails.
///
/// Errors: EIO, the IOMMU or the device failed; the device is cut off from all memory then.
#[no_mangle]
pub unsafe extern "C" fn pinmap_unmap(mapping: *mut MemoryMapping) -> c_int {
    status(|| {
        if mapping.is_null() {
            return Ok(());
        }
        // SAFETY: It comes from `pinmap_map`, and is not used again, by the rules of C.
        unsafe { Box::from_raw(mapping) }.0.unmap()
    })
}
