// SPDX-License-Identifier: GPL-2.0
//! P2PDMA pages: `struct page`s of a device's memory, which drivers of other devices can be given.
//!
//! C header: [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h).

use super::Function;
use crate::{
    logic::{span::Span, PAGE_SIZE},
    sys::{helpers, task::clock},
};
use core::ptr::NonNull;
use kernel::{device, error::from_err_ptr, ffi, prelude::*};

/// Pauses between looks whether I/O has ended.
const PAUSE: u64 = clock::MILLISECOND;
/// Pauses after which the log tells that somebody is waited for.
const PATIENT: u32 = 10_000;

/// P2PDMA pages of a part of a BAR. Dropping it waits until nobody else has a page: page tables
/// must have none, and must get none, so that this is I/O that is under way. The function must
/// still be bound; the kernel removes the pages when it is unbound, and waits for this.
///
/// # Invariants
///
/// `pinmap_p2pdma_add()` has returned `address` for `pages` pages.
pub(crate) struct P2pdmaPages {
    function: Function,
    address: NonNull<ffi::c_void>,
    pages: u64,
}

// SAFETY: The pages belong to no thread.
unsafe impl Send for P2pdmaPages {}

impl P2pdmaPages {
    /// Describes `part` of the base address register `bar`, which must begin and end at multiples
    /// of 2 MiB and lie in the BAR. It takes 64 bytes of the system's memory for each page. Sleeps.
    ///
    /// `EOPNOTSUPP`: the kernel has no P2PDMA, or not for this BAR. `EBUSY`: somebody has taken a
    /// page meanwhile, by `p2pmem/allocate` in sysfs; it is so until the function is unbound.
    pub(crate) fn new(function: &Function, bar: u32, part: Span) -> Result<Self> {
        let (start, length) = (part.start(), part.length());
        let raw = function.as_raw();
        // SAFETY: The function is valid.
        let address = unsafe { helpers::pinmap_p2pdma_add(raw, bar, length, start) };
        let address = from_err_ptr(address)?;
        // INVARIANT: Made just now.
        Ok(Self {
            function: function.clone(),
            address: NonNull::new(address).ok_or(ENOMEM)?,
            pages: length / PAGE_SIZE,
        })
    }
}

impl Drop for P2pdmaPages {
    fn drop(&mut self) {
        let (raw, address) = (self.function.as_raw(), self.address.as_ptr());
        // SAFETY: No requirements; it sleeps.
        unsafe { helpers::pinmap_p2pdma_settle() };
        // SAFETY: By the type invariants.
        let mut pfn = unsafe { helpers::pinmap_p2pdma_pfn(address) } as u64;
        let mut left = self.pages;
        let mut pauses = 0_u32;
        loop {
            // SAFETY: There are such pages, by the type invariants.
            let idle = unsafe { idle(pfn, left) };
            (pfn, left) = (pfn.saturating_add(idle), left.saturating_sub(idle));
            if left == 0 {
                break;
            }
            pauses = pauses.saturating_add(1);
            if pauses == PATIENT {
                let dev: &device::Device = self.function.as_ref();
                dev_warn!(dev, "other devices still read or write its memory\n");
            }
            clock::rest(PAUSE);
        }
        let bytes = self.pages.saturating_mul(PAGE_SIZE);
        // SAFETY: By the type invariants. Nobody else has a reference.
        unsafe { helpers::pinmap_p2pdma_end(raw, address, bytes) };
    }
}

/// Returns how many of the `pages` pages from the frame number `pfn` on are in no page table and in
/// no I/O, up to the first that is. Where no page table has them or gets them, this stays so. What
/// the caller does next comes after the I/O.
///
/// The kernel wakes nobody when I/O lets go of a P2PDMA page, so that one has to look again.
///
/// # Safety
///
/// The pages belong to [`P2pdmaPages`] that are there as long as the call.
pub(crate) unsafe fn idle(pfn: u64, pages: u64) -> u64 {
    // SAFETY: By the requirements.
    unsafe { helpers::pinmap_p2pdma_idle(pfn as usize, pages as usize) as u64 }
}
