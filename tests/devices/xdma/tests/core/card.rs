// SPDX-License-Identifier: MIT OR Apache-2.0
//! The card, and the host's memory with some content.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use vfio_user_device::testing::{wait_until, Memory};
use vfio_user_device::Function;
use xdma::{Options, Xdma};

/// Offsets of the first channels.
pub(crate) const H2C: u64 = 0x0000;
pub(crate) const C2H: u64 = 0x1000;
/// Where host memory has content.
pub(crate) const HOST: u64 = 0x4_0000;
/// Where descriptors are.
const LIST: u64 = 0x1_0000;
/// Descriptors: stop, and count as completed.
pub(crate) const DONE: u32 = 3;
/// The control register: run; with the logging of all bits; with poll mode.
pub(crate) const RUN: u32 = 1;
pub(crate) const LOG: u32 = 0x00ff_fe7f;
pub(crate) const POLL: u32 = 1 | (1 << 26);
/// The status register.
pub(crate) const BUSY: u32 = 1;

pub(crate) struct Card {
    pub(crate) card: Xdma,
    pub(crate) host: Arc<Memory>,
}

impl Card {
    pub(crate) fn new(options: Options) -> Self {
        let host = Arc::new(Memory::new(1 << 20, 32).unwrap());
        let card = Xdma::start(Arc::<Memory>::clone(&host), options).unwrap();
        let content: Vec<u8> = (0..0x2_0000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        host.bytes.write(HOST, &content).unwrap();
        Self { card, host }
    }

    pub(crate) fn read(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.card.read(1, at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn write(&self, at: u64, value: u32) {
        self.card.write(1, at, &value.to_le_bytes());
    }

    /// Writes a register of the design.
    pub(crate) fn board(&self, at: u64, value: u32) {
        self.card.write(0, at, &value.to_le_bytes());
    }

    /// The number of accesses that the manual forbids.
    pub(crate) fn forbidden(&self) -> u32 {
        let mut bytes = [0; 4];
        self.card.read(0, 0x0c, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn memory(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        self.host.bytes.read(at, &mut content).unwrap();
        content
    }

    pub(crate) fn word(&self, at: u64) -> u32 {
        let bytes = self.memory(at, 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    pub(crate) fn interrupts(&self, vector: usize) -> u64 {
        self.host.vectors[vector].load(Ordering::SeqCst)
    }

    /// Writes a descriptor, whose next one is at another place.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn describe(
        &self,
        place: u64,
        control: u32,
        source: u64,
        target: u64,
        bytes: u32,
        next: u64,
        adjacent: u64,
    ) {
        let first = 0xad4b_0000 | ((adjacent as u32) << 8) | control;
        let words = [first, bytes].map(u32::to_le_bytes).concat();
        let next = LIST + 32 * next;
        let longs = [source, target, next].map(u64::to_le_bytes).concat();
        let bytes = [words, longs].concat();
        self.host.bytes.write(LIST + 32 * place, &bytes).unwrap();
    }

    /// Starts a channel with the list that begins at place 0.
    pub(crate) fn start(&self, channel: u64, adjacent: u32, control: u32) {
        self.start_at(channel, 0, adjacent, control);
    }

    pub(crate) fn start_at(&self, channel: u64, place: u32, adjacent: u32, control: u32) {
        let sgdma = channel + 0x4000;
        self.write(sgdma + 0x80, LIST as u32 + 32 * place);
        self.write(sgdma + 0x84, 0);
        self.write(sgdma + 0x88, adjacent);
        self.write(channel + 0x04, 0);
        self.write(channel + 0x04, control | RUN);
    }

    pub(crate) fn idle(&self, channel: u64) {
        wait_until("the end", || self.read(channel + 0x40) & BUSY == 0);
    }

    /// Executes one descriptor.
    pub(crate) fn copy(&self, channel: u64, source: u64, target: u64, bytes: u32, control: u32) {
        self.describe(0, DONE, source, target, bytes, 0, 0);
        self.start(channel, 0, control);
        self.idle(channel);
    }
}
