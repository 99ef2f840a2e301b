// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering, allocating, managing and importing memory.

use std::fs::File;
use std::ptr;
use std::sync::Arc;

use pinmap::accelerator::{Accelerator, DeviceSlice, DeviceSliceMut, Managed, Window};
use pinmap::inspect::BufferKind;
use pinmap::{Access, AllocOptions, Allocation, Device, DmaBuf, RegisterOptions};

use crate::error::Result;
use crate::memory::{Kept, Memory, Owner, Whole};

/// The memory of the program at `first` as an operand, which the device finds at `start`.
///
/// # Safety
///
/// As for [`DeviceSliceMut::from_raw_parts`], or with [`Access::Read`] for
/// [`DeviceSlice::from_raw_parts`].
unsafe fn whole(device: &Device, first: *mut u8, start: u64, len: usize, access: Access) -> Whole {
    // SAFETY: As the caller promises.
    unsafe {
        match access {
            Access::Read => Whole::Read(DeviceSlice::from_raw_parts(device, first, start, len)),
            Access::ReadWrite => {
                Whole::Write(DeviceSliceMut::from_raw_parts(device, first, start, len))
            }
        }
    }
}

impl Memory {
    /// Registers `len` bytes of the program at `first`.
    ///
    /// # Errors
    ///
    /// As for [`Device::register_raw`].
    ///
    /// # Safety
    ///
    /// As for [`Device::register_raw`]; and the bytes stay mapped until they are released.
    pub unsafe fn register(
        device: &Device,
        first: *mut u8,
        len: usize,
        options: RegisterOptions,
    ) -> Result<Arc<Self>> {
        let addr = first.expose_provenance();
        // SAFETY: As the caller promises.
        let memory = unsafe { device.register_raw(first, len, options)? };
        let (id, start) = (memory.handle(), memory.device_addr()?);
        // SAFETY: As above. The slices are not used after the registration was released.
        let whole = unsafe { whole(device, first, start, len, memory.access()) };
        let owner = Owner::Registration(Kept::new(memory));
        Ok(Self::new(device, (addr, len), id, owner, whole))
    }

