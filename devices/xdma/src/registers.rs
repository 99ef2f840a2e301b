// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registers of the core (PG195, "Register Space"). Bits 15 to 12 of an address say which part
//! of the core it is, bits 11 to 8 which channel.

pinmap::registers! {
    /// A channel.
    pub(crate) struct ChannelBlock: 0xd4 {
        0x00 => identifier: ReadOnly<u32>,
        0x04 => control: ReadWrite<u32>,
        0x0c => control_clear: WriteOnly<u32>,
        0x40 => status: ReadWrite<u32>,
        0x44 => status_take: ReadOnly<u32>,
        0x48 => completed: ReadOnly<u32>,
        0x4c => alignments: ReadOnly<u32>,
        0x88 => write_back: WriteOnly<u32>,
        0x8c => write_back_high: WriteOnly<u32>,
        0x90 => interrupt_mask: WriteOnly<u32>,
        0xc0 => monitor: WriteOnly<u32>,
        0xc4 => cycles: ReadOnly<u32>,
        0xc8 => cycles_high: ReadOnly<u32>,
        0xcc => beats: ReadOnly<u32>,
        0xd0 => beats_high: ReadOnly<u32>,
    }
}

pinmap::registers! {
    /// The part of a channel that fetches descriptors.
    pub(crate) struct FetchBlock: 0x90 {
        0x80 => first: WriteOnly<u32>,
        0x84 => first_high: WriteOnly<u32>,
        0x88 => adjacent: WriteOnly<u32>,
        0x8c => credits: WriteOnly<u32>,
    }
}

pinmap::registers! {
    /// The interrupts.
    pub(crate) struct IrqBlock: 0xa8 {
        0x00 => identifier: ReadOnly<u32>,
        0x08 => user_enable: WriteOnly<u32>,
        0x0c => user_disable: WriteOnly<u32>,
        0x14 => channel_enable: WriteOnly<u32>,
        0x18 => channel_disable: WriteOnly<u32>,
        0x48 => user_pending: ReadOnly<u32>,
    }
}

pinmap::registers! {
    /// The part that fetches descriptors, for all channels: whether they need credits.
    pub(crate) struct CommonBlock: 0x2c {
        0x24 => credit_set: WriteOnly<u32>,
        0x28 => credit_clear: WriteOnly<u32>,
    }
}

/// Where the parts of the core begin.
pub(crate) const CHANNELS: usize = 0x0000;
pub(crate) const IRQ: usize = 0x2000;
pub(crate) const CONFIG: usize = 0x3000;
pub(crate) const FETCH: usize = 0x4000;
pub(crate) const COMMON: usize = 0x6000;
/// Distance from H2C to C2H, and from one channel to the next.
pub(crate) const DIRECTION: usize = 0x1000;
pub(crate) const NEXT: usize = 0x100;
/// Where the vector numbers are, in the block of interrupts: a byte for each.
pub(crate) const USER_VECTORS: usize = IRQ + 0x80;
pub(crate) const CHANNEL_VECTORS: usize = IRQ + 0xa0;
/// Where the last of these parts ends.
pub(crate) const END: usize = 0x7000;

/// The identifier of a part of the core, without version and number of the channel.
pub(crate) const fn identifier(part: usize) -> u32 {
    0x1fc0_0000 | ((part as u32) << 4)
}

/// Bits of the control register.
pub(crate) mod control {
    pub(crate) const RUN: u32 = 1;
    /// Log each bit of the status, and stop at errors.
    pub(crate) const LOG: u32 =
        super::status::ERRORS | super::status::ENDS | super::status::COMPLETED;
    pub(crate) const FIXED_ADDRESS: u32 = 1 << 25;
    pub(crate) const WRITE_BACK: u32 = 1 << 26;
}

/// Bits of the status register.
pub(crate) mod status {
    pub(crate) const BUSY: u32 = 1;
    pub(crate) const STOPPED: u32 = 1 << 1;
    pub(crate) const COMPLETED: u32 = 1 << 2;
    /// The channel is idle after the last descriptor, or after Run was cleared.
    pub(crate) const ENDS: u32 = STOPPED | (1 << 6);
    pub(crate) const ERRORS: u32 = 0x00ff_fe38;
}

/// Bits of the performance monitor: run from a start of the channel to its end.
pub(crate) const MONITOR: u32 = 0b111;
