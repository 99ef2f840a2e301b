// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's structs.

pub(crate) use bindings::*;

#[path = "../../../../userlib/src/sys/bindings.rs"]
mod bindings;

/// The number that ioctl() takes for one of the driver's commands.
pub(crate) const fn request(command: u32) -> u64 {
    ((PINMAP_IOCTL_TYPE as u64) << 8) | command as u64
}
