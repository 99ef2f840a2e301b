// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resources that the engines share: memory, the links to it, and counters.

use crate::counter::Counters;
use crate::fault::Reason;
use crate::link::{Link, Speed};
use crate::mmu::Mmu;
use crate::regs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use vfio_user_device::{memory_file, zero, Bus, Mapping, Page, Refused, Side};

/// The lowest `PROGRAM_RATE` but 0.
pub const SLOWEST_PROGRAM: u64 = 1000;

/// Properties that are chosen when the device is made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of VRAM: a power of two, at least 1 MiB.
    pub vram: u64,
    /// Speed of host memory.
    pub link: Speed,
    /// Speed of VRAM.
    pub vram_link: Speed,
    /// Whether it says that it is integrated: its memory is a part of the host's.
    pub integrated: bool,
    /// Whether it executes programs.
    pub programs: bool,
    /// Instructions of a program per second; 0: no limit.
    pub program_rate: u64,
    /// Whether `INV_DONE` and `PAGING_DONE` are answered when there is nothing left to wait for.
    pub prompt: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            vram: 256 << 20,
            link: Speed {
                bandwidth: 1_000_000_000,
                latency: 1000,
            },
            vram_link: Speed {
                bandwidth: 0,
                latency: 0,
            },
            integrated: false,
            programs: true,
            program_rate: 0,
            prompt: false,
        }
    }
}

/// Memory, buses, MMU, counters.
#[derive(Debug)]
pub struct Hardware {
    settings: Settings,
    /// VRAM.
    pub vram: Arc<Mapping>,
    vram_file: OwnedFd,
    bus: Arc<dyn Bus>,
    /// Accesses by messages before the last function-level reset.
    messages_before: AtomicU64,
    /// Held during an atomic access to host memory.
    host_atomics: Mutex<()>,
    master: AtomicBool,
    /// Link to host memory.
    pub link: Link,
    /// Link to VRAM.
    pub vram_link: Link,
    program_rate: AtomicU64,
    /// The counters.
    pub counters: Counters,
    /// The MMU.
    pub mmu: Mmu,
    start: Instant,
}

impl Hardware {
    /// Makes the hardware, with VRAM full of zeros.
    pub fn new(settings: Settings, bus: Arc<dyn Bus>) -> io::Result<Self> {
        let vram_file = memory_file(c"vram", settings.vram)?;
        Ok(Self {
            settings,
            vram: Arc::new(Mapping::new(&vram_file, settings.vram)?),
            vram_file,
            bus,
            messages_before: AtomicU64::new(0),
            host_atomics: Mutex::default(),
            master: AtomicBool::new(false),
            link: Link::new(settings.link),
            vram_link: Link::new(settings.vram_link),
            program_rate: AtomicU64::new(settings.program_rate),
            counters: Counters::default(),
            mmu: Mmu::default(),
            start: Instant::now(),
        })
    }

