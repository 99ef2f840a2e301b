// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of the controller, exchanged, and the block device of the kernel's own driver.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DRIVERS: &str = "/sys/bus/pci/drivers";
pub(crate) const FUNCTIONS: &str = "/sys/bus/pci/devices";

/// Gives a function to a driver, and takes it from the one that has it.
pub(crate) fn bind(function: &str, driver: &str) -> Result<(), Box<dyn Error>> {
    let path = Path::new(FUNCTIONS).join(function);
    if path.join("driver").exists() {
        fs::write(path.join("driver/unbind"), function)?;
    }
    fs::write(path.join("driver_override"), driver)?;
    fs::write(Path::new(DRIVERS).join(driver).join("bind"), function)?;
    Ok(())
}

/// Waits for the block device of a namespace, which the kernel may have found as the last one.
pub(crate) fn block_device(namespace: u32) -> Result<PathBuf, Box<dyn Error>> {
    for _ in 0..6000 {
        for disk in fs::read_dir("/sys/block")? {
            let disk = disk?;
            let node = Path::new("/dev").join(disk.file_name());
            let number = fs::read_to_string(disk.path().join("nsid"));
            if number.is_ok_and(|number| number.trim() == namespace.to_string()) && node.exists() {
                return Ok(node);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("the kernel's driver has no block device".into())
}
