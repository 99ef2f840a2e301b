// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values of arguments: devices, functions, sizes and other numbers.

use std::fmt;
use std::path::PathBuf;

use pinmap::{Device, PciAddress};

use crate::size;

/// The name of a device on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The path of its node.
    Node(PathBuf),
    /// The address of its function.
    Pci(PciAddress),
}

impl Target {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Node(text.into()));
        }
        if let Some(number) = text.strip_prefix("pinmap") {
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
                return Ok(Self::Node(format!("/dev/{text}").into()));
            }
        }
        let pci = text.parse().map_err(|_| {
            "it is neither a node such as /dev/pinmap0 nor a BDF such as 0000:00:10.0".to_owned()
        })?;
        Ok(Self::Pci(pci))
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> pinmap::Result<Device> {
        match self {
            Self::Node(path) => Device::open(path),
            Self::Pci(pci) => Device::open_pci(*pci),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(path) => path.display().fmt(f),
            Self::Pci(pci) => pci.fmt(f),
        }
    }
}

pub(super) fn pci(text: &str) -> Result<PciAddress, String> {
    text.parse().map_err(|error| format!("it is {error}"))
}

pub(super) fn bytes(text: &str) -> Result<u64, String> {
    size::parse(text).ok_or_else(|| "it is no number of bytes, such as 16384, 16K or 1G".to_owned())
}

pub(super) fn some_bytes(text: &str) -> Result<usize, String> {
    let size = usize::try_from(bytes(text)?).ok();
    size.filter(|&size| size != 0)
        .ok_or_else(|| "it must be at least 1".to_owned())
}

pub(super) fn address_bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok();
    bits.filter(|bits| *bits == 0 || (12..=64).contains(bits))
        .ok_or_else(|| "it must be 12 to 64, or 0".to_owned())
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .ok_or_else(|| "it must be 0.1 to 3600".to_owned())
}

pub(super) fn process(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok();
    pid.filter(|&pid| pid != 0)
        .ok_or_else(|| "it is not the id of a process".to_owned())
}

pub(super) fn address(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    number.ok_or_else(|| "it is not an address such as 0x1000".to_owned())
}
