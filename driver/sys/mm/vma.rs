// SPDX-License-Identifier: GPL-2.0
//! VMAs that show device memory, or memory that the driver allocated.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h).

use super::{folios::Folios, pages::Pages};
use crate::{logic::span::Span, sys::helpers};
use core::{marker::PhantomData, mem, ptr::NonNull};
use kernel::{
    bindings, ffi,
    prelude::*,
    sync::{Arc, ArcBorrow},
};

/// The answer to a fault that has the access repeated.
#[cfg(not(pinmap_flat))]
pub(crate) const TRY_AGAIN: u32 = helpers::PINMAP_VM_FAULT_NOPAGE;

/// A VMA that `mmap()` is making.
///
/// # Invariants
///
/// The pointer is valid, and nobody else has the VMA yet.
pub(crate) struct NewArea<'a> {
    area: NonNull<bindings::vm_area_struct>,
    _call: PhantomData<&'a ()>,
}

impl NewArea<'_> {
    /// # Safety
    ///
    /// `area` must be the argument of `file_operations::mmap`, and the result must not be used
    /// after that call.
    pub(in crate::sys) unsafe fn from_raw(area: *mut bindings::vm_area_struct) -> Option<Self> {
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

    /// Length in bytes.
    pub(crate) fn length(&self) -> u64 {
        // SAFETY: Valid by the type invariants.
        let bounds = unsafe { (*self.area.as_ptr()).__bindgen_anon_1.__bindgen_anon_1 };
        bounds.vm_end.saturating_sub(bounds.vm_start) as u64
    }

    /// Whether the mapping is MAP_SHARED.
    pub(crate) fn is_shared(&self) -> bool {
        // `VM_SHARED` is not set for a file that was opened read-only.
        self.flags() & bindings::VM_MAYSHARE != 0
    }

    /// Whether the mapping is PROT_EXEC.
    pub(crate) fn is_executable(&self) -> bool {
        self.flags() & bindings::VM_EXEC != 0
    }

    /// Whether the mapping is PROT_WRITE.
    pub(crate) fn is_writable(&self) -> bool {
        self.flags() & bindings::VM_WRITE != 0
    }

    /// Forbids that the area ever becomes writable.
    pub(crate) fn forbid_writing(&self) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_forbid_writing(self.area.as_ptr()) };
    }

    /// Makes the area a view of device memory, uncached or write-combined, which [`Faults::fault`]
    /// fills. Fork does not inherit the area, and it can neither grow nor move. The area keeps
    /// `viewed`.
    pub(crate) fn view_device_memory<V: Faults>(self, viewed: Arc<V>, write_combine: bool) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_device(self.area.as_ptr(), write_combine) };
        self.become_view(viewed, &DeviceView::<V>::TABLE.0);
    }

    /// Makes the area a view of P2PDMA pages, write-combined, which [`Faults::fault`] fills. Fork
    /// does not inherit the area, and it can neither grow nor move. The area keeps `viewed`.
    pub(crate) fn view_p2pdma_pages<V: Faults>(self, viewed: Arc<V>) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_p2pdma(self.area.as_ptr()) };
        self.become_view(viewed, &DeviceView::<V>::TABLE.0);
    }

    /// Makes the area a view of pinned pages of a file, which [`Faults::fault`] fills. The pages
    /// are not mapped as struct pages, since the file does not know the area. Fork does not inherit
    /// the area, and it can neither grow nor move. The area keeps `viewed`.
    pub(crate) fn view_pinned_file<V: Faults>(self, viewed: Arc<V>) {
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_file(self.area.as_ptr()) };
        self.become_view(viewed, &DeviceView::<V>::TABLE.0);
    }

    /// Makes the area a view of struct pages that the driver allocated, write-combined if they are
    /// so in the kernel's mapping. Fork does not inherit the area, and it can neither grow nor
    /// move. The area keeps `viewed`.
    pub(crate) fn view_pages<V: PageSource>(self, viewed: Arc<V>) {
        let write_combine = !viewed.folios().is_cached();
        // SAFETY: Valid and exclusive by the type invariants.
        unsafe { helpers::pinmap_vma_of_pages(self.area.as_ptr(), write_combine) };
        self.become_view(viewed, &PageView::<V>::TABLE.0);
    }

    fn become_view<V>(self, viewed: Arc<V>, operations: &'static bindings::vm_operations_struct) {
        // SAFETY: Valid and exclusive by the type invariants. `close` takes the reference, even if
        // mmap() fails later.
        unsafe {
            (*self.area.as_ptr()).vm_private_data = Arc::into_raw(viewed).cast_mut().cast();
            (*self.area.as_ptr()).vm_ops = operations;
        }
    }
}

/// Answers page faults in views that are not made of struct pages.
pub(crate) trait Faults: Send + Sync + 'static {
    /// Calls `insert` with the page frame at the byte `offset` of the file, unless that is gone, or
    /// the task is being killed. [`Views::zap`] takes away what `insert` maps.
    ///
    /// Only a fatal signal may end a wait in here: the kernel repeats a touch of its own, for
    /// instance in `read()` into the memory, until it is answered, whatever other signals come.
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32>;

    /// Like [`fault`](Self::fault), for a huge page that begins at `offset`. Also returns `None` if
    /// there is none; small pages are tried then.
    fn huge_fault(&self, _offset: u64, _insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        None
    }
}

