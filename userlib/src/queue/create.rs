// SPDX-License-Identifier: MIT OR Apache-2.0
//! How queues are made.

use std::os::fd::AsFd;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::lent::Lending;
use crate::sys::map::{page_size, Map, Register};
use crate::sys::{bindings as abi, ioctl};
use crate::trace::recorder::Recorder;

use super::doorbell::Doorbell;
use super::format::Packet;
use super::handle::Handle;
use super::options::StreamOptions;
use super::ring::{Path, Ring};
use super::Queue;

/// How many packets a ring can hold.
const PACKETS: std::ops::RangeInclusive<u32> = 64..=65536;

impl Accelerator {
    /// Makes a queue for a stream: see [`Accelerator::stream`] for the errors.
    pub(crate) fn queue(&self, options: StreamOptions) -> Result<Queue> {
        let device = self.device();
        let attempt = || format!("make a queue of {device}");
        let fail = |errno| Error::new(Operation::Queue, attempt(), errno);
        let StreamOptions {
            engines,
            priority,
            packets,
            system_calls,
            registers,
            ..
        } = options;
        if !packets.is_power_of_two() || !PACKETS.contains(&packets) {
            let (least, most) = (PACKETS.start(), PACKETS.end());
            let cause = format!("{packets} packets are no power of two from {least} to {most}");
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Queue, attempt(), errno, cause));
        }
        let mut args = abi::pinmap_queue_create {
            flags: engines.flags(),
            priority: priority.min(self.limits().max_priority),
            packets,
            ..Default::default()
        };
        ioctl::queue_create(device.as_fd(), &mut args)
            .map_err(|errno| fail(errno).with_failure(Failure::from_abi(&args.fail)))?;
        let created = Created {
            gpu: self,
            queue: Some(args.out_queue),
        };
        let map = |offset, len| -> Result<MmapRaw> {
            MmapOptions::new()
                .offset(offset)
                .len(len)
                .map_raw(device.file())
                .map_err(|error| Error::from_io(Operation::Queue, attempt(), &error))
        };
        let fences = Map::new(map(args.out_fence_offset, page_size())?);
        let path = if system_calls {
            Path::Call {
                device: device.clone(),
                queue: args.out_queue,
                staged: Vec::with_capacity(packets as usize),
            }
        } else {
            let len = usize::try_from(args.out_ring_length)
                .ok()
                .filter(|&len| len >= packets as usize * Packet::LEN)
                .ok_or_else(|| fail(Errno::EPROTO))?;
            Path::Mapped {
                ring: Map::new(map(args.out_ring_offset, len)?),
                doorbell: Doorbell::new(Register::new(map(args.out_doorbell_offset, page_size())?)),
            }
        };
        let id = created.keep();
        let lending = Lending::new(registers);
        let recorder = Recorder::of(self, id, args.priority);
        let handle = Handle::new(
            device.clone(),
            id,
            fences,
            args.out_fence_addr,
            lending,
            recorder,
        );
        let ring = Ring::new(path, packets.into(), handle.executed_addr(), self.format());
        Ok(Queue::from_parts(self, engines, handle, ring))
    }
}

/// A queue that is destroyed when this is dropped, unless it is kept.
struct Created<'a> {
    gpu: &'a Accelerator,
    queue: Option<u64>,
}

impl Created<'_> {
    /// Keeps the queue, and returns its id.
    fn keep(mut self) -> u64 {
        self.queue.take().unwrap_or_default()
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue {
            let mut args = abi::pinmap_queue_destroy {
                queue,
                ..Default::default()
            };
            // An error means that the device is gone, or that the file is not the driver's.
            let _ = ioctl::queue_destroy(self.gpu.device().as_fd(), &mut args);
        }
    }
}
