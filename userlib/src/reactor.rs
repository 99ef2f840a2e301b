// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupts and events on the reactors of async runtimes.
//!
//! The futures of [`Interrupt::wait_async`] and [`Device::next_event_async`] work on any executor,
//! and are woken by a thread of this crate. The types below are woken by the runtime's own thread
//! instead, which saves a switch between threads for each interrupt. Only the end of the device is
//! told by the crate's thread.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use nix::errno::Errno;

use crate::device::event::DeviceEvent;
use crate::device::interrupt::Interrupt;
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::sys::watch::{Files, Watched};

/// The file of a device, which tells that it is gone.
struct HangUp(Device);

impl Files for HangUp {
    fn files(&self) -> [Option<(BorrowedFd<'_>, bool)>; 2] {
        [Some((self.0.as_fd(), false)), None]
    }
}

/// Polls for the end of a device.
fn poll_gone(
    device: &Device,
    watched: &mut Watched,
    context: &mut Context<'_>,
    fail: impl Fn(Errno) -> Error,
) -> Poll<Error> {
    let gone = || -> Result<Option<()>> { Ok(device.is_gone().then_some(())) };
    let files = || -> Box<dyn Files> { Box::new(HangUp(device.clone())) };
    watched
        .poll(context, gone, files, &fail)
        .map(|gone| gone.err().unwrap_or_else(|| fail(Errno::ENODEV)))
}

/// A duplicate of the file of a device, which a reactor can register beside others.
#[derive(Debug)]
struct Events {
    device: Device,
    file: OwnedFd,
}

impl Events {
    fn new(device: &Device) -> Result<Self> {
        let file = device.as_fd().try_clone_to_owned();
        let file = file.map_err(|error| {
            let attempt = format!("copy the descriptor of {device}");
            Error::from_io(Operation::Event, attempt, &error)
        })?;
        let device = device.clone();
        Ok(Self { device, file })
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

fn refused(what: &str, device: &Device, error: &std::io::Error) -> Error {
    let attempt = format!("have the reactor wait for {what} of {device}");
    Error::from_io(Operation::Wait, attempt, error)
}

macro_rules! reactor {
    ($runtime:literal, $file:ident, $register:expr, $poll:expr) => {
        #[doc = concat!("An [`Interrupt`] on the reactor of ", $runtime, ".")]
        ///
        /// Dropping it detaches the interrupt, as for [`Interrupt`].
        #[derive(Debug)]
        pub struct AsyncInterrupt($file<Interrupt>);

        impl AsyncInterrupt {
            /// Registers an interrupt with the reactor.
            ///
            /// # Errors
            ///
            /// `EMFILE`, `ENOMEM`, `ENOSPC`: the reactor cannot wait for one more file.
            pub fn new(interrupt: Interrupt) -> Result<Self> {
                let device = interrupt.device().clone();
                let register = $register;
                let file = register(interrupt);
                file.map(Self)
                    .map_err(|error| refused("an interrupt", &device, &error.into()))
            }

            /// Waits until an interrupt comes. Returns how many came since the last call. If the
            /// future is dropped before it is ready, no interrupt is lost.
            ///
            /// A device that sends no other interrupt before this one is acknowledged: write that
            /// register, read one back, and only then look for what is done
            /// ([coherence](crate::guide::coherence)).
            ///
            /// # Errors
            ///
            /// As for [`Interrupt::wait`](crate::Interrupt::wait).
            pub async fn wait(&mut self) -> Result<u64> {
                let mut watched = Watched::default();
                std::future::poll_fn(|context| {
                    let interrupt: &Interrupt = self.0.get_ref();
                    let poll = $poll;
                    if let Poll::Ready(count) = poll(&self.0, context, Interrupt::try_wait) {
                        return Poll::Ready(count);
                    }
                    let fail = |errno| interrupt.fail(errno);
                    poll_gone(interrupt.device(), &mut watched, context, fail).map(Err)
                })
                .await
            }

            /// The interrupt.
            pub fn get_ref(&self) -> &Interrupt {
                self.0.get_ref()
            }
        }

        #[doc = concat!("The events of a device on the reactor of ", $runtime, ".")]
        #[derive(Debug)]
        pub struct AsyncEvents($file<Events>);

        impl AsyncEvents {
            /// Registers the events of a device with the reactor.
            ///
            /// # Errors
            ///
            /// As for [`AsyncInterrupt::new`].
            pub fn new(device: &Device) -> Result<Self> {
                let register = $register;
                let file = register(Events::new(device)?);
                file.map(Self)
                    .map_err(|error| refused("events", device, &error.into()))
            }

            /// Waits for the next event and takes it. If the future is dropped before it is ready,
            /// no event is lost.
            ///
            /// # Errors
            ///
            /// As for [`Device::next_event`](crate::Device::next_event).
            pub async fn next(&mut self) -> Result<DeviceEvent> {
                std::future::poll_fn(|context| {
                    let poll = $poll;
                    poll(&self.0, context, |events: &Events| {
                        events.device.try_next_event()
                    })
                })
                .await
            }
        }
    };
}

/// Interrupts and events on the reactor of tokio. With the feature `tokio`.
///
/// ```no_run
/// use pinmap::reactor::tokio::AsyncInterrupt;
/// # async fn f(device: &pinmap::Device, registers: &pinmap::Bar) -> pinmap::Result<()> {
/// let mut interrupt = AsyncInterrupt::new(device.interrupt(0)?)?;
/// registers.write(0x98, 1)?;
/// interrupt.wait().await?;
/// # Ok(()) }
/// ```
///
/// [`AsyncInterrupt::new`](tokio::AsyncInterrupt::new) panics outside of a runtime whose I/O is
/// enabled.
#[cfg(feature = "tokio")]
pub mod tokio {
    use ::tokio::io::unix::AsyncFd;

    use super::*;

    /// Polls a file until a try finds something.
    fn poll<T: AsRawFd, R>(
        file: &AsyncFd<T>,
        context: &mut Context<'_>,
        attempt: impl Fn(&T) -> Result<Option<R>>,
    ) -> Poll<Result<R>> {
        loop {
            if let Some(found) = attempt(file.get_ref()).transpose() {
                return Poll::Ready(found);
            }
            match file.poll_read_ready(context) {
                // What came after the try above is not cleared by this: it makes it ready anew.
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(error)) => {
                    let attempt = "wait on the reactor";
                    return Poll::Ready(Err(Error::from_io(Operation::Wait, attempt, &error)));
                }
                Poll::Pending => return Poll::Pending,
            }
            if let Some(found) = attempt(file.get_ref()).transpose() {
                return Poll::Ready(found);
            }
        }
    }

    reactor!(
        "tokio",
        AsyncFd,
        // SAFETY: Both types own their file, never change it, and close it when they are dropped.
        |file| unsafe { AsyncFd::register(file) },
        poll
    );
}

/// Interrupts and events on the reactor of async-io, which smol and others use. With the feature
/// `async-io`.
///
/// ```no_run
/// use pinmap::reactor::async_io::AsyncEvents;
/// # async fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// let mut events = AsyncEvents::new(device)?;
/// println!("{}", events.next().await?);
/// # Ok(()) }
/// ```
#[cfg(feature = "async-io")]
pub mod async_io {
    use ::async_io::Async;

    use super::*;

    /// Polls a file until a try finds something.
    fn poll<T: AsFd, R>(
        file: &Async<T>,
        context: &mut Context<'_>,
        attempt: impl Fn(&T) -> Result<Option<R>>,
    ) -> Poll<Result<R>> {
        loop {
            if let Some(found) = attempt(file.get_ref()).transpose() {
                return Poll::Ready(found);
            }
            match file.poll_readable(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let attempt = "wait on the reactor";
                    return Poll::Ready(Err(Error::from_io(Operation::Wait, attempt, &error)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    reactor!("async-io", Async, |file| Async::new_nonblocking(file), poll);
}
