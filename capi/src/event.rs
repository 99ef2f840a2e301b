// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of a device.

use std::ffi::c_int;

use pinmap::DeviceEvent;

use crate::device::Device;
use crate::error::{refer, status, timeout};
use crate::options::answer;

/// Registered memory left the address space of the program, and the device cannot reach it any
/// more: `id` of the memory, `address`, `length`.
pub const PINMAP_EVENT_TYPE_STALE: u32 = 1;
/// A stream has stopped: `id` of its queue, `address` of the access that was refused, or 0, and the
/// number of the `packet`.
pub const PINMAP_EVENT_TYPE_FAULT: u32 = 2;
/// Managed memory goes to and fro: `id` of the memory, `address`, `length`.
pub const PINMAP_EVENT_TYPE_THRASHING: u32 = 3;
/// The device is gone. This is the last event.
pub const PINMAP_EVENT_TYPE_GONE: u32 = 4;
/// An event that this library does not know, with the driver's number as `id`.
pub const PINMAP_EVENT_TYPE_OTHER: u32 = 5;
/// The system has slept, or was about to. The flat device that this program owns was cut off
/// meanwhile, and may have lost the state of its registers. Memory, mappings and interrupts are
/// there as before.
pub const PINMAP_EVENT_TYPE_RESUMED: u32 = 6;

/// An event of a device. What the type does not name is 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct DeviceEventInfo {
    /// PINMAP_EVENT_TYPE_STALE or another.
    pub event_type: u32,
    /// 0
    pub reserved: u32,
    /// The handle that the event is about.
    pub id: u64,
    /// An address in this program, or of the device.
    pub address: u64,
    /// A length in bytes.
    pub length: u64,
    /// The number of a packet.
    pub packet: u64,
}

/// Takes the next event of a device. Waits for one, for at most so many milliseconds; -1 is for
/// ever, and 0 only looks. `size` is sizeof(struct pinmap_device_event).
///
/// Errors: ETIMEDOUT, the time was up; ENODEV, the device is gone, and the last event was taken.
#[no_mangle]
pub unsafe extern "C" fn pinmap_next_event(
    device: *const Device,
    timeout_ms: c_int,
    event: *mut DeviceEventInfo,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let taken = match timeout(timeout_ms)? {
            Some(timeout) => device.device.next_event_timeout(timeout)?,
            None => device.device.next_event()?,
        };
        let mut found = DeviceEventInfo::default();
        match taken {
            DeviceEvent::Stale { handle, addr, len } => {
                found.event_type = PINMAP_EVENT_TYPE_STALE;
                (found.id, found.address, found.length) = (handle, addr as u64, len as u64);
            }
            DeviceEvent::Fault {
                queue,
                device_addr,
                packet,
                ..
            } => {
                found.event_type = PINMAP_EVENT_TYPE_FAULT;
                (found.id, found.address, found.packet) = (queue, device_addr, packet);
            }
            DeviceEvent::Thrashing { range, addr, len } => {
                found.event_type = PINMAP_EVENT_TYPE_THRASHING;
                (found.id, found.address, found.length) = (range, addr as u64, len as u64);
            }
            DeviceEvent::Resumed => found.event_type = PINMAP_EVENT_TYPE_RESUMED,
            DeviceEvent::Gone => found.event_type = PINMAP_EVENT_TYPE_GONE,
            DeviceEvent::Other(number) => {
                (found.event_type, found.id) = (PINMAP_EVENT_TYPE_OTHER, number.into());
            }
            _ => found.event_type = PINMAP_EVENT_TYPE_OTHER,
        }
        // SAFETY: Room for `size` bytes, by the rules of C; the answer has no padding.
        unsafe { answer(event, size, &found) }
    })
}
