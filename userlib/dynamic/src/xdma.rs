// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels of AMD's DMA core, whose transfers name memory.
//!
//! A channel has one transfer at a time, and any thread may start it, wait for it and stop it. The
//! memory of a transfer cannot be released: a stream may never fill it, so a release does not wait.

use std::fmt;
use std::hint;
use std::mem;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::write;
use pinmap::{Access, Device, ErrorKind};
use pinmap_xdma::{
    Block, ChannelInfo, ChannelOptions, Core, Direction, Failed, Transfer, UserInterrupt,
};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::piece::lock;

/// How often a wait looks whether the card is gone, or another thread has taken the interrupt.
const PAUSE: Duration = Duration::from_millis(40);

/// An interrupt: a vector of a device, or a user interrupt of a core.
#[derive(Debug)]
pub enum Interrupt {
    /// A vector.
    Vector(pinmap::Interrupt),
    /// A user interrupt.
    User(UserInterrupt),
}

impl Deref for Interrupt {
    type Target = pinmap::Interrupt;

    fn deref(&self) -> &pinmap::Interrupt {
        match self {
            Self::Vector(interrupt) => interrupt,
            Self::User(user) => user.interrupt(),
        }
    }
}

impl From<pinmap::Interrupt> for Interrupt {
    fn from(interrupt: pinmap::Interrupt) -> Self {
        Self::Vector(interrupt)
    }
}

impl From<UserInterrupt> for Interrupt {
    fn from(user: UserInterrupt) -> Self {
        Self::User(user)
    }
}

impl From<pinmap_xdma::Error> for Error {
    fn from(error: pinmap_xdma::Error) -> Self {
        use pinmap_xdma::Error as From;
        let (errno, kind) = match error {
            From::Pinmap(error) => return error.into(),
            From::Unsupported(_) => (Errno::EOPNOTSUPP, ErrorKind::Unsupported),
            From::Invalid(_) => (Errno::EINVAL, ErrorKind::InvalidInput),
            From::Busy => (Errno::EBUSY, ErrorKind::Busy),
            From::Gone => (Errno::ENODEV, ErrorKind::Gone),
            // Nothing here has the time limit of the options.
            From::TimedOut => {
                let text = "the transfer was stopped before its end";
                return Self::new(Errno::ECANCELED, ErrorKind::Other, text);
            }
            _ => (Errno::EIO, ErrorKind::Io),
        };
        Self::new(errno, kind, error.to_string())
    }
}

/// Memory that a transfer has. It cannot be released before this is dropped.
#[derive(Debug)]
pub struct Lent {
    memory: Arc<Memory>,
    start: u64,
    access: Access,
}

impl Lent {
    fn new(memory: &Arc<Memory>) -> Result<Self> {
        let access = memory.lend()?;
        let mut lent = Self {
            memory: Arc::clone(memory),
            start: 0,
            access,
        };
        lent.start = memory.device_addr(0)?;
        Ok(lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.memory.take_back();
    }
}

impl pinmap_xdma::Memory for Lent {
    fn device(&self) -> &Device {
        self.memory.device()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn access(&self) -> Access {
        self.access
    }

    fn pieces(
        &self,
        bytes: Range<usize>,
        most: usize,
        each: &mut dyn FnMut(u64, usize),
    ) -> pinmap::Result<()> {
        for at in bytes.clone().step_by(most) {
            each(self.start + at as u64, most.min(bytes.end - at));
        }
        Ok(())
    }
}

/// A channel. Dropping it stops its transfer, and then gives the memory back.
pub struct Channel {
    device: Device,
    info: ChannelInfo,
    /// `None` if the channel is polled. Dropped before the channel, which gives the vector back.
    interrupt: Option<Arc<pinmap::Interrupt>>,
    channel: Mutex<Result<pinmap_xdma::Channel<Lent>, End>>,
}

/// Why there is no channel any more.
#[derive(Debug, Clone, Copy)]
enum End {
    Gone,
    Closed,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({} of {})", self.info, self.device)
    }
}

impl Channel {
    /// Takes a channel of a device.
    ///
    /// # Errors
    ///
    /// As for [`Core::open`] and [`Core::channel`].
    pub fn open(
        device: &Device,
        direction: Direction,
        number: usize,
        options: ChannelOptions,
    ) -> Result<Self> {
        let channel = Core::open(device)?.channel(direction, number, options)?;
        Ok(Self {
            device: device.clone(),
            info: *channel.info(),
            interrupt: channel.shared_interrupt(),
            channel: Mutex::new(Ok(channel)),
        })
    }

    /// The properties of the channel.
    pub fn info(&self) -> &ChannelInfo {
        &self.info
    }

    /// The interrupt that the end of a transfer raises.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the channel is polled.
    pub fn interrupt(&self) -> Result<&pinmap::Interrupt> {
        self.interrupt.as_deref().ok_or_else(|| {
            let text = format!("{} has no interrupt, because it is polled", self.info);
            Error::new(Errno::EOPNOTSUPP, ErrorKind::Unsupported, text)
        })
    }

    /// Calls with the channel, after a look whether the card is gone: access to its registers would
    /// end the program then.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the card is gone; `EBADF`: the channel is closed; `EDEADLK`: this is a host
    /// function.
    fn with<T>(&self, call: impl FnOnce(&mut pinmap_xdma::Channel<Lent>) -> T) -> Result<T> {
        match self.device.info() {
            Ok(info) if info.gone => self.end(End::Gone),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Gone => self.end(End::Gone),
            Err(error) => return Err(error.into()),
        }
        match &mut *lock(&self.channel) {
            Ok(channel) => Ok(call(channel)),
            Err(End::Gone) => Err(pinmap_xdma::Error::Gone.into()),
            Err(End::Closed) => {
                let text = format!("{} was closed", self.info);
                Err(Error::new(Errno::EBADF, ErrorKind::InvalidInput, text))
            }
        }
    }

