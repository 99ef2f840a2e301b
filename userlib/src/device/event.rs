// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: what the driver tells a program without being asked.

use std::fmt;
use std::io::{self, Read};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};

use crate::device::Device;
use crate::error::fault::FaultAccess;
use crate::error::{check_outside, Error, Operation, Result};
use crate::sys::bindings::{self as abi, pinmap_event};
use crate::sys::poll::wait;
use crate::sys::watch::{Files, Watched};
use crate::wait::Wait;

/// Something that happened to a context, without a call of the program.
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// use pinmap::DeviceEvent;
///
/// loop {
///     match device.next_event()? {
///         DeviceEvent::Stale { addr, .. } => println!("the memory at {addr:#x} was unmapped"),
///         DeviceEvent::Gone => break,
///         other => println!("{other}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum DeviceEvent {
    /// A registration went stale: its memory left the address space, for instance by `munmap()`,
    /// and the device can no longer reach it. The registration can only be released. This happens
    /// to memory registered with [`register_raw`](crate::Device::register_raw), and to mapped files
    /// that become shorter; other memory cannot leave while it is registered.
    Stale {
        /// Handle of the registration: see
        /// [`Registration::handle`](crate::Registration::handle).
        handle: u64,
        /// User address of the first page.
        addr: usize,
        /// Length of the whole pages in bytes.
        len: usize,
    },
    /// A queue has stopped, and executes nothing any more. Waiting for its work tells the details
    /// ([`Error::fault`](crate::Error::fault)).
    Fault {
        /// Id of the queue: see [`Stream::id`](crate::accelerator::Stream::id).
        queue: u64,
        /// The access that was refused; `Read` if the queue stopped for another reason.
        access: FaultAccess,
        /// The device address of that access, or 0.
        device_addr: u64,
        /// Index of the packet that stopped the queue.
        packet: u64,
    },
    /// CPU and device, or two devices, take memory of a managed range from each other again and
    /// again. So it stays on the host for a while, and the device reaches it there. The event comes
    /// once for each range. Where the device is preferred
    /// ([`Advice::prefer`](crate::accelerator::Advice::prefer)), only another device can cause it.
    Thrashing {
        /// Handle of the range: see
        /// [`ManagedRange::handle`](crate::accelerator::ManagedRange::handle).
        range: u64,
        /// Address of the block of memory that thrashes.
        addr: usize,
        /// Length of the block in bytes.
        len: usize,
    },
    /// The system has slept, or was about to. The flat device that this context owns was cut off
    /// meanwhile, and may have lost the state of its registers. Memory, mappings and interrupts are
    /// there as before.
    Resumed,
    /// The device is gone. This is the last event.
    Gone,
    /// An event that this crate does not know, by the driver's number.
    Other(u32),
}

impl DeviceEvent {
    /// Decodes what a `read()` of one event returns.
    pub(crate) fn from_bytes(bytes: &[u8; size_of::<pinmap_event>()]) -> Self {
        let number = |offset| u64::from_ne_bytes(field(bytes, offset));
        let handle = number(offset_of!(pinmap_event, handle));
        let addr = number(offset_of!(pinmap_event, addr));
        let length = number(offset_of!(pinmap_event, length));
        let access = u32::from_ne_bytes(field(bytes, offset_of!(pinmap_event, access)));
        match u32::from_ne_bytes(field(bytes, offset_of!(pinmap_event, type_))) {
            abi::PINMAP_EVENT_STALE => Self::Stale {
                handle,
                addr: addr as usize,
                len: length as usize,
            },
            abi::PINMAP_EVENT_FAULT => Self::Fault {
                queue: handle,
                access: FaultAccess::from_abi(access),
                device_addr: addr,
                packet: length,
            },
            abi::PINMAP_EVENT_THRASHING => Self::Thrashing {
                range: handle,
                addr: addr as usize,
                len: length as usize,
            },
            abi::PINMAP_EVENT_RESUMED => Self::Resumed,
            abi::PINMAP_EVENT_GONE => Self::Gone,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Stale { addr, len, .. } => write!(
                f,
                "{len} bytes at {addr:#x} are not registered any more, because the memory went away"
            ),
            Self::Fault { queue, packet, .. } => {
                write!(f, "queue {queue} has stopped at packet {packet}")
            }
            Self::Thrashing { addr, len, .. } => write!(
                f,
                "CPU and device take {len} bytes at {addr:#x} from each other again and again, so \
                 they stay on the host for a while; advise where that memory is to be"
            ),
            Self::Resumed => f.write_str("the system has slept, and the device has lost its state"),
            Self::Gone => f.write_str("the device is gone"),
            Self::Other(number) => write!(f, "event {number}, which is newer than this program"),
        }
    }
}

