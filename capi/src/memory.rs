// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device can reach: registered, allocated or managed.
//!
//! Whatever it is, a stream takes it as one device slice of bytes, made once. Work in flight shares
//! it; releasing waits for that work.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use pinmap::{
    Allocation, DeviceSlice, DeviceSliceMut, FileRegistration, Managed, ManagedRange,
    RawRegistration,
};

use crate::device::Device;
use crate::error::{enter, refer, size, status, store, ErrorKind, Failure, Result};
use crate::stream::Flight;

/// A value on the heap to which slices refer as long as it exists. A `Box` would assert that nobody
/// else does.
pub(crate) struct Kept<T>(NonNull<T>);

// SAFETY: It owns the value as a `Box` does.
unsafe impl<T: Send> Send for Kept<T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for Kept<T> {}

impl<T: 'static> Kept<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    /// What is made of a reference to the value, for as long as the value exists.
    ///
    /// # Safety
    ///
    /// The result must not be used after the value was dropped, and nobody else may have a
    /// reference that this one would exclude.
    pub(crate) unsafe fn lend<R>(&mut self, make: impl FnOnce(&'static mut T) -> R) -> R {
        // SAFETY: As the caller promises.
        make(unsafe { self.0.as_mut() })
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: It comes from a `Box`, and only shared references are made after `lend`.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        // SAFETY: It comes from a `Box`, and is not used again.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// What keeps memory within a device's reach.
pub(crate) enum Owner {
    Registration(Kept<RawRegistration>),
    File(Kept<FileRegistration>),
    Allocation(Kept<Allocation<u8>>),
    /// Managed memory, which is only kept.
    Managed {
        _memory: Kept<Managed<u8>>,
    },
    Range {
        _range: ManagedRange,
    },
}

/// The memory as an operand of a stream. What it refers to exists as long as the owner beside it.
pub(crate) enum Whole {
    /// Memory of a file, which no program has mapped.
    None,
    Read(DeviceSlice<'static, u8>),
    Write(DeviceSliceMut<'static, u8>),
}

/// What there is until the memory is released.
pub(crate) struct Held {
    /// Dropped before the owner.
    whole: Whole,
    pub(crate) owner: Owner,
    /// How many mappings there are besides.
    pub(crate) mappings: usize,
}

/// Memory that a device can reach.
pub struct Memory {
    device: pinmap::Device,
    /// The user address of the first byte, or 0.
    addr: usize,
    len: usize,
    /// Bytes between what the owner has and `addr`, after rounding outwards.
    offset: usize,
    id: u64,
    held: Mutex<Option<Held>>,
    /// The streams to which work was submitted that names the memory.
    streams: Mutex<Vec<Weak<Flight>>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Memory({} bytes at {:#x} of {})",
            self.len, self.addr, self.device
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    pub(crate) fn new(
        device: &pinmap::Device,
        (addr, len, offset): (usize, usize, usize),
        id: u64,
        owner: Owner,
        whole: Whole,
    ) -> Self {
        let held = Held {
            whole,
            owner,
            mappings: 0,
        };
        Self {
            device: device.clone(),
            addr,
            len,
            offset,
            id,
            held: Mutex::new(Some(held)),
            streams: Mutex::new(Vec::new()),
        }
    }

    /// Has a shared one for C.
    pub(crate) fn give(self) -> *mut Self {
        Arc::into_raw(Arc::new(self)).cast_mut()
    }

    /// Shares the memory that C names.
    ///
    /// # Safety
    ///
    /// The pointer is NULL, or comes from [`give`](Self::give), and the memory is not released.
    pub(crate) unsafe fn share(pointer: *const Self, what: &str) -> Result<Arc<Self>> {
        // SAFETY: As the caller promises.
        let memory = unsafe { refer(pointer, what)? };
        // SAFETY: It comes from an `Arc`, which C still has.
        unsafe {
            Arc::increment_strong_count(memory);
            Ok(Arc::from_raw(memory))
        }
    }

    /// Calls with what there is, if the memory is not released.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        match lock(&self.held).as_mut() {
            Some(held) => call(held),
            None => Err(Failure::new(
                Errno::ESTALE,
                ErrorKind::Stale,
                "the memory was released",
            )),
        }
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Failure::invalid(format!(
                "{len} bytes from byte {offset} on end outside of the memory, which has {}",
                self.len
            ))),
        }
    }

    /// A part as an operand that work reads.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<DeviceSlice<'static, u8>> {
        self.check(offset, len)?;
        self.with(|held| {
            let whole = match &held.whole {
                Whole::Read(slice) => *slice,
                Whole::Write(slice) => slice.as_slice(),
                Whole::None => return Err(no_operand()),
            };
            Ok(whole.part(offset..offset + len)?)
        })
    }

    /// A part as an operand that work writes.
    pub(crate) fn part_mut(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<DeviceSliceMut<'static, u8>> {
        self.check(offset, len)?;
        self.with(|held| match &mut held.whole {
            Whole::Write(slice) => Ok(slice.part(offset..offset + len)?),
            Whole::Read(_) => {
                let text = "the device may only read this memory";
                Err(Failure::new(
                    Errno::EACCES,
                    ErrorKind::PermissionDenied,
                    text,
                ))
            }
            Whole::None => Err(no_operand()),
        })
    }

    /// Notes that work of a stream names the memory.
    pub(crate) fn used_by(&self, flight: &Arc<Flight>) {
        let mut streams = lock(&self.streams);
        let flight = Arc::downgrade(flight);
        if !streams.iter().any(|known| known.ptr_eq(&flight)) {
            streams.retain(|known| known.strong_count() != 0);
            streams.push(flight);
        }
    }

    fn wait_for_streams(self: &Arc<Self>) {
        let streams = mem::take(&mut *lock(&self.streams));
        for flight in streams.iter().filter_map(Weak::upgrade) {
            flight.wait_for(self);
        }
    }
}

fn no_operand() -> Failure {
    let text = "memory of a file has no address here that a stream could name";
    Failure::new(Errno::EOPNOTSUPP, ErrorKind::Unsupported, text)
        .with_hint("map the file with mmap(), and register that")
}

/// Returns the address of the memory in this program; NULL for a registered file.
#[no_mangle]
pub unsafe extern "C" fn pinmap_address(memory: *const Memory) -> *mut c_void {
    enter(ptr::null_mut(), || {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        Ok(ptr::with_exposed_provenance_mut(memory.addr))
    })
}

/// Returns the length of the memory in bytes.
#[no_mangle]
pub unsafe extern "C" fn pinmap_length(memory: *const Memory) -> usize {
    enter(0, || {
        // SAFETY: Memory, by the rules of C.
        Ok(unsafe { refer(memory, "memory")? }.len)
    })
}

/// Returns the number by which events name the memory.
#[no_mangle]
pub unsafe extern "C" fn pinmap_memory_id(memory: *const Memory) -> u64 {
    enter(0, || {
        // SAFETY: Memory, by the rules of C.
        Ok(unsafe { refer(memory, "memory")? }.id)
    })
}

/// Stores the address at which the device finds the byte at `offset`.
///
/// Errors: EINVAL, the memory has no such byte; ESTALE, it is released.
#[no_mangle]
pub unsafe extern "C" fn pinmap_device_address(
    memory: *const Memory,
    offset: usize,
    device_address: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: Memory, by the rules of C.
        let memory = unsafe { refer(memory, "memory")? };
        memory.check(offset, 1)?;
        let first = memory.with(|held| {
            Ok(match &held.owner {
                Owner::Registration(registration) => registration.device_addr()?,
                Owner::File(file) => file.device_addr()?,
                Owner::Allocation(allocation) => allocation.device_addr(),
                Owner::Managed { .. } | Owner::Range { .. } => memory.addr as u64,
            })
        })?;
        let found = first + (memory.offset + offset) as u64;
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store(device_address, found, "device_address") }
    })
}

