// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: asynchronous work. A stream executes its work in order; different streams run at the
//! same time.
//!
//! A [`Stream`] takes copies, fills, kernels, host functions and waits. Submitting them takes a few
//! stores to mapped memory and returns at once. There is no order between streams, unless one
//! [waits](Stream::wait_event) for an [`Event`] that another one records; that wait happens on the
//! device. No call on one stream, and no registering, allocating or releasing, waits for the work
//! of another stream.
//!
//! # Memory of work in flight
//!
//! Memory must exist as long as the device works on it, and the program must not refer to it in the
//! meantime. There are two ways in which the compiler checks that:
//!
//! - [`scope`](scope()) borrows memory, for any number of streams; the end of the scope waits.
//! - [`Stream::submit`] takes memory over; [`Pending::wait`] gives it back.
//!
//! ```no_run
//! use pinmap::stream::{self, StreamOptions};
//! use pinmap::{testgpu, Accelerator};
//! # fn main() -> pinmap::Result<()> {
//! let gpu = Accelerator::find()?;
//! let (up, down) = (gpu.stream(StreamOptions::new())?, gpu.stream(StreamOptions::new())?);
//! let ready = gpu.event()?;
//! let (mut host, mut local) = (gpu.device().alloc::<f32>(1024)?, gpu.alloc_vram::<f32>(1024)?);
//!
//! // Borrowed: both streams, in the order that the event makes.
//! stream::scope(|scope| {
//!     let (up_work, down_work) = (scope.on(&up), scope.on(&down));
//!     let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
//!     up_work.copy(&host, &mut local)?;
//!     up_work.launch(testgpu::IncrementF32 { data: &mut local })?;
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
//! The program is responsible for the order. In a scope the CPU may read and write a slice that is
//! in flight, and two streams may use the same slice. Without an [`Event`] or a wait between two
//! accesses, a read returns an old value or a new one; it is never undefined behaviour.
//!
//! Operands are slices of registered or allocated memory, or ordinary slices that [`Work::slice`]
//! and [`Work::slice_mut`] lend to the device until the work is done. Submitting waits only if the
//! ring is full.
//!
//! # Errors
//!
//! A packet that faults, or that runs for too long, stops its stream. Until [`Stream::reset`], that
//! stream reports the [`Fault`](crate::Fault): its own calls do, and so do the events that were
//! recorded after the packet. Host functions submitted after the packet do not run. Other streams
//! go on, except those that wait for one of these events; they report the fault, too.
//!
//! # Host functions
//!
//! [`Stream::call`] submits a function of the program, which runs on a thread of this crate. The
//! stream waits for the function, so a function that waited for a stream could wait for itself.
//! Inside a host function, and inside the drop of memory that was handed over, everything that
//! submits, waits, or asks the driver therefore fails at once with `EDEADLK`, even where it would
//! not have had to wait:
//!
//! - opening devices and asking about them ([`Device::info`] and the like), taking their BARs and
//!   interrupts, registering, managing, allocating, mapping, importing and exporting memory, asking
//!   about it ([`Registration::query`](crate::Registration::query)), filling a
//!   [`Cache`](crate::Cache);
//! - making queues, streams and events; submitting, recording, calling, resetting;
//! - [`Stream::synchronize`], [`Device::synchronize`], [`Device::next_event`],
//!   [`Interrupt::wait`](crate::Interrupt::wait), and the `wait`s of queues, events and
//!   completions.
//!
//! Calls that ask whether something is done (`query`, `wait` of a [`Fence`](crate::Fence),
//! [`Pending::try_into_memory`]) succeed if it is. If it is not, the driver would have to be asked,
//! and they fail with `EDEADLK`. Allowed are dropping anything, releasing and unmapping; reading
//! and writing memory and BARs; [`Pending::is_done`]; lookups in a [`Cache`](crate::Cache) that
//! find a registration; and of course everything outside this crate, such as waking another thread.
//!
//! # Mistakes that do not compile
//!
//! Memory that was handed over cannot be used:
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
//! Borrowed memory cannot be released before the end of the scope:
//!
//! ```compile_fail,E0505
//! # use pinmap::*;
//! # fn f(stream: &Stream, mut numbers: Registration) -> Result<()> {
//! stream::scope(|scope| {
//!     let mut data = numbers.slice_mut::<f32>()?;
//!     scope.on(stream).launch(testgpu::IncrementF32 { data: &mut data })?;
//!     drop(numbers.release()?);
//!     Ok(())
//! }) }
//! ```
//!
//! Memory that does not outlive the scope cannot be borrowed:
//!
//! ```compile_fail,E0597
//! # use pinmap::*;
//! # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
//! stream::scope(|scope| {
//!     let mut numbers = gpu.alloc_vram::<f32>(1024)?;
//!     scope.on(stream).fill(&mut numbers.slice_mut(), 1.0)
//! }) }
//! ```
//!
//! The memory that is lent to the function of a piece of work cannot leave that function:
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
//! Memory that is only borrowed cannot be handed over:
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
//! An ordinary slice that is lent stays borrowed until the end of the scope:
//!
//! ```compile_fail,E0506
//! # use pinmap::*;
//! # fn f(stream: &Stream, numbers: &mut [f32]) -> Result<()> {
//! stream::scope(|scope| {
//!     let work = scope.on(stream);
//!     work.launch(testgpu::IncrementF32 { data: &mut work.slice_mut(numbers)? })?;
//!     numbers[0] = 1.0;
//!     Ok(())
//! }) }
//! ```
//!
//! Memory that was handed over cannot be lent for longer than the work takes:
//!
//! ```compile_fail,E0521
//! # use pinmap::*;
//! # fn f(stream: &Stream, numbers: Vec<f32>) -> Result<()> {
//! let mut kept = None;
//! stream.submit(numbers, |work, numbers| {
//!     kept = Some(work.slice(numbers)?);
//!     Ok(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! Work is submitted where memory is borrowed or handed over, so a stream itself launches nothing
//! ([`Stream::scope`] does it in one line):
//!
//! ```compile_fail,E0599
//! # use pinmap::*;
//! # fn f(stream: &Stream, numbers: &mut Pinned<f32>) -> Result<()> {
//! stream.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })?;
//! stream.synchronize()
//! # }
//! ```
//!
//! An operand stays borrowed until the work is done, so memory is borrowed once for all work on it
//! (`let mut numbers = numbers.slice_mut();`), and not for each piece:
//!
//! ```compile_fail,E0499
//! # use pinmap::*;
//! # fn f(stream: &Stream, numbers: Allocation<f32>) -> Result<()> {
//! stream.submit(numbers, |work, numbers| {
//!     work.fill(&mut numbers.slice_mut(), 1.0)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut numbers.slice_mut() })
//! })?;
//! # Ok(()) }
//! ```
//!
//! The same for two pieces of memory, of which the second one is used twice:
//!
//! ```compile_fail,E0499
//! # use pinmap::*;
//! # fn f(stream: &Stream, both: (Pinned<f32>, Allocation<f32>)) -> Result<()> {
//! stream.submit(both, |work, (host, local)| {
//!     work.copy(&host.slice_mut(), &mut local.slice_mut())?;
//!     work.launch(testgpu::IncrementF32 { data: &mut local.slice_mut() })
//! })?;
//! # Ok(()) }
//! ```
//!
//! ```no_run
//! # use pinmap::*;
//! # fn f(stream: &Stream, both: (Pinned<f32>, Allocation<f32>)) -> Result<()> {
//! let pending = stream.submit(both, |work, (host, local)| {
//!     let mut local = local.slice_mut();
//!     work.copy(&*host, &mut local)?;
//!     work.launch(testgpu::IncrementF32 { data: &mut local })
//! })?;
//! # pending.wait()?; Ok(()) }
//! ```
//!
//! The function can use only the memory that was handed over:
//!
//! ```compile_fail,E0597
//! # use pinmap::*;
//! # fn f(stream: &Stream, mut numbers: Allocation<f32>) -> Result<()> {
//! let other = &mut numbers;
//! stream.submit((), |work, ()| work.fill(&mut other.slice_mut(), 1.0))?;
//! # Ok(()) }
//! ```

