// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads by each system, behind one trait.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use io_uring::{opcode, types, IoUring};
use nix::fcntl::OFlag;
use pinmap::{Access, Buffer, Registration};
use pinmap_nvme::{Controller, Namespace, Queue, QueueOptions};

use crate::Result;

/// How a program learns that a read is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    Poll,
    Interrupt,
}

/// Reads of one length into memory that is registered once.
pub(crate) trait Reader {
    /// Prepares a read of the bytes from `offset` on.
    fn begin(&mut self, offset: u64) -> Result<()>;

    /// Gives to the disk what was prepared.
    fn submit(&mut self) -> Result<()>;

    /// Looks once. Returns how many parts of reads are done since the last look.
    fn poll(&mut self) -> Result<usize>;

    /// Waits until parts of reads are done. Returns how many.
    fn wait(&mut self) -> Result<usize>;

    /// How many parts a read has: commands of the controller that the caller counts itself.
    fn parts(&self) -> usize;

    /// Whether the memory of the last read has the words of the disk from `offset` on.
    fn is_right(&self, offset: u64) -> Result<bool>;
}

/// Whether these bytes are what [`fill`] has written at `offset`.
fn is_pattern(bytes: &[u8], offset: u64) -> bool {
    (offset / 8..)
        .zip(bytes.chunks_exact(8))
        .all(|(word, bytes)| bytes == word.to_le_bytes())
}

