// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMD's DMA core for PCI Express (XDMA, PG195): its channels, and interrupts of the design.
//!
//! No handle stands for the core: it is found by its device, and is open as long as something of it
//! is. Who drives no such core pays nothing: no call of another part of the library comes here.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use pinmap_dynamic::{Channel, Error, Result};
use pinmap_xdma::{ChannelInfo, ChannelOptions, Core, Direction};

use crate::device::Device;
use crate::error::{destroy, enter, make, refer, status, store_some, timeout};
use crate::interrupt::Interrupt;
use crate::memory::Memory;
use crate::options::{answer, options, XdmaOptions};

/// The direction from the host to the card (H2C).
pub const PINMAP_XDMA_TO_CARD: u32 = 0;
/// The direction from the card to the host (C2H).
pub const PINMAP_XDMA_TO_HOST: u32 = 1;

/// Each access of the card's side goes to the same address, as for a FIFO.
pub const PINMAP_XDMA_FIXED: u32 = 1 << 0;
/// The packet of a stream to the card goes on with the next transfer.
pub const PINMAP_XDMA_MORE: u32 = 1 << 1;

/// How many channels a core can have.
pub const PINMAP_XDMA_CHANNELS: usize = 8;

/// A channel, for one transfer at a time.
#[derive(Debug)]
pub struct XdmaChannel(Channel);

/// The properties of a channel, as the core's registers tell them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct XdmaChannelInfo {
    /// PINMAP_XDMA_TO_CARD or PINMAP_XDMA_TO_HOST.
    pub direction: u32,
    /// The number among the channels of this direction.
    pub number: u32,
    /// 1: the channel is a stream; 0: it reaches addresses of the card.
    pub stream: u32,
    /// Memory and address of a transfer differ by a multiple of this.
    pub alignment: u32,
    /// The length of a transfer is a multiple of this.
    pub granularity: u32,
    /// Bits of an address of the card.
    pub address_bits: u32,
    /// The version of the core, as PG195 numbers them.
    pub version: u32,
    /// 0
    pub reserved: u32,
}

/// A core that was found in a device.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct XdmaInfo {
    /// The BAR with the registers of the core, for pinmap_bar_map(). Those of the design are in
    /// BAR 0, if these are not.
    pub bar: u32,
    /// How many channels there are.
    pub channel_count: u32,
    /// The channels, those to the card first.
    pub channels: [XdmaChannelInfo; PINMAP_XDMA_CHANNELS],
}

impl From<&ChannelInfo> for XdmaChannelInfo {
    fn from(info: &ChannelInfo) -> Self {
        Self {
            direction: match info.direction {
                Direction::H2c => PINMAP_XDMA_TO_CARD,
                Direction::C2h => PINMAP_XDMA_TO_HOST,
            },
            number: info.number as u32,
            stream: info.stream.into(),
            alignment: info.alignment as u32,
            granularity: info.granularity as u32,
            address_bits: info.address_bits,
            version: info.version.into(),
            reserved: 0,
        }
    }
}

/// Looks for the core in the BARs of a device, and stores what it has. Only reads registers. `size`
/// is sizeof(struct pinmap_xdma_info). On a flat device this makes the program its owner.
///
/// Errors: EINVAL, no BAR has the core's registers; EOPNOTSUPP, the core is none that this library
/// can drive; EBUSY, another program owns the device; ENODEV, the device is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_get_info(
    device: *const Device,
    info: *mut XdmaInfo,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let core = Core::open(&device.device)?;
        let mut found = XdmaInfo {
            bar: core.bar() as u32,
            channel_count: core.channels().len() as u32,
            ..XdmaInfo::default()
        };
        for (to, channel) in found.channels.iter_mut().zip(core.channels()) {
            *to = channel.into();
        }
        // SAFETY: Room for `size` bytes, by the rules of C; the answer has no padding.
        unsafe { answer(info, size, &found) }
    })
}

