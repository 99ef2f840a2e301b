// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of many tests: the controller, memory with some content, the files of the namespaces.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use pinmap::{Device, ErrorKind, Registration};
use pinmap_nvme::{Controller, Failed, Queue, QueueOptions};

use crate::harness::{skip, Outcome};
use crate::kernel::{bind, block_device};

/// The namespaces that scripts/vm makes: with small blocks, with large ones, with metadata, with
/// blocks that fail, and with commands that take a quarter of a second.
pub(crate) const NAMESPACES: [u32; 5] = [1, 2, 3, FAILING, SLOW];
pub(crate) const FAILING: u32 = 4;
pub(crate) const SLOW: u32 = 5;

/// Opens the device, or skips the test.
pub(crate) fn device() -> Result<Device, Box<dyn Error>> {
    match Device::find(0x1b36, 0x0010) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip("there is no NVMe controller bound to pinmap")
        }
        device => Ok(device?),
    }
}

/// Brings the controller up, or skips the test.
pub(crate) fn controller() -> Result<Controller, Box<dyn Error>> {
    Ok(Controller::open(&device()?)?)
}

/// A queue with memory of the usual kind.
pub(crate) fn queue(controller: &Controller) -> pinmap_nvme::Result<Queue<Registration>> {
    controller.queue(QueueOptions::new())
}

/// The bytes of a namespace from `offset` on, as the host has them.
pub(crate) fn on_disk(namespace: u32, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let file = File::open(format!("/run/vm/namespace-{namespace}"))?;
    let mut content = vec![0; len];
    file.read_exact_at(&mut content, offset)?;
    Ok(content)
}

/// Gives QEMU's monitor a command, which it executes at some time.
pub(crate) fn monitor(command: &str) -> Outcome {
    for port in std::fs::read_dir("/sys/class/virtio-ports")? {
        let port = port?;
        if std::fs::read_to_string(port.path().join("name"))?.trim() == "monitor" {
            let mut port = File::options()
                .write(true)
                .open(Path::new("/dev").join(port.file_name()))?;
            return Ok(port.write_all(format!("{command}\n").as_bytes())?);
        }
    }
    Err("there is no monitor".into())
}

/// The memory that a command has returned.
pub(crate) fn returned<M>(done: Result<Option<M>, Failed<M>>) -> Result<M, Box<dyn Error>> {
    match done {
        Ok(memory) => memory.ok_or_else(|| "the memory is lost".into()),
        Err(failed) => Err(failed.error.into()),
    }
}

/// The error of a command that has failed, whose memory came back, if it had some.
pub(crate) fn error<M, T>(
    result: Result<T, Failed<M>>,
    had_memory: bool,
) -> Result<pinmap_nvme::Error, Box<dyn Error>> {
    match result {
        Ok(_) => Err("the command did not fail".into()),
        Err(failed) => {
            assert_eq!(failed.memory.is_some(), had_memory, "{}", failed.error);
            Ok(failed.error)
        }
    }
}

/// Gives the controller to the kernel's driver for a while. Returns what came of its block device
/// for namespace 1, or `None` if this kernel has no such driver.
pub(crate) fn with_kernel<T>(
    controller: Controller,
    body: impl FnOnce(&str) -> Result<T, Box<dyn Error>>,
) -> Result<Option<T>, Box<dyn Error>> {
    let function = controller.device().info()?.pci.to_string();
    drop(controller);
    if !Command::new("modprobe").arg("nvme").status()?.success() {
        return Ok(None);
    }
    let bound = bind(&function, "nvme").and_then(|()| block_device(1));
    let came = bound.and_then(|node| body(&node.display().to_string()));
    bind(&function, "pinmap")?;
    came.map(Some)
}