    /// Gives up the channel, and its memory with it.
    fn end(&self, why: End) {
        let mut state = lock(&self.channel);
        let ended = state.is_ok().then(|| mem::replace(&mut *state, Err(why)));
        drop(state);
        // Its memory may be of a program's that calls anything when it goes.
        drop(ended);
    }

    /// Stops the transfer, and gives channel and memory back. Who waits for it is told.
    pub fn close(&self) {
        self.end(End::Closed);
        if let Some(interrupt) = &self.interrupt {
            // It cannot be full: then it would be readable.
            let _ = write(&**interrupt, &1u64.to_ne_bytes());
        }
    }

    /// Starts a transfer of memory, which `set` describes. Does not wait.
    ///
    /// # Errors
    ///
    /// As for [`pinmap_xdma::Channel::start`]; `ESTALE`: the memory is released.
    pub fn start(
        &self,
        memory: &Arc<Memory>,
        set: impl FnOnce(Transfer<Lent>) -> Transfer<Lent>,
    ) -> Result<()> {
        let transfer = set(Transfer::new(Lent::new(memory)?));
        self.with(|channel| channel.start(transfer))?
            .map_err(failed)
    }

    /// Polls the channel. Of one that is polled, only memory is read where `look` does not say that
    /// it is time to look at the card.
    fn poll_by<T>(
        &self,
        look: bool,
        poll: impl FnOnce(&mut pinmap_xdma::Channel<Lent>) -> Result<Option<T>, Failed<Lent>>,
    ) -> Result<Option<T>> {
        match &self.interrupt {
            Some(interrupt) => _ = interrupt.try_wait()?,
            None if look => {}
            None => {
                let channel = lock(&self.channel);
                if matches!(&*channel, Ok(channel) if !channel.has_news()?) {
                    return Ok(None);
                }
            }
        }
        self.with(poll)?.map_err(failed)
    }

    fn look_for_end(&self, look: bool) -> Result<Option<(usize, bool)>> {
        let done = self.poll_by(look, pinmap_xdma::Channel::poll)?;
        Ok(done.map(|done| (done.len, done.end_of_packet)))
    }

    /// Returns how many bytes the transfer had, if it is done, and whether a packet of a stream has
    /// ended with them. Does not wait.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait), but no time is up.
    pub fn poll(&self) -> Result<Option<(usize, bool)>> {
        self.look_for_end(true)
    }

    /// Waits as [`poll`](Self::poll) looks, until the time is up, if it is limited. The transfer
    /// goes on after that.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the time was up; `EINVAL`: there is no transfer; `EIO`: the channel has stopped
    /// at an error; `ECANCELED`: it was stopped; `ENODEV`: the card is gone; `EBADF`: the channel
    /// was closed. Except after the first, the channel has no transfer any more; but a card that
    /// does not answer, and that the driver still has, keeps it.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(usize, bool)> {
        self.wait_by(timeout, |look| self.look_for_end(look))
    }

    /// Starts to receive a stream without a pause, in blocks of the memory.
    ///
    /// # Errors
    ///
    /// As for [`pinmap_xdma::Channel::receive`]; `ESTALE`: the memory is released.
    pub fn receive(&self, memory: &Arc<Memory>, block: usize) -> Result<()> {
        let lent = Lent::new(memory)?;
        self.with(|channel| channel.receive(lent, block))?
            .map_err(failed)
    }

    /// Returns the next block that was received, if it is there.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll).
    pub fn poll_block(&self) -> Result<Option<Block>> {
        self.poll_by(true, pinmap_xdma::Channel::poll_block)
    }

    /// Waits for the next block, until the time is up, if it is limited.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn wait_block(&self, timeout: Option<Duration>) -> Result<Block> {
        self.wait_by(timeout, |look| {
            self.poll_by(look, pinmap_xdma::Channel::poll_block)
        })
    }

    /// Gives the oldest block that was received back to the core.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such block; `ENODEV`: the card is gone.
    pub fn give_back(&self) -> Result<()> {
        Ok(self.with(pinmap_xdma::Channel::give_back)??)
    }

    fn wait_by<T>(
        &self,
        timeout: Option<Duration>,
        poll: impl Fn(bool) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut looked = Instant::now();
        let deadline = timeout.and_then(|timeout| looked.checked_add(timeout));
        loop {
            let now = Instant::now();
            let is_late = deadline.is_some_and(|deadline| deadline <= now);
            let look = is_late || now - looked >= PAUSE;
            if look {
                looked = now;
            }
            if let Some(done) = poll(look)? {
                return Ok(done);
            }
            if is_late {
                let text = format!("{} was not done in time", self.info);
                return Err(Error::new(Errno::ETIMEDOUT, ErrorKind::TimedOut, text));
            }
            let Some(interrupt) = &self.interrupt else {
                (0..16).for_each(|_| hint::spin_loop());
                thread::yield_now();
                continue;
            };
            let left = deadline.map_or(PAUSE, |deadline| (deadline - now).min(PAUSE));
            match interrupt.wait_timeout(left) {
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Gone) => {}
                // What came is there for others, too, who look as often.
                came => _ = came?,
            }
        }
    }

    /// Tells the channel to stop after the descriptor that it executes. The transfer is done when
    /// it has.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the card is gone.
    pub fn stop(&self) -> Result<()> {
        self.with(pinmap_xdma::Channel::stop)
    }
}

fn failed(failed: Failed<Lent>) -> Error {
    failed.error.into()
}
