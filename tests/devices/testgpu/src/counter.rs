// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters (section 14 of the manual).

use crate::regs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GLOBAL: usize = ((regs::BUS_ERRORS - regs::TLB_HITS) / 8 + 1) as usize;
const PER_ENGINE: usize = (regs::ENGINE_BUSY_NS / 8 + 1) as usize;

/// The counters of the device itself, named by the offsets of their registers.
#[derive(Debug, Default)]
pub struct Counters {
    global: [AtomicU64; GLOBAL],
    engines: [[AtomicU64; PER_ENGINE]; regs::ENGINE_COUNT],
}

impl Counters {
    /// Adds to the counter with the register `offset`.
    pub fn add(&self, offset: u64, value: u64) {
        if let Some(counter) = self.global(offset) {
            counter.fetch_add(value, Relaxed);
        }
    }

    /// Adds to a counter of an engine; `offset` is its offset within the engine's registers.
    pub fn add_engine(&self, engine: usize, offset: u64, value: u64) {
        self.engines[engine][(offset / 8) as usize].fetch_add(value, Relaxed);
    }

    /// Reads the counter at an offset into BAR 0, if there is one.
    pub fn read(&self, offset: u64) -> Option<u64> {
        let counter = self.global(offset).or_else(|| {
            let offset = offset.checked_sub(regs::ENGINE)?;
            let engine = self.engines.get((offset / regs::ENGINE_STRIDE) as usize)?;
            engine.get((offset % regs::ENGINE_STRIDE / 8) as usize)
        })?;
        Some(counter.load(Relaxed))
    }

    /// Sets all counters to zero.
    pub fn clear(&self) {
        for counter in self.global.iter().chain(self.engines.iter().flatten()) {
            counter.store(0, Relaxed);
        }
    }

    fn global(&self, offset: u64) -> Option<&AtomicU64> {
        let offset = offset.checked_sub(regs::TLB_HITS)?;
        self.global.get((offset / 8) as usize)
    }
}
