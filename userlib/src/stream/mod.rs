// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: asynchronous work, in order in each of them, at the same time in different ones.
//!
//! A [`Stream`] takes copies, fills, kernels, host functions and waits, and returns at once:
//! submitting is a few stores to mapped memory. What is submitted to one stream is executed in
//! that order; streams know nothing of one another unless one [waits](Stream::wait_event) for an
//! [`Event`] that was recorded in another one, which it does on the device. No call on one stream,
//! and no registering, allocating or releasing, waits for the work of another.
//!
//! # Memory of work in flight
//!
//! Memory must stay as long as the device works on it, and nobody may refer to it meanwhile. There
//! are two ways to have the compiler see to that:
//!
//! - [`scope`]: memory is borrowed, by as many streams as there are; the scope's end waits.
//! - [`Stream::submit`]: memory is handed over, and comes back with [`Pending::wait`].
//!
//! ```no_run
//! use pinmap::stream::{self, StreamOptions};
//! use pinmap::{kernel, Gpu};
//! # fn main() -> pinmap::Result<()> {
//! let gpu = Gpu::find()?;
//! let (up, down) = (gpu.stream(StreamOptions::new())?, gpu.stream(StreamOptions::new())?);
//! let ready = gpu.event()?;
//! let (mut host, mut local) = (gpu.device().alloc::<f32>(1024)?, gpu.alloc_vram::<f32>(1024)?);
//!
//! // Borrowed: both streams, in the order that the event makes.
//! stream::scope(|scope| {
//!     let (up_work, down_work) = (scope.on(&up), scope.on(&down));
//!     let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
//!     up_work.copy(&host, &mut local)?;
//!     up_work.launch(kernel::IncrementF32 { data: &mut local })?;
//!     up.record(&ready)?;
//!     down.wait_event(&ready)?;
//!     down_work.copy(&local, &mut host)
//! })?;
//!
//! // Handed over: this returns at once.
//! let pending = up.submit((host, local), |work, (host, local)| {
//!     work.copy(&host.slice_mut(), &mut local.slice_mut())
//! })?;
//! up.call(|| println!("copied"))?;
//! let (host, local) = pending.wait()?;
//! # Ok(()) }
//! ```
//!
//! The order is the program's own: in a scope the CPU may read and write a slice that is in flight,
//! and two streams may be given the same one. Without an [`Event`] between them, or waiting, what is
//! read is some value, old or new; it is never undefined.
//!
//! Memory that is not registered is no operand: [`Work::copy_from`] registers it as long as the
//! copy lasts, if it is asked to. Nothing ever waits behind the caller's back.
//!
//! # Errors
//!
//! A fault, or a packet that runs for too long, stops the stream whose packet it was. That stream
//! then reports the [`Fault`](crate::Fault), also for the events recorded and the host functions
//! called behind that packet, until [`Stream::reset`]. Others go on, but for those that wait for
//! one of its events: those report it as well.
//!
//! # Host functions
//!
//! A function that [`Stream::call`] runs holds up its stream, and so does what is dropped with work
//! that is done. If it waited for a stream, it might wait for itself. So in it, everything that submits,
//! waits, or asks the driver fails at once with `EDEADLK`, whatever the outcome would have been:
//!
//! - opening devices and asking about them ([`Device::info`] and the like), taking their BARs and
//!   interrupts, registering, allocating, mapping, importing and exporting memory, asking about it
//!   ([`Registration::query`](crate::Registration::query)), filling a [`Cache`](crate::Cache);
//! - making queues, streams and events; submitting, recording, calling, resetting;
//! - [`Stream::synchronize`], [`Device::synchronize`], [`Device::wait_event`],
//!   [`Interrupt::wait`](crate::Interrupt::wait), and the `wait`s of queues, events and completions.
//!
//! What looks whether something is done (`query`, `wait` of a [`Fence`],
//! [`Pending::try_into_memory`]) answers if it is; only if it is not would the driver have to be asked:
//! `EDEADLK`. Allowed are: dropping anything, releasing and unmapping; reading and writing memory and
//! BARs; [`Pending::is_done`]; what a [`Cache`](crate::Cache) has already; and everything that is not
//! this crate's, waking another thread above all.
//!
//! # These do not compile
//!
//! Memory that is handed over is not there; what was borrowed cannot be released before the end of
//! the scope, nor be lent for a shorter time:
//!
//! ```compile_fail,E0382
//! # use pinmap::*;
//! # fn f(stream: &Stream, mut numbers: Allocation<f32>) -> Result<()> {
//! let pending = stream.submit(numbers, |work, numbers| {
//!     work.fill(&mut numbers.slice_mut(), 1.0)
//! })?;
//! numbers.set(0, 2.0)
//! # }
//! ```
//!
//! ```compile_fail,E0505
//! # use pinmap::*;
//! # fn f(stream: &Stream, mut numbers: Registration) -> Result<()> {
//! stream::scope(|scope| {
//!     let mut data = numbers.slice_mut::<f32>()?;
//!     scope.on(stream).launch(kernel::IncrementF32 { data: &mut data })?;
//!     drop(numbers.release()?);
//!     Ok(())
//! }) }
//! ```
//!
//! ```compile_fail,E0597
//! # use pinmap::*;
//! # fn f(gpu: &Gpu, stream: &Stream) -> Result<()> {
//! stream::scope(|scope| {
//!     let mut numbers = gpu.alloc_vram::<f32>(1024)?;
//!     scope.on(stream).fill(&mut numbers.slice_mut(), 1.0)
//! }) }
//! ```
//!
//! What is lent to a piece of work does not leave it, and what it does not own cannot be handed over:
//!
//! ```compile_fail,E0521
//! # use pinmap::*;
//! # fn f(stream: &Stream, numbers: Allocation<f32>) -> Result<()> {
//! let mut kept = None;
//! stream.submit(numbers, |work, numbers| {
//!     kept = Some(numbers.slice());
//!     Ok(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! ```compile_fail,E0521
//! # use pinmap::*;
//! # fn f(stream: &Stream, numbers: &mut Allocation<f32>) -> Result<()> {
//! stream.submit(numbers, |work, numbers| {
//!     work.fill(&mut numbers.slice_mut(), 1.0)
//! })?;
//! # Ok(()) }
//! ```
//!
//! Nor can memory from elsewhere be slipped in:
//!
//! ```compile_fail
//! # use pinmap::*;
//! # fn f(stream: &Stream, mut numbers: Allocation<f32>) -> Result<()> {
//! let other = &mut numbers;
//! stream.submit((), |work, ()| work.fill(&mut other.slice_mut(), 1.0))?;
//! # Ok(()) }
//! ```

