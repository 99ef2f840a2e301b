// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work of a stream: operations with operands, and slices of ordinary memory as operands.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use nix::errno::Errno;

use crate::error::{check_outside, Error, Operation, Result};
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
use super::operand::{Destination, Source};
use super::prefetch::{self, Prefetching};
use super::relay::Relays;
use super::served::Serving;
use super::Stream;

mod values;

/// Submits work to a stream, on memory that lives at least as long as `'w`; by then the work is
/// done.
///
/// Made by [`Scope::on`](super::scope::Scope::on), or passed to the function of
/// [`Stream::submit`](super::Stream::submit).
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap::Allocation;
/// use pinmap_testgpu::IncrementF32;
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
    pub(super) core: Arc<Core>,
    /// Id of the queue with which the work began.
    queue: u64,
    loans: Arc<Loans>,
    when_full: WhenFull,
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
            when_full: WhenFull::Wait,
            memory: PhantomData,
        }
    }

    /// Locks the stream's state, unless the stream was reset since the work began.
    pub(super) fn lock(&self) -> Result<Serving<'_, State>> {
        self.core.lock_of(self.queue)
    }

    /// The handle of the queue. Memory is lent without the lock, since pinning takes time.
    fn handle(&self) -> Result<Arc<Handle>> {
        Ok(Arc::clone(self.lock()?.queue().handle()))
    }

    /// Lends a slice of ordinary memory to the device, which reads it: an operand at the address
    /// that the slice has. It stays borrowed until the work is done.
    ///
    /// A device that can fault has the memory [managed](crate::accelerator::Accelerator::manage),
    /// without a system call once a slice was lent to this stream. For any other device the pages
    /// around the slice are registered until the work is done. [`DeviceSlice::reach`] tells which
    /// it was. Memory that is used again and again is better registered, or allocated, once, if the
    /// device cannot fault.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// use pinmap_testgpu::Crc32c;
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
    /// If the memory is registered: as for [`Device::register_raw`](crate::Device::register_raw),
    /// where `EEXIST` means that the program itself has registered some of the memory. If it is
    /// managed: as for [`Accelerator::manage_all`](crate::accelerator::Accelerator::manage_all),
    /// except those that say that nothing can be managed. `EIO`: the stream has failed, or was
    /// reset since the work began; `EDEADLK`: this is a host function.
    pub fn slice<T: Element>(&self, memory: &'w [T]) -> Result<DeviceSlice<'w, T>> {
        self.handle()?.slice(memory, &self.loans)
    }

    /// Lends a slice of ordinary memory to the device, which reads and writes it. It stays borrowed
    /// exclusively until the work is done; in the meantime the CPU reads and writes it through the
    /// [`DeviceSliceMut`].
    ///
    /// ```no_run
    /// # use pinmap::{accelerator::Stream, Result};
    /// # fn f(stream: &Stream, numbers: Vec<f32>) -> Result<Vec<f32>> {
    /// let pending = stream.submit(numbers, |work, numbers| {
    ///     let mut data = work.slice_mut(numbers)?;
    ///     work.launch(pinmap_testgpu::IncrementF32 { data: &mut data })
    /// })?;
    /// // ... something else ...
    /// Ok(pending.wait()?)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`slice`](Self::slice). `EACCES`: the memory must be registered, and shares a page
    /// that the program cannot write with memory that is lent already.
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
    /// use pinmap::accelerator::{Pinned, Stream};
    /// use pinmap::{accelerator, Allocation};
    /// # fn f(
    /// #     (up, down): (&Stream, &Stream), ready: &accelerator::Event,
    /// #     (host, local): (&mut Pinned<f32>, &mut Allocation<f32>),
    /// # ) -> pinmap::Result<()> {
    /// accelerator::scope(|scope| {
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
    /// direction. Slices of ordinary memory are [lent](Self::slice) to the device for it. Waits if
    /// the ring is full.
    ///
    /// VRAM of another accelerator is memory like any other: the engine of this stream's device
    /// reads or writes it by the bus, and no memory of the host is touched. To write is cheaper,
    /// since nobody waits for an answer: so a stream of the device that has the source is the one
    /// to take. Where the bus does not let the device reach the other one
    /// ([`Accelerator::is_reached_by`](crate::accelerator::Accelerator::is_reached_by)), one
    /// engine of each device copies, through buffers in host memory, and at the same time.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// use pinmap::Allocation;
    /// # fn f(
    /// #     stream: &Stream, host: &mut Pinned<f32>, local: &mut Allocation<f32>,
    /// # ) -> pinmap::Result<()> {
    /// stream.scope(|work| work.copy(&*host, &mut *local))?;
    /// // A part of it back, and another one to a vector.
    /// let mut some = vec![0.0; 10];
    /// stream.scope(|work| {
    ///     work.copy(local.slice().part(..10)?, host.slice_mut().part(..10)?)?;
    ///     work.copy(local.slice().part(10..20)?, &mut some)
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `from` and `to` differ in length or overlap, belong to another context, or the
    /// stream does not use the copy engines; for ordinary memory as for [`slice`](Self::slice); for
    /// VRAM of another accelerator as for [`Allocation::register`](crate::Allocation::register),
    /// where `EREMOTEIO` says that neither operand is of this stream's device; through host memory
    /// also as for [`Device::alloc`](crate::Device::alloc) and
    /// [`Accelerator::stream`](crate::accelerator::Accelerator::stream);
    /// `EIO`: the stream has failed, or was reset since the work began; `ENODEV`: the device is
    /// gone; `EDEADLK`: this is a host function.
    #[track_caller]
    pub fn copy<T: Element>(
        &self,
        from: impl Source<'w, T>,
        to: impl Destination<'w, T>,
    ) -> Result<()> {
        // Before locking: this runs code of the caller, which may use the stream.
        let (from, to) = (from.lend(self)?, to.lend_mut(self)?);
        let device = self.core.device();
        let to = to.as_slice();
        match from
            .near(device)
            .and_then(|from| Ok((from, to.near(device)?)))
        {
            Ok((from, to)) => {
                let (mut state, to) = (self.lock()?, DeviceSliceMut::new(to));
                state.queue_mut().copy(&from, &to, self.when_full)?;
            }
            Err(error) if error.errno() == Errno::EREMOTEIO as i32 => {
                self.relay(&from, &to, error)?;
            }
            Err(error) => return Err(error),
        }
        self.settle(Location::caller())
    }

    /// Submits a copy through host memory, if one of the ends is this device's own memory. `error`
    /// says why the bus does not do.
    fn relay<T: Element>(
        &self,
        from: &DeviceSlice<'w, T>,
        to: &DeviceSlice<'w, T>,
        error: Error,
    ) -> Result<()> {
        let device = self.core.device();
        let other = match (from.is_of(device), to.is_of(device)) {
            (true, false) if from.is_local() => to.giver(),
            (false, true) if to.is_local() => from.giver(),
            _ => None,
        };
        let other = other.ok_or(error)?;
        {
            let mut state = self.lock()?;
            let queue = state.queue_mut();
            queue.check_copy(from.len(), to.len())?;
        }
        check_outside(Operation::Submit, || "copy to another device".to_owned())?;
        Relays::copy(&self.core, other, *from, *to)
    }

    /// Submits a fill, which sets each element to `value`, by a copy engine. Waits if the ring is
    /// full.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// # fn f(stream: &Stream, numbers: &mut Pinned<f32>) -> pinmap::Result<()> {
    /// // The type of the value is that of the elements: `0` would not be an `f32`.
    /// stream.scope(|work| work.fill(numbers, 0.0))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy).
    #[track_caller]
    pub fn fill<T: Number>(&self, to: impl Destination<'w, T>, value: T) -> Result<()> {
        let to = to.lend_mut(self)?;
        self.lock()?.queue_mut().fill(&to, value, self.when_full)?;
        self.settle(Location::caller())
    }

    /// Submits a [`Kernel`]. Waits if the ring is full.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// use pinmap_testgpu::Saxpy;
    /// # fn f(stream: &Stream, x: &Pinned<f32>, y: &mut Pinned<f32>) -> pinmap::Result<()> {
    /// stream.scope(|work| work.launch(Saxpy { a: 2.0, x: x.slice(), y: &mut y.slice_mut() }))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: the operands do not have the lengths that the kernel
    /// needs, one that is written overlaps with another, or the stream does not use the compute
    /// engine.
    #[track_caller]
    pub fn launch(&self, kernel: impl Kernel<'w>) -> Result<()> {
        self.launch_kernel(kernel)?;
        self.settle(Location::caller())
    }

    fn launch_kernel<K: Kernel<'w>>(&self, kernel: K) -> Result<()> {
        let handle = self.lock()?.queue().accept::<K>()?;
        // Without the lock: this runs code of the caller, which may use the stream.
        let kernel = encode(&handle, kernel)?;
        self.lock()?.queue_mut().launch(kernel, self.when_full)
    }

    /// Has managed memory moved to the memory of the device, or to that of the host, when
    /// everything before is done, and before what is submitted next: the whole pages around
    /// `memory`. Returns at once.
    /// [`Accelerator::prefetch`](crate::accelerator::Accelerator::prefetch) does it now.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Managed, Place, Stream};
    /// use pinmap_testgpu::IncrementF32;
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
    #[track_caller]
    pub fn prefetch<T: Element>(
        &self,
        memory: impl Source<'w, T>,
        to: Place,
    ) -> Result<Prefetching> {
        let (memory, device) = (memory.lend(self)?, self.core.device());
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
        self.settle(Location::caller())?;
        Ok(Prefetching::new(point, result))
    }

    /// Submits raw packets, for operations that this crate has no methods for. Waits if the ring is
    /// full.
    ///
    /// Raw packets are not checked. The device reaches what the context registered, allocated,
    /// lends to work or has [managed](crate::accelerator::Accelerator::manage), with the access
    /// that the context has there; anything else stops the stream. Managed memory can be all memory
    /// of the program. Since packets can write anywhere, the end of work on this stream asks the
    /// device itself from then on, by system calls, until a [reset](super::Stream::reset).
    ///
    /// ```no_run
    /// use pinmap::accelerator::Stream;
    /// use pinmap::Allocation;
    /// use pinmap_testgpu::packet;
    /// # fn f(stream: &Stream, memory: &mut Allocation<u32>) -> pinmap::Result<()> {
    /// let to = memory.device_addr();
    /// stream.scope(|work| {
    ///     // SAFETY: The packet writes 16 bytes of an allocation, which has more.
    ///     unsafe { work.submit_packets(&[packet::fill(to, 16, 7, 2)]) }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, or was reset since the work began; `ENODEV`: the device is
    /// gone; `EDEADLK`: this is a host function.
    ///
    /// # Safety
    ///
    /// The packets tell the device where to write. From this call until the device is done with
    /// them, which the end of the [scope](crate::accelerator::scope()) or of
    /// [`Pending`](super::Pending) waits for, each byte that they let it write must be one of
    /// these:
    ///
    /// - memory that only atomics and devices access: of an [`Allocation`](crate::Allocation), a
    ///   [`Registration`](crate::Registration) or a [`DeviceSliceMut`];
    /// - other memory of the program that stays allocated, to which nothing refers and which nobody
    ///   accesses in the meantime, and where any bytes are a valid value;
    /// - an address at which the device reaches nothing. That stops the stream.
    ///
    /// It must be neither in the fences of a queue nor in the slots in which events are recorded.
    /// No safe function tells the addresses of these. A packet that wrote there would make a wait
    /// end too early, and the program would use memory while the device works on it. What packets
    /// read affects only their results.
    #[allow(unsafe_code)]
    #[track_caller]
    pub unsafe fn submit_packets(&self, packets: &[Packet]) -> Result<()> {
        let count = packets.len() as u64;
        let packets = packets.iter().copied();
        let mut state = self.lock()?;
        let stream = state.queue_mut();
        stream.mark_raw();
        stream.submit(Traced::RawPacket, count, packets, self.when_full)?;
        drop(state);
        self.settle(Location::caller())
    }

    /// Runs a function that submits work, and tells the device about all of it at once. That costs
    /// the CPU less than to tell it of each piece. Waiting, recording an event and a full ring tell
    /// it of what was held back so far. What other threads submit to the stream meanwhile is held
    /// back as well. [`Stream::submit`] is a batch by itself.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{DeviceSliceMut, Work};
    /// use pinmap_testgpu::IncrementF32;
    /// # type Slice<'w> = DeviceSliceMut<'w, f32>;
    /// # fn f<'w>(work: &Work<'w>, data: &mut Slice<'w>) -> pinmap::Result<()> {
    /// // One store to the doorbell.
    /// work.batch(|| (0..16).try_for_each(|_| work.launch(IncrementF32 { data: &mut *data })))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the function. `EIO`: the stream has failed, or was reset since the work began;
    /// `ENODEV`: the device is gone; these two are noticed here only by a stream that submits by
    /// [system calls](crate::accelerator::StreamOptions::system_calls); for others, waiting fails
    /// later.
    pub fn batch<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        /// Ends the batch, also when the function panics.
        struct Held<'a, 'w>(&'a Work<'w>);

        impl Held<'_, '_> {
            fn end(&self) -> Result<()> {
                self.0.lock()?.queue_mut().unhold()
            }
        }

        impl Drop for Held<'_, '_> {
            fn drop(&mut self) {
                // On an error, it is published with what comes next.
                let _ = self.end();
            }
        }

        self.lock()?.queue_mut().hold();
        let held = Held(self);
        let result = work()?;
        let held = std::mem::ManuallyDrop::new(held);
        held.end().map(|()| result)
    }

    /// Returns the same work, whose copies, fills, kernels, packets, values and timestamps fail
    /// with `EAGAIN` where they would wait for room in the ring: each submits all of its packets or
    /// none. Events, host functions and moves wait for room all the same.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{DeviceSliceMut, Work};
    /// use pinmap::{ErrorKind, Result};
    /// use pinmap_testgpu::IncrementF32;
    /// # type Slice<'w> = DeviceSliceMut<'w, f32>;
    /// # fn f<'w>(work: &Work<'w>, data: &mut Slice<'w>) -> Result<()> {
    /// match work.nonblocking().launch(IncrementF32 { data }) {
    ///     Err(error) if error.kind() == ErrorKind::WouldBlock => println!("the ring is full"),
    ///     other => return other,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A submission fails with `EINVAL` if it takes more packets than the ring holds at once.
    #[must_use]
    pub fn nonblocking(&self) -> Self {
        Self {
            when_full: WhenFull::Refuse,
            ..Self::new(&self.core, self.queue, &self.loans)
        }
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.core).finish()
    }
}

#[cfg(test)]
mod tests;
