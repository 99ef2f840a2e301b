// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupts of a device, counted by eventfds.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::sys::bindings as abi;
use crate::sys::poll::wait;
use crate::sys::watch::{Files, Watched};
use crate::sys::{inside, ioctl};
use crate::wait::Wait;

/// An interrupt vector of a device, counted by an eventfd.
///
/// Made by [`Device::interrupt`]. Dropping it detaches the eventfd: interrupts on that vector are
/// then ignored. The eventfd ([`AsFd`]) can be polled: it is readable when an interrupt came.
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// let interrupt = device.interrupt(0)?; // before the device is told to raise it
/// let registers = device.bar(0)?;
/// registers.write(0x98, 1u32)?;
/// println!("{} came", interrupt.wait()?);
/// # Ok(()) }
/// ```
#[must_use = "dropped, interrupts are ignored"]
#[derive(Debug)]
pub struct Interrupt {
    device: Device,
    vector: u32,
    eventfd: Arc<EventFd>,
}

impl Device {
    /// Attaches an eventfd to an interrupt vector, counted from 0. Makes this context the owner of
    /// the device.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let vectors = device.info()?.vectors;
    /// let interrupts: Vec<_> = (0..vectors)
    ///     .map(|vector| device.interrupt(vector))
    ///     .collect::<pinmap::Result<_>>()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOENT`: the function has no such vector (see [`Info::vectors`](crate::Info::vectors));
    /// `EEXIST`: this program has another `Interrupt` for the vector; `EBUSY`: another context owns
    /// the device; `ENODEV`: the device is gone; `EMFILE`: too many open files.
    pub fn interrupt(&self, vector: u32) -> Result<Interrupt> {
        let attempt = || format!("take interrupt vector {vector} of {self}");
        let fail = |errno| Error::new(Operation::Eventfd, attempt(), errno);
        let mut taken = self
            .vectors()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if taken.contains(&vector) {
            let cause = "this program has it already";
            return Err(
                Error::refused(Operation::Eventfd, attempt(), Errno::EEXIST, cause)
                    .with_hint("use or drop the other `Interrupt`"),
            );
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = Arc::new(EventFd::from_flags(flags).map_err(fail)?);
        self.set_eventfd(abi::PINMAP_SOURCE_VECTOR, vector, Some(eventfd.as_fd()))
            .map_err(|errno| match errno {
                Errno::ENOENT => Error::refused(
                    Operation::Eventfd,
                    attempt(),
                    errno,
                    "the function has no such vector",
                ),
                errno => fail(errno),
            })?;
        taken.insert(vector);
        Ok(Interrupt {
            device: self.clone(),
            vector,
            eventfd,
        })
    }
}

impl Interrupt {
    /// The device that raises the interrupt.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The number of the vector.
    pub fn vector(&self) -> u32 {
        self.vector
    }

    /// Waits until an interrupt comes, for as long as that takes. Returns how many came since the
    /// last call.
    ///
    /// Later reads of registered memory see what the device wrote before the interrupt. If the
    /// device sends no other interrupt before this one is acknowledged, write that register, read
    /// one back, and only then look for what is done ([coherence](crate::guide::coherence)).
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone, so that no interrupt will come; `EDEADLK`: this is a host
    /// function.
    pub fn wait(&self) -> Result<u64> {
        match self.wait_for(None)? {
            Some(count) => Ok(count),
            None => unreachable!("without a timeout no time is up"),
        }
    }

    /// Waits as [`wait`](Self::wait) does, but no longer than `timeout`.
    ///
    /// ```no_run
    /// use std::time::{Duration, Instant};
    /// # fn f(device: &pinmap::Device, registers: &pinmap::Bar) -> pinmap::Result<()> {
    /// // First the interrupt, then the work that ends with it.
    /// let interrupt = device.interrupt(0)?;
    /// registers.write(0x98, 1u32)?;
    /// interrupt.wait_timeout(Duration::from_secs(1))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait); `ETIMEDOUT`: the time was up first.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<u64> {
        let count = self.wait_for(Some(timeout))?;
        count.ok_or_else(|| self.fail(Errno::ETIMEDOUT))
    }

