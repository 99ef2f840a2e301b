// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work of a stream: operations with operands, and copies from and to unregistered memory.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::error::{Error, Operation, Result};
use crate::memory::cache::Cached;
use crate::memory::element::Element;
use crate::memory::options::Access;
use crate::memory::raw::RawRegistration;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::queue::WhenFull;
use crate::sys::map::page_size;
use crate::testgpu::kernel::Kernel;
use crate::testgpu::packet::Packet;

use super::core::{Core, State};
use super::options::Unregistered;

/// Submits work to a stream, on memory that lives at least as long as `'w`; by then the work is
/// done.
///
/// Made by [`Scope::on`](super::Scope::on), or passed to the function of
/// [`Stream::submit`](super::Stream::submit).
pub struct Work<'w> {
    core: Arc<Core>,
    /// Id of the queue with which the work began.
    queue: u64,
    kept: Arc<Kept>,
    /// Makes `'w` invariant: an operand cannot live for less.
    memory: PhantomData<&'w mut &'w ()>,
}

/// Registrations that are kept until the work is done.
#[derive(Default)]
pub(super) struct Kept(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    /// Memory that the device reads. Other work may read from the same pages.
    read: Vec<Cached>,
    /// Memory that the device writes.
    written: Vec<RawRegistration>,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is registered.
    pub(super) fn is_empty(&self) -> bool {
        let all = self.lock();
        all.read.is_empty() && all.written.is_empty()
    }

    /// Releases everything; the work must be done. When this returns, also with an error, no device
    /// reaches the memory that was written: see
    /// [`release_or_abort`](RawRegistration::release_or_abort).
    pub(super) fn release(&self) -> Result<()> {
        let Registered { read, written } = std::mem::take(&mut *self.lock());
        // A device may go on reading this memory, should the release fail.
        drop(read);
        let released = written
            .into_iter()
            .map(|mut registration| registration.release_or_abort());
        // Each of them, also after an error.
        released.fold(Ok(()), Result::and)
    }
}

impl<'w> Work<'w> {
    /// Work for this queue of the stream, until the stream is reset.
    pub(super) fn new(core: &Arc<Core>, queue: u64, kept: &Arc<Kept>) -> Self {
        Self {
            core: Arc::clone(core),
            queue,
            kept: Arc::clone(kept),
            memory: PhantomData,
        }
    }

