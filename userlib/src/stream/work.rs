// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work of a stream: operations with operands, and slices of ordinary memory as operands.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use nix::errno::Errno;

use crate::error::{Error, Operation, Result};
use crate::memory::allocation::Place;
use crate::memory::element::{Element, Number};
use crate::memory::lent::Loans;
use crate::memory::raw::outwards;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::queue::format::{Kernel, Packet};
use crate::queue::handle::Handle;
use crate::queue::transfer::encode;
use crate::queue::WhenFull;
use crate::sys::map::page_size;
use crate::trace::recorder::Traced;

use super::core::{Core, State};
use super::event::Event;
use super::options::Unregistered;
use super::prefetch::{self, Prefetching};
use super::served::Serving;
use super::Stream;

/// Submits work to a stream, on memory that lives at least as long as `'w`; by then the work is
/// done.
///
/// Made by [`Scope::on`](super::Scope::on), or passed to the function of
/// [`Stream::submit`](super::Stream::submit).
///
/// ```no_run
/// use pinmap::{testgpu::IncrementF32, Allocation, Pinned, Stream};
/// # fn f(
/// #     stream: &Stream, host: &mut Pinned<f32>, local: &mut Allocation<f32>,
/// # ) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     let mut local = local.slice_mut();
///     work.copy(&*host, &mut local)?;
///     work.launch(IncrementF32 { data: &mut local })
/// })?;
/// # Ok(()) }
/// ```
pub struct Work<'w> {
    core: Arc<Core>,
    /// Id of the queue with which the work began.
    queue: u64,
    loans: Arc<Loans>,
    /// Makes `'w` invariant: an operand cannot live for less.
    memory: PhantomData<&'w mut &'w ()>,
}

impl<'w> Work<'w> {
    /// Work for this queue of the stream, until the stream is reset.
    pub(super) fn new(core: &Arc<Core>, queue: u64, loans: &Arc<Loans>) -> Self {
        Self {
            core: Arc::clone(core),
            queue,
            loans: Arc::clone(loans),
            memory: PhantomData,
        }
    }

