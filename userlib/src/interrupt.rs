// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupts of the device, by an eventfd.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::host;
use crate::sys;
use crate::wait::wait;

/// An interrupt vector of a device, counted by an eventfd.
///
/// Made by [`Device::interrupt`]. Dropped, it takes the eventfd away: the device's interrupts on
/// that vector are then ignored. Polled ([`AsFd`]), it is readable when an interrupt came.
#[must_use = "dropped, interrupts are ignored"]
#[derive(Debug)]
pub struct Interrupt {
    device: Device,
    vector: u32,
    eventfd: EventFd,
}

impl Device {
    /// Takes an interrupt vector, counted from 0. Makes this context the owner of the device.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the function has no such vector (see [`Info::vectors`](crate::Info::vectors));
    /// `EEXIST`: there is another `Interrupt` for it; `EBUSY`: another context owns the device;
    /// `ENODEV`: it is gone; `EMFILE`: too many open files.
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
        let eventfd =
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(fail)?;
        self.set_eventfd(sys::PINMAP_SOURCE_VECTOR, vector, Some(eventfd.as_fd()))
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
    /// Which vector it is.
    pub fn vector(&self) -> u32 {
        self.vector
    }

    /// Waits until an interrupt comes; without a timeout, as long as it takes. Returns how many
    /// came since this was last asked, or `None` when the time was up first, which `?` does not tell
    /// from an interrupt.
    ///
    /// What the device wrote to registered memory before the interrupt can be read afterwards.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone, so that no interrupt will come; `EDEADLK`: this is a host
    /// function.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<u64>> {
        if host::is_inside() {
            return Err(self.fail(Errno::EDEADLK));
        }
        let mut files = [
            PollFd::new(self.eventfd.as_fd(), PollFlags::POLLIN),
            // A hang-up is always reported.
            PollFd::new(self.device.as_fd(), PollFlags::empty()),
        ];
        let woken = wait(&mut files, timeout.into()).map_err(|errno| self.fail(errno))?;
        match self.try_wait()? {
            None if woken && files[1].any() == Some(true) => Err(self.fail(Errno::ENODEV)),
            count => Ok(count),
        }
    }

    /// Returns how many interrupts came since this was last asked, without waiting.
    ///
    /// # Errors
    ///
    /// None in a process that leaves the eventfd alone.
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

    fn fail(&self, errno: Errno) -> Error {
        let attempt = format!(
            "wait for interrupt vector {} of {}",
            self.vector, self.device
        );
        Error::new(Operation::Wait, attempt, errno)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // Both under the lock, so that the next `Interrupt` for the vector keeps its eventfd. It
        // fails only when the device is gone, and the interrupts with it. It does not wait: a host
        // function may drop it.
        let mut taken = self
            .device
            .vectors()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let _ = host::outside(|| {
            let source = sys::PINMAP_SOURCE_VECTOR;
            self.device.set_eventfd(source, self.vector, None)
        });
        taken.remove(&self.vector);
    }
}
