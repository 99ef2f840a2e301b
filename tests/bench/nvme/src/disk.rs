// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller, which goes from pinmap to the kernel's driver and back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pinmap::Device;
use pinmap_nvme::Controller;

use crate::systems::{fill, Pinmap, Reader, Uring, Wait};
use crate::{Result, PART};

const DRIVERS: &str = "/sys/bus/pci/drivers";
const FUNCTIONS: &str = "/sys/bus/pci/devices";

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
    pub(crate) fn give(&mut self, to_pinmap: bool) -> Result<Owner> {
        let driver = if to_pinmap { "pinmap" } else { "nvme" };
        let path = Path::new(FUNCTIONS).join(&self.function);
        if path.join("driver").exists() {
            fs::write(path.join("driver/unbind"), &self.function)?;
        }
        fs::write(path.join("driver_override"), driver)?;
        fs::write(Path::new(DRIVERS).join(driver).join("bind"), &self.function)?;
        if !to_pinmap {
            return Ok(Owner::Kernel(block_device()?));
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

/// Waits for the block device of namespace 1, which the kernel may find as the last one.
fn block_device() -> Result<PathBuf> {
    for _ in 0..6000 {
        for disk in fs::read_dir("/sys/block")? {
            let disk = disk?;
            let node = Path::new("/dev").join(disk.file_name());
            let number = fs::read_to_string(disk.path().join("nsid"));
            if number.is_ok_and(|number| number.trim() == "1") && node.exists() {
                return Ok(node);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("the kernel's driver has no block device".into())
}
