// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a queue: what the queue, its fences and its stream share.
//!
//! Each queue has a page of 64-bit fences that the device and the CPU both access. Fence 0 counts
//! the packets that the device has executed; markers in the [ring](super::ring) store it, and
//! waiting for work means waiting for this number. Fence 1 counts the host functions that have run:
//! the CPU stores it, and the queue waits for it.
//!
//! A queue *stops* when a packet faults, or when it is destroyed; see [`Stopped`]. It is destroyed
//! once, by the first of those who cannot use it any more: a scope whose end cannot be waited for,
//! a stream that is reset or dropped, or the last reference to the handle. From then on the device
//! does nothing for it. A queue that the crate destroys for a reason of its own, such as a host
//! function that panicked, is *poisoned*: later errors give that reason.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::fault::Fault;
use crate::error::{abort, check_outside, Error, Operation, Result};
use crate::memory::element::Element;
use crate::memory::lent::{Lending, Loans};
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::sys::barrier::{after_read, drain_writes};
use crate::sys::bindings as abi;
use crate::sys::ioctl;
use crate::sys::map::Map;
use crate::sys::sync::{spin_loop, AtomicBool, Condvar, Mutex, MutexGuard, SPINS};
use crate::sys::trace::span;
use crate::sys::word;
use crate::trace::recorder::Recorder;

/// Index of the fence that counts executed packets.
const EXECUTED: u32 = 0;
/// Index of the fence that counts host functions that have run.
const CALLBACKS: u32 = 1;
/// How often to ask the driver for the queue's index, for which there is no interrupt.
const POLL: Duration = Duration::from_micros(200);

/// The shared part of a queue.
pub(crate) struct Handle {
    device: Device,
    id: u64,
    fences: Map,
    fence_addr: u64,
    /// Set when destroying begins: what the driver knew of the queue, which it then forgets.
    ending: OnceLock<State>,
    destroyed: AtomicBool,
    /// Held while destroying, which takes as long as the packet that runs.
    destroying: Mutex<()>,
    /// Another queue reads the fence, so it stays as long as anybody has this.
    kept: AtomicBool,
    /// Set when nothing more will be executed: the queue is poisoned, or its fault was seen.
    over: AtomicBool,
    /// Why the crate destroyed the queue, if the device did not stop it.
    poisoned: OnceLock<&'static str>,
    /// A host function will never run. With it, the number of those that have run changes.
    call_lost: Mutex<bool>,
    call_ended: Condvar,
    /// The stream that is asked for interrupts, if there are markers without. A panic leaves the
    /// owner as it was before, or with a packet more.
    owner: OnceLock<AssertUnwindSafe<Weak<dyn Owner>>>,
    /// Dropped after the queue is destroyed.
    lending: Lending,
    /// Records what the queue does, if the process is traced. Likewise.
    recorder: Option<Recorder>,
    /// The queue's index as a made-up driver tells it.
    #[cfg(test)]
    fake_index: Option<std::sync::atomic::AtomicU64>,
}

/// The part of a queue that the driver, or a made-up one, knows.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The fault that stopped the queue, if one did.
    fault: Option<Fault>,
    /// How many packets are executed, as the device itself says.
    executed: u64,
}

/// Why a queue executes nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The queue was destroyed, and had not faulted.
    Destroyed,
    /// A packet faulted.
    Faulted(Fault),
}

/// Whoever can put packets into the ring of a queue.
pub(crate) trait Owner: Send + Sync {
    /// Somebody is about to sleep until `value` packets of this queue are executed: has the device
    /// interrupt then, if it would not. Does not wait.
    fn interrupt_at(&self, queue: u64, value: u64);
}

