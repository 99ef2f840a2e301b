// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of streams: points that other streams and the program wait for.

use std::ffi::c_int;

use pinmap::accelerator::Event;

use crate::device::Device;
use crate::error::{destroy, enter, make, refer, status, store, timeout};

/// A point in a stream.
#[derive(Debug)]
pub struct StreamEvent(pub(crate) Event);

/// Makes an event for the streams of a device. It is complete until it is recorded.
///
/// Errors: EOPNOTSUPP, the device has no streams; ENOMEM, out of memory; ENODEV, the device is
/// gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_event_create(device: *const Device) -> *mut StreamEvent {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        Ok(StreamEvent(device.accelerator()?.event()?))
    })
}

/// Destroys an event. Work that waits for it still does. NULL is none.
#[no_mangle]
pub unsafe extern "C" fn pinmap_event_destroy(event: *mut StreamEvent) {
    // SAFETY: It comes from `make`, and is not used again, by the rules of C.
    unsafe { destroy(event) };
}

/// Returns 1 if an event is complete, 0 if not, -1 with an error.
///
/// Errors: EIO, its stream has failed; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_event_query(event: *const StreamEvent) -> c_int {
    enter(-1, || {
        // SAFETY: An event, by the rules of C.
        Ok(unsafe { refer(event, "event")? }.0.query()?.into())
    })
}

/// Waits until an event is complete, for at most so many milliseconds; -1 is for ever.
///
/// Errors: ETIMEDOUT, the time was up; otherwise as for pinmap_stream_synchronize().
#[no_mangle]
pub unsafe extern "C" fn pinmap_event_synchronize(
    event: *const StreamEvent,
    timeout_ms: c_int,
) -> c_int {
    status(|| {
        // SAFETY: An event, by the rules of C.
        let event = unsafe { refer(event, "event")? };
        match timeout(timeout_ms)? {
            Some(timeout) => event.0.synchronize_timeout(timeout)?,
            None => event.0.synchronize()?,
        }
        Ok(())
    })
}

/// Stores how many nanoseconds passed between two events, by the device's clock.
///
/// Errors: EINVAL, one of them was never recorded, or they are of different devices; EAGAIN, one of
/// them is not complete.
#[no_mangle]
pub unsafe extern "C" fn pinmap_event_elapsed(
    begin: *const StreamEvent,
    end: *const StreamEvent,
    nanoseconds: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: Events, by the rules of C.
        let (begin, end) = unsafe { (refer(begin, "begin")?, refer(end, "end")?) };
        let elapsed = end.0.elapsed_since(&begin.0)?.as_nanos();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store(nanoseconds, elapsed, "nanoseconds") }
    })
}