/// Takes a channel of a device's core. Without options (NULL), the end of a transfer raises an
/// interrupt.
///
/// Errors: EINVAL, there is no such core or channel, or the options make no sense; EBUSY, the
/// program has the channel already, or it is still busy with what another program began, and the
/// device has to be reset; EOPNOTSUPP, the device has no interrupt vector for the channel, which
/// can be polled then; otherwise as for pinmap_xdma_get_info() and pinmap_alloc().
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_open(
    device: *const Device,
    direction: u32,
    number: u32,
    xdma_options: *const XdmaOptions,
) -> *mut XdmaChannel {
    make(|| {
        // SAFETY: A device and options, by the rules of C.
        let (device, given) = unsafe { (refer(device, "device")?, options(xdma_options)?) };
        let direction = match direction {
            PINMAP_XDMA_TO_CARD => Direction::H2c,
            PINMAP_XDMA_TO_HOST => Direction::C2h,
            other => return Err(Error::invalid(format!("there is no direction {other}"))),
        };
        let (device, options) = (&device.device, given.channel()?);
        let channel = Channel::open(device, direction, number as usize, options)?;
        Ok(XdmaChannel(channel))
    })
}

impl XdmaOptions {
    fn channel(&self) -> Result<ChannelOptions> {
        let mut options = ChannelOptions::new();
        match self.polled {
            0 => {}
            1 => options = options.polled(),
            other => return Err(Error::invalid(format!("polled is {other}"))),
        }
        if self.descriptors != 0 {
            options = options.descriptors(self.descriptors as usize);
        }
        if self.piece != 0 {
            options = options.piece(self.piece as usize);
        }
        Ok(options)
    }
}

/// Stops the transfer of a channel, waits for that, and gives the channel and the memory back. NULL
/// is none. If the channel does not stop within a second, because the card's side does not answer,
/// it stays taken, and the memory cannot be released before the program ends.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_close(channel: *mut XdmaChannel) {
    // SAFETY: It comes from `pinmap_xdma_open`, and is not used again, by the rules of C.
    unsafe { destroy(channel) };
}

/// Starts a transfer of `length` bytes at `offset` of the memory, from or to the card's `address`,
/// which is 0 for a stream. Does not wait. The channel has the memory until pinmap_xdma_wait() has
/// returned the transfer; until then it cannot be released.
///
/// A transfer to a stream is a packet, unless PINMAP_XDMA_MORE is set. One from a stream ends with
/// the packet, or when it has the length.
///
/// Flags: PINMAP_XDMA_FIXED, PINMAP_XDMA_MORE.
///
/// Errors, after which nothing was begun: EINVAL, the bytes, the address or their alignment are
/// none that the channel can have, the memory is another device's, or the device may not write it;
/// EBUSY, the channel has a transfer; ESTALE, the memory went away; ENODEV, the card is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_start(
    channel: *const XdmaChannel,
    memory: *const Memory,
    offset: usize,
    length: usize,
    address: u64,
    flags: u32,
) -> c_int {
    status(|| {
        // SAFETY: A channel and memory, by the rules of C.
        let (channel, memory) = unsafe { (refer(channel, "channel")?, refer(memory, "memory")?) };
        if flags & !(PINMAP_XDMA_FIXED | PINMAP_XDMA_MORE) != 0 {
            let text = format!("the flags {flags:#x} have no meaning here");
            return Err(Error::invalid(text));
        }
        let end = offset.checked_add(length);
        let end = end.ok_or_else(|| Error::invalid(format!("{length} bytes")))?;
        let is_stream = channel.0.info().stream;
        channel.0.start(&memory.0, |mut transfer| {
            transfer = transfer.part(offset..end);
            if !is_stream || address != 0 {
                transfer = transfer.at(address);
            }
            if flags & PINMAP_XDMA_FIXED != 0 {
                transfer = transfer.fixed();
            }
            if flags & PINMAP_XDMA_MORE != 0 {
                transfer = transfer.more();
            }
            transfer
        })
    })
}

/// Waits until the transfer of a channel is done, for at most so many milliseconds; -1 is for ever,
/// and 0 only looks. Stores how many bytes it had, and whether a packet of a stream has ended with
/// them; either may be NULL. After ETIMEDOUT the transfer goes on. A card that does not answer, and
/// that the driver still has, keeps it as well. After any other end the channel can have the next.
///
/// Errors: ETIMEDOUT, the time was up; EINVAL, there is no transfer; EIO, the channel has stopped
/// at an error, which pinmap_last_error() names by the bits of the status register; ECANCELED, the
/// channel was stopped; ENODEV, the card is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_wait(
    channel: *const XdmaChannel,
    timeout_ms: c_int,
    length: *mut usize,
    end_of_packet: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: A channel, by the rules of C.
        let channel = unsafe { refer(channel, "channel")? };
        let (bytes, ends) = channel.0.wait(timeout(timeout_ms)?)?;
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe {
            store_some(length, bytes);
            store_some(end_of_packet, ends.into());
        }
        Ok(())
    })
}