    /// Returns the file behind VRAM, for others to map.
    pub fn vram_file(&self) -> BorrowedFd<'_> {
        self.vram_file.as_fd()
    }

    /// Returns the settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns `TIME`.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the host. Use the methods here for accesses to its memory: they respect Bus Master.
    pub fn bus(&self) -> &dyn Bus {
        &*self.bus
    }

    /// Whether Bus Master is on.
    pub fn is_master(&self) -> bool {
        self.master.load(Ordering::SeqCst)
    }

    /// Returns `MESSAGE_ACCESSES`.
    pub fn messages(&self) -> u64 {
        self.bus.counts().messages - self.messages_before.load(Ordering::SeqCst)
    }

    /// Turns Bus Master on or off.
    pub fn set_master(&self, on: bool) {
        self.master.store(on, Ordering::SeqCst);
    }

    /// Reads bytes of host memory or VRAM.
    pub fn read(&self, host: bool, address: u64, to: &mut [u8]) -> Result<(), Reason> {
        if !host {
            return self.vram.read(address, to).ok_or(Reason::VramRange);
        }
        self.host(|bus| bus.read(address, to))
    }

    /// Writes bytes of host memory or VRAM.
    pub fn write(&self, host: bool, address: u64, from: &[u8]) -> Result<(), Reason> {
        if !host {
            return self.vram.write(address, from).ok_or(Reason::VramRange);
        }
        self.host(|bus| bus.write(address, from))
    }

    /// Copies up to `bytes` between host memory (true) and VRAM (false) directly, and returns how
    /// many. 0 means that it takes a read and a write, which may return an error.
    pub fn copy(&self, from: (bool, u64), to: (bool, u64), bytes: usize) -> usize {
        let side = |(host, address)| match host {
            true => Side::Host(address),
            false => Side::Device(&self.vram, address),
        };
        match (side(from), side(to)) {
            (Side::Device(_, from), Side::Device(_, to)) => self
                .vram
                .copy(from, &self.vram, to, bytes)
                .map_or(0, |()| bytes),
            (from, to) if self.is_master() => self.bus().copy(from, to, bytes),
            _ => 0,
        }
    }

    /// Reads 8 bytes in one access.
    pub fn load(&self, host: bool, address: u64) -> Result<u64, Reason> {
        if !host {
            return self.vram.load(address).ok_or(Reason::VramRange);
        }
        self.host(|bus| bus.load(address))
    }

    /// Writes 8 bytes in one access.
    pub fn store(&self, host: bool, address: u64, value: u64) -> Result<(), Reason> {
        if !host {
            return self.vram.store(address, value).ok_or(Reason::VramRange);
        }
        self.host(|bus| bus.store(address, value))
    }

    /// Replaces 4 or 8 aligned bytes by what `change` makes of them, and returns what they were.
    /// Nothing is written where it says `None`. In VRAM that is one access. In host memory it is a
    /// read and a write on the bus, between which the device makes no other such access.
    pub fn update(
        &self,
        (host, address): (bool, u64),
        bytes: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Reason> {
        if !host {
            let before = self.vram.update(address, bytes, change);
            return before.ok_or(Reason::VramRange);
        }
        let _alone = self
            .host_atomics
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut word = [0; 8];
        if bytes == 8 {
            word = self.load(true, address)?.to_le_bytes();
        } else {
            self.read(true, address, &mut word[..bytes])?;
        }
        let before = u64::from_le_bytes(word);
        match change(before) {
            Some(after) if bytes == 8 => self.store(true, address, after)?,
            Some(after) => self.write(true, address, &after.to_le_bytes()[..bytes])?,
            None => {}
        }
        Ok(before)
    }

    /// Makes the caller's atomic access to host memory the only one, unless there is another one
    /// now.
    pub fn try_host_atomics(&self) -> Option<MutexGuard<'_, ()>> {
        self.host_atomics.try_lock().ok()
    }

    /// Returns the page of 4096 bytes at an address, for direct accesses, and the generation of the
    /// bus for which that is right. `None` if it takes the other methods.
    pub fn page(&self, host: bool, address: u64, write: bool) -> Option<(Page, Option<u64>)> {
        if !host {
            return Some((self.vram.page(address)?, None));
        }
        if !self.is_master() {
            return None;
        }
        let (page, generation) = self.bus.page(address, write)?;
        Some((page, Some(generation)))
    }

    /// Returns `PROGRAM_RATE`.
    pub fn program_rate(&self) -> u64 {
        self.program_rate.load(Ordering::Relaxed)
    }

    /// Writes `PROGRAM_RATE`.
    pub fn set_program_rate(&self, rate: u64) {
        let rate = match rate {
            0 => 0,
            rate => rate.max(SLOWEST_PROGRAM),
        };
        self.program_rate.store(rate, Ordering::Relaxed);
    }

    fn host<T>(&self, access: impl FnOnce(&dyn Bus) -> Result<T, Refused>) -> Result<T, Reason> {
        let result = match self.is_master() {
            true => access(self.bus()),
            false => Err(Refused),
        };
        result.map_err(|Refused| {
            self.counters.add(regs::BUS_ERRORS, 1);
            Reason::Bus
        })
    }

    /// Does the part of a function-level reset that a device reset does not do.
    pub fn reset_function(&self) {
        self.counters.clear();
        let messages = self.bus.counts().messages;
        self.messages_before.store(messages, Ordering::SeqCst);
        self.link.set(self.settings.link);
        self.vram_link.set(self.settings.vram_link);
        self.set_program_rate(self.settings.program_rate);
        if let Err(error) = zero(&self.vram_file, self.settings.vram) {
            eprintln!("testgpu: VRAM cannot be cleared: {error}");
        }
    }
}
