// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads from places in a random order, and the same as a job for fio.

use std::time::Instant;

use pinmap::{Access, Buffer, Registration};
use pinmap_nvme::{Queue, QueueOptions};

use crate::{open, Outcome};

/// Options of both.
pub(crate) struct Reads {
    size: usize,
    depth: u16,
    count: u64,
    polled: bool,
}

impl Reads {
    pub(crate) fn parse(arguments: &[&str]) -> Outcome<Self> {
        let mut reads = Self {
            size: 4096,
            depth: 1,
            count: 10_000,
            polled: false,
        };
        let mut arguments = arguments.iter();
        while let Some(&name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name {
                "-s" => reads.size = value()?.parse()?,
                "-d" => reads.depth = value()?.parse()?,
                "-c" => reads.count = value()?.parse()?,
                "-p" => reads.polled = true,
                _ => return Err(format!("unknown option: {name} (see --help)").into()),
            }
        }
        Ok(reads)
    }

    /// Reads, and prints how long that took.
    pub(crate) fn run(&self, pci: &str, namespace: &str) -> Outcome {
        let &Self {
            size,
            depth,
            count,
            polled,
        } = self;
        let controller = open(pci)?;
        let namespace = controller.namespace(namespace.parse()?)?;
        let (len, most) = (namespace.block_len(), controller.identity().max_transfer);
        if size == 0 || size % len != 0 || size > most {
            let words = format!("a read has whole blocks of {len} bytes, and at most {most} bytes");
            return Err(words.into());
        }
        let blocks = (size / len) as u64;
        let options = QueueOptions::new().depth(depth);
        let options = if polled { options.polled() } else { options };
        let mut queue: Queue<Registration> = controller.queue(options)?;
        let mut free = Vec::new();
        for _ in 0..depth {
            free.push(Buffer::new(size)?.register(controller.device(), Access::ReadWrite)?);
        }
        let (mut begun, mut random, begin) = (0, 1u64, Instant::now());
        for _ in 0..count {
            while begun < count {
                let Some(memory) = free.pop() else { break };
                // Knuth's generator MMIX; its upper bits are the better ones.
                random = random.wrapping_mul(6_364_136_223_846_793_005);
                random = random.wrapping_add(1_442_695_040_888_963_407);
                let place = (random >> 16) % (namespace.blocks() / blocks);
                let submitted = queue.submit(namespace.read(place * blocks, memory));
                submitted.map_err(|failed| failed.error)?;
                begun += 1;
            }
            let done = queue.wait()?;
            done.result?;
            free.extend(done.memory);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let (rate, each) = (count as f64 / seconds, seconds / count as f64 * 1e6);
        let bytes = rate * size as f64 / 1e6;
        println!("{count} reads of {size} bytes, {depth} at a time: {each:.1} us each");
        println!("{rate:.0} reads/s, {bytes:.1} MB/s");
        Ok(())
    }

    /// Prints a job that has fio do the same with io_uring and a block device of the kernel's.
    pub(crate) fn print_job(&self, file: &str) {
        let Self {
            size,
            depth,
            count,
            polled,
        } = self;
        println!("[read]\nfilename={file}\nrw=randread\nbs={size}\niodepth={depth}");
        println!("number_ios={count}\nioengine=io_uring\ndirect=1\nfixedbufs=1\nregisterfiles=1");
        println!("hipri={}", u8::from(*polled));
    }
}
