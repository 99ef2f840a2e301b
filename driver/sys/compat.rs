// SPDX-License-Identifier: GPL-2.0
//! Differences between the kernel crates of Linux 7.2 and 7.3, selected by `--cfg` (see Kbuild).

use kernel::{bindings, ffi, module_param::ModuleParamAccess, prelude::*};

/// The error `EOPNOTSUPP`, for which 7.2 has no name.
pub(crate) fn unsupported() -> Error {
    errno(bindings::EOPNOTSUPP)
}

/// The error `ESTALE`, for which 7.2 has no name.
pub(crate) fn stale() -> Error {
    errno(bindings::ESTALE)
}

/// Whether `error` is `EHWPOISON`, for which 7.2 has no name.
pub(crate) fn is_poisoned(error: Error) -> bool {
    error == errno(bindings::EHWPOISON)
}

fn errno(number: u32) -> Error {
    Error::from_errno((number as ffi::c_int).wrapping_neg())
}

/// The `struct module` of this driver.
pub(crate) const fn this_module() -> &'static ThisModule {
    #[cfg(linux_at_least_7_3)]
    {
        kernel::module::this_module::<crate::LocalModule>()
    }
    #[cfg(not(linux_at_least_7_3))]
    {
        &crate::THIS_MODULE
    }
}

/// Reads a module parameter.
fn value<T: Copy>(parameter: &'static ModuleParamAccess<T>) -> T {
    #[cfg(linux_at_least_7_3)]
    {
        parameter.value()
    }
    #[cfg(not(linux_at_least_7_3))]
    {
        *parameter.value()
    }
}

/// Reads the module parameter `allow_unsafe_interrupts`.
pub(crate) fn allow_unsafe_interrupts() -> bool {
    value(&crate::module_parameters::allow_unsafe_interrupts) != 0
}

/// Reads the module parameter `max_registrations`.
pub(crate) fn max_registrations() -> u32 {
    value(&crate::module_parameters::max_registrations)
}
