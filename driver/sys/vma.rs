// SPDX-License-Identifier: GPL-2.0
//! Device memory and memory of the driver's own in user address spaces.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h).

use super::{folios::Folios, helpers, pages::Pages};
use core::{marker::PhantomData, mem, ptr::NonNull};
use kernel::{
    bindings, ffi,
    prelude::*,
    sync::{Arc, ArcBorrow},
};

/// A virtual memory area that is being made by `mmap()`.
///
/// # Invariants
///
/// The pointer is valid, and nobody else has the area yet.
pub(crate) struct NewArea<'a> {
    area: NonNull<bindings::vm_area_struct>,
    _call: PhantomData<&'a ()>,
}

impl NewArea<'_> {
    /// # Safety
    ///
    /// `area` must be what `file_operations::mmap` was called with, and be used for no longer than
    /// that call.
    pub(super) unsafe fn from_raw(area: *mut bindings::vm_area_struct) -> Option<Self> {
        // INVARIANT: By the requirements.
        NonNull::new(area).map(|area| Self {
            area,
            _call: PhantomData,
        })
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
        unsafe { helpers::pinmap_vma_is_shared(self.area.as_ptr()) }
    }

    /// PROT_EXEC.
    pub(crate) fn is_executable(&self) -> bool {
        self.flags() & bindings::VM_EXEC as bindings::vm_flags_t != 0
    }

    /// PROT_WRITE.
    pub(crate) fn is_writable(&self) -> bool {
        self.flags() & bindings::VM_WRITE as bindings::vm_flags_t != 0
    }

    /// It will never be writable.
    pub(crate) fn forbid_writing(&self) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_forbid_writing(self.area.as_ptr()) };
    }

    /// Makes it a view of device memory: uncached or write-combined, not inherited by fork, neither
    /// growing nor moving, filled page by page by [`Faults::fault`]. It keeps `viewed`.
    pub(crate) fn view_device_memory<V: Faults>(self, viewed: Arc<V>, write_combine: bool) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_device(self.area.as_ptr(), write_combine) };
        self.become_view(viewed, &DeviceView::<V>::TABLE.0);
    }

    /// Makes it a view of pages of a file that are pinned: not as struct pages, for the file does not know the
    /// area; neither inherited by fork, nor growing, nor moving. It keeps `viewed`.
    pub(crate) fn view_pinned_file<V: Faults>(self, viewed: Arc<V>) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_file(self.area.as_ptr()) };
        self.become_view(viewed, &DeviceView::<V>::TABLE.0);
    }

    /// Makes it a view of memory that the driver allocated: of struct pages, not inherited by fork,
    /// neither growing nor moving; write-combined if they are so in the kernel's mapping. It keeps
    /// `viewed`.
    pub(crate) fn view_pages<V: PageSource>(self, viewed: Arc<V>) {
        let write_combine = !viewed.folios().is_cached();
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_pages(self.area.as_ptr(), write_combine) };
        self.become_view(viewed, &PageView::<V>::TABLE.0);
    }

    fn become_view<V>(self, viewed: Arc<V>, operations: &'static bindings::vm_operations_struct) {
        // SAFETY: Valid and exclusive by the type invariants. `close` takes the reference, also if
        // mmap() fails later.
        unsafe {
            (*self.area.as_ptr()).vm_private_data = Arc::into_raw(viewed).cast_mut().cast();
            (*self.area.as_ptr()).vm_ops = operations;
        }
    }
}

/// Who answers page faults in views that are not of struct pages.
pub(crate) trait Faults: Send + Sync + 'static {
    /// Calls `insert` with the page frame at the byte `offset` of the file, unless it is gone, or the task
    /// is being killed. What `insert` does is revoked by [`Views::zap`].
    ///
    /// If it waits, then for nothing but a fatal signal besides: a touch by the kernel, in `read()` into
    /// the memory for instance, is tried again and again until it is answered, whatever signal waits.
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32>;

    /// The same for a huge page that begins there, with its first page frame; `None` also if there is none.
    fn huge_fault(&self, _offset: u64, _insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        None
    }
}

/// Memory of the driver's own that can be viewed.
pub(crate) trait PageSource: Send + Sync + 'static {
    /// The memory.
    fn folios(&self) -> &Folios;

    /// The byte offset of its first byte in the file.
    fn offset(&self) -> u64;
}

#[repr(transparent)]
struct Table(bindings::vm_operations_struct);
// SAFETY: Never written to.
unsafe impl Sync for Table {}

/// What is viewed, of the area of a fault; and the byte offset of the fault in the file.
///
/// # Safety
///
/// `vmf` must be valid and of an area that views a `V`.
unsafe fn viewed<'a, V>(vmf: *const bindings::vm_fault) -> (&'a V, u64) {
    // SAFETY: `become_view` put an `Arc<V>` there, which the area keeps until `close`.
    unsafe {
        let fixed = &(*vmf).__bindgen_anon_1;
        let offset = (fixed.pgoff as u64).wrapping_shl(bindings::PAGE_SHIFT);
        (&*(*fixed.vma).vm_private_data.cast::<V>(), offset)
    }
}

