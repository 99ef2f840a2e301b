// SPDX-License-Identifier: GPL-2.0
//! Device-private pages: the kernel's descriptions of pages of a device's memory.
//!
//! Such a page takes the place of an ordinary one in the page tables of processes, and the CPU
//! cannot reach it: an access brings it home, to the system's memory. It lives as long as a process
//! has it, which may be longer than the file by which it was moved, and not only in the process
//! that moved it: a forked child has it, too.
//!
//! The pages of a device are named here by their numbers, from the beginning of its memory.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h).

use super::{areas::Rmap, migrate::HomeFault, new_page::NewPage};
use crate::{
    logic::{span::Span, PAGE_SIZE},
    sys::{helpers, pci::Function},
};
use core::ptr::NonNull;
use kernel::{bindings, error::from_err_ptr, ffi, prelude::*, sync::Arc};

/// Whoever has the memory of which there are pages.
pub(crate) trait Owner: Send + Sync {
    /// Called when nobody has page `number` any more. With locks of page tables held, or in an
    /// interrupt: takes no lock and allocates nothing.
    fn freed(&self, number: u64);

    /// Called when the CPU has touched a page: brings it home. Sleeps; the mmap lock is held.
    fn bring_home(&self, fault: &HomeFault<'_>) -> Brought;
}

/// How bringing a page home has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brought {
    /// The CPU tries again.
    Done,
    /// There was no memory.
    NoMemory,
    /// The contents are lost. The process gets a SIGBUS.
    Lost,
}

/// Descriptions of all pages of a device's memory, owned by a `T`.
///
/// # Invariants
///
/// `raw` is what `pinmap_device_pages_add()` made for `owner`, with `count` pages from frame number
/// `first` on.
pub(crate) struct DevicePages<T: Owner> {
    raw: NonNull<helpers::pinmap_device_pages>,
    first: u64,
    count: u64,
    owner: Arc<T>,
}

// SAFETY: The kernel does its own locking; the owner is `Sync`.
unsafe impl<T: Owner> Send for DevicePages<T> {}
// SAFETY: The kernel does its own locking; the owner is `Sync`.
unsafe impl<T: Owner> Sync for DevicePages<T> {}

impl<T: Owner> DevicePages<T> {
    const OPS: helpers::pinmap_device_pages_ops = helpers::pinmap_device_pages_ops {
        freed: Some(Self::freed),
        bring_home: Some(Self::bring_home),
    };

    /// Describes `bytes` of memory of the device of `owner`. That takes 64 bytes of the system's
    /// memory for each page. Sleeps.
    pub(crate) fn new(bytes: u64, owner: Arc<T>) -> Result<Self> {
        let data = Token::of(&*owner).as_ptr();
        // SAFETY: The table is constant. The owner is valid as long as the result is.
        let raw = from_err_ptr(unsafe {
            helpers::pinmap_device_pages_add(bytes, ANY_NODE, &Self::OPS, data)
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: It was made just now.
        let first = unsafe { helpers::pinmap_device_pages_first(raw.as_ptr()) };
        // INVARIANT: It was made just now.
        Ok(Self {
            raw,
            first: first as u64,
            count: bytes / PAGE_SIZE,
            owner,
        })
    }

    pub(crate) fn owner(&self) -> &T {
        &self.owner
    }

    /// Returns the frame number of page 0.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Takes page `number`.
    ///
    /// # Safety
    ///
    /// There is such a page. It was never taken, or the owner was told since that it is free.
    pub(crate) unsafe fn take(&self, number: u64) -> NewPage {
        // SAFETY: `raw` is valid, by the type invariants, and the page free, by the requirements.
        unsafe { helpers::pinmap_take_device_page(self.raw.as_ptr(), number as usize) };
        // SAFETY: It was made so just now.
        unsafe { NewPage::of(self.first.saturating_add(number)) }
    }

    /// Where in the reverse map page `number` is. `None`: nobody maps it at this moment.
    pub(crate) fn rmap(&self, number: u64) -> Option<Rmap> {
        if number >= self.count {
            return None;
        }
        // SAFETY: It is the number of a page that has a description, by the type invariants.
        unsafe { Rmap::of(self.first.saturating_add(number)) }
    }

    /// # Safety
    ///
    /// `data` is the owner of device-private pages that exist.
    unsafe extern "C" fn freed(data: *mut ffi::c_void, number: usize) {
        // SAFETY: Pages exist only as long as the owner, by the type invariants.
        let owner: &T = unsafe { &*data.cast_const().cast() };
        owner.freed(number as u64);
    }

    /// # Safety
    ///
    /// `data` is the owner of the device-private page of `fault`.
    unsafe extern "C" fn bring_home(
        data: *mut ffi::c_void,
        fault: *mut bindings::vm_fault,
    ) -> bindings::vm_fault_t {
        // SAFETY: Pages exist only as long as the owner, by the type invariants.
        let owner: &T = unsafe { &*data.cast_const().cast() };
        // SAFETY: The fault is valid during this call.
        let fault = unsafe { HomeFault::new(fault) };
        match owner.bring_home(&fault) {
            Brought::Done => 0,
            Brought::NoMemory => helpers::PINMAP_VM_FAULT_OOM,
            Brought::Lost => helpers::PINMAP_VM_FAULT_SIGBUS,
        }
    }
}

/// No node of memory in particular.
const ANY_NODE: i32 = bindings::NUMA_NO_NODE;

impl<T: Owner> Drop for DevicePages<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants. It waits until nobody has a page.
        unsafe { helpers::pinmap_device_pages_remove(self.raw.as_ptr()) };
    }
}

/// Logs that the memory at `part`, which somebody touched, is lost with a device; not more often
/// than is good for the log.
pub(crate) fn tell_lost(function: &Function, part: Span) {
    let (start, last) = (part.start() as usize, part.last() as usize);
    // SAFETY: The device is valid as long as `function`.
    unsafe { helpers::pinmap_tell_lost(function.as_dev(), start, last) };
}

/// The name by which the kernel knows the owner of device-private pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(*mut ffi::c_void);

impl Token {
    /// Returns the name of `owner` and its pages.
    pub(crate) fn of<T: Owner>(owner: &T) -> Self {
        Self((&raw const *owner).cast_mut().cast())
    }

    pub(super) fn as_ptr(self) -> *mut ffi::c_void {
        self.0
    }
}

// SAFETY: It is compared, and nothing else.
unsafe impl Send for Token {}
// SAFETY: It is compared, and nothing else.
unsafe impl Sync for Token {}
