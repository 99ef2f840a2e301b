// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device can reach: registered, allocated or managed.
//!
//! Whatever it is, a stream takes it as one device slice of bytes, made once. Work in flight shares
//! it; releasing waits for that work.

use std::any::Any;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use pinmap::stream::in_host_function;
use pinmap::{
    Access, Allocation, DeviceSlice, DeviceSliceMut, DmaBuf, ErrorKind, FileRegistration, Managed,
    ManagedRange, ManagedStatistics, RawRegistration,
};

use crate::error::{Error, Result};
use crate::stream::{in_the_way, Flight};

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

impl<T> Kept<T> {
    fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        // SAFETY: It comes from a `Box`, and `this` is not dropped.
        *unsafe { Box::from_raw(this.0.as_ptr()) }
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
    Managed(Kept<Managed<u8>>),
    Range(ManagedRange),
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
    pub(crate) whole: Whole,
    pub(crate) owner: Owner,
    /// How many mappings there are besides.
    pub(crate) mappings: usize,
}

/// Memory that a device can reach, shared by the program and by work in flight.
pub struct Memory {
    device: pinmap::Device,
    /// The user address of the first byte, or 0.
    addr: usize,
    len: usize,
    /// Bytes between what the owner has and `addr`, after rounding outwards.
    offset: usize,
    id: u64,
    held: Mutex<Option<Held>>,
    /// What the program wants kept; dropped after what is held.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    /// The streams to which work was submitted that names the memory.
    streams: Mutex<Vec<Weak<Flight>>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            len, addr, device, ..
        } = self;
        write!(f, "Memory({len} bytes at {addr:#x} of {device})")
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
    ) -> Arc<Self> {
        let held = Held {
            whole,
            owner,
            mappings: 0,
        };
        Arc::new(Self {
            device: device.clone(),
            addr,
            len,
            offset,
            id,
            held: Mutex::new(Some(held)),
            kept: Mutex::default(),
            streams: Mutex::new(Vec::new()),
        })
    }

    /// Calls with what there is, if the memory is not released.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        match lock(&self.held).as_mut() {
            Some(held) => call(held),
            None => {
                let text = "the memory was released";
                Err(Error::new(Errno::ESTALE, ErrorKind::Stale, text))
            }
        }
    }

    /// Checks that the memory has these bytes.
    pub(crate) fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(format!(
                "{len} bytes from byte {offset} on end outside of the memory, which has {}",
                self.len
            ))),
        }
    }

    /// The device.
    pub fn device(&self) -> &pinmap::Device {
        &self.device
    }

    /// The address of the first byte in this program; 0 for a registered file.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The number by which events name the memory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The address at which the device finds the byte at `offset`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such byte; `ESTALE`: the memory is released.
    pub fn device_addr(&self, offset: usize) -> Result<u64> {
        self.check(offset, 1)?;
        let first = self.with(|held| {
            Ok(match &held.owner {
                Owner::Registration(registration) => registration.device_addr()?,
                Owner::File(file) => file.device_addr()?,
                Owner::Allocation(allocation) => allocation.device_addr(),
                Owner::Managed(_) | Owner::Range(_) => self.addr as u64,
            })
        })?;
        Ok(first + (self.offset + offset) as u64)
    }

    /// Whether the device may write the memory.
    pub fn is_writable(&self) -> bool {
        let writable = self.with(|held| Ok(!matches!(held.whole, Whole::Read(_))));
        writable.unwrap_or(false)
    }

    /// Maintains the CPU's caches for these bytes, if the device does not snoop them: for the
    /// device to see what the CPU wrote, or the other way round.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are no such bytes; `ESTALE`: the memory is released; `ENODEV`: the device is
    /// gone.
    pub fn sync(&self, offset: usize, len: usize, for_device: bool) -> Result<()> {
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

    /// Exports memory of the driver's, or a registered file.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: this kind of memory cannot be exported; otherwise as for
    /// [`Allocation::export`].
    pub fn export(&self, access: Access) -> Result<DmaBuf> {
        self.with(|held| match &held.owner {
            Owner::File(file) => Ok(file.export(access)?),
            Owner::Allocation(allocation) => Ok(allocation.export(access)?),
            _ => Err(Error::new(
                Errno::EOPNOTSUPP,
                ErrorKind::Unsupported,
                "only memory of the driver's and registered files are exported",
            )),
        })
    }

    /// What became of managed memory so far.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the memory is not managed; otherwise as for [`ManagedRange::statistics`].
    pub fn statistics(&self) -> Result<ManagedStatistics> {
        self.with(|held| match &held.owner {
            Owner::Managed(memory) => Ok(memory.statistics()?),
            Owner::Range(range) => Ok(range.statistics()?),
            _ => Err(Error::new(
                Errno::EOPNOTSUPP,
                ErrorKind::Unsupported,
                "the memory is not managed",
            )),
        })
    }

    /// Keeps something, such as what owns the bytes, until the device cannot reach the memory any
    /// more: it is dropped when the memory was released. A thread of the crate's may drop it.
    pub fn keep(&self, what: impl Any + Send) {
        lock(&self.kept).push(Box::new(what));
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

    /// Takes the memory away from the device, or frees it, when the work in flight that names it is
    /// done. Once it is released this does nothing.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there are [mappings](Self::map), or `EDEADLK`: this is a host function, and work in
    /// flight names the memory, and nothing was done; otherwise as for
    /// [`RawRegistration::release`], after which the memory counts as released.
    pub fn release(self: &Arc<Self>) -> Result<()> {
        if in_host_function() {
            let flights = lock(&self.streams).clone();
            let mut flights = flights.iter().filter_map(Weak::upgrade);
            if flights.any(|flight| flight.is_using(self)) {
                return Err(in_the_way("wait for the work that names the memory"));
            }
        }
        let held = {
            let mut held = lock(&self.held);
            let mapped = held.as_ref().map_or(0, |held| held.mappings);
            if mapped != 0 {
                let text = format!("there are {mapped} mappings of the memory");
                return Err(Error::new(Errno::EBUSY, ErrorKind::Busy, text));
            }
            // New work does not find it from here on.
            held.take()
        };
        let streams = mem::take(&mut *lock(&self.streams));
        for flight in streams.iter().filter_map(Weak::upgrade) {
            flight.wait_for(self);
        }
        let released = match held.map(|held| held.owner) {
            Some(Owner::Registration(registration)) => registration.into_inner().release(),
            _ => Ok(()),
        };
        drop(mem::take(&mut *lock(&self.kept)));
        Ok(released.map_err(pinmap::ErrorWith::into_error)?)
    }
}
