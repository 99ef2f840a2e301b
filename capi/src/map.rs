// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings: device addresses that memory has besides its first one.

use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::sync::Arc;

use nix::errno::Errno;
use pinmap::{MapOptions, Mapping};

use crate::error::{make, refer, status, store, ErrorKind, Failure};
use crate::memory::{Memory, Owner};
use crate::options::{options, MemoryOptions, PINMAP_AT_ADDRESS, PINMAP_READ_ONLY};

/// A device address that memory has besides its first one.
pub struct MemoryMapping {
    mapping: Option<Mapping<'static>>,
    memory: Arc<Memory>,
}

impl fmt::Debug for MemoryMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryMapping").field(&self.mapping).finish()
    }
}

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
        let (memory, given) =
            unsafe { (Memory::share(memory, "memory")?, options(memory_options)?) };
        given.check(PINMAP_READ_ONLY | PINMAP_AT_ADDRESS)?;
        let mut map = MapOptions::new(given.access());
        if given.has(PINMAP_AT_ADDRESS) {
            map = map.at(given.device_address);
        }
        if given.address_bits != 0 {
            map = map.address_bits(given.address_bits);
        }
        let mapping = memory.with(|held| {
            let mapping = match &held.owner {
                Owner::Registration(registration) => registration.map(map)?,
                Owner::File(file) => file.map(map)?,
                _ => {
                    return Err(Failure::new(
                        Errno::EOPNOTSUPP,
                        ErrorKind::Unsupported,
                        "only registered memory and registered files are mapped again",
                    ))
                }
            };
            // SAFETY: The registration is not released as long as there is a mapping: see
            // `pinmap_release`. It stays where it is.
            let mapping = unsafe { mem::transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
            held.mappings += 1;
            Ok(mapping)
        })?;
        let mapping = Some(mapping);
        Ok(MemoryMapping { mapping, memory })
    })
}

/// Stores the device address of a mapping: that of the first byte of the first page.
#[no_mangle]
pub unsafe extern "C" fn pinmap_mapping_address(
    mapping: *const MemoryMapping,
    device_address: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: A mapping, by the rules of C.
        let mapping = unsafe { refer(mapping, "mapping")? };
        let found = mapping.mapping.as_ref().map_or(0, Mapping::device_addr);
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
        let mut mapping = unsafe { Box::from_raw(mapping) };
        let unmapped = mapping.mapping.take().map_or(Ok(()), Mapping::unmap);
        mapping.memory.with(|held| {
            held.mappings -= 1;
            Ok(())
        })?;
        Ok(unmapped?)
    })
}
