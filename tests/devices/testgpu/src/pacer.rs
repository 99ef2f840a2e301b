// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of an engine while it works: the bus model, the time limit, and resets.

use crate::fault::{Fault, Reason};
use crate::hardware::Hardware;
use crate::link::{Direction, Link};
use crate::regs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Size limit of a single access, in bytes.
pub const CHUNK: usize = 32 << 10;
/// Waits shorter than this are busy waits.
const SPIN: Duration = Duration::from_micros(60);
/// How far accesses may run ahead of the time that the bus model gives them.
const AHEAD: Duration = Duration::from_micros(300);
/// How often a long wait checks whether it is still wanted.
const SLICE: Duration = Duration::from_millis(2);

/// Reason for which a packet or a copy ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A fault, an error, or the time limit.
    Fault(Fault),
    /// A reset of the engine.
    Abandoned,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Stop::Fault(Fault::error(reason))
    }
}

/// Pace of an engine, for one packet or one copy.
#[derive(Debug)]
pub struct Pacer<'a> {
    hardware: &'a Hardware,
    engine: usize,
    abandon: &'a AtomicBool,
    deadline: Instant,
    /// Earliest begin of the next access: its inputs are there and the link is free.
    due: Instant,
    /// Arrival of the last byte that was transferred, in the bus model.
    tail: Instant,
}

impl<'a> Pacer<'a> {
    /// Makes a pacer for work that begins now and may take `limit`, unless `abandon` becomes true.
    pub fn new(
        hardware: &'a Hardware,
        engine: usize,
        abandon: &'a AtomicBool,
        limit: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            hardware,
            engine,
            abandon,
            deadline: now + limit,
            due: now,
            tail: now,
        }
    }

    /// Checks that the work may go on, and waits if it is ahead of the bus model.
    pub fn check(&mut self) -> Result<(), Stop> {
        if self.due > Instant::now() + AHEAD {
            self.wait_until(self.due)?;
        }
        self.may_go_on()
    }

    fn may_go_on(&self) -> Result<(), Stop> {
        if self.abandon.load(Ordering::Relaxed) {
            return Err(Stop::Abandoned);
        }
        if Instant::now() > self.deadline {
            return Err(Reason::Timeout.into());
        }
        Ok(())
    }

    /// Waits until everything has been transferred in the bus model.
    pub fn settle(&mut self) -> Result<(), Stop> {
        self.wait_until(self.due.max(self.tail))
    }

    /// Waits, and returns early if the work may not go on.
    pub fn wait_until(&self, time: Instant) -> Result<(), Stop> {
        loop {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.may_go_on()?;
            if left > SPIN {
                std::thread::sleep((left - SPIN).min(SLICE));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits without counting the time as run time.
    pub fn delay(&mut self, time: Duration) -> Result<(), Stop> {
        self.deadline += time;
        self.wait_until(Instant::now() + time)
    }

    /// Spends the latency of an access to host memory or VRAM.
    pub fn latency(&mut self, host: bool) {
        let latency = self.link(host).latency();
        // Reading the clock takes longer than reading an entry of a page table in VRAM.
        if !latency.is_zero() {
            self.due = self.due.max(Instant::now()) + latency;
        }
    }

    /// Returns the number of the engine.
    pub fn engine(&self) -> usize {
        self.engine
    }

    /// Spends the time that instructions take.
    pub fn spend(&mut self, time: Duration) {
        self.due = self.due.max(Instant::now()) + time;
    }

    /// Reserves the link for bytes that are no operand. Returns when the last one is through.
    pub fn reserve(&mut self, host: bool, direction: Direction, bytes: u64) -> Option<Instant> {
        let through = self.link(host).transfer(direction, bytes)?;
        self.due = self.due.max(through);
        Some(through)
    }

    /// Reserves the link for bytes of an operand, and counts them.
    pub fn transfer(&mut self, host: bool, direction: Direction, bytes: u64) {
        let counter = match (direction, host) {
            (Direction::Write, true) => regs::ENGINE_HOST_WRITTEN,
            (Direction::Write, false) => regs::ENGINE_VRAM_WRITTEN,
            (Direction::Read, true) => regs::ENGINE_HOST_READ,
            (Direction::Read, false) => regs::ENGINE_VRAM_READ,
        };
        let counters = &self.hardware.counters;
        counters.add_engine(self.engine, counter, bytes);
        if let Some(through) = self.reserve(host, direction, bytes) {
            self.tail = self.tail.max(through + self.link(host).latency());
        }
    }

    fn link(&self, host: bool) -> &'a Link {
        if host {
            &self.hardware.link
        } else {
            &self.hardware.vram_link
        }
    }
}
