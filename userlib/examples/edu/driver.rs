// SPDX-License-Identifier: MIT OR Apache-2.0
//! A complete driver for QEMU's device `edu`, in user space: a template for your own device.
//!
//! What it shows: registers by name, an interrupt for every wait and a deadline for it, one operation
//! at a time by `&mut self`, and memory of the caller that the device reads and writes itself.
//! `edu` is described in QEMU's `docs/specs/edu.rst`; the names and numbers below are from there.

use std::fmt;
use std::time::{Duration, Instant};

use pinmap::{Bar, Device, Interrupt};

/// Registers, by their offset in BAR 0. Below 0x80 they are 4 bytes wide, from there on 8.
mod register {
    /// Version (read): 0xRRrr00ed, major and minor.
    pub(crate) const IDENTIFICATION: usize = 0x00;
    /// Answers the complement of what was written.
    pub(crate) const LIVENESS: usize = 0x04;
    /// Takes a number; has its factorial later.
    pub(crate) const FACTORIAL: usize = 0x08;
    /// See `status`.
    pub(crate) const STATUS: usize = 0x20;
    /// Reasons for the interrupt that are not acknowledged (read): see `reason`.
    pub(crate) const INTERRUPT_STATUS: usize = 0x24;
    /// Acknowledges reasons (write).
    pub(crate) const INTERRUPT_ACKNOWLEDGE: usize = 0x64;
    /// Where to copy from.
    pub(crate) const DMA_SOURCE: usize = 0x80;
    /// Where to copy to.
    pub(crate) const DMA_DESTINATION: usize = 0x88;
    /// How many bytes.
    pub(crate) const DMA_COUNT: usize = 0x90;
    /// See `command`.
    pub(crate) const DMA_COMMAND: usize = 0x98;
}

/// Bits of the status register.
mod status {
    /// To interrupt when the factorial is there.
    pub(crate) const INTERRUPT: u32 = 0x80;
}

/// Bits of the DMA command register.
mod command {
    /// Go; cleared when done.
    pub(crate) const START: u64 = 0x1;
    /// From the device to memory; without it, from memory to the device.
    pub(crate) const TO_MEMORY: u64 = 0x2;
    /// Interrupt when done.
    pub(crate) const INTERRUPT: u64 = 0x4;
}

/// Reasons for the interrupt.
mod reason {
    /// The factorial is there.
    pub(crate) const FACTORIAL: u32 = 0x001;
    /// The DMA is done.
    pub(crate) const DMA: u32 = 0x100;
}

