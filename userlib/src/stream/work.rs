// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is submitted to a stream, with operands.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::cache::Cached;
use crate::element::Element;
use crate::error::{Error, Operation, Result};
use crate::kernel::Kernel;
use crate::options::Access;
use crate::packet::Packet;
use crate::pages::page_size;
use crate::queue::Full;
use crate::raw::RawRegistration;
use crate::slice::{DeviceSlice, DeviceSliceMut};

use super::core::{Core, State};
use super::options::Unregistered;

/// A stream, for work on memory that lives at least as long as `'w`, when the work is done.
///
/// Made by [`Scope::on`](super::Scope::on), or given to the function of
/// [`Stream::submit`](super::Stream::submit).
pub struct Work<'w> {
    core: Arc<Core>,
    /// Its queue, when the work began.
    queue: u64,
    kept: Arc<Kept>,
    /// Invariant: no operand may live shorter.
    memory: PhantomData<&'w mut &'w ()>,
}

/// Memory that is registered until the work is done.
#[derive(Default)]
pub(super) struct Kept(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    /// What is read. Others may read from the same pages.
    read: Vec<Cached>,
    /// What is written.
    written: Vec<RawRegistration>,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        let all = self.lock();
        all.read.is_empty() && all.written.is_empty()
    }

    /// Releases all of it: the work is done. Once it has returned, no device reaches what was
    /// written, also after an error; otherwise it does not return.
    pub(super) fn release(&self) -> Result<()> {
        let Registered { read, written } = std::mem::take(&mut *self.lock());
        // What a device only reads, it may go on to read.
        drop(read);
        let released = written
            .into_iter()
            .map(|mut registration| registration.release_or_abort());
        // All of them, also after an error.
        released.fold(Ok(()), Result::and)
    }
}

impl<'w> Work<'w> {
    /// For what is submitted to the queue of that name, until the stream is reset.
    pub(super) fn new(core: &Arc<Core>, queue: u64, kept: &Arc<Kept>) -> Self {
        Self {
            core: Arc::clone(core),
            queue,
            kept: Arc::clone(kept),
            memory: PhantomData,
        }
    }

