// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test GPU: the kernels and the packets of the accelerator that comes with the driver's tests.
//!
//! The crate `pinmap` works with any accelerator that the driver supports. This one belongs to one
//! device, a model in QEMU, and shows what such a crate has: [`Kernel`]s, a [`PacketFormat`], and a
//! function that [finds](find()) the device.
//!
//! [`Kernel`]: pinmap::accelerator::Kernel
//! [`PacketFormat`]: pinmap::accelerator::PacketFormat
//!
//! Each struct is a kernel with its arguments, for [`Work::launch`]. Before a kernel is submitted,
//! its operands are checked: they must belong to the context of the stream, have the lengths that
//! the kernel needs, and at most 1 GiB each; an operand that is written must not overlap with
//! another one.
//!
//! [`Work::launch`]: pinmap::accelerator::Work::launch
//!
//! The results of `f32` kernels equal those of the CPU, bit by bit, if the CPU computes in the
//! order that is given here.
//!
//! ```no_run
//! use pinmap_testgpu::Saxpy;
//! # fn main() -> pinmap::Result<()> {
//! let gpu = pinmap_testgpu::find()?;
//! let stream = gpu.stream(pinmap::accelerator::StreamOptions::new())?;
//! let (mut x, mut y) = (gpu.alloc::<f32>(1024)?, gpu.alloc::<f32>(1024)?);
//! x.fill(3.0);
//! y.fill(1.0);
//! stream.scope(|work| work.launch(Saxpy { a: 2.0, x: x.slice(), y: &mut y.slice_mut() }))?;
//! assert!(y.iter().all(|&number| number == 7.0));
//! # Ok(()) }
//! ```

mod kernel;
pub mod packet;
#[cfg(feature = "program")]
pub mod program;

pub use kernel::{
    AtomicAddU64, CopyElements, Crc32c, Fill, HistogramU8, IncrementF32, MatmulF32, Saxpy, Spin,
    SumF32,
};

/// The examples in the document, which are tests, too.
#[cfg(all(doctest, feature = "program"))]
#[doc = include_str!("../../../docs/kernels.md")]
mod document {}

use pinmap::accelerator::Accelerator;
use pinmap::{Device, Result};

/// Opens the first test GPU that works.
///
/// # Errors
///
/// `ENODEV`: there is none; otherwise the error of the first one that could not be opened.
pub fn find() -> Result<Accelerator> {
    // SAFETY: Devices with these ids have the packets of the format.
    unsafe { Accelerator::find_with(&[packet::ID], &packet::Format) }
}

/// Returns an open device as an accelerator.
///
/// # Errors
///
/// `EOPNOTSUPP`: the device is no test GPU; `ENODEV`: the device is gone.
pub fn accelerator(device: &Device) -> Result<Accelerator> {
    // SAFETY: Devices with these ids have the packets of the format.
    unsafe { device.accelerator_with(&[packet::ID], &packet::Format) }
}

/// The manual of the device, with which the tests compare the numbers.
#[cfg(test)]
pub(crate) fn manual() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/devices/testgpu/MANUAL.md"
    );
    std::fs::read_to_string(path).expect("the manual")
}
