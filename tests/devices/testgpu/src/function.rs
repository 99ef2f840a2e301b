// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI functions as the server sees them.

use crate::config::Identity;
use crate::device::Device;
use crate::regs;
use crate::state::Reset;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// Size of the BAR in which QEMU puts MSI-X's table and pending bits.
pub const MSIX_BAR_SIZE: u64 = 16 << 10;

const DOORBELLS_SIZE: u64 = regs::QUEUE_COUNT as u64 * regs::PAGE;

/// A BAR.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bar<'a> {
    /// Size in bytes; 0 if there is no such BAR.
    pub size: u64,
    /// The file that QEMU maps into the guest. Without one each access is a message.
    pub file: Option<BorrowedFd<'a>>,
}

impl Bar<'_> {
    /// Makes a BAR whose accesses are messages.
    pub fn messages(size: u64) -> Self {
        Self { size, file: None }
    }
}

/// A PCI function. The thread that handles the host's requests calls it, so no method waits for
/// DMA.
pub trait Function: Debug {
    /// Returns the identity that configuration space tells.
    fn identity(&self) -> &'static Identity;
    /// A BAR.
    fn bar(&self, number: u32) -> Bar<'_>;
    /// Reads from a BAR. `None` if the access has no answer.
    fn read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Option<()>;
    /// Writes to a BAR. `None` if the access has no answer.
    fn write(&self, bar: u32, offset: u64, from: &[u8]) -> Option<()>;
    /// Turns Bus Master on or off.
    fn set_master(&self, on: bool);
    /// Resets the function. Bus Master is off.
    fn reset(&self);
}

/// Returns the number in the first bytes of an access, at most eight.
pub fn number(from: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(from) {
        *to = *from;
    }
    u64::from_le_bytes(bytes)
}

/// Fills an access with a number. What is longer than a number is all ones.
pub fn answer(to: &mut [u8], number: u64) {
    let bytes = number.to_le_bytes();
    for (to, from) in to.iter_mut().zip(bytes.iter().chain(&[0xff; 8]).cycle()) {
        *to = *from;
    }
}

/// The test GPU.
impl Function for Device {
    fn identity(&self) -> &'static Identity {
        &Identity::TEST_GPU
    }

    fn bar(&self, number: u32) -> Bar<'_> {
        match number {
            0 => Bar::messages(regs::BAR0_SIZE),
            1 => Bar::messages(DOORBELLS_SIZE),
            2 => Bar {
                size: self.hardware().vram.size(),
                file: Some(self.hardware().vram_file()),
            },
            4 => Bar::messages(MSIX_BAR_SIZE),
            _ => Bar::default(),
        }
    }

    fn read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Option<()> {
        match bar {
            0 => answer(to, self.read_register(offset, to.len())),
            1 => self.read_doorbell(),
            2 => self.hardware().vram.read(offset, to)?,
            // QEMU has the MSI-X table itself.
            _ => {}
        }
        Some(())
    }

    fn write(&self, bar: u32, offset: u64, from: &[u8]) -> Option<()> {
        match bar {
            0 => self.write_register(offset, from.len(), number(from)),
            1 => self.write_doorbell(offset, from.len(), number(from)),
            2 => self.hardware().vram.write(offset, from)?,
            _ => {}
        }
        Some(())
    }

    fn set_master(&self, on: bool) {
        self.hardware().set_master(on);
    }

    fn reset(&self) {
        Device::reset(self, Reset::Function);
    }
}