/// Starts to receive a stream without a pause, in blocks of the memory, of `block` bytes each,
/// until the channel is stopped or closed. While no block is free the core holds the design back,
/// so that nothing is overwritten. pinmap_xdma_wait() returns the memory after a stop.
///
/// Errors: as for pinmap_xdma_start(); EINVAL, the channel is no stream to the host, or the memory
/// has fewer than two blocks, or more than there are descriptors, or 1,023.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_receive(
    channel: *const XdmaChannel,
    memory: *const Memory,
    block: usize,
) -> c_int {
    status(|| {
        // SAFETY: A channel and memory, by the rules of C.
        let (channel, memory) = unsafe { (refer(channel, "channel")?, refer(memory, "memory")?) };
        channel.0.receive(&memory.0, block)
    })
}

/// Waits for the next block that is received: see pinmap_xdma_wait(). Stores where in the memory
/// its bytes are, how many, and whether a packet ends with them; each may be NULL. The block is the
/// program's until pinmap_xdma_give_back().
///
/// Errors: as for pinmap_xdma_wait().
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_next(
    channel: *const XdmaChannel,
    timeout_ms: c_int,
    offset: *mut usize,
    length: *mut usize,
    end_of_packet: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: A channel, by the rules of C.
        let channel = unsafe { refer(channel, "channel")? };
        let block = channel.0.wait_block(timeout(timeout_ms)?)?;
        // SAFETY: NULL, or room for it, by the rules of C.
        unsafe {
            store_some(offset, block.bytes.start);
            store_some(length, block.bytes.len());
            store_some(end_of_packet, block.end_of_packet.into());
        }
        Ok(())
    })
}

/// Gives the oldest block that pinmap_xdma_next() has returned back to the core.
///
/// Errors: EINVAL, there is none; ENODEV, the card is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_give_back(channel: *const XdmaChannel) -> c_int {
    status(|| {
        // SAFETY: A channel, by the rules of C.
        unsafe { refer(channel, "channel")? }.0.give_back()
    })
}

/// Tells a channel to stop after the descriptor that it executes. The transfer ends when it has:
/// pinmap_xdma_wait() tells. A channel whose card's side does not answer does not stop.
///
/// Errors: ENODEV, the card is gone.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_stop(channel: *const XdmaChannel) -> c_int {
    status(|| {
        // SAFETY: A channel, by the rules of C.
        unsafe { refer(channel, "channel")? }.0.stop()
    })
}

/// Returns the file descriptor of a channel, an eventfd that stays the channel's. poll() finds it
/// readable when a transfer or a block may be done; then pinmap_xdma_wait() or pinmap_xdma_next()
/// looks, with a timeout of 0, until the time is up. That a card is gone, the device's own file
/// tells: see pinmap_fd().
///
/// Errors: EOPNOTSUPP, the channel is polled.
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_fd(channel: *const XdmaChannel) -> c_int {
    enter(-1, || {
        // SAFETY: A channel, by the rules of C.
        let channel = unsafe { refer(channel, "channel")? };
        Ok(channel.0.interrupt()?.as_raw_fd())
    })
}

/// Enables a user interrupt of a device's core, 0 to 15, which the design raises. What waits for it
/// and disables it is that of any interrupt: pinmap_interrupt_wait() and others. A design keeps its
/// request until the cause is cleared, in a register of its own: clear it after the wait.
///
/// Errors: EINVAL, there is no such core or number; EOPNOTSUPP, the device has no vector for it;
/// otherwise as for pinmap_interrupt_enable().
#[no_mangle]
pub unsafe extern "C" fn pinmap_xdma_user_interrupt(
    device: *const Device,
    number: u32,
) -> *mut Interrupt {
    make(|| {
        // SAFETY: A device, by the rules of C.
        let device = unsafe { refer(device, "device")? };
        let core = Core::open(&device.device)?;
        Ok(Interrupt(core.user_interrupt(number)?.into()))
    })
}
