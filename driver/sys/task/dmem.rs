// SPDX-License-Identifier: GPL-2.0
//! Control groups of device memory, which limit what programs allocate of it.
//!
//! C header: [`include/linux/cgroup_dmem.h`](srctree/include/linux/cgroup_dmem.h).

use crate::sys::{helpers, pci::Function};
use core::ptr;
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
};

/// The memory of one device, as control groups name it: `pinmap/BDF/vram`.
///
/// # Invariants
///
/// The pointer is that of a region that we have registered, or null in a kernel without
/// CONFIG_CGROUP_DMEM.
pub(crate) struct Region(*mut helpers::dmem_cgroup_region);

// SAFETY: A region may be used and unregistered from any thread.
unsafe impl Send for Region {}

impl Region {
    /// Registers the `bytes` of memory that `function` has.
    pub(crate) fn new(function: &Function, bytes: u64) -> Result<Self> {
        // SAFETY: The function is valid.
        let region = unsafe { helpers::pinmap_dmem_register(function.as_raw(), bytes) };
        // INVARIANT: It is registered now, or there are none.
        from_err_ptr(region).map(Self)
    }

    /// Charges `bytes` to the control group of the current task. `EDQUOT`: it may not have so much.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge> {
        let mut pool = ptr::null_mut();
        // SAFETY: The region is registered by the type invariants; `pool` is written during the
        // call.
        to_result(unsafe { helpers::pinmap_dmem_charge(self.0, bytes, &raw mut pool) })?;
        // INVARIANT: So much was charged to it.
        Ok(Charge { pool, bytes })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariants. Whoever has a charge has the region, too.
        unsafe { helpers::pinmap_dmem_unregister(self.0) };
    }
}

/// Memory of a device that is charged to a control group, also after the region's end. Dropping it
/// gives the charge back.
///
/// # Invariants
///
/// `bytes` are charged to `pool`, which is null in a kernel without CONFIG_CGROUP_DMEM.
pub(crate) struct Charge {
    pool: *mut helpers::dmem_cgroup_pool_state,
    bytes: u64,
}

// SAFETY: A charge may be given back from any thread.
unsafe impl Send for Charge {}
// SAFETY: It has no methods.
unsafe impl Sync for Charge {}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: Charged by the type invariants, and given back once.
        unsafe { helpers::pinmap_dmem_uncharge(self.pool, self.bytes) };
    }
}