/// Memory that the driver allocated, and that can be viewed.
pub(crate) trait PageSource: Send + Sync + 'static {
    /// The memory.
    fn folios(&self) -> &Folios;

    /// The byte offset in the file at which the memory begins.
    fn offset(&self) -> u64;
}

#[repr(transparent)]
struct Table(bindings::vm_operations_struct);
// SAFETY: The table is never written to.
unsafe impl Sync for Table {}

/// Returns what the area of a fault views, and the byte offset of the fault in the file.
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

/// Called when an area was split: the other part keeps what is viewed as well.
///
/// # Safety
///
/// Called by the kernel with a valid area that views a `V`.
unsafe extern "C" fn open<V>(area: *mut bindings::vm_area_struct) {
    // SAFETY: `become_view` put an `Arc<V>` there, and the area was copied.
    let viewed = unsafe { ArcBorrow::from_raw((*area).vm_private_data.cast::<V>()) };
    mem::forget(Arc::from(viewed));
}

/// Called when an area ends.
///
/// # Safety
///
/// Called by the kernel with a valid area that views a `V`, for the last time.
unsafe extern "C" fn close<V>(area: *mut bindings::vm_area_struct) {
    // SAFETY: `become_view` or `open` put a reference there.
    drop(unsafe { Arc::from_raw((*area).vm_private_data.cast::<V>()) });
}

/// Refuses to move an area.
///
/// # Safety
///
/// None.
unsafe extern "C" fn mremap(_area: *mut bindings::vm_area_struct) -> ffi::c_int {
    EPERM.to_errno()
}

/// Answers a fault for a huge page: calls `answer` with what is viewed and the byte offset in the
/// file at which that page begins. Falls back to small pages if the area has no room for the page,
/// or there is no answer.
///
/// # Safety
///
/// `vmf` must be valid and of an area that views a `V`.
unsafe fn answer_huge<V>(
    vmf: *mut bindings::vm_fault,
    order: ffi::c_uint,
    answer: impl FnOnce(&V, u64) -> Option<bindings::vm_fault_t>,
) -> bindings::vm_fault_t {
    let mut offset = 0;
    // SAFETY: Valid by the requirements.
    let (fits, (viewed, _)) = unsafe {
        (
            helpers::pinmap_huge_range(vmf, order, &mut offset),
            viewed::<V>(vmf),
        )
    };
    fits.then(|| answer(viewed, offset))
        .flatten()
        .unwrap_or(helpers::PINMAP_VM_FAULT_FALLBACK)
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
        let answer = |viewed: &V, offset| {
            viewed.huge_fault(offset, &mut |pfn| {
                // SAFETY: The area is VM_PFNMAP, and a huge page around the address lies in it.
                unsafe { helpers::pinmap_insert_huge_pfn(vmf, pfn as usize) }
            })
        };
        // SAFETY: By the requirements.
        unsafe { answer_huge(vmf, order, answer) }
    }

    /// # Safety
    ///
    /// Called by the kernel with a valid `vmf` in an area of ours.
    unsafe extern "C" fn fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: Valid by the requirements.
        let (viewed, offset) = unsafe { viewed::<V>(vmf) };
        viewed
            .fault(offset, &mut |pfn| {
                // SAFETY: The area is VM_PFNMAP, or for P2PDMA pages.
                unsafe { helpers::pinmap_insert_frame(vmf, pfn as usize) }
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
        let answer = |viewed: &V, offset: u64| {
            let page = viewed
                .folios()
                .huge_at(offset.checked_sub(viewed.offset())?)?;
            // SAFETY: The page begins a folio of that order, which `viewed` keeps.
            Some(unsafe { helpers::pinmap_insert_huge(vmf, page) })
        };
        // SAFETY: By the requirements.
        unsafe { answer_huge(vmf, order, answer) }
    }
}

/// All views through one open file, and through others of the same inode.
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
    /// `file` must be valid, and the result must be dropped before the file is released.
    pub(in crate::sys) unsafe fn of(file: *mut bindings::file) -> Option<Self> {
        // SAFETY: Valid by the requirements.
        let mapping = unsafe { (*file).f_mapping };
        // INVARIANT: By the requirements.
        NonNull::new(mapping).map(Self)
    }

    /// Whether both unmap the same views.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Unmaps all views. The next touch asks [`Faults::fault`] again.
    pub(crate) fn zap(&self) {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::unmap_mapping_range(self.0.as_ptr(), 0, 0, 1) };
    }

    /// Unmaps what shows these offsets.
    pub(crate) fn zap_part(&self, part: Span) {
        let (start, length) = (part.start() as i64, part.length() as i64);
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::unmap_mapping_range(self.0.as_ptr(), start, length, 1) };
    }
}
