// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: see the module [`accelerator`](crate::accelerator).

pub(crate) mod blocking;
mod callbacks;
pub(crate) mod completion;
mod core;
mod ended;
pub(crate) mod event;
mod future;
pub(crate) mod in_flight;
pub(crate) mod operand;
mod parked;
pub(crate) mod pending;
mod pool;
pub(crate) mod prefetch;
mod relay;
pub(crate) mod scope;
mod served;
mod shared;
pub(crate) mod work;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::{check_outside, in_time, ErrorWith, Operation, Result};
use crate::queue::options::StreamOptions;
use crate::queue::point::Point;
use crate::sys::inside;
use crate::wait::Wait;

use self::completion::Completion;
use self::core::Core;
use self::event::Event;
use self::future::Reached;
use self::pending::Pending;
use self::shared::Shared;
use self::work::Work;

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
/// use pinmap::accelerator::StreamOptions;
/// use pinmap_testgpu::IncrementF32;
/// # fn main() -> pinmap::Result<()> {
/// let gpu = pinmap_testgpu::find()?;
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

/// Whether this thread runs a [host function](crate::accelerator#host-functions), or drops memory
/// that was handed over. Calls that might wait then fail with `EDEADLK`.
///
/// A library that waits by other means, for instance by a lock that is held while somebody else
/// waits for a stream, asks before it does.
///
/// ```
/// assert!(!pinmap::accelerator::in_host_function());
/// ```
pub fn in_host_function() -> bool {
    inside::is_inside()
}

impl Accelerator {
    /// Makes a stream. All programs together can have as many as the device has queues
    /// ([`AcceleratorInfo::queues`](crate::accelerator::AcceleratorInfo::queues)), for instance
    /// 1,024.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Accelerator, StreamOptions};
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
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
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
    pub fn synchronize_async(&self) -> Wait<'static, ()> {
        let points = self.points();
        Wait::new(async move {
            let mut result = Ok(());
            for point in points? {
                let reached = match point {
                    Ok(point) => Reached::new(point).await,
                    Err(error) => Err(error),
                };
                result = result.and(reached);
            }
            result
        })
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
    /// The device is told about the work once, when the function returns. If the function fails
    /// or panics, the device executes what it has submitted all the same. After a failure the
    /// [`Pending`] comes back with the error, and gives the memory back when that is done; after a
    /// panic the memory is dropped then.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// use pinmap_testgpu::IncrementF32;
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
    /// The `Pending` comes back with the error. The error of the function; `EIO`: the stream has
    /// failed; `EDEADLK`: this is a host function.
    pub fn submit<M, F>(&self, memory: M, work: F) -> Result<Pending<M>, ErrorWith<Pending<M>>>
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
    /// use pinmap::accelerator::{Accelerator, Stream};
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
    /// use pinmap::accelerator::{Accelerator, Stream};
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
    /// functions](crate::accelerator#host-functions). A panic fails the stream. At most 32 host
    /// functions of a process run at once.
    ///
    /// Waking the thread takes system calls. Nothing else that is submitted does.
    ///
    /// ```no_run
    /// # fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
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
    /// # fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
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
    /// # fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
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
    /// # async fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
    /// stream.synchronize_async().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Self::synchronize).
    pub fn synchronize_async(&self) -> Wait<'static, ()> {
        let point = self.core.point();
        Wait::new(async move { Reached::new(point?).await })
    }

    /// Makes a completion: an eventfd to poll, which becomes readable when everything that was
    /// submitted is done, or never will be.
    ///
    /// ```no_run
    /// use std::os::fd::AsFd;
    /// use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
    /// # fn f(streams: &[pinmap::accelerator::Stream]) -> Result<(), Box<dyn std::error::Error>> {
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
    /// # fn f(stream: &pinmap::accelerator::Stream) -> pinmap::Result<()> {
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