mod completion;
mod core;
mod event;
mod options;
mod parked;
mod pending;
mod scope;
mod shared;
mod work;

pub use completion::Completion;
pub use event::Event;
pub use options::{StreamOptions, Unregistered};
pub use pending::Pending;
pub use scope::{scope, Scope};
pub use work::Work;

pub(crate) use shared::Shared;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::error::{Operation, Result};
use crate::fence::Fence;
use crate::gpu::Gpu;
use crate::host;

use self::core::Core;

/// Asynchronous work for a device, executed in the order in which it is submitted.
///
/// Made by [`Gpu::stream`]. A clone is the same stream; several threads may use it. Each stream has
/// a queue of the device, with all engines: a copy is made by the copy engine of its direction, a
/// kernel runs on the compute engine, and whatever comes later sees what was done before.
///
/// Dropping it returns at once. What was submitted is still done, and afterwards its place in the
/// device is given up; when the process ends, that is after the packet that runs.
///
/// Once the device is gone, what is submitted goes nowhere, and waiting for it is `ENODEV`.
#[derive(Clone)]
pub struct Stream {
    core: Arc<Core>,
}

impl Gpu {
    /// Makes a stream. There may be as many as the device has queues, 1,000 and more, for all
    /// programs that use it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a number of packets that a ring cannot have; `ENOSPC`: the device has no queue
    /// left; `ENOMEM`: out of memory, or over `RLIMIT_MEMLOCK`; `EPERM`: another process opened the
    /// device; `ENODEV`: it is gone; `EAGAIN`: the system gives no thread.
    pub fn stream(&self, options: StreamOptions) -> Result<Stream> {
        let core = Core::new(self, options)?;
        Ok(Stream { core })
    }
}

impl Device {
    /// Waits until everything is done that was submitted to streams of this context, also to those
    /// that were dropped.
    ///
    /// # Errors
    ///
    /// That of the first stream that cannot do it, once the others have: as for
    /// [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        host::check(Operation::Stream, || format!("wait for the work of {self}"))?;
        // First those that are there, which then cannot be dropped unseen.
        let cores = Shared::find(self).map_or_else(Vec::new, |shared| shared.members());
        let dropped = host::outstanding(|fence| fence.device().is_same(self) && !fence.is_over());
        // All of them are told before one is waited for, or they would come to it one by one.
        let points: Vec<_> = cores.iter().map(|core| core.point()).collect();
        let wait = |(fence, needs): (Fence, Vec<Fence>)| fence.wait_for_ever(&needs, false);
        let mut result = Ok(());
        for point in points.into_iter().chain(dropped.into_iter().map(Ok)) {
            result = result.and(point.and_then(wait));
        }
        result
    }
}

