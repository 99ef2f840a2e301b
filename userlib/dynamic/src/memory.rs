// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device can reach: registered, allocated or managed.
//!
//! Whatever it is, a stream takes it as one device slice of bytes, made once. Work in flight shares
//! it; releasing waits for that [work](crate::piece).

use std::any::Any;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Condvar, Mutex};

use nix::errno::Errno;
use pinmap::accelerator::{
    in_host_function, DeviceSlice, DeviceSliceMut, Managed, ManagedRange, Work,
};
use pinmap::inspect::ManagedStatistics;
use pinmap::{Access, Allocation, DmaBuf, ErrorKind, FilePart, Registration};

use crate::error::{Error, Result};
use crate::piece::{lock, wait, Piece, Pieces};

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

    /// A view made of a reference to the value, for as long as the value exists.
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

/// The owner that keeps memory within a device's reach.
pub(crate) enum Owner {
    Registration(Kept<Registration<()>>),
    File(Kept<Registration<FilePart>>),
    Allocation(Kept<Allocation<u8>>),
    Managed(Kept<Managed<u8>>),
    Range(ManagedRange),
    /// Nothing: each work that names the memory lends it to its device.
    Lent,
    /// Nothing: the program has it within reach, in some other way.
    Pointed,
}

/// The memory as an operand of a stream. What it refers to exists as long as the owner beside it.
pub(crate) enum Whole {
    /// Memory of a file, which no program has mapped.
    None,
    Read(DeviceSlice<'static, u8>),
    Write(DeviceSliceMut<'static, u8>),
}

/// Parts that exist until the memory is released.
pub(crate) struct Held {
    /// Dropped before the owner.
    pub(crate) whole: Whole,
    pub(crate) owner: Owner,
    /// How many mappings there are besides.
    pub(crate) mappings: usize,
    /// How many transfers of channels have the memory.
    transfers: usize,
    /// A value that the program wants kept; dropped after the owner.
    pub(crate) kept: Vec<Box<dyn Any + Send>>,
}

/// A share of memory that work in flight has.
pub(crate) struct Shared {
    pub(crate) len: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// Whether memory is released.
enum State {
    Held(Held),
    /// A thread releases it.
    Leaving,
    Released,
}

impl Shared {
    /// Calls with what there is, if the memory is not released.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        match &mut *lock(&self.state) {
            State::Held(held) => call(held),
            State::Leaving | State::Released => {
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

    /// Lends the memory to the device of `work`, if nothing else has it in the device's reach.
    pub(crate) fn lend(&self, work: &Work<'_>) -> pinmap::Result<()> {
        match &mut *lock(&self.state) {
            State::Held(Held {
                owner: Owner::Lent,
                whole,
                ..
            }) => match whole {
                Whole::Read(slice) => {
                    // SAFETY: As `Memory::lent` demands. Nobody uses the reference.
                    let bytes = unsafe { std::slice::from_raw_parts(start(slice), self.len) };
                    work.slice(bytes).map(drop)
                }
                Whole::Write(slice) => {
                    let first = start(&slice.as_slice()).cast_mut();
                    // SAFETY: As above.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(first, self.len) };
                    work.slice_mut(bytes).map(drop)
                }
                Whole::None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }
}

/// The first byte of lent memory, which the device has at the same address.
fn start(slice: &DeviceSlice<'_, u8>) -> *const u8 {
    ptr::with_exposed_provenance(slice.device_addr() as usize)
}

/// Memory that a device can reach, shared by the program and by work in flight.
///
/// Memory that is dropped and was not released is taken away from the device when the work that
/// names it has ended: at once, or when the other memory that this work names is used next.
pub struct Memory {
    device: pinmap::Device,
    /// The user address of the first byte, or 0.
    addr: usize,
    id: u64,
    shared: Arc<Shared>,
    pieces: Pieces,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, Self { addr, device, .. }) = (self.len(), self);
        write!(f, "Memory({len} bytes at {addr:#x} of {device})")
    }
}

impl Memory {
    pub(crate) fn new(
        device: &pinmap::Device,
        (addr, len): (usize, usize),
        id: u64,
        owner: Owner,
        whole: Whole,
    ) -> Arc<Self> {
        let held = Held {
            whole,
            owner,
            mappings: 0,
            transfers: 0,
            kept: Vec::new(),
        };
        Arc::new(Self {
            device: device.clone(),
            addr,
            id,
            shared: Arc::new(Shared {
                len,
                state: Mutex::new(State::Held(held)),
                changed: Condvar::new(),
            }),
            pieces: Pieces::default(),
        })
    }

    /// Calls with what there is, if the memory is not released.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        self.shared.with(call)
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        self.shared.check(offset, len)
    }

    /// Returns a share of the memory for work in flight.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
        self.shared.len
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
                Owner::Managed(_) | Owner::Range(_) | Owner::Lent | Owner::Pointed => {
                    self.addr as u64
                }
            })
        })?;
        Ok(first + offset as u64)
    }

    /// Whether the device may write the memory.
    pub fn is_writable(&self) -> bool {
        let writable = self.with(|held| Ok(!matches!(held.whole, Whole::Read(_))));
        writable.unwrap_or(false)
    }

    /// Whether there are [mappings](Self::map).
    pub fn is_mapped(&self) -> bool {
        let mapped = self.with(|held| Ok(held.mappings != 0));
        mapped.unwrap_or(false)
    }

    /// Lends the memory to a transfer, which [gives it back](Self::take_back). Returns the access
    /// that the device has.
    pub(crate) fn lend(&self) -> Result<Access> {
        self.with(|held| {
            let access = match (&held.owner, &held.whole) {
                (Owner::Lent, _) => {
                    let text = "this is no memory of the device: register it, or allocate some";
                    return Err(Error::invalid(text));
                }
                (Owner::File(file), _) => file.access(),
                (_, Whole::Read(_)) => Access::Read,
                _ => Access::ReadWrite,
            };
            held.transfers += 1;
            Ok(access)
        })
    }

    /// Notes that a transfer does not have the memory any more.
    pub(crate) fn take_back(&self) {
        // The memory cannot be released as long as a transfer has it.
        let _ = self.with(|held| {
            held.transfers -= 1;
            Ok(())
        });
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
        let bytes = offset..offset + len;
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

    /// Returns what became of managed memory so far.
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
    /// more: it is dropped when the memory was released, and at once if that was before. A thread
    /// of the crate's may drop it.
    pub fn keep(&self, what: impl Any + Send) {
        let mut what: Option<Box<dyn Any + Send>> = Some(Box::new(what));
        // Otherwise it is dropped here, without a lock.
        let _ = self.with(|held| {
            held.kept.extend(what.take());
            Ok(())
        });
    }

    /// Notes that a piece of work, which is about to be submitted, names the memory.
    pub(crate) fn used_by(&self, piece: &Arc<Piece>) {
        self.pieces.add(piece);
    }

    /// Takes the memory away from the device, or frees it, when the work in flight that names it is
    /// done. Once it is released this does nothing. In a host function this does not wait.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there are [mappings](Self::map), or transfers have the memory, or the device does
    /// not confirm that it has ended the work, and nothing was done; `EDEADLK`: this is a host
    /// function, and there is work in flight that names the memory, or this thread is just
    /// submitting some, and nothing was done; otherwise as for [`Registration::release`], after
    /// which the memory counts as released.
    pub fn release(self: &Arc<Self>) -> Result<()> {
        let Some(held) = self.take()? else {
            return Ok(());
        };
        // A piece that was added since then finds the memory released. A host function must not
        // even wait for that.
        if !in_host_function() {
            if let Err(error) = self.pieces.end() {
                self.shared.set(State::Held(held));
                if error.kind() == ErrorKind::Deadlock {
                    return Err(error);
                }
                let text = format!("the device does not end work that names the memory: {error}");
                return Err(Error::new(Errno::EBUSY, ErrorKind::Busy, text));
            }
        }
        let Held { owner, kept, .. } = held;
        let released = match owner {
            Owner::Registration(registration) => {
                let released = registration.into_inner().release();
                released.map_err(pinmap::ErrorWith::into_error)
            }
            owner => {
                drop(owner);
                Ok(())
            }
        };
        self.shared.set(State::Released);
        drop(kept);
        Ok(released?)
    }

    /// Takes what there is, so that new work does not find it any more; `None` if the memory is
    /// released.
    fn take(&self) -> Result<Option<Held>> {
        // Without the lock: what is dropped with a piece may be code of the program's.
        let over = in_host_function() && self.pieces.have_ended();
        let Shared { state, changed, .. } = &*self.shared;
        let mut state = lock(state);
        loop {
            match &*state {
                State::Released => return Ok(None),
                // The other thread may fail.
                State::Leaving if !in_host_function() => state = wait(changed, state),
                State::Held(held) if held.mappings != 0 => {
                    let text = format!("there are {} mappings of the memory", held.mappings);
                    return Err(Error::new(Errno::EBUSY, ErrorKind::Busy, text));
                }
                State::Held(held) if held.transfers != 0 => {
                    let text = format!("{} transfers have the memory", held.transfers);
                    let error = Error::new(Errno::EBUSY, ErrorKind::Busy, text);
                    return Err(error.with_hint("wait for them, or close their channels"));
                }
                // All work that has found the memory is in the list.
                State::Held(_) if !in_host_function() || over && self.pieces.are_over() => break,
                State::Leaving | State::Held(_) => {
                    let text = "a host function cannot wait for the work that names the memory";
                    let error = Error::new(Errno::EDEADLK, ErrorKind::Deadlock, text);
                    return Err(error.with_hint("release it in another thread, or later"));
                }
            }
        }
        match mem::replace(&mut *state, State::Leaving) {
            State::Held(held) => Ok(Some(held)),
            State::Leaving | State::Released => unreachable!("it was held"),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Pieces that have ended keep nothing, though other memory may know them.
        self.pieces.have_ended();
    }
}
