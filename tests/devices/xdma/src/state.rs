// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registers, what a write to one of them does, and interrupts.

use crate::registers::{
    board, channel, common, control, irq, monitor, sgdma, status, target, IDENTIFIER,
};
use crate::stream::Stream;
use crate::Options;
use vfio_user_device::Bus;

/// Number of user interrupts.
const USER_INTERRUPTS: u32 = 16;
/// Bytes of the data path for each cycle.
pub(crate) const DATA_WIDTH: u64 = 8;
/// Cycles that a descriptor takes beside its data.
const DESCRIPTOR_CYCLES: u64 = 32;
/// Forbidden accesses that are reported; the others are counted.
const REPORTS: u32 = 50;

/// A channel.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    pub(crate) control: u32,
    pub(crate) status: u32,
    pub(crate) completed: u32,
    pub(crate) write_back: u64,
    mask: u32,
    monitor: u32,
    cycles: u64,
    beats: u64,
    pub(crate) descriptor: u64,
    pub(crate) adjacent: u32,
    pub(crate) credits: u32,
    /// Run was set, and the engine has not seen it.
    pub(crate) starts: bool,
    /// From when Run is set until the engine is done.
    pub(crate) busy: bool,
    /// How many reads of the status find it busy after that.
    pub(crate) lingers: u32,
}

impl Channel {
    pub(crate) fn runs(&self) -> bool {
        self.control & control::RUN != 0
    }

    /// Logs bits in the status, as far as the control register says so, and returns those.
    pub(crate) fn log(&mut self, bits: u32) -> u32 {
        let logged = bits & self.control;
        self.status |= logged;
        logged
    }

    /// Counts a descriptor of some bytes for the performance monitor.
    pub(crate) fn count(&mut self, bytes: u64, stops: bool) {
        if self.monitor & monitor::RUN != 0 {
            let beats = bytes.div_ceil(DATA_WIDTH);
            self.beats += beats;
            self.cycles += beats + DESCRIPTOR_CYCLES;
        }
        if stops && self.monitor & monitor::AUTO != 0 {
            self.monitor &= !monitor::RUN;
        }
    }

    /// Writes the control register.
    fn set_control(&mut self, value: u32) -> Result<(), &'static str> {
        let before = std::mem::replace(&mut self.control, value & control::KNOWN);
        let edge = (before ^ self.control) & control::RUN != 0;
        match edge.then_some(self.runs()) {
            Some(true) if self.busy => return Err("Run is set before the channel is idle"),
            Some(true) => {
                (self.status, self.completed) = (0, 0);
                (self.starts, self.busy) = (true, true);
                if self.monitor & monitor::AUTO != 0 {
                    (self.cycles, self.beats) = (0, 0);
                }
            }
            Some(false) => {
                self.credits = 0;
                if !self.busy {
                    self.log(status::IDLE_STOPPED);
                }
            }
            None => {}
        }
        Ok(())
    }
}

/// The interrupt block.
#[derive(Debug, Default)]
struct Interrupts {
    user_enable: u32,
    channel_enable: u32,
    user_vectors: [u32; 4],
    channel_vectors: [u32; 2],
    /// Requests for which a message was sent.
    user_sent: u32,
    channel_sent: u32,
}

/// All that a reset resets.
#[derive(Debug)]
pub(crate) struct State {
    options: Options,
    /// H2C first, then C2H: the order of their bits in the interrupt block.
    pub(crate) channels: Vec<Channel>,
    /// The streams from H2C channels to C2H channels.
    pub(crate) streams: Vec<Stream>,
    interrupts: Interrupts,
    halt: u32,
    credit_mode: u32,
    /// User interrupts that the design requests.
    requests: u32,
    scratch: u32,
    /// How the card behaves: see the bits below.
    behaviour: u32,
    /// Accesses that the manual forbids.
    forbidden: u32,
    /// Number of resets: what began before the last one has no effect any more.
    pub(crate) resets: u64,
    pub(crate) closed: bool,
}

