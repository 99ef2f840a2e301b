// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows: addresses that are reserved for managed memory, and all managed memory.

use std::ffi::c_void;
use std::ptr;

use pinmap::accelerator::WindowOptions;
use pinmap_dynamic::Error;

use crate::device::Device;
use crate::error::{destroy, enter, make, refer};
use crate::memory::Memory;
use crate::options::{options, MemoryOptions, PINMAP_AT_ADDRESS, PINMAP_ON_NODE};

/// Addresses at which there is only managed memory that the program allocates there, for the CPU
/// and for the device.
#[derive(Debug)]
pub struct Window(pinmap::accelerator::Window);

/// Has all memory of the program managed that the device can translate: it reaches it at any
/// pointer. Releasing the result ends that. It is no operand of a stream: pinmap_stream_memcpy()
/// takes pointers.
///
/// Errors: EEXIST, a range of this device is managed already; EOPNOTSUPP, the device cannot fault,
/// or the kernel lets no driver follow the memory of programs; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_manage_all(device: *const Device) -> *mut Memory {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let accelerator = unsafe { refer(device, "device")? }.accelerator()?;
        Ok(Memory(pinmap_dynamic::Memory::manage_all(accelerator)?))
    })
}

/// Reserves a window of `length` bytes, a multiple of 2 MiB. With PINMAP_AT_ADDRESS it begins at
/// device_address, which is the program's address, too.
///
/// Flags: PINMAP_AT_ADDRESS, PINMAP_ON_NODE.
///
/// Errors: EINVAL, the length or the address is no multiple of 2 MiB; EEXIST, something is there
/// already; ENOMEM, no address space is that large, or the user may not lock the page tables;
/// ENOSPC, the device has no room for them; EOPNOTSUPP, as for pinmap_manage_all().
#[no_mangle]
pub unsafe extern "C" fn pinmap_window_create(
    device: *const Device,
    length: usize,
    memory_options: *const MemoryOptions,
) -> *mut Window {
    make(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(memory_options)?) };
        given.check(PINMAP_AT_ADDRESS | PINMAP_ON_NODE)?;
        let mut wanted = WindowOptions::new(length);
        if given.has(PINMAP_AT_ADDRESS) {
            let at = usize::try_from(given.device_address);
            wanted = wanted.at(at.map_err(|_| Error::invalid("device_address is too large"))?);
        }
        if given.has(PINMAP_ON_NODE) {
            wanted = wanted.node(given.node);
        }
        Ok(Window(device.accelerator()?.window(wanted)?))
    })
}

/// Returns the first address of a window.
#[no_mangle]
pub unsafe extern "C" fn pinmap_window_address(window: *const Window) -> *mut c_void {
    enter(ptr::null_mut(), || {
        // SAFETY: A window, by the rules of C.
        let window = unsafe { refer(window, "window")? };
        Ok(ptr::with_exposed_provenance_mut(window.0.addr()))
    })
}

/// Allocates zeroed memory of a window: `offset` bytes behind its first address, a multiple of the
/// page size, or with SIZE_MAX in the first place that is large enough.
///
/// Errors: EINVAL, the length is 0, or the offset is no multiple; ENOMEM, there is no room in one
/// piece, or it reaches out of the window; EEXIST, some of it is allocated already.
#[no_mangle]
pub unsafe extern "C" fn pinmap_window_alloc(
    window: *const Window,
    offset: usize,
    length: usize,
) -> *mut Memory {
    make(|| {
        // SAFETY: A window, by the rules of C.
        let window = unsafe { refer(window, "window")? };
        let offset = (offset != usize::MAX).then_some(offset);
        let memory = pinmap_dynamic::Memory::in_window(&window.0, offset, length)?;
        Ok(Memory(memory))
    })
}

/// Destroys a window. Its addresses stay reserved until all memory of it is released. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_window_destroy(window: *mut Window) {
    // SAFETY: It comes from `make`, and is not used again, by the rules of C.
    unsafe { destroy(window) };
}
