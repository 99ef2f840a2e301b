// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller, which goes from pinmap to the kernel's driver and back.

use std::path::PathBuf;
use std::process::Command;

use pinmap::Device;
use pinmap_nvme::Controller;

use crate::kernel::{bind, block_device};
use crate::systems::{fill, Pinmap, Reader, Uring, Wait};
use crate::{Result, PART};

/// The controller of the virtual machine.
pub(crate) struct Disk {
    function: String,
}

/// Whoever drives the controller now.
pub(crate) enum Owner {
    Pinmap(Controller),
    /// The block device of namespace 1.
    Kernel(PathBuf),
}

impl Disk {
    /// Finds the controller, which is bound to pinmap.
    pub(crate) fn find() -> Result<Self> {
        let device = Device::find(0x1b36, 0x0010)?;
        let function = device.info()?.pci.to_string();
        fill(&Controller::open(&device)?, PART)?;
        let mut load = Command::new("modprobe");
        if !load.args(["nvme", "poll_queues=1"]).status()?.success() {
            return Err("the kernel has no driver for NVMe".into());
        }
        Ok(Self { function })
    }

    /// Gives the controller to pinmap, or to the kernel's driver.
    pub(crate) fn give(&self, to_pinmap: bool) -> Result<Owner> {
        bind(&self.function, if to_pinmap { "pinmap" } else { "nvme" })?;
        if !to_pinmap {
            return Ok(Owner::Kernel(block_device(1)?));
        }
        let device = Device::open_pci(self.function.parse()?)?;
        Ok(Owner::Pinmap(Controller::open(&device)?))
    }
}

impl Owner {
    /// Prepares to read `len` bytes at a time, and so many times at once.
    pub(crate) fn reader(&self, wait: Wait, len: usize, depth: usize) -> Result<Box<dyn Reader>> {
        Ok(match self {
            Self::Pinmap(controller) => Box::new(Pinmap::new(controller, wait, len, depth)?),
            Self::Kernel(node) => Box::new(Uring::new(node, wait, len, depth)?),
        })
    }
}