impl Device {
    /// Takes the next event, if there is one. Does not wait.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// // In an event loop, when the device's file is readable:
    /// while let Some(event) = device.try_next_event()? {
    ///     println!("{event}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone, and [`DeviceEvent::Gone`] was taken before.
    pub fn try_next_event(&self) -> Result<Option<DeviceEvent>> {
        let mut bytes = [0; size_of::<abi::pinmap_event>()];
        let fail = |errno| Error::new(Operation::Event, format!("read an event of {self}"), errno);
        loop {
            // The driver returns whole events only.
            return match self.file().read(&mut bytes) {
                Ok(0) => Err(fail(Errno::ENODEV)),
                Ok(_) => Ok(Some(DeviceEvent::from_bytes(&bytes))),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(fail(
                        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
                    )),
                },
            };
        }
    }

    /// Waits for the next event and takes it, for as long as that takes.
    ///
    /// # Errors
    ///
    /// As for [`try_next_event`](Self::try_next_event); `EDEADLK`: this is a host function.
    pub fn next_event(&self) -> Result<DeviceEvent> {
        match self.wait_for_event(None)? {
            Some(event) => Ok(event),
            None => unreachable!("without a timeout no time is up"),
        }
    }

    /// Waits as [`next_event`](Self::next_event) does, but no longer than `timeout`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use pinmap::ErrorKind;
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// match device.next_event_timeout(Duration::from_secs(1)) {
    ///     Ok(event) => println!("{event}"),
    ///     Err(error) if error.kind() == ErrorKind::TimedOut => println!("nothing happened"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`next_event`](Self::next_event); `ETIMEDOUT`: the time was up first.
    pub fn next_event_timeout(&self, timeout: Duration) -> Result<DeviceEvent> {
        let event = self.wait_for_event(Some(timeout))?;
        event.ok_or_else(|| {
            let attempt = format!("wait for an event of {self}");
            Error::new(Operation::Wait, attempt, Errno::ETIMEDOUT)
        })
    }

    /// Waits for the next event and takes it. Returns `None` if the time was up first.
    fn wait_for_event(&self, timeout: Option<Duration>) -> Result<Option<DeviceEvent>> {
        let attempt = || format!("wait for an event of {self}");
        check_outside(Operation::Wait, attempt)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let mut files = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let woken = wait(&mut files, left)
                .map_err(|errno| Error::new(Operation::Wait, attempt(), errno))?;
            match self.try_next_event()? {
                None if !woken => return Ok(None),
                // Another thread has taken the event.
                None => {}
                event => return Ok(event),
            }
        }
    }

    /// Waits as [`next_event`](Self::next_event) does, without blocking the thread, on any
    /// executor. If the future is dropped before it is ready, no event is lost.
    ///
    /// ```no_run
    /// # async fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// loop {
    ///     println!("{}", device.next_event_async().await?);
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`next_event`](Self::next_event); `EAGAIN`: the system cannot start a thread.
    pub fn next_event_async(&self) -> Wait<'_, DeviceEvent> {
        let mut watched = Watched::default();
        Wait::new(std::future::poll_fn(move |context| {
            let ready = || self.try_next_event();
            let files = || -> Box<dyn Files> { Box::new(Events(self.clone())) };
            watched.poll(context, ready, files, |errno| {
                Error::new(
                    Operation::Wait,
                    format!("wait for an event of {self}"),
                    errno,
                )
            })
        }))
    }

    /// Whether the device is gone, as far as its file tells.
    pub(crate) fn is_gone(&self) -> bool {
        let mut files = [PollFd::new(self.as_fd(), PollFlags::empty())];
        let polled = wait(&mut files, Some(Duration::ZERO));
        polled == Ok(true) && files[0].any() == Some(true)
    }

    /// Has the driver signal an eventfd when there is an event to take. Replaces an earlier
    /// eventfd; `None` detaches it. Polling the device does the same job; this is for programs that
    /// already wait for an eventfd.
    ///
    /// ```no_run
    /// use std::os::fd::BorrowedFd;
    /// # fn f(device: &pinmap::Device, eventfd: BorrowedFd<'_>) -> pinmap::Result<()> {
    /// device.signal_events(Some(eventfd))?;
    /// // ... when the eventfd was signalled ...
    /// while let Some(event) = device.try_next_event()? {
    ///     println!("{event}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the descriptor is not an eventfd; `ENODEV`: the device is gone.
    pub fn signal_events(&self, eventfd: Option<BorrowedFd<'_>>) -> Result<()> {
        self.set_eventfd(abi::PINMAP_SOURCE_EVENTS, 0, eventfd)
            .map_err(|errno| {
                Error::new(
                    Operation::Eventfd,
                    format!("attach an eventfd to the events of {self}"),
                    errno,
                )
            })
    }
}

