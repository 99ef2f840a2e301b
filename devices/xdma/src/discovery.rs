// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core: found in a BAR, its channels, and who has them.

use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinmap::{Bar, Device, Interrupt};

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::options::ChannelOptions;
use crate::registers::{
    identifier, ChannelBlock, IrqBlock, CHANNELS, CHANNEL_VECTORS, CONFIG, DIRECTION, END, IRQ,
    NEXT, USER_VECTORS,
};
use crate::user::UserInterrupt;

/// Channels that a core can have in each direction.
const MOST: usize = 4;
/// User interrupts that a core can have.
const USER_INTERRUPTS: u32 = 16;

/// The direction of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host to the card.
    H2c,
    /// From the card to the host.
    C2h,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::H2c => "H2C",
            Self::C2h => "C2H",
        })
    }
}

/// The properties of a channel, as the core's registers tell them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ChannelInfo {
    /// The direction.
    pub direction: Direction,
    /// The number among the channels of this direction.
    pub number: usize,
    /// Whether the channel is a stream. Otherwise it reaches addresses of the card.
    pub stream: bool,
    /// Memory and address of a transfer differ by a multiple of this.
    pub alignment: usize,
    /// The length of a transfer is a multiple of this.
    pub granularity: usize,
    /// Bits of an address of the card.
    pub address_bits: u32,
    /// The version of the core, as PG195 numbers them: 6 is 2017.1 and later.
    pub version: u8,
}

impl ChannelInfo {
    /// The bit of the channel in the registers that all channels share.
    pub(crate) fn credit_bit(&self) -> u32 {
        match self.direction {
            Direction::H2c => 1 << self.number,
            Direction::C2h => 1 << (16 + self.number),
        }
    }

    pub(crate) fn of(
        direction: Direction,
        number: usize,
        identifier: u32,
        alignments: u32,
    ) -> Self {
        let byte = |shift: u32| ((alignments >> shift) & 0xff) as usize;
        Self {
            direction,
            number,
            stream: identifier & (1 << 15) != 0,
            alignment: byte(16).max(1).next_power_of_two(),
            granularity: byte(8).max(1).next_power_of_two(),
            // Cores that do not tell have all.
            address_bits: match byte(0) as u32 {
                0 => 64,
                bits => bits.min(64),
            },
            version: identifier as u8,
        }
    }
}

impl fmt::Display for ChannelInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.direction, self.number)
    }
}

/// A core that this program drives.
#[derive(Clone)]
pub struct Core {
    pub(crate) shared: Arc<Shared>,
}

/// The part of a core that channels and interrupts share.
pub(crate) struct Shared {
    pub(crate) device: Device,
    pub(crate) bar: Bar,
    pub(crate) irq: IrqBlock,
    vectors: u32,
    /// H2C first, then C2H: the order of their bits in the block of interrupts.
    channels: Vec<ChannelInfo>,
    /// Which channels are taken. Who has the lock may write vector numbers.
    taken: Mutex<Vec<bool>>,
}

/// All cores that are open, so that no channel is driven by two.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Core {
    /// Looks for the core in the BARs of a device. Only reads registers. While a core of the device
    /// is open, it is that one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: no BAR has the core's registers; [`Error::Unsupported`]: the core has no
    /// channels, its BAR is prefetchable, or the device does not see the CPU's caches;
    /// [`Error::Pinmap`]: another program owns the device, for instance; [`Error::Gone`]: the
    /// device is gone.
    pub fn open(device: &Device) -> Result<Self> {
        let info = device.info()?;
        if info.gone {
            return Err(Error::Gone);
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|shared| shared.strong_count() != 0);
        // A context has one file, however many there are of its `Device`.
        let same = |shared: &Arc<Shared>| shared.device.as_raw_fd() == device.as_raw_fd();
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(Self { shared });
        }
        if !info.coherent {
            let what = "no view of the CPU's caches, which this driver relies on";
            return Err(Error::Unsupported(what.into()));
        }
        let bar = find(device)?;
        let channels = channels(&bar)?;
        if channels.is_empty() {
            return Err(Error::Unsupported("no channels".into()));
        }
        let shared = Shared {
            device: device.clone(),
            irq: bar.registers(IRQ)?,
            bar,
            vectors: info.vectors,
            taken: Mutex::new(vec![false; channels.len()]),
            channels,
        };
        let shared = Arc::new(shared);
        open.push(Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The channels: those to the card first.
    pub fn channels(&self) -> &[ChannelInfo] {
        &self.shared.channels
    }

    /// The number of the BAR with the core's registers. The design's own registers are in BAR 0, if
    /// these are not, and the bypass to the card's memory is in the next BAR that there is.
    pub fn bar(&self) -> usize {
        self.shared.bar.number()
    }

    /// Takes a channel, for transfers with memory of one type. Channels wait for no other, so each
    /// thread has one of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: there is no such channel, or the options make no sense;
    /// [`Error::Unsupported`]: the device has no interrupt vector for the channel;
    /// [`Error::Busy`]: the program has the channel already, or it is still busy with what another
    /// program began, and the device has to be reset; [`Error::Pinmap`]: there is no memory.
    pub fn channel<M: Memory>(
        &self,
        direction: Direction,
        number: usize,
        options: ChannelOptions,
    ) -> Result<Channel<M>> {
        let channels = self.shared.channels.iter();
        let index = channels
            .clone()
            .position(|info| (info.direction, info.number) == (direction, number));
        let Some((index, info)) = index.and_then(|i| Some((i, *self.shared.channels.get(i)?)))
        else {
            let names: Vec<String> = channels.map(ChannelInfo::to_string).collect();
            let words = format!("no channel {direction} {number}, but {}", names.join(", "));
            return Err(Error::Invalid(words));
        };
        Channel::new(Arc::clone(&self.shared), index, info, options)
    }

    /// Takes a user interrupt, which the design raises.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the number is not below 16; [`Error::Unsupported`]: the device has no
    /// interrupt vector for it; [`Error::Pinmap`]: the program has it already, for instance.
    pub fn user_interrupt(&self, number: u32) -> Result<UserInterrupt> {
        if number >= USER_INTERRUPTS {
            let last = USER_INTERRUPTS - 1;
            let words = format!("user interrupts are 0 to {last}, not {number}");
            return Err(Error::Invalid(words));
        }
        UserInterrupt::new(Arc::clone(&self.shared), number)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.shared;
        f.debug_tuple("Core").field(&shared.channels).finish()
    }
}

