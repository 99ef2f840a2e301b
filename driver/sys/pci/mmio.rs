// SPDX-License-Identifier: GPL-2.0
//! Device memory and registers that the driver itself accesses.
//!
//! `kernel::io` has no write-combined mapping, and its accesses are bound to a lifetime that open
//! files outlive. Here access can be revoked: after that, reads return all ones, as from a function
//! that was removed, and writes have no effect. While a device is off, an image stands for its
//! memory: see `logic/image.rs`.
//!
//! C header: [`include/linux/io.h`](srctree/include/linux/io.h).

use super::Bar;
#[cfg(pinmap_mirror)]
use crate::sys::mm::new_page::NewPage;
use crate::{
    logic::{
        image::{self, Run},
        PAGE_SIZE,
    },
    sys::{helpers, task},
};
use core::{mem, ptr::NonNull};
use kernel::{
    bindings, ffi, new_spinlock,
    prelude::*,
    revocable::Revocable,
    sync::{
        atomic::{Atomic, Relaxed},
        SpinLock,
    },
};

/// A copy of parts of a device's memory.
pub(crate) type Image = image::Image<KVVec<Run>, VVec<u64>>;

/// Goes to the next page of an image: [`Image::save_next`] or [`Image::restore_next`].
type Next = fn(&mut Image, &mut dyn FnMut(u64, &mut [u64])) -> bool;

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

/// Copies device memory to `words`.
///
/// # Safety
///
/// As many bytes are mapped at `address`.
unsafe fn load(address: *mut ffi::c_void, words: &mut [u64]) {
    let bytes = mem::size_of_val(words);
    // SAFETY: As here; there is as much room.
    unsafe { bindings::memcpy_fromio(words.as_mut_ptr().cast(), address, bytes) };
}

/// Copies `words` to device memory.
///
/// # Safety
///
/// As for [`load`].
unsafe fn store(address: *mut ffi::c_void, words: &[u64]) {
    let bytes = mem::size_of_val(words);
    // SAFETY: As here; so many bytes there are.
    unsafe { bindings::memcpy_toio(address, words.as_ptr().cast(), bytes) };
}

/// A base address register that the driver accesses 8 bytes at a time, at multiples of 8.
#[pin_data]
pub(crate) struct Mmio {
    #[pin]
    mapping: Revocable<Mapping>,
    /// Whether there may be an image, so that accesses look for it.
    has_image: Atomic<bool>,
    #[pin]
    image: SpinLock<Option<Image>>,
}

/// Where an access goes.
enum Place<'a> {
    Device,
    Image(&'a mut u64),
    /// The device is off, and the image has no such page.
    Nowhere,
}