    /// Locks the stream's state, unless the stream was reset since the work began.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.core.lock_of(self.queue)
    }

    /// Submits a copy of elements between any two kinds of memory, by the copy engine of that
    /// direction. Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// `EINVAL`: `from` and `to` differ in length or overlap, or belong to another context; `EIO`:
    /// the stream has failed, or was reset since the work began; `ENODEV`: the device is gone;
    /// `EDEADLK`: this is a host function.
    pub fn copy<'b: 'w, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: &mut DeviceSliceMut<'b, T>,
    ) -> Result<()> {
        // Before locking: this runs code of the caller, which may use the stream.
        let from = from.into();
        self.lock()?.queue_mut().copy(&from, to, WhenFull::Wait)
    }

    /// Submits a copy from memory that is not registered. The copy is refused, or the pages of the
    /// memory are registered until the work is done, as `unregistered` says. Pages that several
    /// copies read are registered once.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: refused, by [`Unregistered::Refuse`]; otherwise as for
    /// [`Device::register_raw`](crate::Device::register_raw), where `EEXIST` means that the program
    /// itself has registered some of the memory.
    #[allow(unsafe_code)]
    pub fn copy_from<'b: 'w, T: Element>(
        &self,
        from: &'w [T],
        to: &mut DeviceSliceMut<'b, T>,
        unregistered: Unregistered,
    ) -> Result<()> {
        let (addr, len) = (from.as_ptr().addr(), size_of_val(from));
        self.require_consent(unregistered, addr, len)?;
        self.require_equal(from.len(), to.len())?;
        let cache = self.core.shared().borrowed(self.core.device())?;
        let memory = from.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: The device can only read the memory, and `from` is borrowed until the work is
        // done, when it is released. What lies beside it in the same pages only raw packets could
        // name, and those, too, can only read.
        let parts = unsafe { cache.get_parts(memory, len)? };
        let sources = parts
            .iter()
            .map(|(cached, len)| Ok((cached.device_addr()?, *len as u64)));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let parts = parts.into_iter().map(|(cached, _)| cached);
        self.kept.lock().read.extend(parts);
        self.lock()?.queue_mut().copy_in(&sources, to)
    }

    /// Submits a copy to memory that is not registered. The copy is refused, or the memory is
    /// registered until the work is done, as `unregistered` says. The memory must be whole pages,
    /// as a [`Buffer`](crate::Buffer) is, because the device could write to whatever else is in
    /// them.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: refused, by [`Unregistered::Refuse`]; `EINVAL`: the
    /// memory is not whole pages; otherwise as for
    /// [`Device::register_raw`](crate::Device::register_raw).
    #[allow(unsafe_code)]
    pub fn copy_to<T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: &'w mut [T],
        unregistered: Unregistered,
    ) -> Result<()> {
        let from = from.into();
        let (addr, len) = (to.as_mut_ptr().expose_provenance(), size_of_val(to));
        self.require_consent(unregistered, addr, len)?;
        self.require_equal(from.len(), to.len())?;
        if addr % page_size() != 0 || len % page_size() != 0 {
            let cause = "it shares a page with something else, which the device could write to";
            let error = refused(Errno::EINVAL, addr, len, cause);
            return Err(error.with_hint("take whole pages, for instance of a `Buffer`"));
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: `to` is borrowed exclusively until the work is done, when it is released. Nothing
        // else is in its pages, and its elements can be any bytes.
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

    /// Refuses memory that is not registered, unless it is to be registered.
    fn require_consent(&self, unregistered: Unregistered, addr: usize, len: usize) -> Result<()> {
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

    /// Refuses a copy between different numbers of elements.
    fn require_equal(&self, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let (errno, cause) = (Errno::EINVAL, "not as many elements in both");
        let attempt = format!("submit a copy of {from} elements to {to}");
        Err(Error::refused(Operation::Submit, attempt, errno, cause))
    }

    /// Submits a fill, which sets each element to `value`, by a copy engine. Waits if the ring is
    /// full.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy).
    pub fn fill<'b: 'w, T: Element>(&self, to: &mut DeviceSliceMut<'b, T>, value: T) -> Result<()> {
        self.lock()?.queue_mut().fill(to, value, WhenFull::Wait)
    }

    /// Submits a [kernel](mod@crate::kernel). Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: the operands do not have the lengths that the kernel
    /// needs, or one that is written overlaps with another.
    pub fn launch(&self, kernel: impl Kernel<'w>) -> Result<()> {
        self.lock()?.queue_mut().launch(kernel, WhenFull::Wait)
    }

    /// Has the device store its clock, in nanoseconds, in one element, when everything before is
    /// done.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn timestamp<'b: 'w>(&self, to: &mut DeviceSliceMut<'b, u64>, index: usize) -> Result<()> {
        self.lock()?.queue_mut().timestamp(to, index)
    }

    /// Submits raw packets. [`Scope::submit`](crate::Scope::submit) of a queue says what they can
    /// do to other queues and streams. Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, or was reset since the work began; `ENODEV`: the device is
    /// gone; `EDEADLK`: this is a host function.
    pub fn packets(&self, packets: &[Packet]) -> Result<()> {
        let count = packets.len() as u64;
        let packets = packets.iter().copied();
        let mut state = self.lock()?;
        let queue = state.queue_mut();
        queue.mark_raw();
        queue.submit(count, packets, WhenFull::Wait)
    }
}

/// The error of a copy that the crate refuses.
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
    use crate::queue::handle::Handle;
    use crate::queue::Queue;
    use crate::stream::{scope, Stream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// A stream whose fence says that everything is done, as a raw packet may have stored. The
    /// device says that nothing is.
    fn forged() -> (Stream, Arc<Handle>) {
        let queue = Queue::fake_with_index();
        let handle = Arc::clone(queue.handle());
        handle.execute(u64::MAX);
        handle.confirm_fake(0);
        let core = Core::fake(queue);
        (Stream { core }, handle)
    }

    /// Asserts that a call waits for the device itself.
    fn waits(handle: &Handle, what: impl FnOnce() + Send) {
        let finished = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                what();
                finished.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!finished.load(Ordering::SeqCst));
            handle.confirm_fake(3);
        });
    }

    #[test]
    fn raw_packets_cannot_end_a_scope_early() {
        let (stream, handle) = forged();
        waits(&handle, || {
            let result = scope(|scope| scope.on(&stream).packets(&[Packet::nop()]));
            result.expect("done");
        });
    }

    #[test]
    fn raw_packets_cannot_give_memory_back_early() {
        let (stream, handle) = forged();
        let submit = || {
            let pending = stream.submit(vec![1], |work, _| work.packets(&[Packet::nop()]));
            pending.expect("submitted")
        };
        let pending = submit().try_into_memory().expect_err("the device has it");
        waits(&handle, || {
            assert_eq!(pending.wait().expect("done"), [1]);
        });
    }
}
