// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comparisons with others that know the contents of the disk: its file on the host, and the
//! kernel's own driver.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::drivers::{content, memory, pattern};
use crate::harness::{skip, Outcome};
use crate::setup::{controller, on_disk, queue, returned, with_kernel};

pub(crate) fn file_has_what_was_written() -> Outcome {
    let controller = controller()?;
    let mut queue = queue(&controller)?;
    for id in [1, 2] {
        let namespace = controller.namespace(id)?;
        let bytes = pattern(id.into(), 64 << 10);
        let last = namespace.blocks() - (64 << 10) / namespace.block_len() as u64;
        for block in [0, 33, last] {
            let memory = memory(controller.device(), &bytes)?;
            drop(returned(queue.run(namespace.write(block, memory)))?);
            let offset = block * namespace.block_len() as u64;
            assert!(on_disk(id, offset, 64 << 10)? == bytes, "{id}: {block}");
        }
    }
    Ok(())
}

pub(crate) fn kernel_reads_what_was_written_and_writes_what_is_read() -> Outcome {
    let (ours, theirs) = (pattern(11, 256 << 10), pattern(12, 256 << 10));
    let controller = controller()?;
    let told = {
        let namespace = controller.namespace(1)?;
        let memory = memory(controller.device(), &ours)?;
        let mut queue = queue(&controller)?;
        drop(returned(queue.run(namespace.write(1000, memory)))?);
        let identity = controller.identity();
        [
            ("device/model", identity.model.clone()),
            ("device/serial", identity.serial.clone()),
            ("device/firmware_rev", identity.firmware.clone()),
            (
                "size",
                (namespace.blocks() * namespace.block_len() as u64 / 512).to_string(),
            ),
            (
                "queue/logical_block_size",
                namespace.block_len().to_string(),
            ),
            ("queue/fua", u8::from(identity.volatile_cache).to_string()),
        ]
    };
    let compared = with_kernel(controller, |node| {
        let disk = Path::new("/sys/block").join(node.trim_start_matches("/dev/"));
        for (attribute, ours) in &told {
            let theirs = fs::read_to_string(disk.join(attribute))?;
            if theirs.trim() != ours {
                return Err(format!("{attribute}: {ours}, and the kernel has {theirs}").into());
            }
        }
        let mut found = vec![0; 256 << 10];
        File::open(node)?.read_exact_at(&mut found, 512 * 1000)?;
        if found != ours {
            return Err("the kernel does not read what was written".into());
        }
        let file = OpenOptions::new().write(true).open(node)?;
        file.write_all_at(&theirs, 512 * 3000)?;
        Ok(file.sync_all()?)
    })?;
    if compared.is_none() {
        return skip("this kernel has no driver for NVMe");
    }

    let controller = crate::setup::controller()?;
    let namespace = controller.namespace(1)?;
    let memory = memory(controller.device(), &[0; 256 << 10])?;
    let memory = returned(queue(&controller)?.run(namespace.read(3000, memory)))?;
    assert!(
        content(&memory, 256 << 10)? == theirs,
        "what the kernel has written"
    );
    Ok(())
}