    /// Waits until an interrupt comes. Returns `None` if the time was up first.
    fn wait_for(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        if inside::is_inside() {
            return Err(self.fail(Errno::EDEADLK));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let mut files = [
                PollFd::new(self.eventfd.as_fd(), PollFlags::POLLIN),
                // A hang-up is always reported.
                PollFd::new(self.device.as_fd(), PollFlags::empty()),
            ];
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let woken = wait(&mut files, left).map_err(|errno| self.fail(errno))?;
            match self.try_wait()? {
                None if !woken => return Ok(None),
                None if files[1].any() == Some(true) => return Err(self.fail(Errno::ENODEV)),
                // Another thread has taken the interrupt.
                None => {}
                count => return Ok(count),
            }
        }
    }

    /// Waits as [`wait`](Self::wait) does, without blocking the thread, on any executor. If the
    /// future is dropped before it is ready, no interrupt is lost.
    ///
    /// ```no_run
    /// # async fn f(device: &pinmap::Device, registers: &pinmap::Bar) -> pinmap::Result<()> {
    /// let interrupt = device.interrupt(0)?;
    /// registers.write(0x98, 1u32)?;
    /// println!("{} came", interrupt.wait_async().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait); `EAGAIN`: the system cannot start a thread.
    pub fn wait_async(&self) -> Wait<'_, u64> {
        let mut watched = Watched::default();
        Wait::new(std::future::poll_fn(move |context| {
            let ready = || match self.try_wait() {
                Ok(None) if self.device.is_gone() => Err(self.fail(Errno::ENODEV)),
                tried => tried,
            };
            let files = || -> Box<dyn Files> {
                Box::new(Sources(Arc::clone(&self.eventfd), self.device.clone()))
            };
            watched.poll(context, ready, files, |errno| self.fail(errno))
        }))
    }

    /// Returns how many interrupts came since the last call, or `None` if none did. Does not wait.
    ///
    /// ```no_run
    /// # fn f(interrupt: &pinmap::Interrupt) -> pinmap::Result<()> {
    /// // In an event loop, when the interrupt's file is readable:
    /// if let Some(count) = interrupt.try_wait()? {
    ///     println!("{count} came since the last time");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// None, unless the program itself has changed the eventfd.
    pub fn try_wait(&self) -> Result<Option<u64>> {
        loop {
            return match self.eventfd.read() {
                Ok(count) => Ok(Some(count)),
                Err(Errno::EAGAIN) => Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => Err(self.fail(errno)),
            };
        }
    }

    pub(crate) fn fail(&self, errno: Errno) -> Error {
        let attempt = format!(
            "wait for interrupt vector {} of {}",
            self.vector, self.device
        );
        Error::new(Operation::Wait, attempt, errno)
    }
}

/// The files that tell about an interrupt: its eventfd, and the device, which may go.
struct Sources(Arc<EventFd>, Device);

impl Files for Sources {
    fn files(&self) -> [Option<(BorrowedFd<'_>, bool)>; 2] {
        [Some((self.0.as_fd(), true)), Some((self.1.as_fd(), false))]
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl AsRawFd for Interrupt {
    fn as_raw_fd(&self) -> RawFd {
        self.eventfd.as_fd().as_raw_fd()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // Both under the lock, so that the next `Interrupt` for the vector keeps its eventfd.
        let mut taken = self
            .device
            .vectors()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut args = abi::pinmap_set_eventfd {
            source: abi::PINMAP_SOURCE_VECTOR,
            index: self.vector,
            fd: -1,
            ..Default::default()
        };
        // An error means that the device is gone, and the interrupts with it.
        let _ = ioctl::clear_eventfd(self.device.as_fd(), &mut args);
        taken.remove(&self.vector);
    }
}
