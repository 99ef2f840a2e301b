// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels: where transfers are given to the core, and come back with their memory.
//!
//! A channel executes one list of descriptors after Run was set. It is done with one when it is not
//! busy, and its status says that it has stopped: before it has fetched a descriptor it is not busy
//! either. After a reset of the device the control register is 0, and the status says nothing. In
//! poll mode the count of descriptors, which the core writes to memory, comes first.

mod wait;

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinmap::{Access, Allocation, Buffer, Interrupt, Registration};

use crate::check::check_alignment;
use crate::discovery::{ChannelInfo, Direction, Shared};
use crate::error::{Error, Failed, Result, Status};
use crate::list::{adjacent, link, Entry};
use crate::memory::Memory;
use crate::options::ChannelOptions;
use crate::registers::{control, status, ChannelBlock, CommonBlock, FetchBlock};
use crate::registers::{CHANNELS, COMMON, DIRECTION, FETCH, NEXT};
use crate::ring::Ring;
use crate::transfer::{Done, Transfer};

/// How often a wait looks at the registers, even if no interrupt came.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a channel may be busy still when its status says that it has stopped.
const SETTLE: Duration = Duration::from_millis(10);
/// How long a channel that is dropped may take to stop.
const DROP_PATIENCE: Duration = Duration::from_secs(1);
/// Offsets of what the core writes to memory: the count of descriptors with a bit for errors; for a
/// descriptor of a stream, whether the packet has ended, and the length.
const COUNT: usize = 0;
const COUNT_ERROR: u32 = 1 << 31;
const STREAM: usize = 64;
pub(crate) const STREAM_MAGIC: u32 = 0x52b4;
/// Bits of the status that interrupt.
pub(crate) const MASK: u32 = status::ERRORS | status::ENDS;

/// A channel, for transfers with memory of the type `M`. Made by
/// [`Core::channel`](crate::Core::channel).
///
/// A channel belongs to one thread at a time, and executes one transfer at a time. Dropping it
/// stops it, and then frees the memory of its transfer. After a reset of the device, channels are
/// to be made anew.
pub struct Channel<M> {
    pub(crate) shared: Arc<Shared>,
    index: usize,
    pub(crate) info: ChannelInfo,
    pub(crate) options: ChannelOptions,
    pub(crate) registers: ChannelBlock,
    pub(crate) fetch: FetchBlock,
    pub(crate) common: CommonBlock,
    /// `None` for a channel that is polled.
    pub(crate) interrupt: Option<Arc<Interrupt>>,
    /// `None` only at the end, if the channel does not stop.
    pub(crate) held: Option<Held>,
    pub(crate) flight: Option<Flight<M>>,
    /// The ring that the transfer is, if it is one.
    pub(crate) ring: Option<Ring>,
    /// Whether the card was found to be gone.
    gone: bool,
}

/// Memory of the channel that the core accesses.
pub(crate) struct Held {
    pub(crate) list: Allocation<Entry>,
    back: Registration<Buffer<u32>>,
    /// The descriptors of the transfer, before they are in the list.
    pub(crate) entries: Vec<Entry>,
}

/// The transfer that the channel has.
pub(crate) struct Flight<M> {
    memory: M,
    len: usize,
    ends: bool,
    descriptors: u32,
    /// When the channel is told to stop; then, when a wait gives up. `None`: never.
    deadline: Option<Instant>,
    /// Whether it was told to stop.
    stopped: bool,
}