impl State {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            channels: (0..2 * options.pairs).map(|_| Channel::default()).collect(),
            streams: (0..options.pairs).map(|_| Stream::default()).collect(),
            interrupts: Interrupts::default(),
            halt: 0,
            credit_mode: 0,
            requests: 0,
            scratch: 0,
            behaviour: 0,
            forbidden: 0,
            resets: 0,
            closed: false,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self {
            resets: self.resets + 1,
            closed: self.closed,
            forbidden: self.forbidden,
            ..Self::new(self.options)
        };
    }

    /// Whether the AXI side and the streams stand still.
    pub(crate) fn holds(&self) -> bool {
        self.behaviour & 1 != 0
    }

    /// Whether no descriptor is fetched, and a channel is not busy before it has one.
    pub(crate) fn is_late(&self) -> bool {
        self.behaviour & (1 << 1) != 0
    }

    /// How often a channel is busy still when its status says that it has stopped.
    pub(crate) fn lingers(&self) -> u32 {
        3 * u32::from(self.behaviour & (1 << 2) != 0)
    }

    /// Whether all registers read as ones, and writes have no effect.
    pub(crate) fn is_dead(&self) -> bool {
        self.behaviour & (1 << 3) != 0
    }

    /// Reports and counts what the manual forbids.
    pub(crate) fn forbid(&mut self, what: &str) {
        self.forbidden += 1;
        if self.forbidden <= REPORTS {
            eprintln!("xdma: forbidden: {what}");
        }
    }

    /// The index of a channel, if there is one.
    fn index(&self, to_host: bool, number: usize) -> Option<usize> {
        let first = if to_host { self.options.pairs } else { 0 };
        (number < self.options.pairs).then_some(first + number)
    }

    /// The bit of a channel in registers that all SGDMA channels share.
    fn shared_bit(&self, index: usize) -> u32 {
        match index.checked_sub(self.options.pairs) {
            Some(number) => 1 << (16 + number),
            None => 1 << index,
        }
    }

    /// Whether the channel fetches as many descriptors as it has credits for.
    pub(crate) fn has_credit_mode(&self, index: usize) -> bool {
        self.credit_mode & self.shared_bit(index) != 0
    }

    pub(crate) fn is_halted(&self, index: usize) -> bool {
        self.halt & self.shared_bit(index) != 0
    }

    /// The requests of the design and of channels, without the enable masks.
    fn pending(&self) -> (u32, u32) {
        let channels = self.channels.iter().enumerate();
        let channels = channels.map(|(index, channel)| {
            let requests = channel.status & channel.mask != 0;
            u32::from(requests) << index
        });
        (self.requests, channels.sum())
    }

    fn requested(&self) -> (u32, u32) {
        let (user, channels) = self.pending();
        let Interrupts {
            user_enable,
            channel_enable,
            ..
        } = self.interrupts;
        (user & user_enable, channels & channel_enable)
    }

    /// Sends a message for each request that is new.
    pub(crate) fn interrupt(&mut self, bus: &dyn Bus) {
        let (user, channels) = self.requested();
        let interrupts = &mut self.interrupts;
        let new = user & !interrupts.user_sent;
        for number in (0..USER_INTERRUPTS).filter(|number| new & (1 << number) != 0) {
            bus.interrupt(vector(&interrupts.user_vectors, number));
        }
        let new = channels & !interrupts.channel_sent;
        for number in (0..8).filter(|number| new & (1 << number) != 0) {
            bus.interrupt(vector(&interrupts.channel_vectors, number));
        }
        (interrupts.user_sent, interrupts.channel_sent) = (user, channels);
    }

    /// Reads a register of the core.
    pub(crate) fn read(&mut self, at: u64) -> u32 {
        let (part, number, offset) = split(at);
        let (h2c, c2h) = (target::H2C, target::C2H);
        if offset == 0 && part <= target::SGDMA_COMMON {
            return self.identifier(part, number);
        }
        match part {
            target::H2C | target::C2H => match self.index(part == c2h, number) {
                Some(index) => self.read_channel(index, offset),
                None => 0,
            },
            target::H2C_SGDMA | target::C2H_SGDMA => {
                match self.index(part - target::H2C_SGDMA != h2c, number) {
                    Some(index) => self.read_sgdma(index, offset),
                    None => 0,
                }
            }
            target::IRQ => self.read_interrupts(offset),
            target::CONFIG => match offset {
                0x0c | 0x44 => 2, // reads of at most 512 bytes
                0x10 => 0xff01,   // the system
                0x14 => 2,        // MSI-X
                0x18 | 0x1c => 0, // a data path of 64 bits; no relaxed ordering
                _ => 0,
            },
            target::SGDMA_COMMON => match offset {
                common::HALT => self.halt,
                common::CREDIT_MODE => self.credit_mode,
                _ => 0,
            },
            _ => 0,
        }
    }

    fn identifier(&self, part: u64, number: usize) -> u32 {
        let part_bits = (part as u32) << 16;
        let is_channel = matches!(
            part,
            target::H2C | target::C2H | target::H2C_SGDMA | target::C2H_SGDMA
        );
        if !is_channel {
            return IDENTIFIER | part_bits;
        }
        match self.index(part & 1 != 0, number) {
            Some(_) => {
                let stream = u32::from(self.options.stream) << 15;
                IDENTIFIER | part_bits | stream | ((number as u32) << 8)
            }
            None => 0,
        }
    }

    fn read_channel(&mut self, index: usize, offset: u64) -> u32 {
        let alignments = self.options.alignments();
        let is_late = self.is_late();
        let channel = &mut self.channels[index];
        let mut busy = u32::from(channel.busy && !is_late) * status::BUSY;
        if offset == channel::STATUS && channel.lingers > 0 {
            channel.lingers -= 1;
            busy = status::BUSY;
        }
        match offset {
            channel::CONTROL => channel.control,
            channel::STATUS => channel.status | busy,
            channel::STATUS_READ_CLEAR => std::mem::take(&mut channel.status) | busy,
            channel::COMPLETED => channel.completed,
            channel::ALIGNMENTS => alignments,
            channel::WRITE_BACK => channel.write_back as u32,
            channel::WRITE_BACK_HIGH => (channel.write_back >> 32) as u32,
            channel::MASK => channel.mask,
            channel::MONITOR => channel.monitor,
            channel::CYCLES => channel.cycles as u32,
            channel::CYCLES_HIGH => (channel.cycles >> 32) as u32 & 0x3ff,
            channel::BEATS => channel.beats as u32,
            channel::BEATS_HIGH => (channel.beats >> 32) as u32 & 0x3ff,
            _ => 0,
        }
    }

    fn read_sgdma(&self, index: usize, offset: u64) -> u32 {
        let channel = &self.channels[index];
        match offset {
            sgdma::DESCRIPTOR => channel.descriptor as u32,
            sgdma::DESCRIPTOR_HIGH => (channel.descriptor >> 32) as u32,
            sgdma::ADJACENT => channel.adjacent,
            sgdma::CREDITS => channel.credits,
            _ => 0,
        }
    }

    fn read_interrupts(&self, offset: u64) -> u32 {
        let interrupts = &self.interrupts;
        match offset {
            irq::USER_ENABLE => interrupts.user_enable,
            irq::CHANNEL_ENABLE => interrupts.channel_enable,
            irq::USER_REQUEST => self.requested().0,
            irq::CHANNEL_REQUEST => self.requested().1,
            irq::USER_PENDING => self.pending().0,
            irq::CHANNEL_PENDING => self.pending().1,
            irq::USER_VECTORS..=irq::USER_VECTORS_LAST => {
                interrupts.user_vectors[word(offset - irq::USER_VECTORS)]
            }
            irq::CHANNEL_VECTORS..=irq::CHANNEL_VECTORS_LAST => {
                interrupts.channel_vectors[word(offset - irq::CHANNEL_VECTORS)]
            }
            _ => 0,
        }
    }

    /// Writes a register of the core.
    pub(crate) fn write(&mut self, at: u64, value: u32) {
        let (part, number, offset) = split(at);
        let written = match part {
            target::H2C | target::C2H => match self.index(part == target::C2H, number) {
                Some(index) => self.write_channel(index, offset, value),
                None => Err("there is no such channel"),
            },
            target::H2C_SGDMA | target::C2H_SGDMA => {
                match self.index(part == target::C2H_SGDMA, number) {
                    Some(index) => self.write_sgdma(index, offset, value),
                    None => Err("there is no such channel"),
                }
            }
            target::IRQ => self.write_interrupts(offset, value),
            // They tune the core, which makes no difference here.
            target::CONFIG if matches!(offset, 0x1c | 0x40 | 0x44 | 0x60) => Ok(()),
            target::SGDMA_COMMON => self.write_common(offset, value & common::CHANNELS),
            _ => Err("a read-only or reserved register is written"),
        };
        if let Err(what) = written {
            self.forbid(&format!("{what} ({at:#06x}, {value:#010x})"));
        }
    }

    fn write_channel(&mut self, index: usize, offset: u64, value: u32) -> Result<(), &'static str> {
        let channel = &mut self.channels[index];
        match offset {
            channel::CONTROL => return channel.set_control(value),
            channel::CONTROL_SET => return channel.set_control(channel.control | value),
            channel::CONTROL_CLEAR => return channel.set_control(channel.control & !value),
            channel::STATUS => channel.status &= !value,
            channel::WRITE_BACK | channel::WRITE_BACK_HIGH if channel.busy => {
                return Err("the write-back address changes while the channel is busy");
            }
            channel::WRITE_BACK => set_low(&mut channel.write_back, value),
            channel::WRITE_BACK_HIGH => set_high(&mut channel.write_back, value),
            channel::MASK => channel.mask = value & status_mask(),
            channel::MASK_SET => channel.mask |= value & status_mask(),
            channel::MASK_CLEAR => channel.mask &= !value,
            channel::MONITOR => {
                channel.monitor = value & (monitor::RUN | monitor::AUTO);
                if value & monitor::CLEAR != 0 {
                    (channel.cycles, channel.beats) = (0, 0);
                }
            }
            _ => return Err("a read-only or reserved register is written"),
        }
        Ok(())
    }

    fn write_sgdma(&mut self, index: usize, offset: u64, value: u32) -> Result<(), &'static str> {
        let has_credit_mode = self.has_credit_mode(index);
        let channel = &mut self.channels[index];
        match offset {
            sgdma::CREDITS if has_credit_mode => {
                channel.credits = (channel.credits + value).min(sgdma::MAX_CREDITS);
            }
            sgdma::CREDITS => return Err("a channel without credit mode gets credits"),
            _ if channel.busy => {
                return Err("the first descriptor changes while the channel is busy")
            }
            sgdma::DESCRIPTOR => set_low(&mut channel.descriptor, value),
            sgdma::DESCRIPTOR_HIGH => set_high(&mut channel.descriptor, value),
            sgdma::ADJACENT => channel.adjacent = value & sgdma::MAX_ADJACENT,
            _ => return Err("a read-only or reserved register is written"),
        }
        Ok(())
    }

    fn write_interrupts(&mut self, offset: u64, value: u32) -> Result<(), &'static str> {
        let interrupts = &mut self.interrupts;
        match offset {
            irq::USER_ENABLE => interrupts.user_enable = value & 0xffff,
            irq::USER_ENABLE_SET => interrupts.user_enable |= value & 0xffff,
            irq::USER_ENABLE_CLEAR => interrupts.user_enable &= !value,
            irq::CHANNEL_ENABLE => interrupts.channel_enable = value & 0xff,
            irq::CHANNEL_ENABLE_SET => interrupts.channel_enable |= value & 0xff,
            irq::CHANNEL_ENABLE_CLEAR => interrupts.channel_enable &= !value,
            irq::USER_VECTORS..=irq::USER_VECTORS_LAST => {
                interrupts.user_vectors[word(offset - irq::USER_VECTORS)] = value & 0x1f1f_1f1f;
            }
            irq::CHANNEL_VECTORS..=irq::CHANNEL_VECTORS_LAST => {
                let word = word(offset - irq::CHANNEL_VECTORS);
                interrupts.channel_vectors[word] = value & 0x1f1f_1f1f;
            }
            _ => return Err("a read-only or reserved register is written"),
        }
        Ok(())
    }

    fn write_common(&mut self, offset: u64, value: u32) -> Result<(), &'static str> {
        match offset {
            common::HALT => self.halt = value,
            common::HALT_SET => self.halt |= value,
            common::HALT_CLEAR => self.halt &= !value,
            common::CREDIT_MODE => self.credit_mode = value,
            common::CREDIT_MODE_SET => self.credit_mode |= value,
            common::CREDIT_MODE_CLEAR => self.credit_mode &= !value,
            _ => return Err("a read-only or reserved register is written"),
        }
        for index in 0..self.channels.len() {
            if !self.has_credit_mode(index) {
                self.channels[index].credits = 0;
            }
        }
        Ok(())
    }

    /// Reads a register of the design.
    pub(crate) fn read_board(&self, at: u64) -> u32 {
        match at {
            board::MAGIC => board::MAGIC_VALUE,
            board::SCRATCH => self.scratch,
            board::INTERRUPTS => self.requests,
            board::FORBIDDEN => self.forbidden,
            board::BEHAVIOUR => self.behaviour,
            board::MEMORY_SIZE => self.options.memory as u32,
            _ => 0,
        }
    }

    /// Writes a register of the design.
    pub(crate) fn write_board(&mut self, at: u64, value: u32) {
        match at {
            board::SCRATCH => self.scratch = value,
            board::INTERRUPTS => self.requests = value & 0xffff,
            board::BEHAVIOUR => self.behaviour = value & 0xf,
            _ => {}
        }
    }
}

/// Splits an address into the part of the core, the number of the channel, and the offset.
fn split(at: u64) -> (u64, usize, u64) {
    (at >> 12, (at >> 8) as usize & 0xf, at & 0xff)
}

/// The vector of an interrupt in registers that have four of them each.
fn vector(registers: &[u32], number: u32) -> usize {
    let register = registers.get(number as usize / 4).copied().unwrap_or(0);
    (register >> (8 * (number % 4))) as usize & 0x1f
}

/// Bits of the status that can interrupt.
fn status_mask() -> u32 {
    status::ERRORS | status::STOPPED | status::COMPLETED | status::IDLE_STOPPED
}

/// The number of a register among its neighbours.
fn word(offset: u64) -> usize {
    (offset / 4) as usize
}

fn set_low(to: &mut u64, value: u32) {
    *to = *to & !0xffff_ffff | u64::from(value);
}

fn set_high(to: &mut u64, value: u32) {
    *to = *to & 0xffff_ffff | (u64::from(value) << 32);
}