/// Stores the device address of a pointer into any memory of the device's, whoever registered it in
/// this program.
///
/// Errors: ENOENT, nothing of the device's is there, or nothing that is mapped.
#[no_mangle]
pub unsafe extern "C" fn pinmap_translate(
    device: *const Device,
    address: *const c_void,
    device_address: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let found = device.device.query(address.addr())?;
        let found = found.and_then(|info| info.device_addr).ok_or_else(|| {
            let text = format!("no memory of {} is at {address:p}", device.device);
            Failure::new(Errno::ENOENT, ErrorKind::NotFound, text)
        })?;
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe { store(device_address, found, "device_address") }
    })
}

/// Has the device see what the CPU wrote to these bytes. Needed only if the device lacks
/// PINMAP_INFO_COHERENT; otherwise this does nothing.
///
/// Errors: EINVAL, the memory has no such bytes; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_sync_for_device(
    memory: *const Memory,
    offset: usize,
    length: usize,
) -> c_int {
    // SAFETY: Memory, by the rules of C.
    status(|| unsafe { refer(memory, "memory")? }.sync(offset, length, true))
}

/// Has the CPU see what the device wrote to these bytes: see pinmap_sync_for_device().
///
/// Errors: as for pinmap_sync_for_device().
#[no_mangle]
pub unsafe extern "C" fn pinmap_sync_for_cpu(
    memory: *const Memory,
    offset: usize,
    length: usize,
) -> c_int {
    // SAFETY: Memory, by the rules of C.
    status(|| unsafe { refer(memory, "memory")? }.sync(offset, length, false))
}

