// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a queue has come, and waiting for it.

use std::fmt;
use std::hint::spin_loop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::bar::after_read;
use crate::device::Device;
use crate::doorbell::drain_writes;
use crate::error::{Error, Operation, Result};
use crate::fault::Fault;
use crate::host;
use crate::ioctl;
use crate::pages::Memory;
use crate::sys;
use crate::word;

/// Which of the queue's fences says how far it has come.
const FENCE: u32 = 0;
/// Which of them counts the host functions that have run.
const CALLS: u32 = 1;
/// How often to look before going to sleep: some ten microseconds.
const SPINS: u32 = 500;
/// How often to ask the driver for what no interrupt tells.
const LOOK: Duration = Duration::from_micros(200);
/// How long to sleep before looking at what else may have happened.
const STEP: Duration = Duration::from_millis(250);

/// A point in the work of a queue: reached when everything that was submitted before is done.
///
/// Made by [`Scope::fence`](crate::Scope::fence). It keeps the queue's place in the device: that
/// is given up when the queue and all its fences are dropped.
#[derive(Clone)]
pub struct Fence {
    progress: Arc<Progress>,
    value: u64,
}

/// What a queue and its fences share: the number of packets executed, and the queue's place in the
/// device.
pub(crate) struct Progress {
    device: Device,
    id: u64,
    fences: Memory,
    fence_addr: u64,
    /// Set when the queue begins to be destroyed: why it had stopped, if it had. The driver does not know
    /// it from then on.
    ending: OnceLock<Option<Fault>>,
    /// The queue was destroyed: the device does nothing for it any more.
    destroyed: AtomicBool,
    /// Held by who destroys it: that takes as long as the packet that runs.
    destroying: Mutex<()>,
    /// Why it cannot go on, if that is not the device's doing.
    spoilt: OnceLock<&'static str>,
    /// What the driver would say, once it was set.
    #[cfg(test)]
    fake_index: Option<std::sync::atomic::AtomicU64>,
}

