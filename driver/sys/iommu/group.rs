// SPDX-License-Identifier: GPL-2.0
//! IOMMU groups: the functions that an IOMMU cannot tell apart.
//!
//! C header: [`include/linux/iommu.h`](srctree/include/linux/iommu.h).

use crate::sys::pci::Function;
use core::ptr::NonNull;
use kernel::{bindings, device, ffi, prelude::*, str::CStrExt};

/// The IOMMU group of a function, with a reference.
///
/// # Invariants
///
/// The pointer is valid and we own a reference.
pub(crate) struct Group(NonNull<bindings::iommu_group>);

// SAFETY: Groups are reference-counted and may be used from any thread.
unsafe impl Send for Group {}
// SAFETY: Groups are reference-counted and may be used from any thread.
unsafe impl Sync for Group {}

impl Group {
    /// Returns the group of `function`; `None` if no IOMMU translates its DMA.
    pub(crate) fn of(function: &Function) -> Option<Self> {
        // SAFETY: The device is valid.
        let group = unsafe { bindings::iommu_group_get(function.as_dev()) };
        // INVARIANT: The call took a reference.
        NonNull::new(group).map(Self)
    }

    /// Number of the group in sysfs.
    pub(crate) fn id(&self) -> u32 {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::iommu_group_id(self.0.as_ptr()) }.unsigned_abs()
    }

    /// Whether the interrupts of its members cannot reach anybody else's.
    pub(super) fn has_isolated_interrupts(&self) -> bool {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::iommu_group_has_isolated_msi(self.0.as_ptr()) }
    }

    pub(super) fn members(&self) -> usize {
        let mut count = 0_usize;
        self.for_each(count_member, (&raw mut count).cast());
        count
    }

    /// Logs each member, in the name of `function`.
    pub(crate) fn log_members(&self, function: &Function) {
        self.for_each(log_member, function.as_dev().cast());
    }

    fn for_each(&self, visit: MemberFn, data: *mut ffi::c_void) {
        // SAFETY: The group is valid by the type invariants; `visit` takes `data`.
        unsafe { bindings::iommu_group_for_each_dev(self.0.as_ptr(), data, Some(visit)) };
    }
}

type MemberFn = unsafe extern "C" fn(*mut bindings::device, *mut ffi::c_void) -> ffi::c_int;

/// # Safety
///
/// `data` must point to a `usize`.
unsafe extern "C" fn count_member(_: *mut bindings::device, data: *mut ffi::c_void) -> ffi::c_int {
    // SAFETY: By the requirements.
    let count = unsafe { &mut *data.cast::<usize>() };
    *count = count.saturating_add(1);
    0
}

/// # Safety
///
/// `member` and `data` must be valid devices.
unsafe extern "C" fn log_member(
    member: *mut bindings::device,
    data: *mut ffi::c_void,
) -> ffi::c_int {
    // SAFETY: Both are valid by the requirements; the name lives as long as the device.
    let (function, name) = unsafe {
        (
            device::Device::<device::Normal>::from_raw(data.cast()),
            CStr::from_char_ptr(bindings::dev_name(member)),
        )
    };
    dev_err!(function, "member of its IOMMU group: {}\n", name);
    0
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariants.
        unsafe { bindings::iommu_group_put(self.0.as_ptr()) };
    }
}