/// An area was split: the other part keeps what is viewed as well.
///
/// # Safety
///
/// Called by the kernel with a valid area that views a `V`.
unsafe extern "C" fn open<V>(area: *mut bindings::vm_area_struct) {
    // SAFETY: `become_view` put an `Arc<V>` there, and the area was copied.
    let viewed = unsafe { ArcBorrow::from_raw((*area).vm_private_data.cast::<V>()) };
    mem::forget(Arc::from(viewed));
}

/// # Safety
///
/// Called by the kernel with a valid area that views a `V`, for the last time.
unsafe extern "C" fn close<V>(area: *mut bindings::vm_area_struct) {
    // SAFETY: `become_view` or `open` put a reference there.
    drop(unsafe { Arc::from_raw((*area).vm_private_data.cast::<V>()) });
}

/// # Safety
///
/// None.
unsafe extern "C" fn mremap(_area: *mut bindings::vm_area_struct) -> ffi::c_int {
    EPERM.to_errno()
}

struct DeviceView<V>(PhantomData<V>);

impl<V: Faults> DeviceView<V> {
    const TABLE: &'static Table = &Table(bindings::vm_operations_struct {
        open: Some(open::<V>),
        close: Some(close::<V>),
        fault: Some(Self::fault),
        huge_fault: Some(Self::huge_fault),
        mremap: Some(mremap),
        ..pin_init::zeroed()
    });

    /// # Safety
    ///
    /// Called by the kernel with a valid `vmf` in an area of ours.
    unsafe extern "C" fn huge_fault(
        vmf: *mut bindings::vm_fault,
        order: ffi::c_uint,
    ) -> bindings::vm_fault_t {
        // SAFETY: Valid by the requirements.
        let (viewed, _) = unsafe { viewed::<V>(vmf) };
        let mut offset = 0;
        // SAFETY: As above.
        if !unsafe { helpers::pinmap_huge_range(vmf, order, &mut offset) } {
            return helpers::PINMAP_VM_FAULT_FALLBACK;
        }
        viewed
            .huge_fault(offset, &mut |pfn| {
                // SAFETY: The area is VM_PFNMAP, and a huge page around the address lies in it.
                unsafe { helpers::pinmap_insert_huge_pfn(vmf, pfn as usize) }
            })
            .unwrap_or(helpers::PINMAP_VM_FAULT_FALLBACK)
    }

    /// # Safety
    ///
    /// Called by the kernel with a valid `vmf` in an area of ours.
    unsafe extern "C" fn fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: Valid by the requirements.
        let ((viewed, offset), area, address) = unsafe {
            let fixed = &(*vmf).__bindgen_anon_1;
            (viewed::<V>(vmf), fixed.vma, fixed.address)
        };
        viewed
            .fault(offset, &mut |pfn| {
                // SAFETY: The area is VM_PFNMAP and the address lies in it.
                unsafe { bindings::vmf_insert_pfn(area, address, pfn as usize) }
            })
            .unwrap_or(helpers::PINMAP_VM_FAULT_SIGBUS)
    }
}

struct PageView<V>(PhantomData<V>);

impl<V: PageSource> PageView<V> {
    const TABLE: &'static Table = &Table(bindings::vm_operations_struct {
        open: Some(open::<V>),
        close: Some(close::<V>),
        fault: Some(Self::fault),
        huge_fault: Some(Self::huge_fault),
        mremap: Some(mremap),
        ..pin_init::zeroed()
    });

    /// # Safety
    ///
    /// Called by the kernel with a valid `vmf` in an area of ours.
    unsafe extern "C" fn fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: Valid by the requirements.
        let (viewed, offset) = unsafe { viewed::<V>(vmf) };
        let page = offset
            .checked_sub(viewed.offset())
            .and_then(|offset| viewed.folios().page_at(offset));
        match page {
            // SAFETY: The page belongs to a folio that `viewed` keeps.
            Some(page) => unsafe { helpers::pinmap_insert_page(vmf, page) },
            None => helpers::PINMAP_VM_FAULT_SIGBUS,
        }
    }

    /// # Safety
    ///
    /// Called by the kernel with a valid `vmf` in an area of ours.
    unsafe extern "C" fn huge_fault(
        vmf: *mut bindings::vm_fault,
        order: ffi::c_uint,
    ) -> bindings::vm_fault_t {
        // SAFETY: Valid by the requirements.
        let (viewed, _) = unsafe { viewed::<V>(vmf) };
        let mut offset = 0;
        // SAFETY: As above.
        if !unsafe { helpers::pinmap_huge_range(vmf, order, &mut offset) } {
            return helpers::PINMAP_VM_FAULT_FALLBACK;
        }
        let page = offset
            .checked_sub(viewed.offset())
            .and_then(|offset| viewed.folios().huge_at(offset));
        match page {
            // SAFETY: It begins a folio of that order that `viewed` keeps.
            Some(page) => unsafe { helpers::pinmap_insert_huge(vmf, page) },
            None => helpers::PINMAP_VM_FAULT_FALLBACK,
        }
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