impl Memory {
    fn sync(&self, offset: usize, len: usize, for_device: bool) -> Result<()> {
        self.check(offset, len)?;
        let start = self.offset + offset;
        let bytes = start..start + len;
        self.with(|held| {
            match (&held.owner, for_device) {
                (Owner::Registration(memory), true) => memory.sync_for_device(bytes)?,
                (Owner::Registration(memory), false) => memory.sync_for_cpu(bytes)?,
                (Owner::Allocation(memory), true) => memory.sync_for_device(bytes)?,
                (Owner::Allocation(memory), false) => memory.sync_for_cpu(bytes)?,
                // A file has no address here, and managed memory is for coherent devices.
                _ => {}
            }
            Ok(())
        })
    }
}

/// Takes memory away from the device, or frees it, when the work in flight that names it is done.
/// NULL is none. The memory is gone even if this fails, but for EBUSY.
///
/// Errors: EBUSY, there are mappings of it (pinmap_map()), and nothing was done; EIO, the IOMMU or
/// the device failed: the device is cut off from all memory, and will soon be gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_release(memory: *mut Memory) -> c_int {
    status(|| {
        if memory.is_null() {
            return Ok(());
        }
        // SAFETY: It comes from `give`, by the rules of C, and is forgotten or dropped below.
        let memory = unsafe { Arc::from_raw(memory.cast_const()) };
        let mapped = memory.with(|held| Ok(held.mappings))?;
        if mapped != 0 {
            mem::forget(memory);
            let text = format!("there are {mapped} mappings of the memory");
            return Err(Failure::new(Errno::EBUSY, ErrorKind::Busy, text)
                .with_hint("`pinmap_unmap()` takes a mapping away"));
        }
        memory.wait_for_streams();
        let Some(held) = lock(&memory.held).take() else {
            return Ok(());
        };
        if let Owner::Registration(registration) = held.owner {
            registration
                .into_inner()
                .release()
                .map_err(|error| error.into_error())?;
        }
        Ok(())
    })
}

impl<T> Kept<T> {
    fn into_inner(self) -> T {
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: It comes from a `Box`, and `this` is not dropped.
        *unsafe { Box::from_raw(this.0.as_ptr()) }
    }
}

/// Byte counts of C as those of Rust.
pub(crate) fn bytes(count: u64, width: usize) -> Result<usize> {
    let bytes = count.checked_mul(width as u64);
    let bytes = bytes.ok_or_else(|| Failure::invalid(format!("{count} elements")))?;
    size(bytes, "the length")
}