mod callbacks;
mod completion;
mod core;
mod ended;
mod event;
mod future;
mod in_flight;
mod options;
mod parked;
mod pending;
mod pool;
mod prefetch;
mod scope;
mod served;
mod shared;
mod work;

pub use completion::Completion;
pub use event::Event;
pub use in_flight::InFlight;
pub use options::{StreamOptions, Unregistered};
pub use pending::{Pending, PendingFuture};
pub use prefetch::Prefetching;
pub use scope::{scope, try_scope, Scope, StreamScope};
pub use work::Work;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{check_outside, in_time, Operation, Result};
use crate::queue::point::Point;
use crate::sys::inside;

use self::core::Core;
use self::future::Reached;
use self::shared::Shared;

/// A stream of asynchronous work, which a device executes in the order in which it is submitted.
///
/// Made by [`Accelerator::stream`]. A clone is the same stream, and several threads may use it.
/// Each stream has a queue of the device and uses all engines: a copy runs on the copy engine of
/// its direction, a kernel on the compute engine. Each piece of work sees what the ones before it
/// wrote.
///
/// Dropping a stream returns at once. Work that was submitted is still done, and then the stream's
/// place in the device is given up. When the process ends, only the packet that runs is finished.
///
/// Once the device is gone, submitted work goes nowhere, and waiting for it fails with `ENODEV`.
///
/// ```no_run
/// use pinmap::{testgpu::IncrementF32, Accelerator, StreamOptions};
/// # fn main() -> pinmap::Result<()> {
/// let gpu = Accelerator::find()?;
/// let stream = gpu.stream(StreamOptions::new())?;
/// let pending = stream.submit(gpu.alloc::<f32>(1024)?, |work, numbers| {
///     work.launch(IncrementF32 { data: &mut numbers.slice_mut() })
/// })?;
/// let numbers = pending.wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Stream {
    core: Arc<Core>,
}