    /// Registers several pieces of memory of the program, which are whole pages: all or none.
    ///
    /// # Errors
    ///
    /// As for [`Device::register_all_raw`].
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register), for each of them.
    pub unsafe fn register_all(
        device: &Device,
        memory: &[(*mut u8, usize)],
        options: RegisterOptions,
    ) -> Result<Vec<Arc<Self>>> {
        // SAFETY: As the caller promises.
        let registered = unsafe { device.register_all_raw(memory, options)? };
        let each = registered.into_iter().zip(memory);
        let made = each.map(|(registration, &(first, len))| {
            let (id, start) = (registration.handle(), registration.device_addr()?);
            // SAFETY: As above. The slices are not used after the registration was released.
            let whole = unsafe { whole(device, first, start, len, registration.access()) };
            let (addr, owner) = (first.addr(), Owner::Registration(Kept::new(registration)));
            Ok(Self::new(device, (addr, len), id, owner, whole))
        });
        made.collect()
    }

    /// Registers whole pages of a file, which have no address in the program.
    ///
    /// # Errors
    ///
    /// As for [`Device::register_file`].
    pub fn register_file(
        device: &Device,
        file: &File,
        offset: u64,
        len: usize,
        options: RegisterOptions,
    ) -> Result<Arc<Self>> {
        let memory = device.register_file(file, offset, len, options)?;
        let (id, owner) = (memory.handle(), Owner::File(Kept::new(memory)));
        Ok(Self::new(device, (0, len), id, owner, Whole::None))
    }

    /// Allocates host memory.
    ///
    /// # Errors
    ///
    /// As for [`Device::alloc_with`].
    pub fn alloc(device: &Device, len: usize, options: AllocOptions) -> Result<Arc<Self>> {
        Ok(Self::allocated(device, device.alloc_with(len, options)?))
    }

    /// Allocates memory of the device's own.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::alloc_vram`].
    pub fn alloc_vram(accelerator: &Accelerator, len: usize) -> Result<Arc<Self>> {
        let memory = accelerator.alloc_vram(len)?;
        Ok(Self::allocated(accelerator.device(), memory))
    }

    /// Allocates memory of the device's own, with P2PDMA pages.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::alloc_vram_p2pdma`].
    pub fn alloc_vram_p2pdma(accelerator: &Accelerator, len: usize) -> Result<Arc<Self>> {
        let memory = accelerator.alloc_vram_p2pdma(len)?;
        Ok(Self::allocated(accelerator.device(), memory))
    }

    /// Imports a dma-buf.
    ///
    /// # Errors
    ///
    /// As for [`Device::import`].
    pub fn import(device: &Device, file: &DmaBuf) -> Result<Arc<Self>> {
        Ok(Self::allocated(device, device.import(file)?))
    }

    fn allocated(device: &Device, memory: Allocation<u8>) -> Arc<Self> {
        let (addr, len, id) = (memory.addr(), memory.len(), memory.handle());
        let mut memory = Kept::new(memory);
        // SAFETY: The slice is not used after the memory was released, and nothing else refers to
        // it.
        let whole = Whole::Write(unsafe { memory.lend(Allocation::slice_mut) });
        Self::new(device, (addr, len), id, Owner::Allocation(memory), whole)
    }

    /// Allocates managed memory.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::alloc_managed`].
    pub fn alloc_managed(accelerator: &Accelerator, len: usize) -> Result<Arc<Self>> {
        let memory = accelerator.alloc_managed::<u8>(len)?;
        Ok(Self::managed(accelerator, memory))
    }

    fn managed(accelerator: &Accelerator, memory: Managed<u8>) -> Arc<Self> {
        let (addr, len, id) = (memory.addr(), memory.len(), memory.range().handle());
        let mut memory = Kept::new(memory);
        // SAFETY: The slice is not used after the memory was released, and nothing else refers to
        // it.
        let whole = Whole::Write(unsafe { memory.lend(Managed::slice_mut) });
        let (device, owner) = (accelerator.device(), Owner::Managed(memory));
        Self::new(device, (addr, len), id, owner, whole)
    }

    /// Takes `len` bytes of the program at `first` as an operand, without registering them: work
    /// that names them lends them to its device, as [`Work::slice_mut`](pinmap::accelerator::Work)
    /// does.
    ///
    /// # Safety
    ///
    /// As for [`DeviceSliceMut::from_raw_parts`], or with [`Access::Read`] for
    /// [`DeviceSlice::from_raw_parts`], until the memory is released.
    pub unsafe fn lent(device: &Device, first: *mut u8, len: usize, access: Access) -> Arc<Self> {
        let addr = first.expose_provenance();
        // SAFETY: As the caller promises. What is lent has the CPU's addresses.
        let whole = unsafe { whole(device, first, addr as u64, len, access) };
        Self::new(device, (addr, len), 0, Owner::Lent, whole)
    }

    /// Takes `len` bytes at `first` as an operand: where the device has them, if they are within
    /// its reach as a registration or an allocation, or else as [`lent`](Self::lent) does.
    ///
    /// # Errors
    ///
    /// As for [`Device::query`].
    ///
    /// # Safety
    ///
    /// As for [`lent`](Self::lent).
    pub unsafe fn pointed(
        device: &Device,
        first: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Arc<Self>> {
        let addr = first.expose_provenance();
        let found = device.query(addr)?.and_then(|info| {
            let is_inside = addr - info.addr + len <= info.len;
            info.device_addr
                .filter(|_| is_inside && info.kind != BufferKind::Managed)
        });
        let Some(start) = found else {
            // SAFETY: As the caller promises.
            return Ok(unsafe { Self::lent(device, first, len, access) });
        };
        // SAFETY: As the caller promises. The device reaches only what it may.
        let whole = unsafe { whole(device, first, start, len, access) };
        Ok(Self::new(device, (addr, len), 0, Owner::Pointed, whole))
    }

    /// Has all memory of the program managed. The result only ends that: it is no operand.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::manage_all`].
    pub fn manage_all(accelerator: &Accelerator) -> Result<Arc<Self>> {
        let range = accelerator.manage_all()?;
        let (id, owner) = (range.handle(), Owner::Range(range));
        Ok(Self::new(
            accelerator.device(),
            (0, 0),
            id,
            owner,
            Whole::None,
        ))
    }

    /// Allocates memory of a window: at this offset, or in the first place that is large enough.
    ///
    /// # Errors
    ///
    /// As for [`Window::alloc_at`] or [`Window::alloc`].
    pub fn in_window(window: &Window, offset: Option<usize>, len: usize) -> Result<Arc<Self>> {
        let memory = match offset {
            Some(offset) => window.alloc_at::<u8>(offset, len)?,
            None => window.alloc::<u8>(len)?,
        };
        Ok(Self::managed(window.accelerator(), memory))
    }

    /// Has `len` bytes of the program at `first` managed, where they are.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::manage`].
    ///
    /// # Safety
    ///
    /// As for [`DeviceSliceMut::from_raw_parts`], until the memory is released.
    pub unsafe fn manage(
        accelerator: &Accelerator,
        first: *mut u8,
        len: usize,
    ) -> Result<Arc<Self>> {
        let device = accelerator.device();
        let range = accelerator.manage(ptr::slice_from_raw_parts(first.cast_const(), len))?;
        let (addr, id) = (first.expose_provenance(), range.handle());
        // SAFETY: As the caller promises. The device finds managed memory at the CPU's addresses.
        let whole = unsafe { whole(device, first, addr as u64, len, Access::ReadWrite) };
        let owner = Owner::Range(range);
        Ok(Self::new(device, (addr, len), id, owner, whole))
    }
}
