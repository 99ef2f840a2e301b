// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is submitted to a stream, with operands.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

use crate::element::Element;
use crate::error::{Error, Operation, Result};
use crate::kernel::Kernel;
use crate::packet::Packet;
use crate::queue::Full;
use crate::raw::RawRegistration;
use crate::slice::{DeviceSlice, DeviceSliceMut};

use super::core::Core;
use super::options::Unregistered;

/// A stream, for work on memory that lives at least as long as `'w`, when the work is done.
///
/// Made by [`Scope::on`](super::Scope::on), or given to the function of
/// [`Stream::submit`](super::Stream::submit).
pub struct Work<'w> {
    core: Arc<Core>,
    kept: Arc<Kept>,
    /// Invariant: no operand may live shorter.
    memory: PhantomData<&'w mut &'w ()>,
}

/// Memory that is registered until the work is done.
#[derive(Default)]
pub(super) struct Kept(Mutex<Vec<RawRegistration>>);

impl Kept {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.is_empty()
    }

    /// Releases all of it: the work is done.
    pub(super) fn release(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

impl<'w> Work<'w> {
    pub(super) fn new(core: &Arc<Core>, kept: &Arc<Kept>) -> Self {
        Self {
            core: Arc::clone(core),
            kept: Arc::clone(kept),
            memory: PhantomData,
        }
    }

    /// Copies elements, by the copy engine of the direction, between any two kinds of memory.
    /// Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not as many elements in both, they overlap, or the memory belongs to another
    /// context; `EIO`: the stream has failed; `ENODEV`: the device is gone; `EDEADLK`: this is a
    /// host function.
    pub fn copy<'b: 'w, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: &mut DeviceSliceMut<'b, T>,
    ) -> Result<()> {
        let mut state = self.core.lock();
        state.queue_mut().copy(&from.into(), to, Full::Wait)
    }

    /// Copies elements from memory that the device cannot reach: refuses, or registers the pages
    /// that have them until the work is done.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: it was not told to register; the errors of
    /// [`Device::register_raw`](crate::Device::register_raw), of which `EEXIST` means that some of
    /// it is registered.
    #[allow(unsafe_code)]
    pub fn copy_from<'b: 'w, T: Element>(
        &self,
        from: &'w [T],
        to: &mut DeviceSliceMut<'b, T>,
        unregistered: Unregistered,
    ) -> Result<()> {
        let (addr, len) = (from.as_ptr().expose_provenance(), size_of_val(from));
        if unregistered == Unregistered::Refuse {
            let attempt = format!("submit a copy of {len} bytes at {addr:#x}");
            let cause = "that memory is not registered";
            let hint = "register it once, allocate it with `Device::alloc`, or pass \
                        `Unregistered::Register`";
            let error = Error::refused(Operation::Submit, attempt, Errno::EPERM, cause);
            return Err(error.with_hint(hint));
        }
        if len == 0 {
            return Ok(());
        }
        let options = crate::RegisterOptions::from(crate::Access::Read).round_outwards();
        // SAFETY: The device can only read it, and `from` is borrowed until the work is done, when
        // it is released. What lies beside it in the same pages nothing but packets made by hand
        // could name, and those only read.
        let registration = unsafe {
            let memory = from.as_ptr().cast_mut().cast::<u8>();
            self.core.device().register_raw(memory, len, options)?
        };
        let source = registration.device_addr()? + (addr - registration.addr()) as u64;
        let mut kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(registration);
        drop(kept);
        let mut state = self.core.lock();
        state.queue_mut().copy_addr(source, from.len(), to)
    }

    /// Sets each element, by a copy engine. Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy).
    pub fn fill<'b: 'w, T: Element>(&self, to: &mut DeviceSliceMut<'b, T>, value: T) -> Result<()> {
        self.core.lock().queue_mut().fill(to, value, Full::Wait)
    }

    /// Launches a [kernel](mod@crate::kernel). Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: the operands do not have the lengths that the kernel
    /// needs, or what is written overlaps with something else.
    pub fn launch(&self, kernel: impl Kernel<'w>) -> Result<()> {
        self.core.lock().queue_mut().launch(kernel, Full::Wait)
    }

    /// Stores the device's clock, in nanoseconds, in one element, when everything before is done.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn timestamp<'b: 'w>(&self, to: &mut DeviceSliceMut<'b, u64>, index: usize) -> Result<()> {
        self.core.lock().queue_mut().timestamp(to, index)
    }

    /// Submits packets as they are: as [`Scope::submit`](crate::Scope::submit) of a queue.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed; `ENODEV`: the device is gone; `EDEADLK`: this is a host
    /// function.
    pub fn packets(&self, packets: &[Packet]) -> Result<()> {
        let count = packets.len() as u64;
        let packets = packets.iter().copied();
        let mut state = self.core.lock();
        let queue = state.queue_mut();
        queue.distrust();
        queue.submit(count, packets, Full::Wait)
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.core).finish()
    }
}