/// Whether this thread runs a [host function](self#host-functions), or drops memory that was handed
/// over. Calls that might wait then fail with `EDEADLK`.
///
/// A library that waits by other means, for instance by a lock that is held while somebody else
/// waits for a stream, asks before it does.
///
/// ```
/// assert!(!pinmap::stream::in_host_function());
/// ```
pub fn in_host_function() -> bool {
    inside::is_inside()
}

impl Accelerator {
    /// Makes a stream. All programs together can have as many as the device has queues
    /// ([`AcceleratorInfo::queues`](crate::AcceleratorInfo::queues)), for instance 1,024.
    ///
    /// ```no_run
    /// use pinmap::{Accelerator, StreamOptions};
    /// # fn f(gpu: &Accelerator) -> pinmap::Result<()> {
    /// let stream = gpu.stream(StreamOptions::new())?;
    /// let mut numbers = gpu.alloc::<f32>(1024)?;
    /// stream.scope(|work| work.fill(&mut numbers, 1.0))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the number of packets is no power of two from 64 to 65,536; `ENOSPC`: the device
    /// has no queue left; `ENOMEM`: out of memory, or over `RLIMIT_MEMLOCK`; `EPERM`: another
    /// process opened the device; `ENODEV`: the device is gone; `EAGAIN`: the system cannot start a
    /// thread.
    pub fn stream(&self, options: StreamOptions) -> Result<Stream> {
        let core = Core::new(self, options)?;
        Ok(Stream { core })
    }
}

impl Device {
    /// Waits until all streams of this context are done with what was submitted, also streams that
    /// were dropped.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::Accelerator) -> pinmap::Result<()> {
    /// gpu.device().synchronize()?; // all streams of this program
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the first stream that failed, after the others are done: as for
    /// [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        let mut result = Ok(());
        for point in self.points()? {
            result = result.and(point.and_then(|point| point.wait(None).map(drop)));
        }
        result
    }

    /// Waits as [`synchronize`](Self::synchronize) does, but no longer than `timeout`.
    ///
    /// ```no_run
    /// use pinmap::ErrorKind;
    /// use std::time::Duration;
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// match device.synchronize_timeout(Duration::from_secs(1)) {
    ///     Err(error) if error.kind() == ErrorKind::TimedOut => println!("still at work"),
    ///     other => other?,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize); `ETIMEDOUT`: the time was up first.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        let mut result = Ok(());
        for point in self.points()? {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            result = result.and(point.and_then(|point| point.wait_timeout(left)));
        }
        result
    }

    /// Waits as [`synchronize`](Self::synchronize) does, without blocking the thread, on any
    /// executor. What is submitted after this call is not waited for.
    ///
    /// ```no_run
    /// # async fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// device.synchronize_async().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub fn synchronize_async(&self) -> impl Future<Output = Result<()>> + Send + 'static {
        let points = self.points();
        async move {
            let mut result = Ok(());
            for point in points? {
                let reached = match point {
                    Ok(point) => Reached::new(point).await,
                    Err(error) => Err(error),
                };
                result = result.and(reached);
            }
            result
        }
    }

    /// The points behind everything that was submitted to the streams of this context. All of it is
    /// published, so that it runs at the same time.
    fn points(&self) -> Result<Vec<Result<Point>>> {
        check_outside(Operation::Stream, || format!("wait for the work of {self}"))?;
        // First the streams that exist, which now cannot be dropped unseen.
        let cores = Shared::find(self).map_or_else(Vec::new, |shared| shared.members());
        let dropped =
            callbacks::outstanding(|fence| fence.device().is_same(self) && !fence.is_over());
        let points = cores.iter().map(|core| core.point());
        Ok(points.chain(dropped.into_iter().map(Ok)).collect())
    }
}