/// One of the ioctls that ask for the state of a queue.
type Query = fn(BorrowedFd<'_>, &mut abi::pinmap_queue_query) -> Result<(), Errno>;

impl Handle {
    /// The handle of a queue that the driver has just made.
    pub(super) fn new(
        device: Device,
        id: u64,
        fences: Map,
        fence_addr: u64,
        lending: Lending,
        recorder: Option<Recorder>,
    ) -> Self {
        Self {
            device,
            id,
            fences,
            fence_addr,
            ending: OnceLock::new(),
            destroyed: AtomicBool::new(false),
            destroying: Mutex::new(()),
            kept: AtomicBool::new(false),
            over: AtomicBool::new(false),
            poisoned: OnceLock::new(),
            call_lost: Mutex::new(false),
            call_ended: Condvar::new(),
            owner: OnceLock::new(),
            lending,
            recorder,
            #[cfg(test)]
            fake_index: None,
        }
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Notes who is to be asked for interrupts.
    pub(crate) fn belong_to(&self, owner: Weak<dyn Owner>) {
        // The first one stays.
        let _ = self.owner.set(AssertUnwindSafe(owner));
    }

    /// Makes sure that the device interrupts when `value` packets are executed, or later.
    fn have_interrupt(&self, value: u64) {
        // An owner that is gone has left no marker without.
        if let Some(owner) = self.owner.get().and_then(|owner| owner.upgrade()) {
            owner.interrupt_at(self.id, value);
        }
    }

    /// Device address of the number of packets executed.
    pub(crate) fn executed_addr(&self) -> u64 {
        self.fence_addr + 8 * u64::from(EXECUTED)
    }

    /// Device address of the number of host functions that have run.
    pub(crate) fn callbacks_addr(&self) -> u64 {
        self.fence_addr + 8 * u64::from(CALLBACKS)
    }

    /// Stores how many host functions have run. The device goes on, and sees what they wrote.
    pub(crate) fn store_callbacks(&self, count: u64) {
        // No doorbell comes between, which would order the writes.
        drain_writes();
        word::store(self.fences.words(), 8 * CALLBACKS as usize, count.to_le());
        self.end_call(false);
    }

    /// Tells those who wait for a host function that it will never run.
    pub(crate) fn lose_call(&self) {
        self.end_call(true);
    }

    fn end_call(&self, lost: bool) {
        // Whoever has looked before sleeps by now.
        *self.lock_calls() |= lost;
        self.call_ended.notify_all();
    }

    fn lock_calls(&self) -> MutexGuard<'_, bool> {
        self.call_lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `count` host functions have run. If so, later reads see what they wrote.
    pub(crate) fn have_run(&self, count: u64) -> bool {
        let run = word::load(self.fences.words(), 8 * CALLBACKS as usize);
        u64::from_le(run) >= count
    }

    /// Waits until `count` host functions have run. Returns false if the time was up first, or if
    /// they may never run.
    pub(crate) fn wait_for_call(&self, count: u64, timeout: Duration) -> bool {
        for _ in 0..SPINS {
            if self.have_run(count) {
                return true;
            }
            spin_loop();
        }
        let deadline = Instant::now().checked_add(timeout);
        let mut lost = self.lock_calls();
        while !self.have_run(count) {
            let left = deadline.map_or(timeout, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if *lost || left.is_zero() {
                return false;
            }
            let woken = self.call_ended.wait_timeout(lost, left);
            lost = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Notes that another queue reads the fence.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::SeqCst);
    }

    /// Whether another queue reads the fence, or has done so.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }

    /// Destroys the queue and makes `cause` the cause of all later errors.
    pub(crate) fn poison(&self, cause: &'static str) {
        // The first cause stays.
        let _ = self.poisoned.set(cause);
        self.over.store(true, Ordering::Release);
        // If the queue cannot be destroyed and references to its memory are possible, this does not
        // return.
        let _ = self.destroy();
    }

    /// Lends a slice to the device for reading, until the loans end.
    pub(crate) fn slice<'a, T: Element>(
        &self,
        memory: &'a [T],
        loans: &Loans,
    ) -> Result<DeviceSlice<'a, T>> {
        self.check(Operation::Submit, "lend memory to")?;
        self.lending.slice(&self.device, memory, loans)
    }

    /// Lends a slice to the device for writing, until the loans end.
    pub(crate) fn slice_mut<'a, T: Element>(
        &self,
        memory: &'a mut [T],
        loans: &Loans,
    ) -> Result<DeviceSliceMut<'a, T>> {
        self.check(Operation::Submit, "lend memory to")?;
        self.lending.slice_mut(&self.device, memory, loans)
    }

    /// Has an eventfd signalled when `value` packets are executed, or never will be.
    pub(crate) fn notify(&self, value: u64, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        #[cfg(test)]
        if self.fake_index.is_some() {
            // The made-up driver takes it, and signals nothing.
            return Ok(());
        }
        self.have_interrupt(value);
        let mut args = abi::pinmap_queue_notify {
            queue: self.id,
            fence: EXECUTED,
            fd: eventfd.as_raw_fd(),
            value,
            ..Default::default()
        };
        ioctl::queue_notify(self.device.as_fd(), &mut args)
    }

    /// How many packets have been executed, at least. Later reads see what those packets wrote.
    pub(crate) fn executed(&self) -> u64 {
        let value = u64::from_le(word::load(self.fences.words(), 8 * EXECUTED as usize));
        after_read();
        value
    }

    /// Waits until `value` packets are executed. Returns false if the time was up first.
    pub(crate) fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<bool> {
        for _ in 0..SPINS {
            if self.executed() >= value {
                return Ok(true);
            }
            spin_loop();
        }
        // The queue may be destroyed as soon as its last packet is executed: that is no failure.
        let unless_reached = |error| match self.executed() >= value {
            true => Ok(true),
            false => Err(error),
        };
        if let Err(error) = self.check(Operation::Wait, "wait for") {
            return unless_reached(error);
        }
        span!("wait", queue = self.id, fence = value);
        self.have_interrupt(value);
        // A deadline too far away to be represented is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.executed() < value {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut args = abi::pinmap_queue_wait {
                queue: self.id,
                fence: EXECUTED,
                value,
                timeout_ns: left.map_or(u64::MAX, nanos),
                ..Default::default()
            };
            match ioctl::queue_wait(self.device.as_fd(), &mut args) {
                Ok(()) | Err(Errno::EINTR) => {}
                // The deadline is further away than the driver can be told.
                Err(Errno::ETIMEDOUT) if left.is_none_or(|left| nanos(left) == u64::MAX) => {}
                Err(Errno::ETIMEDOUT) => return Ok(self.executed() >= value),
                Err(errno) => {
                    return unless_reached(self.fail(Operation::Wait, "wait for", errno));
                }
            }
        }
        Ok(true)
    }

    /// Asks the driver for the state of the queue.
    fn query(&self, ask: Query) -> Result<State, Errno> {
        #[cfg(test)]
        if let Some(index) = &self.fake_index {
            return Ok(State {
                fault: None,
                executed: index.load(Ordering::SeqCst),
            });
        }
        let mut args = abi::pinmap_queue_query {
            queue: self.id,
            ..Default::default()
        };
        ask(self.device.as_fd(), &mut args)?;
        let fault = Fault::from_abi(&args);
        if fault.is_some() {
            self.over.store(true, Ordering::Release);
        }
        Ok(State {
            fault,
            executed: args.out_index,
        })
    }

    /// Returns the state of the queue, and whether it was destroyed. If another thread is
    /// destroying it, waits until that is done.
    fn state(&self, verb: &str) -> Result<(State, bool)> {
        if !self.is_destroyed() {
            match self.query(ioctl::queue_query) {
                Ok(state) => return Ok((state, false)),
                // The driver forgets a queue before the device has stopped.
                Err(Errno::ENOENT | Errno::ESTALE) => self.destroy()?,
                Err(errno) => return Err(self.fail(Operation::Wait, verb, errno)),
            }
        }
        Ok((self.ending.get().copied().unwrap_or_default(), true))
    }

    /// Whether the device itself, not its fence, says that `packets` packets are executed. Does not
    /// wait.
    pub(crate) fn is_confirmed(&self, packets: u64) -> bool {
        let state = self.query(ioctl::queue_query).ok();
        // The driver may have forgotten the queue.
        let state = state.or_else(|| self.ending.get().copied());
        state.is_some_and(|state| state.executed >= packets)
    }

    /// Waits until the device itself, not its fence, says that `packets` packets are executed.
    pub(crate) fn confirm(&self, packets: u64) -> Result<()> {
        loop {
            let (state, destroyed) = self.state("wait for")?;
            // The queue may stop, or be destroyed, as soon as its last packet is executed.
            if state.executed >= packets {
                return Ok(());
            }
            if destroyed || state.fault.is_some() {
                return Err(self.fail(Operation::Wait, "wait for", Errno::EIO));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Why the queue has stopped, if it has.
    pub(crate) fn stopped(&self) -> Result<Option<Stopped>> {
        let (state, destroyed) = self.state("ask about")?;
        Ok(match state.fault {
            Some(fault) => Some(Stopped::Faulted(fault)),
            None => destroyed.then_some(Stopped::Destroyed),
        })
    }

    /// Fails if the queue was destroyed, or is known to have stopped, so that a system call is of
    /// no use, and inside a host function, for which the queue may be waiting.
    pub(crate) fn check(&self, operation: Operation, verb: &str) -> Result<()> {
        check_outside(operation, || self.attempt(verb))?;
        if !self.is_destroyed() && !self.over.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.fail(operation, verb, Errno::EIO))
    }

    /// Whether the queue was destroyed: the device does nothing for it any more.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// The error of an operation on the queue, with the fault if the queue has stopped.
    pub(crate) fn fail(&self, operation: Operation, verb: &str, errno: Errno) -> Error {
        let (errno, fault) = match (errno, self.ending.get()) {
            // Another thread is destroying the queue.
            (Errno::ENOENT | Errno::ESTALE, Some(ending)) => (Errno::EIO, ending.fault),
            (_, Some(ending)) => (errno, ending.fault),
            (Errno::EIO, None) => {
                let state = self.query(ioctl::queue_query);
                (errno, state.ok().and_then(|state| state.fault))
            }
            (_, None) => (errno, None),
        };
        if let Some(cause) = self.poisoned.get() {
            return Error::refused(operation, self.attempt(verb), Errno::EIO, *cause);
        }
        let error = Error::new(operation, self.attempt(verb), errno);
        match fault {
            Some(fault) => error.with_fault(fault),
            None => error,
        }
    }

    pub(crate) fn attempt(&self, verb: &str) -> String {
        format!("{verb} the work of queue {} of {}", self.id, self.device)
    }

    /// Destroys the queue. Whichever thread was first, the device does nothing for the queue any
    /// more when this returns.
    ///
    /// If the driver cannot do that, and memory of the program was lent to the context or managed,
    /// the process is aborted: there would be references to memory that the device still writes.
    pub(crate) fn destroy(&self) -> Result<()> {
        // The driver forgets the queue before the device has stopped, so a second caller would
        // return too early: it waits for the first one here.
        let _one_at_a_time = self
            .destroying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_destroyed() {
            return Ok(());
        }
        let state = self.query(ioctl::queue_query_before_destroy);
        // An earlier attempt that failed may have set it.
        let _ = self.ending.set(state.unwrap_or_default());
        loop {
            let mut args = abi::pinmap_queue_destroy {
                queue: self.id,
                ..Default::default()
            };
            match ioctl::queue_destroy(self.device.as_fd(), &mut args) {
                Err(Errno::EINTR) => {}
                // A device that is gone does nothing. A queue that the driver does not know was
                // destroyed by a forked process with the same file.
                Ok(()) | Err(Errno::ENODEV | Errno::ENOENT | Errno::ESTALE) => {
                    self.destroyed.store(true, Ordering::Release);
                    return Ok(());
                }
                Err(errno) => {
                    // Not what has ended the work, which other errors tell.
                    let error = Error::new(Operation::Destroy, self.attempt("end"), errno);
                    if self.device.has_lent() {
                        abort(format_args!("{error}. Its memory is about to be used"));
                    }
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // An error means that the file is not the driver's any more: nothing is left to do.
        let _ = self.destroy();
    }
}

/// A time in nanoseconds, or `u64::MAX`, which the driver takes for no limit.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("device", &self.device)
            .field("id", &self.id)
            .field("executed", &self.executed())
            .field("destroyed", &self.destroyed)
            .finish()
    }
}

// By its path, because tests/loom has this file by its path.
#[cfg(test)]
#[path = "handle/tests.rs"]
mod tests;
