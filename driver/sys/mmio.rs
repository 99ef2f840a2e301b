// SPDX-License-Identifier: GPL-2.0
//! Device memory and registers, for a driver that uses them itself.
//!
//! `kernel::io` has no write-combined mapping, and its accesses are bound to a lifetime that open files
//! outlive. Here access can be revoked: afterwards reads give all ones, as from a function that was
//! removed, and writes go nowhere.
//!
//! C header: [`include/linux/io.h`](srctree/include/linux/io.h).

use super::{helpers, pci::Bar};
use core::ptr::NonNull;
use kernel::{bindings, ffi, prelude::*, revocable::Revocable};

/// How the CPU accesses it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// In order, one access at a time: registers.
    Uncached,
    /// Stores may be combined and delayed until a read of a register: memory.
    WriteCombined,
}

/// # Invariants
///
/// `length` bytes from `base` on are mapped, by us.
struct Mapping {
    base: NonNull<ffi::c_void>,
    length: u64,
}

// SAFETY: I/O memory may be accessed from any thread.
unsafe impl Send for Mapping {}
// SAFETY: As above; each access is one load or store.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The address of `bytes` bytes at `offset`, which must be aligned to 8.
    fn at(&self, offset: u64, bytes: u64) -> Option<*mut ffi::c_void> {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.length);
        (fits && offset % 8 == 0).then(|| self.base.as_ptr().wrapping_byte_add(offset as usize))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: Mapped by us, by the type invariants.
        unsafe { bindings::iounmap(self.base.as_ptr()) };
    }
}

/// A base address register as this driver accesses it: 8 bytes at a time, at multiples of 8.
#[pin_data]
pub(crate) struct Window {
    #[pin]
    mapping: Revocable<Mapping>,
}

impl Window {
    /// Maps the whole of `bar`, which must be requested, and stay so until [`revoke`](Self::revoke).
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
                    Caching::WriteCombined => bindings::ioremap_wc(start, bytes),
                }
            };
            let base = NonNull::new(base).ok_or(ENOMEM)?;
            // INVARIANT: Just mapped.
            Ok(Mapping { base, length })
        };
        pin_init::pin_init_scope(move || {
            let mapping = map()?;
            Ok(try_pin_init!(Self {
                mapping <- Revocable::new(mapping),
            }? Error))
        })
    }

    /// Loads 8 bytes; all ones if it was revoked, or there are none at `offset`.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        let Some(mapping) = self.mapping.try_access() else {
            return u64::MAX;
        };
        match mapping.at(offset, 8) {
            // SAFETY: Mapped and aligned.
            Some(address) => unsafe { bindings::readq(address) },
            None => u64::MAX,
        }
    }

    /// Stores 8 bytes in one access, after everything that was stored before.
    pub(crate) fn write(&self, offset: u64, value: u64) {
        if let Some(mapping) = self.mapping.try_access() {
            if let Some(address) = mapping.at(offset, 8) {
                // SAFETY: Mapped and aligned.
                unsafe { bindings::writeq(value, address) };
            }
        }
    }

    /// Fills `bytes` bytes with zeros. Does not sleep: for pieces of some pages.
    pub(crate) fn zero(&self, offset: u64, bytes: u64) {
        if let Some(mapping) = self.mapping.try_access() {
            if let Some(address) = mapping.at(offset, bytes) {
                // SAFETY: So many bytes are mapped there.
                unsafe { bindings::memset_io(address, 0, bytes as usize) };
            }
        }
    }

    /// Stores made before are carried out before those made after. `Window`s of one function have one
    /// order.
    pub(crate) fn order(&self) {
        // SAFETY: No requirements.
        unsafe { helpers::pinmap_wmb() };
    }

    /// No access is made any more when it returns. Sleeps.
    pub(crate) fn revoke(&self) {
        self.mapping.revoke();
    }
}
