// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupts of a device.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use crate::device::Device;
use crate::error::{destroy, enter, make, refer, status, store_some, timeout};

/// An interrupt vector that is enabled.
#[derive(Debug)]
pub struct Interrupt(pub(crate) pinmap_dynamic::Interrupt);

/// Enables an interrupt vector, from 0 on. On a flat device this makes the program its owner.
///
/// Errors: ENOENT, the function has no such vector; EEXIST, this program has enabled it already;
/// EBUSY, another program owns the device; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_interrupt_enable(
    device: *const Device,
    vector: u32,
) -> *mut Interrupt {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        Ok(Interrupt(device.device.interrupt(vector)?.into()))
    })
}

/// Disables an interrupt vector. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_interrupt_disable(interrupt: *mut Interrupt) {
    // SAFETY: It comes from `pinmap_interrupt_enable`, and is not used again, by the rules of C.
    unsafe { destroy(interrupt) };
}

/// Waits for an interrupt, for at most so many milliseconds; -1 is for ever, and 0 only looks.
/// Stores how many there were since the last wait; `count` may be NULL.
///
/// If the device sends no other interrupt before this one is acknowledged, write that register,
/// read one back, and only then look for what is done: a write returns before the device has it.
///
/// Errors: ETIMEDOUT, the time was up; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_interrupt_wait(
    interrupt: *const Interrupt,
    timeout_ms: c_int,
    count: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: An interrupt, by the rules of C.
        let interrupt = unsafe { refer(interrupt, "interrupt")? };
        let found = match timeout(timeout_ms)? {
            Some(timeout) => interrupt.0.wait_timeout(timeout)?,
            None => interrupt.0.wait()?,
        };
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store_some(count, found) };
        Ok(())
    })
}

/// Returns the file descriptor of an interrupt, an eventfd that stays the interrupt's. poll() finds
/// it readable when there was one.
#[no_mangle]
pub unsafe extern "C" fn pinmap_interrupt_fd(interrupt: *const Interrupt) -> c_int {
    enter(-1, || {
        // SAFETY: An interrupt, by the rules of C.
        Ok(unsafe { refer(interrupt, "interrupt")? }.0.as_raw_fd())
    })
}
