// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test GPU: the kernels and the packets of the accelerator that comes with the driver's tests.
//!
//! Everything else in this crate works with any device that the driver supports. This module
//! belongs to one device, a model in QEMU. For another one, a program brings its own
//! [`Kernel`](crate::Kernel)s and its [`PacketFormat`](crate::PacketFormat).
//!
//! Each struct is a kernel with its arguments, for [`Work::launch`](crate::stream::Work::launch) of
//! a stream or [`QueueScope::launch`](crate::QueueScope::launch) of a queue. Before a kernel is
//! submitted, its operands are checked: they must belong to the context of the queue, have the
//! lengths that the kernel needs, and at most 1 GiB each; an operand that is written must not
//! overlap with another one.
//!
//! The results of `f32` kernels equal those of the CPU, bit by bit, if the CPU computes in the
//! order that is given here.
//!
//! ```no_run
//! use pinmap::testgpu::Saxpy;
//! # fn main() -> pinmap::Result<()> {
//! let gpu = pinmap::Accelerator::find()?;
//! let stream = gpu.stream(pinmap::StreamOptions::new())?;
//! let (mut x, mut y) = (gpu.alloc::<f32>(1024)?, gpu.alloc::<f32>(1024)?);
//! x.fill(3.0);
//! y.fill(1.0);
//! stream.scope(|work| work.launch(Saxpy { a: 2.0, x: x.slice(), y: &mut y.slice_mut() }))?;
//! assert!(y.iter().all(|&number| number == 7.0));
//! # Ok(()) }
//! ```

mod kernel;
pub mod packet;

pub use kernel::{
    AtomicAddU64, CopyElements, Crc32c, Fill, HistogramU8, IncrementF32, MatmulF32, Saxpy, Spin,
    SumF32,
};

// The tests compare the numbers with the device's manual.
#[cfg(test)]
pub(crate) mod tests {
    /// The manual of the device. A published crate does not contain it.
    pub(crate) fn manual() -> Option<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/testgpu/MANUAL.md");
        std::fs::read_to_string(path).ok()
    }
}
