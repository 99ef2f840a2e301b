// SPDX-License-Identifier: MIT OR Apache-2.0
//! A complete driver in user space for QEMU's device `edu`: a template for your own device.
//!
//! The driver shows how to name registers, how to wait for an interrupt with a deadline, how `&mut
//! self` makes sure of one operation at a time, and how the device reads and writes memory of the
//! program. QEMU's `docs/specs/edu.rst` describes `edu`; the names and numbers below are from
//! there.

use std::fmt;
use std::time::{Duration, Instant};

use pinmap::{Bar, Device, ErrorKind, Interrupt};

/// Registers, by their offset in BAR 0. Below 0x80 they are 4 bytes wide, from there on 8.
mod register {
    /// Read: the version, as 0xRRrr00ed (major, minor).
    pub(super) const IDENTIFICATION: usize = 0x00;
    /// Read: the complement of what was written.
    pub(super) const LIVENESS: usize = 0x04;
    /// Written: a number. Read, when done: its factorial.
    pub(super) const FACTORIAL: usize = 0x08;
    /// The bits in `status`.
    pub(super) const STATUS: usize = 0x20;
    /// Read: the reasons for interrupts that are not acknowledged, as bits in `reason`.
    pub(super) const INTERRUPT_STATUS: usize = 0x24;
    /// Written: the reasons to acknowledge.
    pub(super) const INTERRUPT_ACKNOWLEDGE: usize = 0x64;
    /// The address to copy from.
    pub(super) const DMA_SOURCE: usize = 0x80;
    /// The address to copy to.
    pub(super) const DMA_DESTINATION: usize = 0x88;
    /// The number of bytes to copy.
    pub(super) const DMA_COUNT: usize = 0x90;
    /// The bits in `command`.
    pub(super) const DMA_COMMAND: usize = 0x98;
}

/// Bits of the status register.
mod status {
    /// Interrupt when the factorial is computed.
    pub(super) const INTERRUPT: u32 = 0x80;
}

/// Bits of the DMA command register.
mod command {
    /// Start copying. The device clears the bit when done.
    pub(super) const START: u64 = 0x1;
    /// Copy from the device to memory; without it, from memory to the device.
    pub(super) const TO_MEMORY: u64 = 0x2;
    /// Interrupt when done.
    pub(super) const INTERRUPT: u64 = 0x4;
}

/// Reasons for an interrupt.
mod reason {
    /// The factorial is computed.
    pub(super) const FACTORIAL: u32 = 0x001;
    /// The DMA is done.
    pub(super) const DMA: u32 = 0x100;
}

/// The lowest 16 bits of the identification register.
const IDENTITY: u32 = 0x00ed;
/// Address of the device's own memory for its DMA engine.
const MEMORY: u64 = 0x4_0000;
/// How long an operation may take. A transfer takes 0.1 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error of the driver.
#[derive(Debug)]
pub enum Error {
    /// An error of the crate pinmap.
    Pinmap(pinmap::Error),
    /// There is no `edu` that is bound to pinmap.
    None,
    /// The device identifies itself with this number, which is not that of an `edu`.
    Identification(u32),
    /// The device answered with the first number instead of the second.
    Liveness(u32, u32),
    /// The named operation was not done in time.
    Timeout(&'static str),
    /// The offset and the length are not inside the device's memory.
    Range(usize, usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinmap(error) => error.fmt(f),
            Self::None => f.write_str(
                "there is no `edu` (1234:11e8) bound to pinmap; start QEMU with \
                 `-device edu,dma_mask=0xffffffffffffffff` and \
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

/// An `edu`, owned by this program.
#[derive(Debug)]
pub struct Edu {
    device: Device,
    registers: Bar,
    interrupt: Interrupt,
}

impl Edu {
    /// PCI vendor and device id.
    pub const ID: (u16, u16) = (0x1234, 0x11e8);
    /// Length of the device's memory in bytes, and so of the longest transfer.
    pub const MEMORY_LEN: usize = 4096;

    /// Opens the first `edu` that is bound to pinmap.
    ///
    /// # Errors
    ///
    /// [`Error::None`], or the error of opening the first one.
    pub fn find() -> Result<Device, Error> {
        if !Device::list()?.iter().any(|node| node.id == Self::ID) {
            return Err(Error::None);
        }
        let (vendor, device) = Self::ID;
        Ok(Device::find(vendor, device)?)
    }

    /// Takes over a device, and checks that it is an `edu` that works.
    ///
    /// # Errors
    ///
    /// The device is owned by another context, is no `edu`, or does not work.
    pub fn new(device: Device) -> Result<Self, Error> {
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
        // An earlier owner may have left interrupts.
        edu.acknowledge()?;
        edu.interrupt.try_wait()?;
        Ok(edu)
    }

    /// The open device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Reads the major and the minor version.
    ///
    /// # Errors
    ///
    /// None, once the registers are mapped.
    pub fn version(&self) -> Result<(u8, u8), Error> {
        let [major, minor, ..] = self.identification()?.to_be_bytes();
        Ok((major, minor))
    }

    fn identification(&self) -> Result<u32, Error> {
        Ok(self.registers.read(register::IDENTIFICATION)?)
    }

    /// Has the device compute the factorial of a number, modulo 2³².
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], or the device is gone.
    pub fn factorial(&mut self, number: u32) -> Result<u32, Error> {
        self.registers.write(register::STATUS, status::INTERRUPT)?;
        self.registers.write(register::FACTORIAL, number)?;
        self.wait(reason::FACTORIAL, "the factorial")?;
        Ok(self.registers.read(register::FACTORIAL)?)
    }

    /// Has the device read `len` bytes of memory at a device address into its own memory, from byte
    /// `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], [`Error::Timeout`], or the device is gone.
    pub fn fetch(&mut self, from: u64, offset: usize, len: usize) -> Result<(), Error> {
        let to = own_memory(offset, len)?;
        self.transfer(from, to, len, 0)
    }

    /// Has the device write `len` bytes of its own memory, from byte `offset` on, to memory at a
    /// device address.
    ///
    /// # Errors
    ///
    /// As for [`fetch`](Self::fetch).
    pub fn store(&mut self, to: u64, offset: usize, len: usize) -> Result<(), Error> {
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

    /// Waits for an interrupt with this reason.
    fn wait(&self, reason: u32, what: &'static str) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        // One interrupt may stand for several reasons, and one reason may be seen with the
        // interrupt of another.
        loop {
            let reasons = self.acknowledge()?;
            if reasons & reason != 0 {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // Many devices interrupt only for the first of the reasons, until all are acknowledged.
            // That write is posted, and the read of the next turn makes it arrive. So the program
            // waits only when a read has found that nothing was left.
            if reasons != 0 && !left.is_zero() {
                continue;
            }
            match self.interrupt.wait_timeout(left) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(Error::Timeout(what));
                }
                waited => waited.map(drop)?,
            }
        }
    }

    /// Acknowledges all reasons for the interrupt, and returns them.
    fn acknowledge(&self) -> Result<u32, Error> {
        let reasons: u32 = self.registers.read(register::INTERRUPT_STATUS)?;
        self.registers
            .write(register::INTERRUPT_ACKNOWLEDGE, reasons)?;
        Ok(reasons)
    }
}

/// The address of a part of the device's own memory for its DMA engine.
fn own_memory(offset: usize, len: usize) -> Result<u64, Error> {
    // Behind it lies memory of QEMU, and not every QEMU checks that.
    match offset.checked_add(len) {
        Some(end) if end <= Edu::MEMORY_LEN => Ok(MEMORY + offset as u64),
        _ => Err(Error::Range(offset, len)),
    }
}
