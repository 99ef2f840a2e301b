// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same computation in both ways: on host memory directly, and on a copy in the device's memory.

use std::time::{Duration, Instant};

use pinmap::{kernel, Allocation, Gpu, Queue, QueueOptions};

use crate::Result;

/// How long something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// By the device's clock: from when it begins until all is done.
    pub(crate) device: Duration,
    /// By the CPU's: from before it is submitted until it was waited for.
    pub(crate) wall: Duration,
}

/// Kernels that read and write all of some memory, and what they need.
pub(crate) struct Work {
    pub(crate) queue: Queue,
    pub(crate) host: Allocation<f32>,
    vram: Allocation<f32>,
    /// Begin and end, in the device's memory, so that they cost no access to the host's.
    stamps: Allocation<u64>,
}

impl Work {
    /// On so many numbers at most.
    pub(crate) fn new(gpu: &Gpu, most: usize) -> Result<Self> {
        Ok(Self {
            queue: gpu.queue(QueueOptions::new())?,
            host: gpu.device().alloc(most)?,
            vram: gpu.alloc_vram(most)?,
            stamps: gpu.alloc_vram(2)?,
        })
    }

    /// The kernels work on host memory.
    pub(crate) fn zero_copy(&mut self, count: usize, uses: u32) -> Result<Times> {
        let Self {
            queue,
            host,
            stamps,
            ..
        } = self;
        let start = Instant::now();
        queue.scope(|scope| {
            let mut data = host.slice_mut().part(..count)?;
            let mut stamps = stamps.slice_mut();
            let batch = scope.batch();
            scope.timestamp(&mut stamps, 0)?;
            for _ in 0..uses {
                scope.launch(kernel::IncrementF32 { data: &mut data })?;
            }
            scope.timestamp(&mut stamps, 1)?;
            batch.submit()?;
            scope.wait()
        })?;
        self.times(start)
    }

    /// The data is copied to device memory, the kernels work there, and the data is copied back.
    pub(crate) fn copy(&mut self, count: usize, uses: u32) -> Result<Times> {
        let Self {
            queue,
            host,
            vram,
            stamps,
        } = self;
        let start = Instant::now();
        queue.scope(|scope| {
            let mut data = host.slice_mut().part(..count)?;
            let mut there = vram.slice_mut().part(..count)?;
            let mut stamps = stamps.slice_mut();
            let batch = scope.batch();
            scope.timestamp(&mut stamps, 0)?;
            scope.copy(&data, &mut there)?;
            for _ in 0..uses {
                scope.launch(kernel::IncrementF32 { data: &mut there })?;
            }
            scope.copy(&there, &mut data)?;
            scope.timestamp(&mut stamps, 1)?;
            batch.submit()?;
            scope.wait()
        })?;
        self.times(start)
    }

    fn times(&self, start: Instant) -> Result<Times> {
        let wall = start.elapsed();
        let mut stamps = [0; 2];
        self.stamps.read(0, &mut stamps)?;
        let nanos = stamps[1]
            .checked_sub(stamps[0])
            .ok_or("the device's clock went back")?;
        let device = Duration::from_nanos(nanos);
        Ok(Times { device, wall })
    }
}
