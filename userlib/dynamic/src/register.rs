// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering, allocating, managing and importing memory.

use std::fs::File;
use std::ptr;
use std::sync::Arc;

use pinmap::accelerator::{Accelerator, DeviceSlice, DeviceSliceMut, Managed};
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
        let (addr, id) = (memory.addr(), memory.range().handle());
        let mut memory = Kept::new(memory);
        // SAFETY: The slice is not used after the memory was released, and nothing else refers to
        // it.
        let whole = Whole::Write(unsafe { memory.lend(Managed::slice_mut) });
        let owner = Owner::Managed(memory);
        Ok(Self::new(
            accelerator.device(),
            (addr, len),
            id,
            owner,
            whole,
        ))
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
