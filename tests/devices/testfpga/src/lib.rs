// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test FPGA: a ring of descriptors, a thread that executes them, an interrupt. `FPGA.md` is
//! its manual.

#![forbid(unsafe_code)]

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use vfio_user_device::{answer, number, Bar, Bus, Function, Identity, Refused};

const BAR0_SIZE: u64 = 4096;

const MAGIC: u64 = 0x00;
const STATUS: u64 = 0x04;
const HEAD: u64 = 0x08;
const RING_BASE: u64 = 0x10;
const RING_BASE_HIGH: u64 = 0x14;
const RING_LENGTH: u64 = 0x18;
const TAIL: u64 = 0x1c;
const ACKNOWLEDGE: u64 = 0x20;
const CONTROL: u64 = 0x24;

const MAGIC_VALUE: u32 = 0x514b_4b41;
const MAX_LENGTH: u32 = 65536;
const RUN: u32 = 1;
const STATUS_RUNS: u32 = 1;
const STATUS_ERROR: u32 = 2;

const DESCRIPTOR_SIZE: u64 = 32;
const DESCRIPTOR_STATUS: u64 = 24;
const INTERRUPT: u32 = 1;

/// Address bits that the device drives.
const ADDRESS: u64 = (1 << 40) - 1;

/// Bytes of one access.
const PIECE: usize = 4096;

/// The registers, and what the engine does.
#[derive(Debug, Default)]
struct State {
    base: u64,
    length: u32,
    head: u32,
    tail: u32,
    control: u32,
    /// The ring could not be read or written.
    error: bool,
    /// The engine executes a descriptor.
    executes: bool,
    /// A message was sent and not acknowledged.
    interrupted: bool,
    /// Number of resets: what began before the last one has no effect on registers.
    resets: u64,
    closed: bool,
}

impl State {
    fn runs(&self) -> bool {
        self.control & RUN != 0 && !self.error
    }

    fn status(&self) -> u32 {
        let bit = |set, bit| if set { bit } else { 0 };
        bit(self.runs() || self.executes, STATUS_RUNS) | bit(self.error, STATUS_ERROR)
    }

    fn tail(&self) -> u32 {
        self.tail.checked_rem(self.length).unwrap_or(0)
    }

    /// The place that is to be executed, if there is one.
    fn next(&self) -> Option<u32> {
        (self.runs() && self.head != self.tail()).then_some(self.head)
    }
}

/// The device. Dropping it ends its thread.
#[derive(Debug)]
pub struct Fpga {
    shared: Arc<Shared>,
    engine: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bus: Arc<dyn Bus>,
    state: Mutex<State>,
    /// There may be something to do.
    changed: Condvar,
}

impl Fpga {
    /// Makes a device on a bus, and starts its engine.
    pub fn start(bus: Arc<dyn Bus>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            bus,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("fpga".into());
        let engine = Arc::clone(&shared);
        let engine = Some(thread.spawn(move || engine.run())?);
        Ok(Self { shared, engine })
    }

