// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

/// The address of a PCI function: domain, bus, device and function, such as `0000:00:03.0`.
///
/// ```
/// use pinmap::PciAddress;
///
/// let pci: PciAddress = "0000:3b:00.1".parse()?;
/// assert_eq!((pci.bus, pci.function), (0x3b, 1));
/// # Ok::<(), pinmap::ParsePciAddressError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain, also called segment.
    pub domain: u32,
    /// Bus in the domain.
    pub bus: u8,
    /// Device on the bus, 0 to 31.
    pub device: u8,
    /// Function of the device, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// The error of parsing a text that is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsePciAddressError(());

impl fmt::Display for ParsePciAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a PCI address such as 0000:00:03.0")
    }
}

impl std::error::Error for ParsePciAddressError {}

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    /// Parses `domain:bus:device.function`, all in hexadecimal. A missing domain means 0, as in the
    /// output of `lspci`.
    fn from_str(text: &str) -> Result<Self, ParsePciAddressError> {
        parse(text).ok_or(ParsePciAddressError(()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    Some(PciAddress {
        domain: hex(domain, 8, u32::MAX)?,
        bus: hex(bus, 2, 0xff)? as u8,
        device: hex(device, 2, 0x1f)? as u8,
        function: hex(function, 1, 7)? as u8,
    })
}

/// Parses a hexadecimal number of at most `digits` digits, and at most `max`.
fn hex(text: &str, digits: usize, max: u32) -> Option<u32> {
    let good = (1..=digits).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u32::from_str_radix(text, 16).ok()?;
    (good && number <= max).then_some(number)
}

#[cfg(feature = "serde")]
impl serde::Serialize for PciAddress {
    /// As text, for instance `0000:00:10.0`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_lspci_prints() {
        let address = PciAddress {
            domain: 0,
            bus: 0,
            device: 0x1f,
            function: 3,
        };
        assert_eq!("0000:00:1f.3".parse(), Ok(address));
        assert_eq!("00:1f.3".parse(), Ok(address));
        let vmd = PciAddress {
            domain: 0x10000,
            bus: 0xe1,
            ..address
        };
        assert_eq!("10000:e1:1f.3".parse(), Ok(vmd));
        assert_eq!(vmd.to_string(), "10000:e1:1f.3");
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "0",
            "00:1f",
            "00:20.0",
            "00:1f.8",
            "+0:1f.0",
            "0:0:0:1f.0",
            "00:1f.3 ",
            "../x:0.0",
        ] {
            assert_eq!(
                text.parse::<PciAddress>(),
                Err(ParsePciAddressError(())),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_prints(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