impl Stream {
    fn of(core: Arc<Core>) -> Self {
        Self { core }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The id of the stream's queue, unique in its context. Events and faults name the queue by it.
    /// A [reset](Self::reset) changes the id.
    pub fn id(&self) -> u64 {
        self.core.id()
    }

    /// The device on which the stream runs.
    pub fn device(&self) -> &Device {
        self.core.device()
    }

    /// The priority, clamped to [`Accelerator::priorities`].
    pub fn priority(&self) -> u32 {
        self.core.options().clamped(self.core.accelerator())
    }

    /// Submits work on memory that is handed over. Returns at once, unless the ring is full;
    /// [`Pending::wait`] gives the memory back when the work is done.
    ///
    /// The device is told about the work at once, when the function returns. If the function fails
    /// or panics, what it has submitted is executed all the same, and the memory is dropped after
    /// that.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, Pinned, Stream};
    /// # fn f(stream: &Stream, numbers: Pinned<f32>) -> pinmap::Result<()> {
    /// let pending = stream.submit(numbers, |work, numbers| {
    ///     let mut numbers = numbers.slice_mut(); // borrowed once, for both
    ///     work.fill(&mut numbers, 1.0)?;
    ///     work.launch(IncrementF32 { data: &mut numbers })
    /// })?;
    /// // ... something else ...
    /// let numbers = pending.wait()?;
    /// assert_eq!(numbers[0], 2.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the function; `EIO`: the stream has failed; `EDEADLK`: this is a host function.
    pub fn submit<M, F>(&self, memory: M, work: F) -> Result<Pending<M>>
    where
        M: Send + 'static,
        F: for<'w> FnOnce(&Work<'w>, &'w mut M) -> Result<()>,
    {
        Pending::new(&self.core, memory, work)
    }

    /// Records an event here: it is complete when everything that was submitted before is done.
    /// This replaces an earlier recording of the event.
    ///
    /// ```no_run
    /// use pinmap::{Accelerator, Stream};
    /// # fn f(gpu: &Accelerator, stream: &Stream) -> pinmap::Result<()> {
    /// let (begin, end) = (gpu.event()?, gpu.event()?);
    /// stream.record(&begin)?;
    /// // ... work ...
    /// stream.record(&end)?;
    /// end.synchronize()?;
    /// println!("{:?} by the device's clock", end.elapsed_since(&begin)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the event belongs to another context; `ENOMEM`: out of memory, or over
    /// `RLIMIT_MEMLOCK`; `EIO`: the stream has failed; `EDEADLK`: this is a host function.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.record(&self.core)
    }

