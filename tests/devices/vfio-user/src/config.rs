// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI configuration space. QEMU adds the addresses of the BARs and the parts that MSI-X needs.

use crate::function::{Bar, Function};

/// Size of configuration space in bytes.
pub(crate) const SIZE: usize = 4096;

/// Number of BARs.
pub(crate) const BAR_COUNT: u32 = 6;
/// Size of a BAR that has the MSI-X structures alone.
const MSIX_BAR_SIZE: u64 = 16 << 10;

const COMMAND: usize = 0x04;
const COMMAND_WRITABLE: u8 = 0x06;
const BUS_MASTER: u8 = 0x04;
const EXPRESS: usize = 0x40;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const DEVICE_CONTROL_WRITABLE: u16 = 0x7fff;
const FUNCTION_RESET: u8 = 0x80;
const MSIX: usize = 0x80;
const MSIX_CONTROL_WRITABLE: u8 = 0xc0;
/// Power management: D0 and D3hot, whose end is a reset.
const POWER: usize = 0xf0;
const POWER_STATE: usize = POWER + 4;
const POWER_STATE_WRITABLE: u8 = 3;
const D0: u8 = 0;
const CACHE_LINE: usize = 0x0c;
const INTERRUPT_LINE: usize = 0x3c;

/// Effect that a write of configuration space asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Turn Bus Master on or off.
    pub(crate) master: bool,
    /// Do a function-level reset, or that which ends D3hot.
    pub(crate) reset: bool,
}

/// Returns a BAR of a function, or that of MSI-X.
pub(crate) fn bar(function: &dyn Function, number: u32) -> Bar<'_> {
    match number {
        0..BAR_COUNT if is_msix_alone(function, number) => Bar::registers(MSIX_BAR_SIZE),
        0..BAR_COUNT => function.bar(number),
        _ => Bar::default(),
    }
}

/// Whether a BAR has the MSI-X structures, and nothing of the function's.
pub(crate) fn is_msix_alone(function: &dyn Function, number: u32) -> bool {
    let has_vectors = function.identity().vectors > 0;
    has_vectors && function.msix().bar == number && function.bar(number).size == 0
}

