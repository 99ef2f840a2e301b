// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI configuration space (section 1 of the manuals). QEMU adds the addresses of the BARs and the
//! parts that MSI-X needs.

use crate::regs;

/// Identity of a function in its configuration space.
#[derive(Debug)]
pub struct Identity {
    /// Vendor, and device in the upper half.
    id: u32,
    /// Revision, and class in the upper 24 bits.
    class: u32,
    /// Subsystem's vendor, and subsystem in the upper half.
    subsystem: u32,
    /// Whether BAR 2 is one of 64 bits, prefetchable. All others are of 32 bits.
    has_wide_bar: bool,
    /// MSI-X vectors.
    pub vectors: usize,
}

impl Identity {
    /// The test GPU.
    pub const TEST_GPU: Self = Self {
        id: 0x7e57_1234,
        class: 0x1200_0001, // a processing accelerator
        subsystem: 0x0001_1234,
        has_wide_bar: true,
        vectors: regs::VECTOR_COUNT,
    };

    /// The test FPGA.
    pub const TEST_FPGA: Self = Self {
        id: 0xbeef_10ee,
        class: 0x1200_0001,
        subsystem: 0x0001_10ee,
        has_wide_bar: false,
        vectors: 1,
    };
}

/// Size of configuration space in bytes.
pub const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const COMMAND_WRITABLE: u8 = 0x06;
const BUS_MASTER: u8 = 0x04;
const EXPRESS: usize = 0x40;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const DEVICE_CONTROL_WRITABLE: u16 = 0x7fff;
const FUNCTION_RESET: u8 = 0x80;
const MSIX: usize = 0x80;
const MSIX_CONTROL_WRITABLE: u8 = 0xc0;
const CACHE_LINE: usize = 0x0c;
const INTERRUPT_LINE: usize = 0x3c;

/// Offset of MSI-X's pending bits in BAR 4.
const PENDING_BITS: u32 = 0x2000;

/// Effect that a write of configuration space asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Turn Bus Master on or off.
    pub master: bool,
    /// Do a function-level reset.
    pub reset: bool,
}

/// Configuration space.
#[derive(Debug)]
pub struct Config {
    identity: &'static Identity,
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl Config {
    /// Makes the configuration space of a function.
    pub fn new(identity: &'static Identity) -> Self {
        let mut config = Self {
            identity,
            bytes: vec![0; SIZE],
            writable: vec![0; SIZE],
        };
        config.reset();
        let writable = &mut config.writable;
        writable[COMMAND] = COMMAND_WRITABLE;
        writable[CACHE_LINE] = 0xff;
        writable[INTERRUPT_LINE] = 0xff;
        writable[DEVICE_CONTROL..][..2].copy_from_slice(&DEVICE_CONTROL_WRITABLE.to_le_bytes());
        writable[MSIX + 3] = MSIX_CONTROL_WRITABLE;
        config
    }

    /// Restores the reset values.
    pub fn reset(&mut self) {
        self.bytes.fill(0);
        let identity = self.identity;
        let vectors = identity.vectors as u32;
        let mut set = |offset: usize, value: u32| {
            self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        };
        set(0x00, identity.id);
        set(0x04, 0x0010_0000); // a list of capabilities
        set(0x08, identity.class);
        if identity.has_wide_bar {
            set(0x18, 0xc); // BAR 2: 64 bits, prefetchable
        }
        set(0x2c, identity.subsystem);
        set(0x34, EXPRESS as u32);
        set(EXPRESS, 0x0002_0010 | ((MSIX as u32) << 8)); // version 2, endpoint
        set(EXPRESS + 4, (1 << 28) | (1 << 15)); // function-level reset, role-based errors
        set(EXPRESS + 0x0c, 0x11); // 2.5 GT/s, one lane
        set(EXPRESS + 0x10, 0x0011_0000);
        set(MSIX, 0x11 | ((vectors - 1) << 16));
        set(MSIX + 4, 4);
        set(MSIX + 8, PENDING_BITS | 4);
    }

    /// Reads from configuration space; `None` beyond its end.
    pub fn read(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let offset = usize::try_from(offset).ok()?;
        self.bytes.get(offset..offset.checked_add(bytes)?)
    }

    /// Writes to configuration space; read-only bits keep their values.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Effect {
        let mut reset = false;
        let offset = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        for (at, value) in (offset..).zip(from) {
            let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) else {
                continue;
            };
            *byte = *byte & !mask | value & mask;
            reset |= at == DEVICE_CONTROL + 1 && value & FUNCTION_RESET != 0;
        }
        if reset {
            self.reset();
        }
        Effect {
            master: self.bytes[COMMAND] & BUS_MASTER != 0,
            reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes() {
        let mut config = Config::new(&Identity::TEST_GPU);
        assert_eq!(config.read(0, 4), Some(&[0x34, 0x12, 0x57, 0x7e][..]));
        assert_eq!(config.read(4094, 4), None);
        assert_eq!(
            config.write(0, &[0xff; 8]),
            Effect {
                master: true,
                reset: false
            }
        );
        assert_eq!(
            config.read(0, 8),
            Some(&[0x34, 0x12, 0x57, 0x7e, 0x06, 0, 0x10, 0][..])
        );
        assert_eq!(
            config.write(0x48, &[0x10, 0x80]),
            Effect {
                master: false,
                reset: true
            }
        );
        assert_eq!(config.read(0x48, 2), Some(&[0, 0][..]));
        config.write(u64::MAX, &[1, 2]);
    }
}