    /// Has the device wait for an event, as it was recorded last, before it executes what is
    /// submitted next. The CPU does not wait, unless the ring is full. The event may belong to
    /// another context, even to another device. An event that was never recorded is complete.
    ///
    /// ```no_run
    /// use pinmap::{Accelerator, Stream};
    /// # fn f(gpu: &Accelerator, first: &Stream, second: &Stream) -> pinmap::Result<()> {
    /// let ready = gpu.event()?;
    /// first.record(&ready)?;
    /// // What is submitted to the second stream from here on begins after what the first one has.
    /// second.wait_event(&ready)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOMEM`: out of memory, or over `RLIMIT_MEMLOCK`; `EIO`: the stream has failed; `EDEADLK`:
    /// this is a host function.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait_on(&self.core)
    }

    /// Submits a host function. It runs once, on a thread of this crate, when everything that was
    /// submitted before is done; what is submitted next waits for it. If the stream fails before,
    /// the function is dropped.
    ///
    /// Inside the function, calls of this crate that might wait fail with `EDEADLK`: see [host
    /// functions](self#host-functions). A panic fails the stream. At most 32 host functions of a
    /// process run at once.
    ///
    /// Waking the thread takes system calls. Nothing else that is submitted does.
    ///
    /// ```no_run
    /// # fn f(stream: &pinmap::Stream) -> pinmap::Result<()> {
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// // The function must not wait for a stream, but it can wake somebody who does.
    /// stream.call(move || {
    ///     let _ = sender.send(());
    /// })?;
    /// let _ = receiver.recv();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed; `EDEADLK`: this is a host function.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        self.core.call(None, Box::new(function))
    }

    /// Whether everything that was submitted is done. If it is, this makes no system call, and
    /// later reads see what the work wrote.
    ///
    /// ```no_run
    /// # fn f(stream: &pinmap::Stream) -> pinmap::Result<()> {
    /// if !stream.query()? {
    ///     println!("still at work");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, and [`Error::fault`](crate::Error::fault) says why; `ENODEV`:
    /// the device is gone; `EDEADLK`: this is a host function, and not everything is done.
    pub fn query(&self) -> Result<bool> {
        self.core.query()
    }

    /// Waits until everything that was submitted is done. Later reads see what it wrote.
    ///
    /// ```no_run
    /// # fn f(stream: &pinmap::Stream) -> pinmap::Result<()> {
    /// if let Err(error) = stream.synchronize() {
    ///     if let Some(fault) = error.fault() {
    ///         println!("the stream has failed: {fault}");
    ///     }
    ///     stream.reset()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EIO`: the stream has failed, and [`Error::fault`](crate::Error::fault) says why; `ENODEV`:
    /// the device is gone; `EDEADLK`: this is a host function.
    pub fn synchronize(&self) -> Result<()> {
        self.core.synchronize(None).map(drop)
    }

    /// Waits as [`synchronize`](Self::synchronize) does, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize); `ETIMEDOUT`: the time was up first.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<()> {
        let done = self.core.synchronize(Some(timeout))?;
        in_time(done, || {
            format!(
                "wait for the work of queue {} of {}",
                self.id(),
                self.device()
            )
        })
    }

    /// Waits as [`synchronize`](Self::synchronize) does, without blocking the thread, on any
    /// executor. What is submitted after this call is not waited for.
    ///
    /// ```no_run
    /// # async fn f(stream: &pinmap::Stream) -> pinmap::Result<()> {
    /// stream.synchronize_async().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub fn synchronize_async(&self) -> impl Future<Output = Result<()>> + Send + 'static {
        let point = self.core.point();
        async move { Reached::new(point?).await }
    }

    /// Makes a completion: an eventfd to poll, which becomes readable when everything that was
    /// submitted is done, or never will be.
    ///
    /// ```no_run
    /// use std::os::fd::AsFd;
    /// use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
    /// # fn f(streams: &[pinmap::Stream]) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut done = Vec::new();
    /// for stream in streams {
    ///     done.push(stream.completion()?);
    /// }
    /// let mut files = Vec::new();
    /// for done in &done {
    ///     files.push(PollFd::new(done.as_fd(), PollFlags::POLLIN));
    /// }
    /// poll(&mut files, PollTimeout::NONE)?; // until the first of them is done
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EMFILE`: too many open files; `ENOSPC`: this stream has 63 completions outstanding; `EIO`:
    /// the stream has failed; `ENODEV`: the device is gone; `EDEADLK`: this is a host function.
    pub fn completion(&self) -> Result<Completion> {
        Completion::new(&self.core)
    }

    /// Makes a stream that has failed usable again. Work that was not executed never will be. Host
    /// functions that have not run are dropped, except one that is already due. Waits for the
    /// packet that runs, if there is one, and for other threads that are submitting.
    ///
    /// ```no_run
    /// # fn f(stream: &pinmap::Stream) -> pinmap::Result<()> {
    /// if stream.query().is_err_and(|error| error.fault().is_some()) {
    ///     stream.reset()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::stream`], since the stream gets a new queue; after an error the stream
    /// is as it was before. `EDEADLK`: this is a host function.
    pub fn reset(&self) -> Result<()> {
        self.core.reset()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