    fn write_register(&self, offset: u64, bytes: usize, value: u64) {
        let mut state = self.shared.lock();
        let word = value as u32;
        let is_idle = state.status() & STATUS_RUNS == 0;
        match (offset, bytes) {
            (RING_BASE, 8) if is_idle => state.base = value,
            (RING_BASE, 4) if is_idle => state.base = state.base & !0xffff_ffff | value,
            (RING_BASE_HIGH, 4) if is_idle => {
                state.base = state.base & 0xffff_ffff | (value << 32);
            }
            (RING_LENGTH, 4) if is_idle => state.length = word.min(MAX_LENGTH),
            (TAIL, 4) => state.tail = word,
            (ACKNOWLEDGE, 4) => state.interrupted = false,
            (CONTROL, 4) => {
                let starts = word & !state.control & RUN != 0;
                if starts && is_idle {
                    (state.head, state.tail, state.error) = (0, 0, false);
                }
                state.control = word & RUN;
            }
            _ => {}
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    fn read_register(&self, offset: u64, bytes: usize) -> u64 {
        let state = self.shared.lock();
        match (offset, bytes) {
            (MAGIC, 4) => MAGIC_VALUE.into(),
            (STATUS, 4) => state.status().into(),
            (HEAD, 4) => state.head.into(),
            (RING_BASE, 8) => state.base,
            (RING_BASE, 4) => state.base & 0xffff_ffff,
            (RING_BASE_HIGH, 4) => state.base >> 32,
            (RING_LENGTH, 4) => state.length.into(),
            (TAIL, 4) => state.tail.into(),
            (CONTROL, 4) => state.control.into(),
            _ => u64::MAX,
        }
    }
}

impl Drop for Fpga {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(engine) = self.engine.take() {
            // The thread's panic has been printed already.
            let _ = engine.join();
        }
    }
}

impl Function for Fpga {
    fn identity(&self) -> Identity {
        Identity {
            vendor: 0x10ee,
            device: 0xbeef,
            subsystem_vendor: 0x10ee,
            subsystem: 1,
            class: 0x12_0000, // a processing accelerator
            revision: 1,
            vectors: 1,
        }
    }

    fn bar(&self, number: u32) -> Bar<'_> {
        match number {
            0 => Bar::registers(BAR0_SIZE),
            _ => Bar::default(),
        }
    }

    fn read(&self, _: u32, offset: u64, to: &mut [u8]) {
        answer(to, self.read_register(offset, to.len()));
    }

    fn write(&self, _: u32, offset: u64, from: &[u8]) {
        self.write_register(offset, from.len(), number(from));
    }

    fn reset(&self) {
        let mut state = self.shared.lock();
        *state = State {
            executes: state.executes,
            resets: state.resets + 1,
            closed: state.closed,
            ..State::default()
        };
    }
}

/// A descriptor.
struct Descriptor {
    source: u64,
    target: u64,
    bytes: u32,
    flags: u32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine: executes descriptors until the device is closed.
    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some(place) = state.next() else {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.executes = true;
            let (base, resets) = (state.base, state.resets);
            drop(state);
            let done = self.execute(base.wrapping_add(u64::from(place) * DESCRIPTOR_SIZE));
            state = self.lock();
            state.executes = false;
            if state.resets != resets {
                continue;
            }
            match done {
                Err(Refused) => state.error = true,
                Ok(interrupts) => {
                    state.head = (place + 1).checked_rem(state.length).unwrap_or(0);
                    if interrupts && !state.interrupted {
                        state.interrupted = true;
                        self.bus.interrupt(0);
                    }
                }
            }
        }
    }

    /// Executes the descriptor at an address, and returns whether it asks for the interrupt. An
    /// error is one of the ring.
    fn execute(&self, at: u64) -> Result<bool, Refused> {
        let mut bytes = [0; DESCRIPTOR_SIZE as usize];
        self.bus.read(at & ADDRESS, &mut bytes)?;
        let descriptor = Descriptor {
            source: number(&bytes[..8]),
            target: number(&bytes[8..16]),
            bytes: number(&bytes[16..20]) as u32,
            flags: number(&bytes[20..24]) as u32,
        };
        let status: u32 = self.copy(&descriptor);
        let to = at.wrapping_add(DESCRIPTOR_STATUS) & ADDRESS;
        self.bus.write(to, &status.to_le_bytes())?;
        Ok(descriptor.flags & INTERRUPT != 0)
    }

    /// Copies, and returns the status.
    fn copy(&self, descriptor: &Descriptor) -> u32 {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while done < descriptor.bytes {
            let count = (descriptor.bytes - done).min(PIECE as u32);
            let piece = &mut piece[..count as usize];
            let source = descriptor.source.wrapping_add(done.into()) & ADDRESS;
            if self.bus.read(source, piece).is_err() {
                return 2;
            }
            let target = descriptor.target.wrapping_add(done.into()) & ADDRESS;
            if self.bus.write(target, piece).is_err() {
                return 3;
            }
            done += count;
        }
        1
    }
}
