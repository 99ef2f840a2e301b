// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bus that is a piece of memory.

use crate::{memory_file, Bus, Counts, Held, Mapping, Page, Refused, Side};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

const PAGE: u64 = 4096;

/// Host memory from bus address 0 on, all of which is mapped, and counts of interrupts. Tests can
/// refuse accesses, slow them down, and hold them back.
#[derive(Debug)]
pub struct Memory {
    /// The memory itself.
    pub bytes: Arc<Mapping>,
    /// Addresses of the pages of 4096 bytes that refuse accesses.
    pub refused: Mutex<HashSet<u64>>,
    /// Number of interrupts of each vector.
    pub vectors: Vec<AtomicU64>,
    /// Time that an access takes.
    pub slow: Mutex<Duration>,
    /// Holds accesses back while it is locked for writing.
    pub gate: RwLock<()>,
    /// Number of accesses that have come to the gate.
    pub at_gate: AtomicU64,
}

impl Memory {
    /// Makes memory of `size` zero bytes, for a device with so many vectors.
    pub fn new(size: u64, vectors: usize) -> io::Result<Self> {
        Ok(Self {
            bytes: Arc::new(Mapping::new(memory_file(c"host", size)?, size)?),
            refused: Mutex::default(),
            vectors: (0..vectors).map(|_| AtomicU64::default()).collect(),
            slow: Mutex::default(),
            gate: RwLock::default(),
            at_gate: AtomicU64::default(),
        })
    }

    fn check(&self, address: u64, bytes: u64) -> Result<(), Refused> {
        self.at_gate.fetch_add(1, Ordering::SeqCst);
        drop(self.gate.read().unwrap_or_else(PoisonError::into_inner));
        let slow = *self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if !slow.is_zero() {
            std::thread::sleep(slow);
        }
        let last = address
            .checked_add(bytes.saturating_sub(1))
            .ok_or(Refused)?;
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pages = address / PAGE..=last / PAGE;
        match pages.any(|page| refused.contains(&(page * PAGE))) {
            true => Err(Refused),
            false => Ok(()),
        }
    }
}

impl Bus for Memory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.check(address, to.len() as u64)?;
        self.bytes.read(address, to).ok_or(Refused)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.check(address, from.len() as u64)?;
        self.bytes.write(address, from).ok_or(Refused)
    }

    fn copy(&self, from: Side<'_>, to: Side<'_>, bytes: usize) -> usize {
        let end = |side| match side {
            Side::Host(address) if self.check(address, bytes as u64).is_ok() => {
                Some((&*self.bytes, address))
            }
            Side::Host(_) => None,
            Side::Device(memory, offset) => Some((memory, offset)),
        };
        match (end(from), end(to)) {
            (Some(from), Some(to)) => from.0.copy(from.1, to.0, to.1, bytes).map_or(0, |()| bytes),
            _ => 0,
        }
    }

    fn load(&self, address: u64) -> Result<u64, Refused> {
        self.check(address, 8)?;
        self.bytes.load(address).ok_or(Refused)
    }

    fn store(&self, address: u64, value: u64) -> Result<(), Refused> {
        self.check(address, 8)?;
        self.bytes.store(address, value).ok_or(Refused)
    }

    fn page(&self, address: u64, _: bool) -> Option<(Page, u64)> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let is_plain = refused.is_empty() && slow.is_zero();
        Some((self.bytes.page(address).filter(|_| is_plain)?, 0))
    }

    fn hold(&self) -> Held<'_> {
        Held {
            generation: 0,
            _guard: None,
        }
    }

    fn interrupt(&self, vector: usize) {
        if let Some(count) = self.vectors.get(vector) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn is_message(&self) -> bool {
        false
    }

    fn counts(&self) -> Counts {
        Counts {
            live: 1,
            mapped: 1,
            ..Counts::default()
        }
    }
}
