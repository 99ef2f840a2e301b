// SPDX-License-Identifier: GPL-2.0
//! Memory cgroups.
//!
//! C header: [`include/linux/memcontrol.h`](srctree/include/linux/memcontrol.h).

use crate::sys::helpers;
use kernel::mm::Mm;

/// The bytes that the memory cgroup of `mm` may have at most, by its own limit or by one above it;
/// `u64::MAX`: there is no limit.
pub(crate) fn memory_limit(mm: &Mm) -> u64 {
    // SAFETY: The address space is valid.
    unsafe { helpers::pinmap_memory_limit(mm.as_raw()) }
}
