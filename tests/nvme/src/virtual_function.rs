// SPDX-License-Identifier: MIT OR Apache-2.0
//! A virtual function: the kernel's driver has the controller, and a program drives the function.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use pinmap::{Device, Registration};
use pinmap_nvme::{Controller, Queue};

use crate::drivers::{content, memory, pattern};
use crate::harness::{skip, Outcome};
use crate::kernel::{bind, block_device, FUNCTIONS};
use crate::setup::{queue, returned};
use crate::tools::{there, tool};

/// The namespace of the controller and its function.
const NAMESPACE: u32 = 7;
const LEN: usize = 64 << 10;

pub(crate) fn virtual_function_works_beside_the_kernels_driver() -> Outcome {
    let has_functions = |path: &Path| path.join("sriov_totalvfs").exists();
    let mut functions = fs::read_dir(FUNCTIONS)?.flatten().map(|entry| entry.path());
    let Some(physical) = functions.find(|path| has_functions(path)) else {
        return skip("there is no controller with virtual functions");
    };
    let name = physical.file_name().unwrap_or_default().to_string_lossy();
    if !there() || !Command::new("modprobe").arg("nvme").status()?.success() {
        return skip("there is no nvme-cli, or this kernel has no driver for NVMe");
    }
    bind(&name, "nvme")?;
    let outcome = share(&physical);
    fs::write(physical.join("sriov_numvfs"), "0")?;
    fs::write(physical.join("driver/unbind"), &*name)?;
    outcome
}

fn share(physical: &Path) -> Outcome {
    let node = block_device(NAMESPACE)?;
    // By the controller the function gets queues (0) and interrupts (1), and then is online.
    let manage = |arguments: &str| -> Outcome {
        let node = node.display().to_string();
        let mut words = vec!["virt-mgmt", &node, "-c1"];
        words.extend(arguments.split(' '));
        tool("nvme", &words).map(drop)
    };
    manage("-a8 -r0 -n4")?;
    manage("-a8 -r1 -n4")?;
    // The kernel's driver is not to take it.
    fs::write(physical.join("sriov_drivers_autoprobe"), "0")?;
    fs::write(physical.join("sriov_numvfs"), "1")?;
    manage("-a9 -r0 -n0")?;
    let function = fs::read_link(physical.join("virtfn0"))?;
    let function = function.file_name().unwrap_or_default().to_string_lossy();
    bind(&function, "pinmap")?;

    let controller = Controller::open(&Device::open_pci(function.parse()?)?)?;
    let device = controller.device();
    assert_eq!(controller.namespaces()?, [NAMESPACE]);
    let namespace = controller.namespace(NAMESPACE)?;
    let mut queues: [Queue<Registration>; 2] = [queue(&controller)?, queue(&controller)?];
    let disk = File::options().read(true).write(true).open(&node)?;
    for (queue, block) in queues.iter_mut().zip([1000, 2000]) {
        let (ours, theirs) = (pattern(block, LEN), pattern(block + 1, LEN));
        let lent = returned(queue.run(namespace.write(block, memory(device, &ours)?)))?;
        let mut found = vec![0; LEN];
        disk.read_exact_at(&mut found, 512 * block)?;
        assert!(found == ours, "the kernel does not read what was written");
        disk.write_all_at(&theirs, 512 * (block + 4000))?;
        disk.sync_all()?;
        let lent = returned(queue.run(namespace.read(block + 4000, lent)))?;
        assert!(
            content(&lent, LEN)? == theirs,
            "what the kernel has written"
        );
    }
    Ok(())
}