impl Place<'_> {
    fn find(image: &mut Option<Image>, offset: u64) -> Place<'_> {
        let Some(image) = image else {
            return Place::Device;
        };
        let is_whole = image.is_whole();
        match image.word(offset) {
            Some(word) => Place::Image(word),
            None if is_whole => Place::Nowhere,
            None => Place::Device,
        }
    }
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
                has_image: Atomic::new(false),
                image <- new_spinlock!(None, "pinmap_image"),
            }? Error))
        })
    }

    /// Loads 8 bytes. Returns all ones after [`revoke`](Self::revoke), or if nothing is at
    /// `offset`.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        let Some(mapping) = self.mapping.try_access() else {
            return u64::MAX;
        };
        let Some(address) = mapping.at(offset, 8) else {
            return u64::MAX;
        };
        // SAFETY: The address is mapped and aligned.
        let read = || unsafe { bindings::readq(address) };
        if !self.has_image.load(Relaxed) {
            return read();
        }
        match Place::find(&mut self.image.lock(), offset) {
            Place::Device => read(),
            Place::Image(word) => *word,
            Place::Nowhere => u64::MAX,
        }
    }

    /// Stores 8 bytes in one access, after all earlier stores.
    pub(crate) fn write(&self, offset: u64, value: u64) {
        let Some(mapping) = self.mapping.try_access() else {
            return;
        };
        let Some(address) = mapping.at(offset, 8) else {
            return;
        };
        // SAFETY: The address is mapped and aligned.
        let write = || unsafe { bindings::writeq(value, address) };
        if !self.has_image.load(Relaxed) {
            return write();
        }
        match Place::find(&mut self.image.lock(), offset) {
            Place::Device => write(),
            Place::Image(word) => *word = value,
            Place::Nowhere => {}
        }
    }

    /// Fills `bytes` bytes with zeros. Does not sleep, so callers pass some pages at a time.
    pub(crate) fn zero(&self, offset: u64, bytes: u64) {
        let Some(mapping) = self.mapping.try_access() else {
            return;
        };
        if self.has_image.load(Relaxed) {
            for word in (0..bytes).step_by(8) {
                self.write(offset.saturating_add(word), 0);
            }
        } else if let Some(address) = mapping.at(offset, bytes) {
            // SAFETY: So many bytes are mapped there.
            unsafe { bindings::memset_io(address, 0, bytes as usize) };
        }
    }

    /// Copies the page at `offset` to `page`. Returns whether it did: not after
    /// [`revoke`](Self::revoke), nor where an image stands for the memory.
    #[cfg(pinmap_mirror)]
    pub(crate) fn copy_page(&self, offset: u64, page: &NewPage) -> bool {
        let Some(mapping) = self.mapping.try_access() else {
            return false;
        };
        let Some(address) = mapping.at(offset, PAGE_SIZE) else {
            return false;
        };
        if self.has_image.load(Relaxed) {
            return false;
        }
        // SAFETY: So many bytes are mapped there, and nobody else uses the page.
        unsafe { helpers::pinmap_copy_page_from_io(page.pfn() as usize, address) };
        true
    }

    /// Orders all earlier stores before all later ones, through any `Mmio` of the function.
    pub(crate) fn order(&self) {
        // SAFETY: No requirements.
        unsafe { bindings::wmb() };
    }

    /// Copies the memory at `offset` to `words`. Does nothing after [`revoke`](Self::revoke). No
    /// image stands for the memory.
    pub(crate) fn load(&self, offset: u64, words: &mut [u64]) {
        // SAFETY: So many bytes are mapped there.
        self.reach(offset, mem::size_of_val(words), |address| unsafe {
            load(address, words)
        });
    }

    /// Copies `words` to the memory at `offset`, like [`load`](Self::load).
    pub(crate) fn store(&self, offset: u64, words: &[u64]) {
        // SAFETY: So many bytes are mapped there.
        self.reach(offset, mem::size_of_val(words), |address| unsafe {
            store(address, words)
        });
    }

    /// Calls `with` with the address of the memory at `offset`, if `bytes` bytes are mapped there.
    fn reach(&self, offset: u64, bytes: usize, with: impl FnOnce(*mut ffi::c_void)) {
        let mapping = self.mapping.try_access();
        let address = mapping.as_ref().and_then(|it| it.at(offset, bytes as u64));
        if let Some(address) = address {
            with(address);
        }
    }

    /// Copies the memory to `image`, which stands for it from now on. Sleeps.
    pub(crate) fn save(&self, image: Image) {
        *self.image.lock() = Some(image);
        self.has_image.store(true, Relaxed);
        // An access that has not seen this is in a section that began before.
        // SAFETY: No requirements; it sleeps.
        unsafe { bindings::synchronize_rcu() };
        // SAFETY: `each_page` passes what is mapped.
        self.each_page(Image::save_next, |address, words| unsafe {
            load(address, words)
        });
    }

    /// Copies the image back, if there is one. From now on accesses reach the memory itself.
    /// Sleeps.
    pub(crate) fn restore(&self) {
        // SAFETY: `each_page` passes what is mapped.
        self.each_page(Image::restore_next, |address, words| unsafe {
            store(address, words)
        });
        self.order();
        let image = self.image.lock().take();
        self.has_image.store(false, Relaxed);
        drop(image);
    }

    /// Has `next` go through the image, page by page, with `copy` for each that is mapped.
    fn each_page(&self, next: Next, copy: impl Fn(*mut ffi::c_void, &mut [u64])) {
        loop {
            let mapping = self.mapping.try_access();
            let mut guard = self.image.lock();
            let Some(image) = &mut *guard else {
                return;
            };
            let is_left = next(image, &mut |offset, words| {
                let address = mapping
                    .as_ref()
                    .and_then(|mapping| mapping.at(offset, PAGE_SIZE));
                if let Some(address) = address {
                    copy(address, words);
                }
            });
            if !is_left {
                return;
            }
            drop(guard);
            drop(mapping);
            task::cond_resched();
        }
    }

    /// Revokes access: when this returns, nobody accesses the memory any more. Sleeps.
    pub(crate) fn revoke(&self) {
        self.mapping.revoke();
    }
}
