// SPDX-License-Identifier: GPL-2.0
//! Device memory and registers that the driver itself accesses.
//!
//! `kernel::io` has no write-combined mapping, and its accesses are bound to a lifetime that open
//! files outlive. Here access can be revoked: after that, reads return all ones, as from a function
//! that was removed, and writes have no effect.
//!
//! C header: [`include/linux/io.h`](srctree/include/linux/io.h).

use super::Bar;
#[cfg(pinmap_mirror)]
use crate::logic::PAGE_SIZE;
use crate::sys::helpers;
#[cfg(pinmap_mirror)]
use crate::sys::mm::new_page::NewPage;
use core::ptr::NonNull;
use kernel::{bindings, ffi, prelude::*, revocable::Revocable};

/// How the CPU accesses a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// In order, one access at a time: for registers.
    Uncached,
    /// Stores may be combined, and delayed until a register is read: for memory.
    WriteCombined,
}

/// A mapping of device memory.
///
/// # Invariants
///
/// `length` bytes from `base` on are mapped, by us.
struct Mapping {
    base: NonNull<ffi::c_void>,
    length: u64,
}

// SAFETY: I/O memory may be accessed from any thread.
unsafe impl Send for Mapping {}
// SAFETY: I/O memory may be accessed from any thread; each access is one load or store.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns the address of `bytes` bytes at `offset`, if they are mapped and the offset is
    /// aligned to 8.
    fn at(&self, offset: u64, bytes: u64) -> Option<*mut ffi::c_void> {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.length);
        (fits && offset % 8 == 0).then(|| self.base.as_ptr().wrapping_byte_add(offset as usize))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: The range was mapped by us, by the type invariants.
        unsafe { bindings::iounmap(self.base.as_ptr()) };
    }
}

/// A base address register that the driver accesses 8 bytes at a time, at multiples of 8.
#[pin_data]
pub(crate) struct Mmio {
    #[pin]
    mapping: Revocable<Mapping>,
}

impl Mmio {
    /// Maps the whole of `bar`, which must be requested and stay so until [`revoke`](Self::revoke).
    pub(crate) fn new(bar: &Bar, caching: Caching) -> impl PinInit<Self, Error> {
        let (start, length) = (bar.start, bar.length);
        let map = move || {
            let bytes = usize::try_from(length).map_err(|_| ENODEV)?;
            if bytes == 0 {
                return Err(ENODEV);
            }
            // SAFETY: The range is that of a BAR.
            let base = unsafe {
                match caching {
                    Caching::Uncached => bindings::ioremap(start, bytes),
                    Caching::WriteCombined => helpers::pinmap_ioremap_wc(start, bytes),
                }
            };
            let base = NonNull::new(base).ok_or(ENOMEM)?;
            // INVARIANT: The range was mapped just now.
            Ok(Mapping { base, length })
        };
        pin_init::pin_init_scope(move || {
            let mapping = map()?;
            Ok(try_pin_init!(Self {
                mapping <- Revocable::new(mapping),
            }? Error))
        })
    }

    /// Loads 8 bytes. Returns all ones after [`revoke`](Self::revoke), or if nothing is at
    /// `offset`.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        let Some(mapping) = self.mapping.try_access() else {
            return u64::MAX;
        };
        match mapping.at(offset, 8) {
            // SAFETY: The address is mapped and aligned.
            Some(address) => unsafe { bindings::readq(address) },
            None => u64::MAX,
        }
    }

    /// Stores 8 bytes in one access, after all earlier stores.
    pub(crate) fn write(&self, offset: u64, value: u64) {
        if let Some(mapping) = self.mapping.try_access() {
            if let Some(address) = mapping.at(offset, 8) {
                // SAFETY: The address is mapped and aligned.
                unsafe { bindings::writeq(value, address) };
            }
        }
    }

    /// Fills `bytes` bytes with zeros. Does not sleep, so callers pass some pages at a time.
    pub(crate) fn zero(&self, offset: u64, bytes: u64) {
        if let Some(mapping) = self.mapping.try_access() {
            if let Some(address) = mapping.at(offset, bytes) {
                // SAFETY: So many bytes are mapped there.
                unsafe { bindings::memset_io(address, 0, bytes as usize) };
            }
        }
    }

    /// Copies the page at `offset` to `page`. Returns whether it did: not after
    /// [`revoke`](Self::revoke).
    #[cfg(pinmap_mirror)]
    pub(crate) fn copy_page(&self, offset: u64, page: &NewPage) -> bool {
        let Some(mapping) = self.mapping.try_access() else {
            return false;
        };
        let Some(address) = mapping.at(offset, PAGE_SIZE) else {
            return false;
        };
        // SAFETY: So many bytes are mapped there, and nobody else uses the page.
        unsafe { helpers::pinmap_copy_page_from_io(page.pfn() as usize, address) };
        true
    }

    /// Orders all earlier stores before all later ones, through any `Mmio` of the function.
    pub(crate) fn order(&self) {
        // SAFETY: No requirements.
        unsafe { bindings::wmb() };
    }

    /// Revokes access: when this returns, nobody accesses the memory any more. Sleeps.
    pub(crate) fn revoke(&self) {
        self.mapping.revoke();
    }
}
