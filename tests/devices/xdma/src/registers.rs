// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses and bits of the registers, as PG195 lays them out ("Register Space").

/// The part of the core that an address belongs to: its bits 15 to 12.
pub(crate) mod target {
    pub(crate) const H2C: u64 = 0;
    pub(crate) const C2H: u64 = 1;
    pub(crate) const IRQ: u64 = 2;
    pub(crate) const CONFIG: u64 = 3;
    pub(crate) const H2C_SGDMA: u64 = 4;
    pub(crate) const C2H_SGDMA: u64 = 5;
    pub(crate) const SGDMA_COMMON: u64 = 6;
}

/// Where the MSI-X table and the pending bits are.
pub(crate) const MSIX_TABLE: u32 = 0x8000;
pub(crate) const MSIX_PENDING: u32 = 0x8fe0;

/// The upper bits of all identifiers, and the version in the lower ones: 2017.1 and later.
pub(crate) const IDENTIFIER: u32 = 0x1fc0_0006;

pub(crate) mod channel {
    pub(crate) const CONTROL: u64 = 0x04;
    pub(crate) const CONTROL_SET: u64 = 0x08;
    pub(crate) const CONTROL_CLEAR: u64 = 0x0c;
    pub(crate) const STATUS: u64 = 0x40;
    pub(crate) const STATUS_READ_CLEAR: u64 = 0x44;
    pub(crate) const COMPLETED: u64 = 0x48;
    pub(crate) const ALIGNMENTS: u64 = 0x4c;
    pub(crate) const WRITE_BACK: u64 = 0x88;
    pub(crate) const WRITE_BACK_HIGH: u64 = 0x8c;
    pub(crate) const MASK: u64 = 0x90;
    pub(crate) const MASK_SET: u64 = 0x94;
    pub(crate) const MASK_CLEAR: u64 = 0x98;
    pub(crate) const MONITOR: u64 = 0xc0;
    pub(crate) const CYCLES: u64 = 0xc4;
    pub(crate) const CYCLES_HIGH: u64 = 0xc8;
    pub(crate) const BEATS: u64 = 0xcc;
    pub(crate) const BEATS_HIGH: u64 = 0xd0;
}

/// Bits of a channel's control register. Those that enable the logging of a bit of the status are
/// where that bit is.
pub(crate) mod control {
    pub(crate) const RUN: u32 = 1;
    pub(crate) const NON_INCREMENTING: u32 = 1 << 25;
    pub(crate) const POLL_WRITE_BACK: u32 = 1 << 26;
    pub(crate) const NO_STREAM_WRITE_BACK: u32 = 1 << 27;
    pub(crate) const KNOWN: u32 = 0x0eff_fe7f;
}

/// Bits of a channel's status register.
pub(crate) mod status {
    pub(crate) const BUSY: u32 = 1;
    pub(crate) const STOPPED: u32 = 1 << 1;
    pub(crate) const COMPLETED: u32 = 1 << 2;
    pub(crate) const ALIGN_MISMATCH: u32 = 1 << 3;
    pub(crate) const MAGIC_STOPPED: u32 = 1 << 4;
    pub(crate) const INVALID_LENGTH: u32 = 1 << 5;
    pub(crate) const IDLE_STOPPED: u32 = 1 << 6;
    /// H2C: the host refuses a read.
    pub(crate) const READ_UNSUPPORTED: u32 = 1 << 9;
    /// C2H: the AXI side has nothing at an address, or answers with an error.
    pub(crate) const READ_DECODE: u32 = 1 << 9;
    pub(crate) const READ_SLAVE: u32 = 1 << 10;
    /// H2C: the same.
    pub(crate) const WRITE_DECODE: u32 = 1 << 14;
    pub(crate) const WRITE_SLAVE: u32 = 1 << 15;
    /// The host refuses to be asked for a descriptor.
    pub(crate) const DESCRIPTOR_UNSUPPORTED: u32 = 1 << 19;
    pub(crate) const ERRORS: u32 = 0x00ff_fe38;
}

/// Bits of the performance monitor's control register.
pub(crate) mod monitor {
    pub(crate) const RUN: u32 = 1;
    pub(crate) const CLEAR: u32 = 1 << 1;
    pub(crate) const AUTO: u32 = 1 << 2;
}

pub(crate) mod irq {
    pub(crate) const USER_ENABLE: u64 = 0x04;
    pub(crate) const USER_ENABLE_SET: u64 = 0x08;
    pub(crate) const USER_ENABLE_CLEAR: u64 = 0x0c;
    pub(crate) const CHANNEL_ENABLE: u64 = 0x10;
    pub(crate) const CHANNEL_ENABLE_SET: u64 = 0x14;
    pub(crate) const CHANNEL_ENABLE_CLEAR: u64 = 0x18;
    pub(crate) const USER_REQUEST: u64 = 0x40;
    pub(crate) const CHANNEL_REQUEST: u64 = 0x44;
    pub(crate) const USER_PENDING: u64 = 0x48;
    pub(crate) const CHANNEL_PENDING: u64 = 0x4c;
    pub(crate) const USER_VECTORS: u64 = 0x80;
    pub(crate) const USER_VECTORS_LAST: u64 = 0x8c;
    pub(crate) const CHANNEL_VECTORS: u64 = 0xa0;
    pub(crate) const CHANNEL_VECTORS_LAST: u64 = 0xa4;
}

pub(crate) mod sgdma {
    pub(crate) const DESCRIPTOR: u64 = 0x80;
    pub(crate) const DESCRIPTOR_HIGH: u64 = 0x84;
    pub(crate) const ADJACENT: u64 = 0x88;
    pub(crate) const CREDITS: u64 = 0x8c;
    pub(crate) const MAX_ADJACENT: u32 = 0x3f;
    pub(crate) const MAX_CREDITS: u32 = 0x3ff;
}

/// Registers that all SGDMA channels share: a bit for each H2C channel, and from 16 on for C2H.
pub(crate) mod common {
    pub(crate) const HALT: u64 = 0x10;
    pub(crate) const HALT_SET: u64 = 0x14;
    pub(crate) const HALT_CLEAR: u64 = 0x18;
    pub(crate) const CREDIT_MODE: u64 = 0x20;
    pub(crate) const CREDIT_MODE_SET: u64 = 0x24;
    pub(crate) const CREDIT_MODE_CLEAR: u64 = 0x28;
    pub(crate) const CHANNELS: u32 = 0x000f_000f;
}

/// Registers of the design behind the core, in the user BAR; they are this model's own.
pub(crate) mod board {
    pub(crate) const MAGIC: u64 = 0x00;
    pub(crate) const SCRATCH: u64 = 0x04;
    pub(crate) const INTERRUPTS: u64 = 0x08;
    pub(crate) const FORBIDDEN: u64 = 0x0c;
    pub(crate) const BEHAVIOUR: u64 = 0x10;
    pub(crate) const MEMORY_SIZE: u64 = 0x14;
    pub(crate) const MAGIC_VALUE: u32 = 0x5844_4d41;
}