impl Shared {
    fn taken(&self) -> MutexGuard<'_, Vec<bool>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes or gives back the channel with an index. Returns whether that changed something.
    pub(crate) fn take(&self, index: usize, take: bool) -> bool {
        let mut taken = self.taken();
        let before = taken.get_mut(index);
        before.is_some_and(|before| std::mem::replace(before, take) != take)
    }

    /// Looks whether the device is gone.
    pub(crate) fn is_gone(&self) -> bool {
        match self.device.info() {
            Ok(info) => info.gone,
            Err(error) => matches!(Error::from(error), Error::Gone),
        }
    }

    /// Takes the interrupt vector of a channel.
    pub(crate) fn channel_vector(&self, index: usize) -> Result<Interrupt> {
        self.vector(CHANNEL_VECTORS + index, index as u32)
    }

    /// Takes the interrupt vector of a user interrupt; those of channels come first.
    pub(crate) fn user_vector(&self, number: u32) -> Result<Interrupt> {
        let vector = self.channels.len() as u32 + number;
        self.vector(USER_VECTORS + number as usize, vector)
    }

    /// Takes an interrupt vector, and writes it where the core has it, at a byte of a word.
    fn vector(&self, at: usize, vector: u32) -> Result<Interrupt> {
        if vector >= self.vectors {
            let words = format!("no interrupt vector {vector}, but {} of them", self.vectors);
            return Err(Error::Unsupported(words));
        }
        let interrupt = self.device.interrupt(vector)?;
        let _lock = self.taken();
        let (word, shift) = (at & !3, 8 * (at & 3));
        let others = self.bar.read::<u32>(word)? & !(0xff << shift);
        self.bar.write(word, others | (vector << shift))?;
        Ok(interrupt)
    }
}

/// Finds the BAR with the core's registers.
fn find(device: &Device) -> Result<Bar> {
    let info = device.info()?;
    let (mut asked, mut answers) = (false, false);
    for (number, bar) in info.bars.iter().enumerate() {
        let is_there = bar.is_some_and(|bar| {
            let end = bar.hole.map_or(bar.len, |(start, _)| start);
            bar.mappable && end >= END as u64
        });
        if !is_there {
            continue;
        }
        let bar = device.bar(number)?;
        let read = |part: usize| bar.read::<u32>(part);
        let (irq, config) = (read(IRQ)?, read(CONFIG)?);
        (asked, answers) = (true, answers || irq != u32::MAX);
        let is = |found: u32, part| found & 0xffff_0000 == identifier(part);
        if is(irq, IRQ) && is(config, CONFIG) {
            // Such a BAR is mapped so that writes can arrive in another order.
            return match bar.info().prefetchable {
                true => Err(Error::Unsupported(format!(
                    "its registers in BAR {number}, which is prefetchable"
                ))),
                false => Ok(bar),
            };
        }
    }
    let words = match asked && !answers {
        true => format!("{device} reads as all ones: it has no core of PG195, or does not answer"),
        false => format!("no BAR of {device} has the core of PG195"),
    };
    Err(Error::Invalid(words))
}

/// Asks all channels that there can be for their identifiers.
fn channels(bar: &Bar) -> Result<Vec<ChannelInfo>> {
    let mut found = Vec::new();
    for (direction, start) in [(Direction::H2c, 0), (Direction::C2h, DIRECTION)] {
        for number in 0..MOST {
            let block: ChannelBlock = bar.registers(CHANNELS + start + number * NEXT)?;
            let here = block.identifier().read();
            let expected = identifier(start) | ((number as u32) << 8);
            // Without the kind of channel, and the version.
            if here & !0x80ff == expected {
                let alignments = block.alignments().read();
                found.push(ChannelInfo::of(direction, number, here, alignments));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_is_what_its_registers_tell() {
        let info = ChannelInfo::of(Direction::C2h, 3, 0x1fc1_8306, 0x0040_0840);
        assert_eq!((info.stream, info.version), (true, 6));
        let lengths = (info.alignment, info.granularity, info.address_bits);
        assert_eq!(lengths, (64, 8, 64));
        assert_eq!(info.to_string(), "C2H 3");
        let info = ChannelInfo::of(Direction::H2c, 0, 0x1fc0_0001, 0);
        let lengths = (info.alignment, info.granularity, info.address_bits);
        assert_eq!((info.stream, lengths), (false, (1, 1, 64)));
    }

    #[test]
    fn identifiers_are_those_of_the_manual() {
        assert_eq!(identifier(IRQ), 0x1fc2_0000);
        assert_eq!(identifier(CONFIG), 0x1fc3_0000);
        assert_eq!(identifier(DIRECTION), 0x1fc1_0000);
    }
}
