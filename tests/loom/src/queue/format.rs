// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets of one word, so that a model has few steps: a number, a marker, or an interrupt.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet(pub(crate) u64);

impl Packet {
    pub const LEN: usize = 8;

    pub fn words(&self) -> [u64; 1] {
        [self.0]
    }
}

pub trait PacketFormat: fmt::Debug + Send + Sync + 'static {
    fn fence_write(&self, addr: u64, value: u64) -> Packet;
    fn interrupt(&self) -> Packet;
}

/// Added to the number that a marker stores.
pub(crate) const MARKER: u64 = 1000;
pub(crate) const INTERRUPT: u64 = 2000;

#[derive(Debug)]
pub(crate) struct Format;

impl PacketFormat for Format {
    fn fence_write(&self, _addr: u64, value: u64) -> Packet {
        Packet(MARKER + value)
    }

    fn interrupt(&self) -> Packet {
        Packet(INTERRUPT)
    }
}
