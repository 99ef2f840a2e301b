// SPDX-License-Identifier: MIT OR Apache-2.0
//! One computation in two ways: on host memory directly (zero-copy), and on a copy in the
//! device's memory.

use std::error::Error;
use std::time::{Duration, Instant};

use pinmap::accelerator::{Accelerator, Stream, StreamOptions};
use pinmap::Allocation;
use pinmap_testgpu as testgpu;

/// Any error is told in one sentence.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long the work took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Time by the device's clock, from the beginning of the work to its end.
    pub device: Duration,
    /// Time by the CPU's clock, from before submitting the work to after waiting for it.
    pub wall: Duration,
}

/// Kernels that read and write all of some memory, with all that they need.
#[derive(Debug)]
pub struct Work {
    /// The stream on which the kernels run.
    pub stream: Stream,
    /// The numbers in host memory, on which all computations are made.
    pub host: Allocation<f32>,
    vram: Allocation<f32>,
    /// When the work began and ended, in the device's memory, so that storing it costs no access to
    /// the host's.
    stamps: Allocation<u64>,
}

impl Work {
    /// Allocates memory for at most `most` numbers.
    ///
    /// # Errors
    ///
    /// The errors of making a stream and of allocating memory.
    pub fn new(gpu: &Accelerator, most: usize) -> Result<Self> {
        Ok(Self {
            stream: gpu.stream(StreamOptions::new())?,
            host: gpu.device().alloc(most)?,
            vram: gpu.alloc_vram(most)?,
            stamps: gpu.alloc_vram(2)?,
        })
    }

    /// Increments `count` numbers `uses` times, in host memory.
    ///
    /// # Errors
    ///
    /// The errors of submitting and waiting.
    pub fn zero_copy(&mut self, count: usize, uses: u32) -> Result<Times> {
        let Self {
            stream,
            host,
            stamps,
            ..
        } = self;
        let start = Instant::now();
        stream.scope(|work| {
            let mut data = host.slice_mut().part(..count)?;
            let mut stamps = stamps.slice_mut();
            work.batch(|| {
                work.timestamp(&mut stamps, 0)?;
                for _ in 0..uses {
                    work.launch(testgpu::IncrementF32 { data: &mut data })?;
                }
                work.timestamp(&mut stamps, 1)
            })
        })?;
        self.times(start)
    }

    /// Copies `count` numbers to the device's memory, increments them `uses` times there, and
    /// copies them back.
    ///
    /// # Errors
    ///
    /// The errors of submitting and waiting.
    pub fn copy(&mut self, count: usize, uses: u32) -> Result<Times> {
        let Self {
            stream,
            host,
            vram,
            stamps,
        } = self;
        let start = Instant::now();
        stream.scope(|work| {
            let mut data = host.slice_mut().part(..count)?;
            let mut there = vram.slice_mut().part(..count)?;
            let mut stamps = stamps.slice_mut();
            work.batch(|| {
                work.timestamp(&mut stamps, 0)?;
                work.copy(&data, &mut there)?;
                for _ in 0..uses {
                    work.launch(testgpu::IncrementF32 { data: &mut there })?;
                }
                work.copy(&there, &mut data)?;
                work.timestamp(&mut stamps, 1)
            })
        })?;
        self.times(start)
    }

    /// How long the work took that was started then.
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