/// Configuration space.
#[derive(Debug)]
pub(crate) struct Config {
    initial: Vec<u8>,
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl Config {
    /// Makes the configuration space of a function.
    pub(crate) fn new(function: &dyn Function) -> Self {
        let identity = function.identity();
        let mut initial = vec![0; SIZE];
        let mut set = |offset: usize, value: u32| {
            initial[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        };
        let id = |vendor: u16, device: u16| u32::from(vendor) | (u32::from(device) << 16);
        set(0x00, id(identity.vendor, identity.device));
        set(0x04, 0x0011_0000); // a list of capabilities; ready as soon as a reset is done
        set(0x08, (identity.class << 8) | u32::from(identity.revision));
        for number in (0..BAR_COUNT).filter(|number| bar(function, *number).prefetchable) {
            set(0x10 + 4 * number as usize, 0xc); // 64 bits, prefetchable
        }
        set(0x2c, id(identity.subsystem_vendor, identity.subsystem));
        set(0x34, EXPRESS as u32);
        set(EXPRESS, 0x0002_0010 | ((POWER as u32) << 8)); // version 2, endpoint
        set(EXPRESS + 4, (1 << 28) | (1 << 15)); // function-level reset, role-based errors
        set(EXPRESS + 0x0c, 0x11); // 2.5 GT/s, one lane
        set(EXPRESS + 0x10, 0x0011_0000);
        set(POWER, 0x0003_0001); // version 3, no D1, no D2, no PME
        let mut writable = vec![0; SIZE];
        writable[POWER_STATE] = POWER_STATE_WRITABLE;
        writable[COMMAND] = COMMAND_WRITABLE;
        writable[CACHE_LINE] = 0xff;
        writable[INTERRUPT_LINE] = 0xff;
        writable[DEVICE_CONTROL..][..2].copy_from_slice(&DEVICE_CONTROL_WRITABLE.to_le_bytes());
        if let Some(last) = identity.vectors.checked_sub(1) {
            set(EXPRESS, 0x0002_0010 | ((MSIX as u32) << 8));
            set(MSIX, 0x11 | ((POWER as u32) << 8) | ((last as u32) << 16));
            let msix = function.msix();
            set(MSIX + 4, msix.table | msix.bar);
            set(MSIX + 8, msix.pending | msix.bar);
            writable[MSIX + 3] = MSIX_CONTROL_WRITABLE;
        }
        Self {
            bytes: initial.clone(),
            initial,
            writable,
        }
    }

    /// Restores the reset values.
    pub(crate) fn reset(&mut self) {
        self.bytes.copy_from_slice(&self.initial);
    }

    /// Reads from configuration space; `None` beyond its end.
    pub(crate) fn read(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let offset = usize::try_from(offset).ok()?;
        self.bytes.get(offset..offset.checked_add(bytes)?)
    }

    /// Whether the function is in D3hot: it has nothing but configuration space.
    pub(crate) fn is_off(&self) -> bool {
        self.bytes[POWER_STATE] & POWER_STATE_WRITABLE != D0
    }

    /// Writes to configuration space; read-only bits keep their values.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Effect {
        let was_off = self.is_off();
        let mut reset = false;
        let offset = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        for (at, value) in (offset..).zip(from) {
            let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) else {
                continue;
            };
            *byte = *byte & !mask | value & mask;
            reset |= at == DEVICE_CONTROL + 1 && value & FUNCTION_RESET != 0;
        }
        reset |= was_off && !self.is_off();
        if reset {
            self.reset();
        }
        Effect {
            master: self.bytes[COMMAND] & BUS_MASTER != 0 && !self.is_off(),
            reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{Identity, Msix};

    struct Named;
    impl Function for Named {
        fn identity(&self) -> Identity {
            Identity {
                vendor: 0x1234,
                device: 0x7e57,
                ..Identity::default()
            }
        }
        fn bar(&self, _: u32) -> Bar<'_> {
            Bar::default()
        }
        fn read(&self, _: u32, _: u64, _: &mut [u8]) {}
        fn write(&self, _: u32, _: u64, _: &[u8]) {}
        fn reset(&self) {}
    }

    struct Shared;
    impl Function for Shared {
        fn identity(&self) -> Identity {
            Identity {
                vectors: 32,
                ..Identity::default()
            }
        }
        fn bar(&self, number: u32) -> Bar<'_> {
            match number {
                1 => Bar::registers(1 << 16),
                _ => Bar::default(),
            }
        }
        fn msix(&self) -> Msix {
            Msix {
                bar: 1,
                table: 0x8000,
                pending: 0x8fe0,
            }
        }
        fn read(&self, _: u32, _: u64, _: &mut [u8]) {}
        fn write(&self, _: u32, _: u64, _: &[u8]) {}
        fn reset(&self) {}
    }

    #[test]
    fn msix_is_where_the_function_says() {
        let config = Config::new(&Shared);
        assert_eq!(config.read(MSIX as u64 + 4, 4), Some(&[1, 0x80, 0, 0][..]));
        assert_eq!(
            config.read(MSIX as u64 + 8, 4),
            Some(&[0xe1, 0x8f, 0, 0][..])
        );
        assert_eq!((bar(&Shared, 1).size, bar(&Shared, 4).size), (1 << 16, 0));
        assert!(!is_msix_alone(&Shared, 1) && !is_msix_alone(&Shared, 4));
    }

    #[test]
    fn writes() {
        let mut config = Config::new(&Named);
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
            Some(&[0x34, 0x12, 0x57, 0x7e, 0x06, 0, 0x11, 0][..])
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

    #[test]
    fn d3hot_ends_in_a_reset() {
        let mut config = Config::new(&Named);
        let on = |master, reset| Effect { master, reset };
        config.write(4, &[0x06]);
        assert_eq!(config.write(POWER_STATE as u64, &[3]), on(false, false));
        assert!(config.is_off());
        assert_eq!(config.write(POWER_STATE as u64, &[0]), on(false, true));
        assert!(!config.is_off());
        assert_eq!(config.read(4, 1), Some(&[0][..]));
        assert_eq!(config.write(POWER_STATE as u64, &[0]), on(false, false));
    }
}