/// What the identification register ends with.
const IDENTITY: u32 = 0x00ed;
/// Where the device's own memory begins, among the addresses of its DMA engine.
const MEMORY: u64 = 0x4_0000;
/// How long the device may take. A transfer takes 0.1 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// What went wrong.
#[derive(Debug)]
pub(crate) enum Error {
    /// The driver pinmap could not do it.
    Pinmap(pinmap::Error),
    /// There is no such device, or it is bound to another driver.
    None,
    /// It does not identify itself as an `edu`, but with this number.
    Identification(u32),
    /// It does not answer as it should: this in place of that.
    Liveness(u32, u32),
    /// It did not finish in time.
    Timeout(&'static str),
    /// It has less memory of its own.
    Range(usize, usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinmap(error) => error.fmt(f),
            Self::None => f.write_str(
                "there is no `edu` (1234:11e8) bound to pinmap; start QEMU with `-device edu` and \
                 give the function to the driver with `pinmap bind BDF`",
            ),
            Self::Identification(got) => {
                write!(
                    f,
                    "the device is no `edu`: it identifies itself as {got:#010x}"
                )
            }
            Self::Liveness(got, expected) => {
                write!(
                    f,
                    "the device is not alive: it answers {got:#x} in place of {expected:#x}"
                )
            }
            Self::Timeout(what) => write!(f, "{what} was not done within {PATIENCE:?}"),
            Self::Range(offset, len) => {
                let memory = Edu::MEMORY_LEN;
                write!(
                    f,
                    "{len} bytes at {offset:#x} are not inside the device's {memory:#x} bytes"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<pinmap::Error> for Error {
    fn from(error: pinmap::Error) -> Self {
        Self::Pinmap(error)
    }
}

/// An `edu` that this program owns.
#[derive(Debug)]
pub(crate) struct Edu {
    device: Device,
    registers: Bar,
    interrupt: Interrupt,
}

impl Edu {
    /// PCI vendor and device id.
    pub(crate) const ID: (u16, u16) = (0x1234, 0x11e8);
    /// Bytes of memory that the device has, and so the most that one transfer can move.
    pub(crate) const MEMORY_LEN: usize = 4096;

    /// Opens the first `edu` there is.
    pub(crate) fn find() -> Result<Device, Error> {
        let mut result = Err(Error::None);
        for node in Device::list()? {
            match Device::open(&node.path) {
                Ok(device) if device.info()?.id == Self::ID => return Ok(device),
                Ok(_) => {}
                // Perhaps there is another one.
                Err(error) => result = Err(error.into()),
            }
        }
        result
    }

    /// Takes over the device, and checks that it is one and works.
    pub(crate) fn new(device: Device) -> Result<Self, Error> {
        let registers = device.bar(0)?;
        let interrupt = device.interrupt(0)?;
        let edu = Self {
            device,
            registers,
            interrupt,
        };

        let identification = edu.identification()?;
        if identification & 0xffff != IDENTITY {
            return Err(Error::Identification(identification));
        }
        let sent = 0x1234_5678;
        edu.registers.write(register::LIVENESS, sent)?;
        match edu.registers.read(register::LIVENESS)? {
            got if got == !sent => {}
            got => return Err(Error::Liveness(got, !sent)),
        }
        // Whoever had the device before may have left interrupts.
        edu.acknowledge()?;
        edu.interrupt.try_wait()?;
        Ok(edu)
    }

    /// The device that it drives.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Major and minor version.
    pub(crate) fn version(&self) -> Result<(u8, u8), Error> {
        let [major, minor, ..] = self.identification()?.to_be_bytes();
        Ok((major, minor))
    }

    fn identification(&self) -> Result<u32, Error> {
        Ok(self.registers.read(register::IDENTIFICATION)?)
    }

    /// The factorial of a number, modulo 2^32.
    pub(crate) fn factorial(&mut self, number: u32) -> Result<u32, Error> {
        self.registers.write(register::STATUS, status::INTERRUPT)?;
        self.registers.write(register::FACTORIAL, number)?;
        self.wait(reason::FACTORIAL, "the factorial")?;
        Ok(self.registers.read(register::FACTORIAL)?)
    }

    /// Has the device read `len` bytes of memory, from a device address on, into its own memory.
    pub(crate) fn fetch(&mut self, from: u64, offset: usize, len: usize) -> Result<(), Error> {
        let to = own_memory(offset, len)?;
        self.transfer(from, to, len, 0)
    }

    /// Has the device write `len` bytes of its own memory to memory, from a device address on.
    pub(crate) fn store(&mut self, to: u64, offset: usize, len: usize) -> Result<(), Error> {
        let from = own_memory(offset, len)?;
        self.transfer(from, to, len, command::TO_MEMORY)
    }

    fn transfer(&mut self, from: u64, to: u64, len: usize, direction: u64) -> Result<(), Error> {
        self.registers.write(register::DMA_SOURCE, from)?;
        self.registers.write(register::DMA_DESTINATION, to)?;
        self.registers.write(register::DMA_COUNT, len as u64)?;
        let go = command::START | command::INTERRUPT | direction;
        self.registers.write(register::DMA_COMMAND, go)?;
        self.wait(reason::DMA, "the transfer")
    }

    /// Waits for an interrupt for a certain reason.
    fn wait(&self, reason: u32, what: &'static str) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        // One interrupt may stand for several reasons, and one reason may be seen with the
        // interrupt of another.
        while self.acknowledge()? & reason == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.interrupt.wait(left)?.is_none() {
                return Err(Error::Timeout(what));
            }
        }
        Ok(())
    }

    /// Acknowledges all reasons for the interrupt, and returns them.
    fn acknowledge(&self) -> Result<u32, Error> {
        let reasons: u32 = self.registers.read(register::INTERRUPT_STATUS)?;
        self.registers
            .write(register::INTERRUPT_ACKNOWLEDGE, reasons)?;
        Ok(reasons)
    }
}

/// The DMA engine's address of a part of the device's own memory.
fn own_memory(offset: usize, len: usize) -> Result<u64, Error> {
    // Behind it there is QEMU's memory: to be checked here, for not every QEMU does.
    match offset.checked_add(len) {
        Some(end) if end <= Edu::MEMORY_LEN => Ok(MEMORY + offset as u64),
        _ => Err(Error::Range(offset, len)),
    }
}