impl<M: Memory> Channel<M> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        info: ChannelInfo,
        options: ChannelOptions,
    ) -> Result<Self> {
        options.check()?;
        if !shared.take(index, true) {
            return Err(Error::Busy);
        }
        let made = Self::make(Arc::clone(&shared), index, info, options);
        made.inspect_err(|_| _ = shared.take(index, false))
    }

    fn make(
        shared: Arc<Shared>,
        index: usize,
        info: ChannelInfo,
        options: ChannelOptions,
    ) -> Result<Self> {
        let start = match info.direction {
            Direction::H2c => info.number * NEXT,
            Direction::C2h => DIRECTION + info.number * NEXT,
        };
        let registers: ChannelBlock = shared.bar.registers(CHANNELS + start)?;
        let fetch = shared.bar.registers(FETCH + start)?;
        if registers.status().read() & status::BUSY != 0 {
            return Err(Error::Busy);
        }
        registers.control().write(0);
        let common: CommonBlock = shared.bar.registers(COMMON)?;
        common.credit_clear().write(info.credit_bit());
        let device = &shared.device;
        let list = device.alloc(options.descriptors)?;
        let back = Buffer::new(STREAM / 2)?.register(device, Access::ReadWrite)?;
        // Another program may have left it to interrupt.
        registers.interrupt_mask().write(0);
        shared.irq.channel_disable().write(1 << index);
        let interrupt = match options.polled {
            true => None,
            false => Some(Arc::new(shared.channel_vector(index)?)),
        };
        registers.status_take().read();
        if interrupt.is_some() {
            registers.interrupt_mask().write(MASK);
            shared.irq.channel_enable().write(1 << index);
        }
        let entries = Vec::with_capacity(options.descriptors.min(1024));
        Ok(Self {
            index,
            info,
            options,
            registers,
            fetch,
            common,
            interrupt,
            held: Some(Held {
                list,
                back,
                entries,
            }),
            flight: None,
            ring: None,
            gone: false,
            shared,
        })
    }

    /// The properties of the channel.
    pub fn info(&self) -> &ChannelInfo {
        &self.info
    }

    /// Whether the channel has a transfer.
    pub fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// The interrupt that the end of a transfer raises, for event loops: when it is readable,
    /// [`poll`](Self::poll). `None` if the channel is polled.
    pub fn interrupt(&self) -> Option<&Interrupt> {
        self.interrupt.as_deref()
    }

    /// The interrupt for `pinmap-dynamic`, whose channels are closed while threads wait.
    #[doc(hidden)]
    pub fn shared_interrupt(&self) -> Option<Arc<Interrupt>> {
        self.interrupt.clone()
    }

    /// Whether [`poll`](Self::poll) would read a register, or [`poll_block`](Self::poll_block) find
    /// something. Of a channel that is polled only memory is read until there is something new.
    #[doc(hidden)]
    pub fn has_news(&self) -> pinmap::Result<bool> {
        let (Some(flight), Some(held)) = (&self.flight, &self.held) else {
            return Ok(true);
        };
        if !self.options.polled || flight.stopped {
            return Ok(true);
        }
        let count: u32 = held.back.load(COUNT)?;
        if count & COUNT_ERROR != 0 || count == flight.descriptors {
            return Ok(true);
        }
        let full = self.ring.as_ref().map(Ring::full).transpose()?;
        Ok(full.is_some_and(|first| first != 0))
    }

    /// Starts a transfer. Does not wait.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error, and nothing was begun.
    ///
    /// [`Error::Busy`]: the channel has a transfer; [`Error::Invalid`]: bytes, address or alignment
    /// are none that the channel can have, the memory is of another device or may not be written,
    /// or there are more descriptors than the options say; [`Error::Gone`]: the card does not
    /// answer.
    pub fn start(&mut self, transfer: Transfer<M>) -> Result<(), Failed<M>> {
        let given = self.give(&transfer);
        self.fly(transfer, given)
    }

    /// Notes that the core has the transfer, if that has worked, with so many descriptors.
    pub(crate) fn fly(
        &mut self,
        transfer: Transfer<M>,
        given: Result<u32>,
    ) -> Result<(), Failed<M>> {
        let descriptors = match given {
            Ok(descriptors) => descriptors,
            Err(error) => {
                let memory = Some(transfer.memory);
                return Err(Failed { error, memory });
            }
        };
        self.flight = Some(Flight {
            len: transfer.part.len(),
            ends: transfer.ends,
            memory: transfer.memory,
            descriptors,
            deadline: Instant::now().checked_add(self.options.timeout),
            stopped: false,
        });
        Ok(())
    }

    /// Checks that the channel can have the transfer now.
    pub(crate) fn check(&self, transfer: &Transfer<M>) -> Result<()> {
        if self.held.is_none() || self.flight.is_some() {
            return Err(Error::Busy);
        }
        if self.gone {
            return Err(Error::Gone);
        }
        transfer.check(&self.shared.device, &self.info, self.options.piece)?;
        match self.registers.status_take().read() {
            u32::MAX => Err(Error::Gone),
            _ => Ok(()),
        }
    }

    /// Gives a transfer to the core, and returns how many descriptors it has.
    fn give(&mut self, transfer: &Transfer<M>) -> Result<u32> {
        self.check(transfer)?;
        let (info, options) = (&self.info, &self.options);
        let held = self.held.as_mut().ok_or(Error::Busy)?;
        let back = held.back.device_addr()?;
        // The card's side: an address; where to tell of a packet; nothing.
        let mut card = match (transfer.at, info.direction) {
            (Some(at), _) => at,
            (None, Direction::C2h) => back + STREAM as u64,
            (None, Direction::H2c) => 0,
        };
        let most = match (transfer.at, info.direction) {
            (None, Direction::C2h) => 1,
            _ => options.descriptors,
        };
        held.entries.clear();
        let (mut count, mut total, mut checked) = (0, 0usize, Ok(()));
        let mut each = |addr, len: usize| {
            count += 1;
            total = total.saturating_add(len);
            if len == 0 || len > options.piece {
                total = usize::MAX;
            }
            if count <= most {
                held.entries.push(match info.direction {
                    Direction::H2c => Entry::new(addr, card, len),
                    Direction::C2h => Entry::new(card, addr, len),
                });
            }
            if transfer.at.is_some() && checked.is_ok() {
                checked = check_alignment(info, addr, card, transfer.fixed);
                card = card.wrapping_add(if transfer.fixed { 0 } else { len as u64 });
            }
        };
        transfer
            .memory
            .pieces(transfer.part.clone(), options.piece, &mut each)?;
        checked?;
        if total != transfer.part.len() {
            let words = "the pieces of the memory are not the bytes of the transfer";
            return Err(Error::Invalid(words.into()));
        }
        if !(1..=most).contains(&count) {
            let words = format!("the transfer has {count} descriptors, and at most {most} fit");
            return Err(Error::Invalid(words));
        }
        let start = held.list.device_addr();
        link(&mut held.entries, start, info.stream && transfer.ends);
        self.launch(u32::from(transfer.fixed) * control::FIXED_ADDRESS)?;
        Ok(count as u32)
    }

    /// Makes the core execute the list that the entries make.
    pub(crate) fn launch(&mut self, mut bits: u32) -> Result<()> {
        let held = self.held.as_mut().ok_or(Error::Busy)?;
        let (start, back) = (held.list.device_addr(), held.back.device_addr()?);
        held.list.write(0, &held.entries)?;
        held.back.write_at(STREAM, &[0; 8])?;
        held.back.store(COUNT, 0u32)?;
        self.fetch.first().write(start as u32);
        self.fetch.first_high().write((start >> 32) as u32);
        self.fetch.adjacent().write(adjacent(0, held.entries.len()));
        bits |= control::RUN | control::LOG;
        if self.options.polled {
            // A reset has cleared the address.
            self.registers.write_back().write(back as u32);
            self.registers.write_back_high().write((back >> 32) as u32);
            bits |= control::WRITE_BACK;
        }
        self.registers.control().write(bits);
        Ok(())
    }

    /// Executes a transfer, and waits for it.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start) and [`wait`](Self::wait).
    pub fn run(&mut self, transfer: Transfer<M>) -> Result<Done<M>, Failed<M>> {
        self.start(transfer)?;
        self.wait()
    }

    /// Returns the transfer if it is done. Does not wait.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait), but nothing takes too long.
    pub fn poll(&mut self) -> Result<Option<Done<M>>, Failed<M>> {
        match self.ended()? {
            Some(status) => self.end(status).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the status of a channel that works on its transfer no more.
    pub(crate) fn ended(&mut self) -> Result<Option<u32>, Failed<M>> {
        let Some(flight) = &self.flight else {
            return Err(Failed::without(nothing()));
        };
        let stopped = flight.stopped;
        if !self.has_news().map_err(Failed::without)? {
            return Ok(None);
        }
        let since = Instant::now();
        loop {
            let here = self.registers.status().read();
            if here == u32::MAX {
                return self.lose();
            }
            if !self.has_ended(here, stopped) {
                return Ok(None);
            }
            if here & status::BUSY == 0 {
                return Ok(Some(here));
            }
            // The interrupt may have come already, and no other one does.
            if since.elapsed() > SETTLE {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    /// Ends the transfer of a channel that works on it no more, and has this status.
    pub(crate) fn end(&mut self, status: u32) -> Result<Done<M>, Failed<M>> {
        self.registers.control().write(0);
        let Some(flight) = self.flight.take() else {
            return Err(Failed::without(nothing()));
        };
        let outcome = match self.leave_ring() {
            Some(ring) if status & status::ERRORS == 0 => match ring.is_confused {
                true => Err(Error::Confused),
                false => Ok((0, false)),
            },
            _ => self.outcome(&flight, status),
        };
        let memory = flight.memory;
        match outcome {
            Ok((len, end_of_packet)) => Ok(Done {
                memory,
                len,
                end_of_packet,
            }),
            Err(error) => Err(Failed {
                error,
                memory: Some(memory),
            }),
        }
    }

    /// How many bytes were transferred, and whether a packet has ended.
    fn outcome(&self, flight: &Flight<M>, status: u32) -> Result<(usize, bool)> {
        let errors = status & status::ERRORS;
        if errors != 0 {
            return Err(Error::Status(Status::new(self.info, errors)));
        }
        if status & status::STOPPED == 0 {
            return Err(Error::TimedOut);
        }
        if self.registers.completed().read() != flight.descriptors {
            return Err(Error::Confused);
        }
        match (&self.held, self.info.stream, self.info.direction) {
            (Some(held), true, Direction::C2h) => {
                let first: u32 = held.back.load(STREAM)?;
                let len = held.back.load::<u32>(STREAM + 4)? as usize;
                match first >> 16 == STREAM_MAGIC && len <= flight.len {
                    true => Ok((len, first & 1 != 0)),
                    false => Err(Error::Confused),
                }
            }
            (_, stream, _) => Ok((flight.len, stream && flight.ends)),
        }
    }

    /// Ends the transfer of a card that does not answer. If the driver has not taken all memory
    /// from it, the channel keeps that of the transfer.
    pub(crate) fn lose<T>(&mut self) -> Result<T, Failed<M>> {
        self.gone = self.shared.is_gone();
        self.ring.take_if(|_| self.gone);
        let flight = self.flight.take_if(|_| self.gone);
        Err(Failed {
            error: Error::Gone,
            memory: flight.map(|flight| flight.memory),
        })
    }
}

impl<M> Channel<M> {
    /// Whether a channel with this status has ended, if it is not busy either. Clearing Run leaves
    /// the other bits of the control register, and a reset clears them.
    fn has_ended(&self, here: u32, stopped: bool) -> bool {
        here & (status::ERRORS | status::ENDS) != 0
            || stopped && self.registers.control().read() & control::LOG == 0
    }

    /// Tells the channel to stop after the descriptor that it executes. The transfer is done when
    /// the channel has stopped: [`wait`](Self::wait) returns it, with [`Error::TimedOut`] unless
    /// it was complete.
    pub fn stop(&mut self) {
        if let Some(flight) = &mut self.flight {
            flight.stopped = true;
            flight.deadline = Instant::now().checked_add(self.options.timeout);
            self.registers.control_clear().write(control::RUN);
        }
    }
}

/// The error of a wait for nothing.
pub(crate) fn nothing() -> Error {
    Error::Invalid("the channel has no transfer".into())
}

impl<M> Drop for Channel<M> {
    fn drop(&mut self) {
        if !self.shared.is_gone() {
            self.stop();
            let since = Instant::now();
            while self.flight.is_some() {
                let here = self.registers.status().read();
                if here & status::BUSY == 0 && self.has_ended(here, true) {
                    break;
                }
                if since.elapsed() > DROP_PATIENCE {
                    // The card may still write: then memory and channel stay taken, until the
                    // program ends.
                    mem::forget((self.flight.take(), self.held.take(), self.ring.take()));
                    mem::forget(Arc::clone(&self.shared));
                    return;
                }
                std::thread::yield_now();
            }
            self.registers.control().write(0);
            self.registers.interrupt_mask().write(0);
            self.shared.irq.channel_disable().write(1 << self.index);
        }
        // Whoever takes the channel takes the vector.
        self.interrupt = None;
        self.shared.take(self.index, false);
    }
}

impl<M> fmt::Debug for Channel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("info", &self.info)
            .field("in_flight", &self.flight.is_some())
            .finish_non_exhaustive()
    }
}