/// The file that tells about events.
struct Events(Device);

impl Files for Events {
    fn files(&self) -> [Option<(BorrowedFd<'_>, bool)>; 2] {
        [Some((self.0.as_fd(), true)), None]
    }
}

/// The bytes of the field at an offset.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(event_type: u32, numbers: [u64; 3]) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&event_type.to_ne_bytes());
        for (i, number) in numbers.iter().enumerate() {
            bytes[8 + 8 * i..][..8].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn events_are_told_apart() {
        let stale = DeviceEvent::Stale {
            handle: 7,
            addr: 0x7f00_0000_1000,
            len: 8192,
        };
        assert_eq!(
            DeviceEvent::from_bytes(&bytes(1, [7, 0x7f00_0000_1000, 8192])),
            stale
        );
        assert_eq!(
            DeviceEvent::from_bytes(&bytes(2, [0; 3])),
            DeviceEvent::Gone
        );
        let fault = DeviceEvent::Fault {
            queue: 3,
            access: FaultAccess::Read,
            device_addr: 0xdead_0000,
            packet: 17,
        };
        assert_eq!(
            DeviceEvent::from_bytes(&bytes(3, [3, 0xdead_0000, 17])),
            fault
        );
        let thrashing = DeviceEvent::Thrashing {
            range: 9,
            addr: 0x7f00_0020_0000,
            len: 2 << 20,
        };
        let read = DeviceEvent::from_bytes(&bytes(4, [9, 0x7f00_0020_0000, 2 << 20]));
        assert_eq!(read, thrashing);
        let words = thrashing.to_string();
        assert!(words.contains("2097152 bytes at 0x7f0000200000"), "{words}");
        assert!(words.contains("stay on the host"), "{words}");
        let resumed = DeviceEvent::from_bytes(&bytes(5, [0; 3]));
        assert_eq!(resumed, DeviceEvent::Resumed);
        let other = DeviceEvent::from_bytes(&bytes(77, [0; 3]));
        assert_eq!(other, DeviceEvent::Other(77));
        for (event, words) in [
            (stale, "8192 bytes at 0x7f0000001000 are not registered"),
            (fault, "queue 3 has stopped at packet 17"),
            (resumed, "the system has slept"),
            (DeviceEvent::Gone, "the device is gone"),
            (other, "event 77, which is newer"),
        ] {
            assert!(event.to_string().starts_with(words), "{event}");
        }
    }
}