impl Stream {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The driver's name for its queue, unique in its context: events and faults have it. It
    /// changes with a [reset](Self::reset).
    pub fn id(&self) -> u64 {
        self.core.id()
    }

    /// The device whose stream it is.
    pub fn device(&self) -> &Device {
        self.core.device()
    }

    /// How urgent its work is, as it was clamped: see [`Gpu::priorities`].
    pub fn priority(&self) -> u32 {
        self.core.options().clamped(self.core.gpu())
    }

    /// Submits work on memory that is handed over, and returns at once, unless the ring is full: the memory
    /// comes back when the work is done, by [`Pending::wait`].
    ///
    /// The device is told of all of it at once when the function returns. If that fails or panics,
    /// what it had submitted is executed all the same, and the memory comes back, or is dropped,
    /// after that.
    ///
    /// # Errors
    ///
    /// That of the function; `EIO`: the stream has failed; `EDEADLK`: this is a host function.
    pub fn submit<M, F>(&self, memory: M, work: F) -> Result<Pending<M>>
    where
        M: Send + 'static,
        F: for<'w> FnOnce(&Work<'w>, &'w mut M) -> Result<()>,
    {
        Pending::new(&self.core, memory, work)
    }

    /// Records an event: it is complete when everything is done that was submitted before. It then
    /// stands for this, and no more for what it was recorded for before.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the event is of another context; `ENOMEM`: out of memory, or over
    /// `RLIMIT_MEMLOCK`; `EIO`: the stream has failed; `EDEADLK`: this is a host function.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.record(&self.core)
    }

    /// Has the device wait for an event, as it was recorded last, before it executes what is
    /// submitted next. The CPU does not wait, unless the ring is full. The event may be of another context, also of another
    /// device. One that was never recorded is complete.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: out of memory, or over `RLIMIT_MEMLOCK`; `EIO`: the stream has failed; `EDEADLK`:
    /// this is a host function.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait_on(&self.core)
    }

    /// Has a function run on a thread of this crate, once, when everything is done that was
    /// submitted before; what is submitted next waits for it. If the device never comes to it, it
    /// is dropped.
    ///
    /// Called from inside, this crate refuses whatever might wait (`EDEADLK`), see
    /// [host functions](self#host-functions). A panic fails the stream. At most 32 functions of a process run at
    /// once.
    ///
    /// This wakes a thread, which takes system calls; nothing else that is submitted does.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed; `EDEADLK`: this is a host function.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        self.core.call(Box::new(function))
    }

    /// Whether everything is done that was submitted. What it wrote is seen then. No system call,
    /// unless it is not.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, [`Error::fault`](crate::Error::fault) says why; `ENODEV`: the
    /// device is gone; `EDEADLK`: not everything is done, and this is a host function.
    pub fn query(&self) -> Result<bool> {
        self.core.query()
    }

    /// Waits until everything is done that was submitted. What it wrote is seen then.
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, [`Error::fault`](crate::Error::fault) says why; `ENODEV`: the
    /// device is gone; `EDEADLK`: this is a host function.
    pub fn synchronize(&self) -> Result<()> {
        self.core.wait(None).map(drop)
    }

    /// As [`synchronize`](Self::synchronize), but not for longer than this. False: the time was up
    /// first.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool> {
        self.core.wait(Some(timeout))
    }

    /// The point behind all that was submitted, as something to poll: an eventfd, which is readable
    /// when it is reached, or never will be.
    ///
    /// # Errors
    ///
    /// `EMFILE`: too many open files; `ENOSPC`: 63 are outstanding for this stream; `EIO`: the
    /// stream has failed; `ENODEV`: the device is gone; `EDEADLK`: this is a host function.
    pub fn completion(&self) -> Result<Completion> {
        Completion::new(&self.core)
    }

    /// Makes a stream that has failed usable again. What was not executed never will be, and host
    /// functions that were not run are dropped, but for one that is due already. Waits for the packet that
    /// runs, if there is one, and for who is submitting.
    ///
    /// # Errors
    ///
    /// As for [`Gpu::stream`], since it is another queue: then it remains as it is. `EDEADLK`: this is a host
    /// function.
    pub fn reset(&self) -> Result<()> {
        self.core.reset()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