    /// Locks the stream's state, unless the stream was reset since the work began.
    fn lock(&self) -> Result<Serving<'_, State>> {
        self.core.lock_of(self.queue)
    }

    /// The handle of the queue. Memory is lent without the lock, since pinning takes time.
    fn handle(&self) -> Result<Arc<Handle>> {
        Ok(Arc::clone(self.lock()?.queue().handle()))
    }

    /// Lends a slice of ordinary memory to the device, which reads it: an operand at the address
    /// that the slice has. It stays borrowed until the work is done.
    ///
    /// A device that can fault has the memory [managed](crate::Accelerator::manage), without a
    /// system call once a slice was lent to this stream. For any other device the pages around the
    /// slice are registered until the work is done. [`DeviceSlice::reach`] tells which it was.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::Crc32c, Pinned, Stream};
    /// # fn f(stream: &Stream, text: &[u8], crc: &mut Pinned<u32>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let data = work.slice(text)?; // any memory of the program
    ///     work.launch(Crc32c { data, crc: &mut crc.slice_mut() })
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`QueueScope::slice`](crate::QueueScope::slice) of a queue; `EIO`: the stream has
    /// failed, or was reset since the work began.
    pub fn slice<T: Element>(&self, memory: &'w [T]) -> Result<DeviceSlice<'w, T>> {
        self.handle()?.slice(memory, &self.loans)
    }

    /// Lends a slice of ordinary memory to the device, which reads and writes it. It stays borrowed
    /// exclusively until the work is done.
    ///
    /// ```no_run
    /// # fn f(stream: &pinmap::Stream, numbers: Vec<f32>) -> pinmap::Result<Vec<f32>> {
    /// let pending = stream.submit(numbers, |work, numbers| {
    ///     let mut data = work.slice_mut(numbers)?;
    ///     work.launch(pinmap::testgpu::IncrementF32 { data: &mut data })
    /// })?;
    /// // ... something else ...
    /// Ok(pending.wait()?)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`QueueScope::slice_mut`](crate::QueueScope::slice_mut) of a queue; `EIO`: the stream
    /// has failed, or was reset since the work began.
    pub fn slice_mut<T: Element>(&self, memory: &'w mut [T]) -> Result<DeviceSliceMut<'w, T>> {
        self.handle()?.slice_mut(memory, &self.loans)
    }

    /// The stream to which the work is submitted.
    pub fn stream(&self) -> Stream {
        Stream::of(Arc::clone(&self.core))
    }

    /// Records an event behind what was submitted so far: see
    /// [`Stream::record`](super::Stream::record).
    ///
    /// ```no_run
    /// use pinmap::{stream, Allocation, Pinned, Stream};
    /// # fn f(
    /// #     (up, down): (&Stream, &Stream), ready: &stream::Event,
    /// #     (host, local): (&mut Pinned<f32>, &mut Allocation<f32>),
    /// # ) -> pinmap::Result<()> {
    /// stream::scope(|scope| {
    ///     let (up, down) = (scope.on(up), scope.on(down));
    ///     let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
    ///     up.copy(&host, &mut local)?;
    ///     up.record(ready)?;
    ///     down.wait_event(ready)?;
    ///     down.copy(&local, &mut host)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Stream::record`](super::Stream::record); `EIO`: the stream was reset since the work
    /// began.
    pub fn record(&self, event: &Event) -> Result<()> {
        drop(self.lock()?);
        event.record(&self.core)
    }

    /// Has the device wait for an event before it executes what is submitted next: see
    /// [`Stream::wait_event`](super::Stream::wait_event).
    ///
    /// # Errors
    ///
    /// As for [`Stream::wait_event`](super::Stream::wait_event); `EIO`: the stream was reset since
    /// the work began.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        drop(self.lock()?);
        event.wait_on(&self.core)
    }

    /// Submits a host function, which runs when everything before is done: see
    /// [`Stream::call`](super::Stream::call).
    ///
    /// # Errors
    ///
    /// As for [`Stream::call`](super::Stream::call); `EIO`: the stream was reset since the work
    /// began.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        self.core.call(Some(self.queue), Box::new(function))
    }

    /// Submits a copy of elements between any two kinds of memory, by the copy engine of that
    /// direction. Waits if the ring is full.
    ///
    /// ```no_run
    /// use pinmap::{Allocation, Pinned, Stream};
    /// # fn f(
    /// #     stream: &Stream, host: &mut Pinned<f32>, local: &mut Allocation<f32>,
    /// # ) -> pinmap::Result<()> {
    /// stream.scope(|work| work.copy(&*host, &mut *local))?;
    /// // A part of it back.
    /// stream.scope(|work| work.copy(local.slice().part(..10)?, host.slice_mut().part(..10)?))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `from` and `to` differ in length or overlap, or belong to another context; `EIO`:
    /// the stream has failed, or was reset since the work began; `ENODEV`: the device is gone;
    /// `EDEADLK`: this is a host function.
    pub fn copy<'b: 'w, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: impl Into<DeviceSliceMut<'b, T>>,
    ) -> Result<()> {
        // Before locking: this runs code of the caller, which may use the stream.
        let (from, to) = (from.into(), to.into());
        self.lock()?.queue_mut().copy(&from, &to, WhenFull::Wait)
    }

    /// Submits a copy from memory that is not registered. The copy is refused, or the memory is
    /// lent to the device as by [`slice`](Self::slice), as `unregistered` says.
    ///
    /// ```no_run
    /// use pinmap::{stream::Unregistered, Allocation, Stream};
    /// # fn f(stream: &Stream, from: &[f32], local: &mut Allocation<f32>) -> pinmap::Result<()> {
    /// stream.scope(|work| work.copy_from(from, local, Unregistered::Register))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: refused, by [`Unregistered::Refuse`]; otherwise as for
    /// [`slice`](Self::slice).
    pub fn copy_from<'b: 'w, T: Element>(
        &self,
        from: &'w [T],
        to: impl Into<DeviceSliceMut<'b, T>>,
        unregistered: Unregistered,
    ) -> Result<()> {
        self.require_consent(unregistered, from)?;
        self.copy(self.slice(from)?, to)
    }

    /// Submits a copy to memory that is not registered. The copy is refused, or the memory is lent
    /// to the device as by [`slice_mut`](Self::slice_mut), as `unregistered` says.
    ///
    /// ```no_run
    /// use pinmap::{stream::Unregistered, Allocation, Stream};
    /// # fn f(stream: &Stream, local: &Allocation<f32>, to: &mut [f32]) -> pinmap::Result<()> {
    /// stream.scope(|work| work.copy_to(local, to, Unregistered::Register))?;
    /// println!("{}", to[0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EPERM`: refused, by [`Unregistered::Refuse`]; otherwise as for
    /// [`slice_mut`](Self::slice_mut).
    pub fn copy_to<T: Element>(
        &self,
        from: impl Into<DeviceSlice<'w, T>>,
        to: &'w mut [T],
        unregistered: Unregistered,
    ) -> Result<()> {
        self.require_consent(unregistered, to)?;
        self.copy(from, &mut self.slice_mut(to)?)
    }

    /// Refuses memory that is not registered, unless it is to be lent.
    fn require_consent<T>(&self, unregistered: Unregistered, memory: &[T]) -> Result<()> {
        match unregistered {
            Unregistered::Register => Ok(()),
            Unregistered::Refuse => {
                let (addr, len) = (memory.as_ptr().addr(), size_of_val(memory));
                let attempt = format!("submit a copy of {len} bytes at {addr:#x}");
                let (errno, cause) = (Errno::EPERM, "that memory is not registered");
                let error = Error::refused(Operation::Submit, attempt, errno, cause);
                Err(error.with_hint(
                    "register it once, allocate it with `Device::alloc`, or pass \
                     `Unregistered::Register`",
                ))
            }
        }
    }

    /// Submits a fill, which sets each element to `value`, by a copy engine. Waits if the ring is
    /// full.
    ///
    /// ```no_run
    /// use pinmap::{Pinned, Stream};
    /// # fn f(stream: &Stream, numbers: &mut Pinned<f32>) -> pinmap::Result<()> {
    /// // The type of the value is that of the elements: `0` would not be an `f32`.
    /// stream.scope(|work| work.fill(numbers, 0.0))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy).
    pub fn fill<'b: 'w, T: Number>(
        &self,
        to: impl Into<DeviceSliceMut<'b, T>>,
        value: T,
    ) -> Result<()> {
        let to = to.into();
        self.lock()?.queue_mut().fill(&to, value, WhenFull::Wait)
    }

    /// Submits a [kernel](mod@crate::testgpu). Waits if the ring is full.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::Saxpy, Pinned, Stream};
    /// # fn f(stream: &Stream, x: &Pinned<f32>, y: &mut Pinned<f32>) -> pinmap::Result<()> {
    /// stream.scope(|work| work.launch(Saxpy { a: 2.0, x: x.slice(), y: &mut y.slice_mut() }))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: the operands do not have the lengths that the kernel
    /// needs, or one that is written overlaps with another.
    pub fn launch(&self, kernel: impl Kernel<'w>) -> Result<()> {
        self.launch_kernel(kernel)
    }

    fn launch_kernel<K: Kernel<'w>>(&self, kernel: K) -> Result<()> {
        let handle = self.lock()?.queue().accept::<K>()?;
        // Without the lock: this runs code of the caller, which may use the stream.
        let kernel = encode(&handle, kernel)?;
        self.lock()?.queue_mut().launch(kernel, WhenFull::Wait)
    }

    /// Has the device store its clock, in nanoseconds, in one element, when everything before is
    /// done.
    ///
    /// ```no_run
    /// use pinmap::{Pinned, Stream};
    /// # fn f(stream: &Stream, times: &mut Pinned<u64>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let mut times = times.slice_mut();
    ///     work.timestamp(&mut times, 0)?;
    ///     // ... work ...
    ///     work.timestamp(&mut times, 1)
    /// })?;
    /// println!("{} ns", times[1] - times[0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn timestamp<'b: 'w>(&self, to: &mut DeviceSliceMut<'b, u64>, index: usize) -> Result<()> {
        self.lock()?.queue_mut().timestamp(to, index)
    }

    /// Has managed memory moved to the memory of the device, or to that of the host, when
    /// everything before is done, and before what is submitted next: the whole pages around
    /// `memory`. Returns at once. [`Accelerator::prefetch`](crate::Accelerator::prefetch) does it
    /// now.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, Managed, Place, Stream};
    /// # fn f(stream: &Stream, numbers: &mut Managed<f32>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let mut data = numbers.slice_mut();
    ///     work.prefetch(&data, Place::Vram)?;
    ///     work.launch(IncrementF32 { data: &mut data })
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Stream::call`](super::Stream::call); `EINVAL`: the memory belongs to another
    /// context, or is none; `EIO`: the stream was reset since the work began.
    /// [`Prefetching::wait`] has the errors of moving, of which `ENOENT` says that the memory is
    /// not managed.
    pub fn prefetch<T: Element>(
        &self,
        memory: impl Into<DeviceSlice<'w, T>>,
        to: Place,
    ) -> Result<Prefetching> {
        let (memory, device) = (memory.into(), self.core.device());
        let refuse = |cause| {
            let attempt = format!("move memory in the order of queue {}", self.queue);
            Error::refused(Operation::Submit, attempt, Errno::EINVAL, cause)
        };
        if !memory.is_of(device) {
            return Err(refuse(
                "the memory belongs to another context than the queue",
            ));
        }
        let (addr, len) = (memory.device_addr() as usize, memory.bytes() as usize);
        let pages = outwards(addr, len, page_size()).filter(|&(_, len)| len != 0);
        let pages = pages.ok_or_else(|| refuse("there is no element"))?;
        let (function, result) = prefetch::function(device, pages, to, ());
        let point = self.core.call_to(Some(self.queue), function)?;
        Ok(Prefetching::new(point, result))
    }

    /// Has the device wait until one element is at least `value`, before it executes what is
    /// submitted next: see [`QueueScope::wait_value`](crate::QueueScope::wait_value).
    ///
    /// ```no_run
    /// use pinmap::{Pinned, Stream};
    /// # fn f(stream: &Stream, turn: &mut Pinned<u64>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let mut turn = turn.slice_mut();
    ///     work.wait_value(&turn, 0, 1)?; // until somebody has stored 1 or more
    ///     work.write_value(&mut turn, 0, 2)
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn wait_value(
        &self,
        of: impl Into<DeviceSlice<'w, u64>>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        let of = of.into();
        self.loans.await_program();
        self.lock()?.queue_mut().wait_value(&of, index, value)
    }

    /// Has the device store `value` in one element, when everything before is done.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn write_value<'b: 'w>(
        &self,
        to: &mut DeviceSliceMut<'b, u64>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        self.lock()?.queue_mut().write_value(to, index, value)
    }

    /// Submits raw packets, for operations that this crate has no methods for. Waits if the ring is
    /// full.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::packet, Stream};
    /// # fn f(stream: &Stream) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     // SAFETY: The packet accesses nothing.
    ///     unsafe { work.submit_packets(&[packet::nop()]) }
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, or was reset since the work began; `ENODEV`: the device is
    /// gone; `EDEADLK`: this is a host function.
    ///
    /// # Safety
    ///
    /// As for [`QueueScope::submit_packets`](crate::QueueScope::submit_packets). The device is done
    /// with the packets when the [scope](super::scope()) has ended, or when
    /// [`Pending`](super::Pending) gives the memory back.
    #[allow(unsafe_code)]
    pub unsafe fn submit_packets(&self, packets: &[Packet]) -> Result<()> {
        let count = packets.len() as u64;
        let packets = packets.iter().copied();
        let mut state = self.lock()?;
        let queue = state.queue_mut();
        queue.mark_raw();
        queue.submit(Traced::RawPacket, count, packets, WhenFull::Wait)
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.core).finish()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::queue::operand::Operands;
    use crate::queue::Queue;
    use crate::stream::{scope, Stream};
    use crate::testgpu::packet;
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
            // SAFETY: It writes nothing.
            let nop = |work: &Work<'_>| unsafe { work.submit_packets(&[packet::nop()]) };
            let result = scope(|scope| nop(&scope.on(&stream)));
            result.expect("done");
        });
    }

    /// A kernel of the program's own may use the stream while it is launched.
    #[test]
    fn a_kernel_is_encoded_without_a_lock() {
        struct Asks<'r>(&'r Stream);
        // SAFETY: The packet accesses nothing.
        unsafe impl Kernel<'_> for Asks<'_> {
            type Format = packet::Format;
            const NAME: &'static str = "the kernel asks";

            fn encode(self, _: &mut Operands<'_>) -> Result<Packet> {
                // This says no while somebody has the lock.
                assert!(self.0.query()?);
                Ok(packet::nop())
            }
        }
        let queue = Queue::fake_with_index();
        queue.handle().execute(u64::MAX);
        let core = Core::fake(queue);
        let stream = Stream { core };
        let done = stream.scope(|work| work.launch(Asks(&stream)));
        done.expect("done");
    }

    #[test]
    fn raw_packets_cannot_give_memory_back_early() {
        let (stream, handle) = forged();
        let submit = || {
            // SAFETY: It writes nothing.
            let nop = |work: &Work<'_>| unsafe { work.submit_packets(&[packet::nop()]) };
            let pending = stream.submit(vec![1], |work, _| nop(work));
            pending.expect("submitted")
        };
        let pending = submit().try_into_memory().expect_err("the device has it");
        waits(&handle, || {
            assert_eq!(pending.wait().expect("done"), [1]);
        });
    }
}
