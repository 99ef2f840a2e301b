// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds 1 to numbers on a disk. An accelerator reads them, works on them and writes them back: it
//! rings the doorbells of the disk's controller, and the CPU waits for the end of all of it.
//!
//! usage: `disk_kernel PCI-ADDRESS PIECES`, of an NVMe controller that is bound to pinmap. It
//! changes what is on the disk!

use std::sync::Arc;

use anyhow::Context;
use pinmap::accelerator::StreamOptions;
use pinmap::{Access, Device, Registration};
use pinmap_nvme::{Controller, Error, QueueOptions, StreamQueue};
use pinmap_testgpu::IncrementF32;

/// Numbers of a piece.
const NUMBERS: usize = 4096;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context("which controller?")?;
    let pieces: u16 = arguments.next().context("how many pieces?")?.parse()?;

    let gpu = pinmap_testgpu::find()?;
    let controller = Controller::open(&Device::open_pci(address.parse()?)?)?;
    let namespace = controller.namespace(1)?;
    let blocks = (4 * NUMBERS / namespace.block_len()) as u64;

    // Memory of the accelerator, which the controller reaches, too.
    let mut numbers = gpu.alloc_vram::<f32>(NUMBERS)?;
    let memory = Arc::new(numbers.register(controller.device(), Access::ReadWrite)?);

    // A read and a write for each piece.
    let options = QueueOptions::new().depth(2 * pieces);
    let mut queue: StreamQueue<Arc<Registration<()>>> = controller.stream_queue(&gpu, options)?;
    let stream = gpu.stream(StreamOptions::new())?;
    let before = gpu.counters()?.copied();
    stream.try_scope(|work| {
        let mut numbers = numbers.slice_mut();
        for piece in 0..u64::from(pieces) {
            let block = piece * blocks;
            queue.submit(work, namespace.read(block, Arc::clone(&memory)))?;
            work.launch(IncrementF32 { data: &mut numbers })?;
            queue.submit(work, namespace.write(block, Arc::clone(&memory)))?;
        }
        Ok::<_, Error>(())
    })?;
    for done in queue.finish()? {
        done.result.with_context(|| format!("command {}", done.number))?;
    }

    // Of all that the accelerator's engines have moved, only stores to doorbells left it.
    let used = gpu.counters()?.copied().since(&before);
    println!("{} bytes went out, {} came in", used.host_written, used.host_read);
    Ok(())
}
