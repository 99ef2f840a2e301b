// SPDX-License-Identifier: GPL-2.0
//! Attributes of a node's device in sysfs (`/sys/class/misc/pinmapN/NAME`): a number each.
//!
//! C header: [`include/linux/device.h`](srctree/include/linux/device.h).

use super::miscdevice::{Files, Node};
use crate::sys::helpers;
use kernel::{bindings, error::from_result, ffi, prelude::*};

/// An attribute. `sys/fs/attributes.c` has the names.
#[derive(Clone, Copy)]
pub(crate) enum Attribute {
    /// A `PINMAP_KIND_` value, shown as a word.
    Kind,
    /// Open files.
    Contexts,
    /// Bytes of memory that is pinned, that devices can reach, and that is managed.
    Pinned,
    Mapped,
    Managed,
    /// Queues that there are.
    Queues,
    /// Bytes of VRAM: all, and free.
    Vram,
    VramFree,
    FaultsServed,
    FaultsFailed,
    /// When a fault stopped a queue last, in seconds since 1970; 0: never.
    FaultFailedAt,
    /// How many faults a context may have before it is held off; can be set.
    FaultLimit,
    /// How long a context is held off, in milliseconds; can be set.
    FaultHoldOff,
    /// How often a context was held off.
    HeldOff,
}

impl Attribute {
    fn of(number: u32) -> Result<Self> {
        Ok(match number {
            helpers::PINMAP_ATTR_KIND => Self::Kind,
            helpers::PINMAP_ATTR_CONTEXTS => Self::Contexts,
            helpers::PINMAP_ATTR_PINNED => Self::Pinned,
            helpers::PINMAP_ATTR_MAPPED => Self::Mapped,
            helpers::PINMAP_ATTR_MANAGED => Self::Managed,
            helpers::PINMAP_ATTR_QUEUES => Self::Queues,
            helpers::PINMAP_ATTR_VRAM => Self::Vram,
            helpers::PINMAP_ATTR_VRAM_FREE => Self::VramFree,
            helpers::PINMAP_ATTR_FAULTS_SERVED => Self::FaultsServed,
            helpers::PINMAP_ATTR_FAULTS_FAILED => Self::FaultsFailed,
            helpers::PINMAP_ATTR_FAULT_FAILED_AT => Self::FaultFailedAt,
            helpers::PINMAP_ATTR_FAULT_LIMIT => Self::FaultLimit,
            helpers::PINMAP_ATTR_FAULT_HOLD_OFF => Self::FaultHoldOff,
            helpers::PINMAP_ATTR_HELD_OFF => Self::HeldOff,
            _ => return Err(EINVAL),
        })
    }
}

/// The attributes, for a misc device that is a [`Node<T>`]. All nodes must have the same `T`.
pub(super) fn groups<T: Files>() -> *mut *const bindings::attribute_group {
    // SAFETY: The functions are what the call expects, for nodes of `T`.
    unsafe { helpers::pinmap_attributes(Some(get::<T>), Some(set::<T>)) }
}

/// # Safety
///
/// `misc` must be that of a `Node<T>` that is registered, or being registered.
unsafe extern "C" fn get<T: Files>(
    misc: *mut bindings::miscdevice,
    which: u32,
    value: *mut u64,
) -> ffi::c_int {
    from_result(|| {
        // SAFETY: By the requirements.
        let device = unsafe { Node::<T>::device_of(misc) };
        let found = T::attribute(device, Attribute::of(which)?)?;
        // SAFETY: The caller has a place for the value.
        unsafe { *value = found };
        Ok(0)
    })
}

/// # Safety
///
/// As for [`get`].
unsafe extern "C" fn set<T: Files>(
    misc: *mut bindings::miscdevice,
    which: u32,
    value: u32,
) -> ffi::c_int {
    from_result(|| {
        // SAFETY: By the requirements.
        let device = unsafe { Node::<T>::device_of(misc) };
        T::set_attribute(device, Attribute::of(which)?, value)?;
        Ok(0)
    })
}
