// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI functions as the server sees them.

use std::os::fd::BorrowedFd;

/// Identity of a function in its configuration space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    /// Vendor.
    pub vendor: u16,
    /// Device, a number of the vendor's.
    pub device: u16,
    /// Vendor of the subsystem.
    pub subsystem_vendor: u16,
    /// Subsystem, a number of its vendor's.
    pub subsystem: u16,
    /// Class code, of 24 bits: 0x120000 is a processing accelerator.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// MSI-X vectors, at most 512. [`Function::msix`] says where they are.
    pub vectors: usize,
}

/// Place of the MSI-X structures, which QEMU has. It answers all accesses to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// The BAR. If the function has none of this number, it is one of 16 KiB.
    pub bar: u32,
    /// Offset of the table in the BAR, a multiple of 8.
    pub table: u32,
    /// Offset of the pending bits in the BAR, a multiple of 8.
    pub pending: u32,
}

impl Default for Msix {
    /// BAR 4, with nothing else in it.
    fn default() -> Self {
        Self {
            bar: 4,
            table: 0,
            pending: 0x2000,
        }
    }
}

/// A BAR.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bar<'a> {
    /// Size in bytes, a power of two; 0 if there is no such BAR.
    pub size: u64,
    /// Whether the BAR is prefetchable, with an address of 64 bits, so that there is no BAR of the
    /// next number. The address of any other has 32 bits.
    pub prefetchable: bool,
    /// The file that QEMU maps into the guest. Without one each access is a message.
    pub file: Option<BorrowedFd<'a>>,
}

impl Bar<'_> {
    /// Makes a BAR of registers, each access to which calls the function.
    pub fn registers(size: u64) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }
}

/// A PCI function. The thread that answers QEMU's requests calls it, so no method waits for DMA.
pub trait Function {
    /// Returns the identity that configuration space tells.
    fn identity(&self) -> Identity;
    /// Returns a BAR, with a number from 0 to 5.
    fn bar(&self, number: u32) -> Bar<'_>;
    /// Returns where the MSI-X structures are, if there are vectors.
    fn msix(&self) -> Msix {
        Msix::default()
    }
    /// Reads from a BAR. The access is inside.
    fn read(&self, bar: u32, offset: u64, to: &mut [u8]);
    /// Writes to a BAR. The access is inside.
    fn write(&self, bar: u32, offset: u64, from: &[u8]);
    /// Resets the function. Bus Master is off.
    fn reset(&self);
    /// Tells that Bus Master is on or off. When it is off, the bus refuses accesses by itself.
    fn set_master(&self, _on: bool) {}
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