    /// The stream's state, unless it was reset: then part of the work was done, or would be, and not the
    /// rest.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.core.lock_of(self.queue)
    }

    /// Copies elements, by the copy engine of the direction, between any two kinds of memory.
    /// Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not as many elements in both, they overlap, or the memory belongs to another
    /// context; `EIO`: the stream has failed, or was reset meanwhile; `ENODEV`: the device is gone; `EDEADLK`: this is a
    /// host function.
    pub fn copy<'b: 'w, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: &mut DeviceSliceMut<'b, T>,
    ) -> Result<()> {
        // Before the lock: it is the caller's own code, which may use the stream.
        let from = from.into();
        self.lock()?.queue_mut().copy(&from, to, Full::Wait)
    }

    /// Copies elements from memory that the device cannot reach: refuses, or has it registered, by
    /// the pages, until the work is done. What several copies need is registered once, also where
    /// they need different parts of it that overlap.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: it was not told to register; the errors of
    /// [`Device::register_raw`](crate::Device::register_raw), of which `EEXIST` means that some of it
    /// is registered by the program itself.
    #[allow(unsafe_code)]
    pub fn copy_from<'b: 'w, T: Element>(
        &self,
        from: &'w [T],
        to: &mut DeviceSliceMut<'b, T>,
        unregistered: Unregistered,
    ) -> Result<()> {
        let (addr, len) = (from.as_ptr().addr(), size_of_val(from));
        self.demand(unregistered, addr, len)?;
        self.demand_equal(from.len(), to.len())?;
        let cache = self.core.shared().borrowed(self.core.device())?;
        let memory = from.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: The device can only read it, and `from` is borrowed until the work is done, when it
        // is released. What lies beside it in the same pages nothing but packets made by hand could
        // name, and those only read.
        let parts = unsafe { cache.get_parts(memory, len)? };
        let sources = parts
            .iter()
            .map(|(cached, len)| Ok((cached.device_addr()?, *len as u64)));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let parts = parts.into_iter().map(|(cached, _)| cached);
        self.kept.lock().read.extend(parts);
        self.lock()?.queue_mut().copy_in(&sources, to)
    }

    /// Copies elements to memory that the device cannot reach: refuses, or registers it until the
    /// work is done. It must be whole pages, as a [`Buffer`](crate::Buffer) is: the device could
    /// write to whatever else is in them.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: it was not told to register; `EINVAL`: it is not whole
    /// pages; the errors of [`Device::register_raw`](crate::Device::register_raw).
    #[allow(unsafe_code)]
    pub fn copy_to<T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: &'w mut [T],
        unregistered: Unregistered,
    ) -> Result<()> {
        let from = from.into();
        let (addr, len) = (to.as_mut_ptr().expose_provenance(), size_of_val(to));
        self.demand(unregistered, addr, len)?;
        self.demand_equal(from.len(), to.len())?;
        if addr % page_size() != 0 || len % page_size() != 0 {
            let cause = "it shares a page with something else, which the device could write to";
            let error = refused(Errno::EINVAL, addr, len, cause);
            return Err(error.with_hint("take whole pages, for instance of a `Buffer`"));
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: `to` is borrowed, by nobody else, until the work is done, when it is released;
        // nothing else is in its pages, and its elements can be any bytes.
        let registration = unsafe {
            let memory = to.as_mut_ptr().cast::<u8>();
            self.core
                .device()
                .register_raw(memory, len, Access::ReadWrite)?
        };
        let target = registration.device_addr()?;
        self.kept.lock().written.push(registration);
        self.lock()?.queue_mut().copy_out(&from, target)
    }

    /// Refuses memory that is not registered, unless that is to be done.
    fn demand(&self, unregistered: Unregistered, addr: usize, len: usize) -> Result<()> {
        match unregistered {
            Unregistered::Register => Ok(()),
            Unregistered::Refuse => {
                let error = refused(Errno::EPERM, addr, len, "that memory is not registered");
                Err(error.with_hint(
                    "register it once, allocate it with `Device::alloc`, or pass \
                     `Unregistered::Register`",
                ))
            }
        }
    }

    fn demand_equal(&self, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let (errno, cause) = (Errno::EINVAL, "not as many elements in both");
        let attempt = format!("submit a copy of {from} elements to {to}");
        Err(Error::refused(Operation::Submit, attempt, errno, cause))
    }

    /// Sets each element, by a copy engine. Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy).
    pub fn fill<'b: 'w, T: Element>(&self, to: &mut DeviceSliceMut<'b, T>, value: T) -> Result<()> {
        self.lock()?.queue_mut().fill(to, value, Full::Wait)
    }

    /// Launches a [kernel](mod@crate::kernel). Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: the operands do not have the lengths that the kernel
    /// needs, or what is written overlaps with something else.
    pub fn launch(&self, kernel: impl Kernel<'w>) -> Result<()> {
        self.lock()?.queue_mut().launch(kernel, Full::Wait)
    }

    /// Stores the device's clock, in nanoseconds, in one element, when everything before is done.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn timestamp<'b: 'w>(&self, to: &mut DeviceSliceMut<'b, u64>, index: usize) -> Result<()> {
        self.lock()?.queue_mut().timestamp(to, index)
    }

    /// Submits packets as they are: as [`Scope::submit`](crate::Scope::submit) of a queue, which says
    /// what those can do to other queues and streams.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed; `ENODEV`: the device is gone; `EDEADLK`: this is a host
    /// function.
    pub fn packets(&self, packets: &[Packet]) -> Result<()> {
        let count = packets.len() as u64;
        let packets = packets.iter().copied();
        let mut state = self.lock()?;
        let queue = state.queue_mut();
        queue.distrust();
        queue.submit(count, packets, Full::Wait)
    }
}

/// Why a copy is refused.
fn refused(errno: Errno, addr: usize, len: usize, cause: &'static str) -> Error {
    let attempt = format!("submit a copy of {len} bytes at {addr:#x}");
    Error::refused(Operation::Submit, attempt, errno, cause)
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.core).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Progress;
    use crate::queue::Queue;
    use crate::stream::{scope, Stream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// A stream whose fence says that all is done, as a packet may have written; the device does
    /// not.
    fn forged() -> (Stream, Arc<Progress>) {
        let queue = Queue::fake_with_index();
        let progress = Arc::clone(queue.progress());
        progress.execute(u64::MAX);
        progress.confirm_fake(0);
        let core = Core::fake(queue);
        (Stream { core }, progress)
    }

    /// That something waits for the device itself.
    fn waits(progress: &Progress, what: impl FnOnce() + Send) {
        let finished = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                what();
                finished.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!finished.load(Ordering::SeqCst));
            progress.confirm_fake(3);
        });
    }

    #[test]
    fn packets_made_by_hand_cannot_end_a_scope_early() {
        let (stream, progress) = forged();
        waits(&progress, || {
            let result = scope(|scope| scope.on(&stream).packets(&[Packet::nop()]));
            result.expect("done");
        });
    }

    #[test]
    fn packets_made_by_hand_cannot_give_memory_back_early() {
        let (stream, progress) = forged();
        let submit = || {
            let pending = stream.submit(vec![1], |work, _| work.packets(&[Packet::nop()]));
            pending.expect("submitted")
        };
        let pending = submit().try_into_memory().expect_err("the device has it");
        waits(&progress, || {
            assert_eq!(pending.wait().expect("done"), [1]);
        });
    }
}
