// SPDX-License-Identifier: GPL-2.0
//! Device memory in user address spaces.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h).

use super::raw;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{bindings, ffi, prelude::*, sync::ArcBorrow};

/// A virtual memory area of a file of `T` that is being made by `mmap()`.
///
/// # Invariants
///
/// The pointer is valid, and nobody else has the area yet. Its file keeps `owner`.
pub(crate) struct NewArea<'a, T> {
    area: NonNull<bindings::vm_area_struct>,
    owner: ArcBorrow<'a, T>,
}

impl<'a, T: Faults> NewArea<'a, T> {
    /// # Safety
    ///
    /// `area` must be what `file_operations::mmap` was called with, and be used for no longer than
    /// that call; the file must keep a reference to `owner` until it is released.
    pub(super) unsafe fn from_raw(
        area: *mut bindings::vm_area_struct,
        owner: ArcBorrow<'a, T>,
    ) -> Option<Self> {
        // INVARIANT: By the requirements.
        NonNull::new(area).map(|area| Self { area, owner })
    }

    fn flags(&self) -> bindings::vm_flags_t {
        // SAFETY: Valid by the type invariants.
        unsafe { (*self.area.as_ptr()).__bindgen_anon_2.vm_flags }
    }

    /// Byte offset into the file.
    pub(crate) fn offset(&self) -> u64 {
        // SAFETY: Valid by the type invariants.
        let pages = unsafe { (*self.area.as_ptr()).vm_pgoff } as u64;
        pages.wrapping_shl(bindings::PAGE_SHIFT)
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        // SAFETY: Valid by the type invariants.
        let bounds = unsafe { (*self.area.as_ptr()).__bindgen_anon_1.__bindgen_anon_1 };
        bounds.vm_end.saturating_sub(bounds.vm_start) as u64
    }

    /// MAP_SHARED.
    pub(crate) fn is_shared(&self) -> bool {
        // SAFETY: Valid by the type invariants.
        unsafe { raw::pinmap_vma_is_shared(self.area.as_ptr()) }
    }

    /// PROT_EXEC.
    pub(crate) fn is_executable(&self) -> bool {
        self.flags() & bindings::VM_EXEC as bindings::vm_flags_t != 0
    }

    /// Makes it a view of device memory: uncached or write-combined, not inherited by fork, neither
    /// growing nor moving, filled page by page by [`Faults::fault`].
    pub(crate) fn view_device_memory(self, write_combine: bool) {
        let owner: *const T = &raw const *self.owner;
        // SAFETY: Valid and exclusive by the type invariants; the operations are static.
        unsafe {
            raw::pinmap_vma_of_bar(self.area.as_ptr(), write_combine);
            (*self.area.as_ptr()).vm_private_data = owner.cast_mut().cast();
            (*self.area.as_ptr()).vm_ops = &raw const Operations::<T>::TABLE.0;
        }
    }
}

/// What a fault answers that did nothing: it happens again.
pub(crate) const TRY_AGAIN: u32 = raw::PINMAP_VM_FAULT_NOPAGE;

/// Who answers page faults in views of device memory.
pub(crate) trait Faults {
    /// Calls `insert` with the page frame at the byte `offset` of the file, unless it is gone. What
    /// `insert` does is revoked by [`Views::zap`].
    fn fault(&self, offset: u64, insert: impl FnMut(u64) -> u32) -> Option<u32>;
}

#[repr(transparent)]
struct Table(bindings::vm_operations_struct);
// SAFETY: Never written to.
unsafe impl Sync for Table {}

struct Operations<T>(PhantomData<T>);

impl<T: Faults> Operations<T> {
    const TABLE: &'static Table = &Table(bindings::vm_operations_struct {
        fault: Some(Self::fault),
        mremap: Some(Self::mremap),
        ..pin_init::zeroed()
    });

    /// # Safety
    ///
    /// Called by the kernel with a valid `vmf` in an area of ours.
    unsafe extern "C" fn fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: Valid by the requirements.
        let (area, address, pgoff, owner) = unsafe {
            let fixed = &(*vmf).__bindgen_anon_1;
            let owner = (*fixed.vma).vm_private_data.cast::<T>();
            (fixed.vma, fixed.address, fixed.pgoff, owner)
        };
        // SAFETY: `view_device_memory` put it there; the file keeps it, and the area the file.
        let owner = unsafe { &*owner };
        let offset = (pgoff as u64).wrapping_shl(bindings::PAGE_SHIFT);
        owner
            .fault(offset, |pfn| {
                // SAFETY: The area is VM_PFNMAP and the address lies in it.
                unsafe { bindings::vmf_insert_pfn(area, address, pfn as usize) }
            })
            .unwrap_or(raw::PINMAP_VM_FAULT_SIGBUS)
    }

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn mremap(_area: *mut bindings::vm_area_struct) -> ffi::c_int {
        EPERM.to_errno()
    }
}

/// All views of device memory through one open file (and others of the same inode).
///
/// # Invariants
///
/// The address space is valid: the owner drops this before the file is released.
pub(crate) struct Views(NonNull<bindings::address_space>);

// SAFETY: `unmap_mapping_range()` may be called from any thread.
unsafe impl Send for Views {}

impl Views {
    /// # Safety
    ///
    /// `file` must be valid, and the result be dropped before it is released.
    pub(super) unsafe fn of(file: *mut bindings::file) -> Option<Self> {
        // SAFETY: Valid by the requirements.
        let mapping = unsafe { (*file).f_mapping };
        // INVARIANT: By the requirements.
        NonNull::new(mapping).map(Self)
    }

    /// Removes all pages; the next touch asks [`Faults::fault`] again.
    pub(crate) fn zap(&self) {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::unmap_mapping_range(self.0.as_ptr(), 0, 0, 1) };
    }
}