impl Progress {
    /// Of a queue that was created.
    pub(crate) fn new(device: Device, id: u64, fences: Memory, fence_addr: u64) -> Self {
        Self {
            device,
            id,
            fences,
            fence_addr,
            ending: OnceLock::new(),
            destroyed: AtomicBool::new(false),
            destroying: Mutex::new(()),
            spoilt: OnceLock::new(),
            #[cfg(test)]
            fake_index: None,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Device address of the number of packets executed.
    pub(crate) fn addr(&self) -> u64 {
        self.fence_addr + 8 * u64::from(FENCE)
    }

    /// Device address of the number of host functions that have run.
    pub(crate) fn calls_addr(&self) -> u64 {
        self.fence_addr + 8 * u64::from(CALLS)
    }

    /// So many host functions have run: the device may go on.
    pub(crate) fn called(&self, calls: u64) {
        // What the function wrote, the device finds: no doorbell comes between.
        drain_writes();
        word::store(self.fences.words(), 8 * CALLS as usize, calls.to_le());
    }

    /// Ends it for a reason that is not the device's.
    pub(crate) fn spoil(&self, cause: &'static str) {
        // The first reason is the reason.
        let _ = self.spoilt.set(cause);
        // If it fails, it cannot be made to do anything more either.
        let _ = self.destroy();
    }

    /// Has an eventfd signalled when so many packets are executed, or never will be.
    pub(crate) fn notify(&self, value: u64, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut args = sys::pinmap_queue_notify {
            queue: self.id,
            fence: FENCE,
            fd: eventfd.as_raw_fd(),
            value,
            ..Default::default()
        };
        ioctl::queue_notify(self.device.as_fd(), &mut args)
    }

    /// How many packets have been executed at least. What they wrote is seen then.
    pub(crate) fn executed(&self) -> u64 {
        let value = u64::from_le(word::load(self.fences.words(), 8 * FENCE as usize));
        after_read();
        value
    }

    /// Waits until so many packets are executed. False: the time was up first.
    pub(crate) fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<bool> {
        for _ in 0..SPINS {
            if self.executed() >= value {
                return Ok(true);
            }
            spin_loop();
        }
        // Whoever has the queue may destroy it as soon as the last packet is executed: that is no failure.
        let unless_reached = |error| match self.executed() >= value {
            true => Ok(true),
            false => Err(error),
        };
        if let Err(error) = self.check(Operation::Wait, "wait for") {
            return unless_reached(error);
        }
        // So far away that it cannot be told is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.executed() < value {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut args = sys::pinmap_queue_wait {
                queue: self.id,
                fence: FENCE,
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

    /// Waits until so many packets are executed, as long as it takes; an error when that cannot
    /// be any more, also because one of the fences that the queue waits for cannot be reached.
    pub(crate) fn wait_for_ever(&self, value: u64, needs: &[Fence]) -> Result<()> {
        self.wait_needing(value, needs, None).map(drop)
    }

    /// As [`wait_for_ever`](Self::wait_for_ever), but not for longer than that. False: the time was
    /// up first.
    pub(crate) fn wait_needing(
        &self,
        value: u64,
        needs: &[Fence],
        timeout: Option<Duration>,
    ) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let step = left.map_or(STEP, |left| left.min(STEP));
            if self.wait(value, Some(step))? {
                return Ok(true);
            }
            self.check_needs(needs)?;
            if left.is_some_and(|left| left <= step) {
                return Ok(false);
            }
        }
    }

    /// An error if one of the fences that the queue waits for cannot be reached.
    pub(crate) fn check_needs(&self, needs: &[Fence]) -> Result<()> {
        for fence in needs {
            if let Some(stop) = fence.stopped()? {
                let cause = "it waits for a queue that has stopped";
                let attempt = self.attempt("wait for");
                let error = Error::refused(Operation::Wait, attempt, Errno::EIO, cause);
                return Err(match stop {
                    Some(fault) => error.with_fault(fault),
                    None => error,
                });
            }
        }
        Ok(())
    }

    /// What the driver says about the queue.
    fn ask(&self) -> Result<sys::pinmap_queue_query, Errno> {
        let mut args = sys::pinmap_queue_query {
            queue: self.id,
            ..Default::default()
        };
        #[cfg(test)]
        if let Some(index) = &self.fake_index {
            args.out_state = sys::PINMAP_QUEUE_READY;
            args.out_index = index.load(Ordering::SeqCst);
            return Ok(args);
        }
        ioctl::queue_query(self.device.as_fd(), &mut args)?;
        Ok(args)
    }

    /// Why it has stopped, if it has.
    fn query(&self) -> Result<Option<Fault>, Errno> {
        self.ask().map(|args| Fault::from_abi(&args))
    }

    /// Whether the device itself, not its fences, says that so many packets are executed.
    pub(crate) fn is_confirmed(&self, packets: u64) -> bool {
        self.ask().is_ok_and(|args| args.out_index >= packets)
    }

    /// Waits until the device itself, not its fences, says that so many packets are executed.
    pub(crate) fn confirm(&self, packets: u64) -> Result<()> {
        let fail = |errno| self.fail(Operation::Wait, "wait for", errno);
        loop {
            let args = self.ask().map_err(fail)?;
            if Fault::from_abi(&args).is_some() {
                return Err(fail(Errno::EIO));
            }
            if args.out_index >= packets {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Why it has stopped, if it has. None inside: it was destroyed.
    pub(crate) fn stopped(&self) -> Result<Option<Option<Fault>>> {
        if self.is_destroyed() {
            return Ok(Some(self.ending.get().copied().flatten()));
        }
        let query = self.query();
        let fault = query.map_err(|errno| self.fail(Operation::Wait, "ask about", errno))?;
        Ok(fault.map(Some))
    }

    /// An error if it was destroyed: then no system call is of use. Or in a host function, for
    /// which the queue may wait.
    pub(crate) fn check(&self, operation: Operation, verb: &str) -> Result<()> {
        host::check(operation, || self.attempt(verb))?;
        if !self.is_destroyed() && self.spoilt.get().is_none() {
            return Ok(());
        }
        Err(self.fail(operation, verb, Errno::EIO))
    }

    /// Whether the device does nothing for it any more, since it was destroyed.
    fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// What went wrong, with why the queue stopped if it did.
    pub(crate) fn fail(&self, operation: Operation, verb: &str, errno: Errno) -> Error {
        let (errno, fault) = match (errno, self.ending.get()) {
            // Somebody else destroys it.
            (Errno::ENOENT | Errno::ESTALE, Some(fault)) => (Errno::EIO, *fault),
            (_, Some(fault)) => (errno, *fault),
            (Errno::EIO, None) => (errno, self.query().ok().flatten()),
            (_, None) => (errno, None),
        };
        if let Some(cause) = self.spoilt.get() {
            return Error::refused(operation, self.attempt(verb), Errno::EIO, *cause);
        }
        let error = Error::new(operation, self.attempt(verb), errno);
        match fault {
            Some(fault) => error.with_fault(fault),
            None => error,
        }
    }

    fn attempt(&self, verb: &str) -> String {
        format!("{verb} the work of queue {} of {}", self.id, self.device)
    }

    /// Destroys the queue: when it returns the device does nothing for it any more, whoever was first.
    pub(crate) fn destroy(&self) -> Result<()> {
        // The driver forgets the name before the device has stopped: who comes second has to wait for the
        // first one here.
        let _one_at_a_time = self
            .destroying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_destroyed() {
            return Ok(());
        }
        // Also on the crate's own thread, when the queue of a dropped stream ends.
        let fault = host::outside(|| self.query()).ok().flatten();
        // Not if it was tried before.
        let _ = self.ending.set(fault);
        loop {
            let mut args = sys::pinmap_queue_destroy {
                queue: self.id,
                ..Default::default()
            };
            match ioctl::queue_destroy(self.device.as_fd(), &mut args) {
                Err(Errno::EINTR) => {}
                // Gone, it does nothing; destroyed before, by a forked process that has the same
                // file, the queue is no more.
                Ok(()) | Err(Errno::ENODEV | Errno::ENOENT | Errno::ESTALE) => {
                    self.destroyed.store(true, Ordering::Release);
                    return Ok(());
                }
                Err(errno) => return Err(self.fail(Operation::Destroy, "end", errno)),
            }
        }
    }

    /// Of a queue that no driver knows.
    #[cfg(test)]
    pub(crate) fn fake() -> Self {
        Self::new(Device::fake(), 7, Memory::anonymous(4096), 0xfe_0000)
    }

    /// Of a queue about which the driver says what [`confirm_fake`](Self::confirm_fake) was told.
    #[cfg(test)]
    pub(crate) fn fake_with_index() -> Self {
        let mut fake = Self::fake();
        fake.fake_index = Some(0.into());
        fake
    }

    /// Does as if so many packets were executed.
    #[cfg(test)]
    pub(crate) fn execute(&self, packets: u64) {
        word::store(self.fences.words(), 0, packets.to_le());
        self.confirm_fake(packets);
    }

    /// Does as if the device's registers said so.
    #[cfg(test)]
    pub(crate) fn confirm_fake(&self, packets: u64) {
        if let Some(index) = &self.fake_index {
            index.store(packets, Ordering::SeqCst);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // If it fails, then because the file is not the driver's any more: nothing is left to do.
        let _ = self.destroy();
    }
}

/// In nanoseconds; more than that is for ever.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Fence {
    pub(crate) fn new(progress: Arc<Progress>, value: u64) -> Self {
        Self { progress, value }
    }

    /// Whether it has been reached. What the work before it wrote is seen then. No system call.
    pub fn is_done(&self) -> bool {
        self.progress.executed() >= self.value
    }

    /// Waits until it is reached; without a timeout, as long as it takes. False: the time was up
    /// first.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue has stopped before, [`Error::fault`](crate::Error::fault) says why;
    /// `ENODEV`: the device is gone; `EDEADLK`: it is not reached, and this is a host function.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        self.progress.wait(self.value, timeout.into())
    }

    /// The queue: see [`Queue::id`](crate::Queue::id).
    pub fn queue(&self) -> u64 {
        self.progress.id
    }

    /// Whether both are of the same queue.
    pub(crate) fn is_same_queue(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.progress, &other.progress)
    }

    /// Becomes the later one of two of the same queue.
    pub(crate) fn advance(&mut self, other: &Self) {
        self.value = self.value.max(other.value);
    }

    /// What another queue of the same context waits for: an address and a number.
    pub(crate) fn target(&self) -> (u64, u64) {
        (self.progress.addr(), self.value)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.progress.device
    }

    /// The queue.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Whether the device does nothing any more that comes before it: it is reached, or the queue
    /// was destroyed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_done() || self.progress.is_destroyed()
    }

    /// Whether it has been reached; where packets made by hand may have written it, whether the device
    /// says so as well.
    pub(crate) fn is_passed(&self, by_hand: bool) -> bool {
        self.is_done() && (!by_hand || self.progress.is_confirmed(self.value))
    }

    /// Waits for that, as long as it takes; an error when it cannot be any more, also because one of
    /// `needs` cannot be reached.
    pub(crate) fn wait_for_ever(&self, needs: &[Self], by_hand: bool) -> Result<()> {
        self.progress.wait_for_ever(self.value, needs)?;
        match by_hand {
            true => self.progress.confirm(self.value),
            false => Ok(()),
        }
    }

    /// How many packets are executed then.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// Whether it has been reached; an error if it never will be, also because one of `needs`
    /// will not.
    pub(crate) fn query(&self, needs: &[Self]) -> Result<bool> {
        if self.is_done() {
            return Ok(true);
        }
        if self.stopped()?.is_some() {
            return Err(self.progress.fail(Operation::Wait, "wait for", Errno::EIO));
        }
        self.progress.check_needs(needs)?;
        Ok(self.is_done())
    }

    /// Why it will never be reached, if so.
    fn stopped(&self) -> Result<Option<Option<Fault>>> {
        if self.is_done() {
            return Ok(None);
        }
        let stopped = self.progress.stopped()?;
        // It may have come to it just before.
        Ok(stopped.filter(|_| !self.is_done()))
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("queue", &self.progress.id)
            .field("value", &self.value)
            .field("done", &self.is_done())
            .finish()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("device", &self.device)
            .field("id", &self.id)
            .field("executed", &self.executed())
            .field("destroyed", &self.destroyed)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_needs_no_system_call() {
        let progress = Arc::new(Progress::fake());
        let fence = Fence::new(Arc::clone(&progress), 5);
        assert!(!fence.is_done());
        // A system call would fail.
        assert_eq!(
            fence.wait(None).expect_err("no driver").errno(),
            Errno::ENOTTY as i32
        );
        progress.execute(5);
        assert!(fence.is_done());
        assert!(fence.wait(None).expect("done"));
        assert_eq!(fence.target(), (0xfe_0000, 5));
        let mut later = fence.clone();
        later.advance(&Fence::new(Arc::clone(&progress), 9));
        assert!(later.is_same_queue(&fence) && !later.is_done());
        later.advance(&fence);
        assert_eq!(later.target().1, 9);
        let text = format!("{fence:?}");
        assert!(
            text.contains("queue: 7") && text.contains("done: true"),
            "{text}"
        );
    }

    #[test]
    fn a_destroyed_queue_says_why() {
        let progress = Progress::fake();
        let fault = Fault::from_abi(&sys::pinmap_queue_query {
            queue: 7,
            out_state: sys::PINMAP_QUEUE_FAULTED,
            out_code: 1,
            out_addr: 0x5000,
            ..Default::default()
        });
        progress.ending.set(fault).expect("the first");
        // The driver has forgotten it already.
        for errno in [Errno::ENOENT, Errno::ESTALE, Errno::EIO] {
            let error = progress.fail(Operation::Wait, "wait for", errno);
            assert_eq!(
                (error.errno(), error.fault()),
                (Errno::EIO as i32, fault.as_ref())
            );
            assert!(error.to_string().contains("0x5000"), "{error}");
        }
        assert!(!progress.is_destroyed());
        progress.destroyed.store(true, Ordering::Release);
        let error = progress.wait(1, None).expect_err("stopped");
        assert_eq!(
            (error.errno(), error.fault()),
            (Errno::EIO as i32, fault.as_ref())
        );
        assert!(error.to_string().contains("0x5000"), "{error}");
        progress.destroy().expect("done before");
        let fence = Fence::new(Arc::new(progress), 3);
        assert_eq!(fence.stopped().expect("known"), Some(fault));
        let other = Progress::fake();
        // With a driver this would be a timeout first.
        assert!(other.wait_for_ever(1, &[fence]).is_err());
    }

    #[test]
    fn times_too_long_are_for_ever() {
        assert_eq!(nanos(Duration::from_nanos(5)), 5);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }

    #[test]
    fn fences_can_be_shared_and_sent() {
        fn check<T: Send + Sync + Clone>() {}
        check::<Fence>();
    }
}
