// SPDX-License-Identifier: GPL-2.0
//! Calls of the kernel's power management.
//!
//! C header: [`include/linux/pm.h`](srctree/include/linux/pm.h).

use super::{Driver, Registration};
use crate::sys::helpers;
use kernel::{bindings, error::from_result, ffi, prelude::*};

#[repr(transparent)]
pub(super) struct Power(pub(super) bindings::dev_pm_ops);
// SAFETY: The table is never written to.
unsafe impl Sync for Power {}

impl<T: Driver> Registration<T> {
    pub(super) const POWER: &'static Power = &Power(bindings::dev_pm_ops {
        prepare: Some(Self::prepare),
        suspend: Some(Self::suspend),
        freeze: Some(Self::suspend),
        poweroff: Some(Self::suspend),
        resume: Some(Self::resume),
        thaw: Some(Self::thaw),
        restore: Some(Self::resume),
        complete: Some(Self::complete),
        runtime_suspend: Some(Self::runtime_suspend),
        runtime_resume: Some(Self::runtime_resume),
        ..pin_init::zeroed()
    });

    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn prepare(dev: *mut bindings::device) -> ffi::c_int {
        // SAFETY: Valid, with the device lock held.
        let data = unsafe { Self::data(dev) };
        from_result(|| {
            data.map_or(Ok(()), |data| data.get_ref().prepare_sleep())
                .map(|()| 0)
        })
    }

    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn suspend(dev: *mut bindings::device) -> ffi::c_int {
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(dev) } {
            data.get_ref().sleep();
        }
        0
    }

    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn resume(dev: *mut bindings::device) -> ffi::c_int {
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(dev) } {
            data.get_ref().resume();
        }
        0
    }

    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn thaw(dev: *mut bindings::device) -> ffi::c_int {
        // SAFETY: No requirements.
        if unsafe { helpers::pinmap_hibernation_failed() } {
            // SAFETY: As here.
            return unsafe { Self::resume(dev) };
        }
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(dev) } {
            data.get_ref().sleep_on();
        }
        0
    }

    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn complete(dev: *mut bindings::device) {
        // SAFETY: Valid, with the device lock held.
        if let Some(data) = unsafe { Self::data(dev) } {
            data.get_ref().go_on();
        }
    }
    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn runtime_suspend(dev: *mut bindings::device) -> ffi::c_int {
        // SAFETY: Valid. The PM core calls this neither while the device is bound nor unbound.
        let Some(data) = (unsafe { Self::data(dev) }) else {
            return EBUSY.to_errno();
        };
        if data.get_ref().doze() {
            return 0;
        }
        // SAFETY: A device of this driver.
        unsafe { helpers::pinmap_runtime_busy(Self::pci_dev(dev)) };
        EBUSY.to_errno()
    }

    /// # Safety
    ///
    /// Called by the PM core.
    unsafe extern "C" fn runtime_resume(dev: *mut bindings::device) -> ffi::c_int {
        // SAFETY: As in `runtime_suspend`.
        if let Some(data) = unsafe { Self::data(dev) } {
            data.get_ref().wake();
        }
        0
    }

    /// # Safety
    ///
    /// `dev` must be part of a PCI function.
    unsafe fn pci_dev(dev: *mut bindings::device) -> *mut bindings::pci_dev {
        // SAFETY: By the requirements.
        unsafe { kernel::container_of!(dev, bindings::pci_dev, dev) }
    }
}
