// SPDX-License-Identifier: GPL-2.0
//! Attributes of a node's device in sysfs (`/sys/class/misc/pinmapN/NAME`): numbers and words.
//!
//! C header: [`include/linux/device.h`](srctree/include/linux/device.h).

use super::miscdevice::{Files, Node};
use crate::sys::helpers;
use kernel::{bindings, error::from_result, ffi, prelude::*};

pub(crate) struct Attribute<T: 'static> {
    pub(crate) name: &'static CStr,
    pub(crate) get: Get<T>,
    /// Sets the value, if that is possible.
    pub(crate) set: Option<fn(&T, u32) -> Result>,
}

/// Tells the value of an attribute. An error: the device does not have it.
pub(crate) enum Get<T: 'static> {
    Number(fn(&T) -> Result<u64>),
    Word(fn(&T) -> Result<&'static CStr>),
}

fn all<T: Files>() -> impl Iterator<Item = &'static Attribute<T::Device>> {
    T::ATTRIBUTES.iter().copied().flatten()
}

/// The attributes, for a misc device that is a [`Node<T>`]. All nodes must have the same `T`.
pub(super) fn groups<T: Files>() -> *mut *const bindings::attribute_group {
    for (which, attribute) in (0..).zip(all::<T>()) {
        let name = attribute.name.as_char_ptr();
        // SAFETY: The name is static.
        unsafe { helpers::pinmap_attribute(which, name, attribute.set.is_some()) };
    }
    // SAFETY: The functions are what the call expects, for nodes of `T`.
    unsafe { helpers::pinmap_attributes(Some(get::<T>), Some(set::<T>)) }
}

/// # Safety
///
/// `misc` must be that of a `Node<T>` that is registered, or being registered.
unsafe extern "C" fn get<T: Files>(
    misc: *mut bindings::miscdevice,
    which: u32,
    number: *mut u64,
    word: *mut *const ffi::c_char,
) -> ffi::c_int {
    from_result(|| {
        // SAFETY: By the requirements.
        let device = unsafe { Node::<T>::device_of(misc) };
        let attribute = all::<T>().nth(which as usize).ok_or(EINVAL)?;
        match attribute.get {
            // SAFETY: The caller has a place for a number.
            Get::Number(get) => unsafe { *number = get(device)? },
            // SAFETY: The caller has a place for a word.
            Get::Word(get) => unsafe { *word = get(device)?.as_char_ptr() },
        }
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
        let attribute = all::<T>().nth(which as usize).ok_or(EINVAL)?;
        attribute.set.ok_or(EPERM)?(device, value)?;
        Ok(0)
    })
}