/// Writes the number of each word of 8 bytes to the first bytes of namespace 1.
pub(crate) fn fill(controller: &Controller, bytes: u64) -> Result<()> {
    let namespace = controller.namespace(1)?;
    let mut queue: Queue<Registration> = controller.queue(QueueOptions::new())?;
    let len = controller.identity().max_transfer;
    let blocks = len as u64 / namespace.block_len() as u64;
    for number in 0..bytes / len as u64 {
        let mut buffer = Buffer::new(len)?;
        for (word, bytes) in (number * len as u64 / 8..).zip(buffer.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let memory = buffer.register(controller.device(), Access::Read)?;
        queue.run(namespace.write(number * blocks, memory))?;
    }
    Ok(())
}

/// Reads by pinmap-nvme.
pub(crate) struct Pinmap {
    namespace: Namespace,
    queue: Queue<Arc<Registration>>,
    /// Memory of each read in flight.
    memory: Vec<Arc<Registration>>,
    begun: usize,
    /// Bytes of a read, and of a command.
    len: usize,
    part: usize,
}

impl Pinmap {
    pub(crate) fn new(
        controller: &Controller,
        wait: Wait,
        len: usize,
        depth: usize,
    ) -> Result<Self> {
        let part = len.min(controller.identity().max_transfer);
        let options = QueueOptions::new().depth(u16::try_from(depth * (len / part))?);
        let options = match wait {
            Wait::Poll => options.polled(),
            Wait::Interrupt => options,
        };
        let memory = (0..depth)
            .map(|_| {
                let buffer = Buffer::new(len)?;
                Ok(Arc::new(
                    buffer.register(controller.device(), Access::ReadWrite)?,
                ))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            namespace: controller.namespace(1)?,
            queue: controller.queue(options)?,
            memory,
            begun: 0,
            len,
            part,
        })
    }
}

impl Reader for Pinmap {
    fn begin(&mut self, offset: u64) -> Result<()> {
        let memory = &self.memory[self.begun % self.memory.len()];
        self.begun += 1;
        for at in (0..self.len).step_by(self.part) {
            let block = (offset + at as u64) / self.namespace.block_len() as u64;
            let read = self.namespace.read(block, memory.clone());
            self.queue.submit(read.part(at..at + self.part))?;
        }
        Ok(())
    }

    /// Does nothing: each command was submitted by a call of its own.
    fn submit(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self) -> Result<usize> {
        let mut parts = 0;
        while let Some(done) = self.queue.poll()? {
            done.result?;
            parts += 1;
        }
        Ok(parts)
    }

    fn wait(&mut self) -> Result<usize> {
        self.queue.wait()?.result?;
        Ok(1 + self.poll()?)
    }

    fn parts(&self) -> usize {
        self.len / self.part
    }

    fn is_right(&self, offset: u64) -> Result<bool> {
        let mut bytes = vec![0; self.len];
        self.memory[(self.begun - 1) % self.memory.len()].read_at(0, &mut bytes)?;
        Ok(is_pattern(&bytes, offset))
    }
}

/// Reads by io_uring from the block device.
pub(crate) struct Uring {
    /// Dropped before the memory.
    ring: IoUring,
    memory: Vec<Buffer>,
    begun: usize,
    len: usize,
    prepared: u32,
    polls: bool,
    _file: File,
}

impl Uring {
    pub(crate) fn new(node: &Path, wait: Wait, len: usize, depth: usize) -> Result<Self> {
        let polls = wait == Wait::Poll;
        let mut builder = IoUring::builder();
        if polls {
            builder.setup_iopoll();
        }
        let ring: IoUring = builder.build(u32::try_from(depth)?)?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_DIRECT.bits())
            .open(node)?;
        let mut memory = (0..depth)
            .map(|_| Buffer::<u8>::new(len))
            .collect::<pinmap::Result<Vec<_>>>()?;
        let slices: Vec<_> = memory
            .iter_mut()
            .map(|buffer| nix::libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: len,
            })
            .collect();
        // SAFETY: The memory stays until the ring is dropped. Nothing refers to a buffer while a
        // read into it is in flight: `is_right` is called when all are done.
        unsafe { ring.submitter().register_buffers(&slices)? };
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self {
            ring,
            memory,
            begun: 0,
            len,
            prepared: 0,
            polls,
            _file: file,
        })
    }

    /// Enters the kernel, which submits, and waits for `want` of them or looks once.
    fn enter(&mut self, want: u32, look: bool) -> Result<()> {
        // IORING_ENTER_GETEVENTS
        let flags = u32::from(look);
        let submitter = self.ring.submitter();
        // SAFETY: The entries that are submitted are those of `begin`, and there is no signal mask.
        unsafe { submitter.enter::<nix::libc::sigset_t>(self.prepared, want, flags, None)? };
        self.prepared = 0;
        Ok(())
    }

    fn completed(&mut self) -> Result<usize> {
        let mut reads = 0;
        for entry in self.ring.completion() {
            let result = entry.result();
            if usize::try_from(result) != Ok(self.len) {
                return Err(format!("a read of {} bytes returns {result}", self.len).into());
            }
            reads += 1;
        }
        Ok(reads)
    }
}

impl Reader for Uring {
    fn begin(&mut self, offset: u64) -> Result<()> {
        let index = self.begun % self.memory.len();
        self.begun += 1;
        let target = self.memory[index].as_mut_ptr();
        let (len, number) = (u32::try_from(self.len)?, u16::try_from(index)?);
        let read = opcode::ReadFixed::new(types::Fixed(0), target, len, number)
            .offset(offset)
            .build();
        // SAFETY: The memory is registered, and stays until the ring is dropped.
        unsafe { self.ring.submission().push(&read)? };
        self.prepared += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        self.enter(0, false)
    }

    fn poll(&mut self) -> Result<usize> {
        if self.polls {
            self.enter(0, true)?;
        }
        self.completed()
    }

    fn wait(&mut self) -> Result<usize> {
        let done = self.completed()?;
        if done != 0 {
            return Ok(done);
        }
        self.enter(1, true)?;
        self.completed()
    }

    fn parts(&self) -> usize {
        1
    }

    fn is_right(&self, offset: u64) -> Result<bool> {
        let index = (self.begun - 1) % self.memory.len();
        Ok(is_pattern(&self.memory[index], offset))
    }
}
