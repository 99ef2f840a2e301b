// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of the test GPU, with typed operands.
#![allow(unsafe_code)]

use std::time::Duration;

use pinmap::accelerator::{DeviceSlice, DeviceSliceMut, Kernel, Operands, Packet};
use pinmap::{Element, Result};

use super::packet::{self, Format};

/// How many bytes an operand of a kernel may have.
const LONGEST: u64 = 1 << 30;

/// How many rows and columns a matrix may have.
const MOST_ROWS: usize = 4096;

/// The numbers of the kernels.
mod number {
    pub(super) const COPY: u32 = 1;
    pub(super) const FILL: u32 = 2;
    pub(super) const INCREMENT_F32: u32 = 3;
    pub(super) const SAXPY: u32 = 4;
    pub(super) const SUM_F32: u32 = 5;
    pub(super) const HISTOGRAM_U8: u32 = 6;
    pub(super) const CRC32C: u32 = 7;
    pub(super) const MATMUL_F32: u32 = 8;
    pub(super) const SPIN: u32 = 9;
    pub(super) const ATOMIC_ADD_U64: u32 = 10;
}

/// A kernel that copies elements.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::CopyElements;
/// # fn f(stream: &Stream, from: &Pinned<u16>, to: &mut Pinned<u16>) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     work.launch(CopyElements { from: from.slice(), to: &mut to.slice_mut() })
/// })?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct CopyElements<'r, 'a, T> {
    /// The elements to copy.
    pub from: DeviceSlice<'a, T>,
    /// The target, of as many elements.
    pub to: &'r mut DeviceSliceMut<'a, T>,
}

/// A kernel that sets each element to a value.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::Fill;
/// # fn f(stream: &Stream, words: &mut Pinned<u32>) -> pinmap::Result<()> {
/// stream.scope(|work| work.launch(Fill { to: &mut words.slice_mut(), value: 7 }))?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Fill<'r, 'a> {
    /// The elements to set.
    pub to: &'r mut DeviceSliceMut<'a, u32>,
    /// The value.
    pub value: u32,
}

/// A kernel that adds 1.0 to each element, in place.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::IncrementF32;
/// # fn f(stream: &Stream, numbers: &mut Pinned<f32>) -> pinmap::Result<()> {
/// let before = numbers[0];
/// stream.scope(|work| work.launch(IncrementF32 { data: &mut numbers.slice_mut() }))?;
/// assert_eq!(numbers[0], before + 1.0);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct IncrementF32<'r, 'a> {
    /// The elements to increment.
    pub data: &'r mut DeviceSliceMut<'a, f32>,
}

/// A kernel that computes y = a · x + y for each element, in place. Product and sum are each
/// rounded to `f32`.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::Saxpy;
/// # fn f(stream: &Stream, x: &Pinned<f32>, y: &mut Pinned<f32>) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     work.launch(Saxpy { a: 0.5, x: x.slice(), y: &mut y.slice_mut() })
/// })?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Saxpy<'r, 'a> {
    /// The factor a.
    pub a: f32,
    /// The elements x, which are multiplied.
    pub x: DeviceSlice<'a, f32>,
    /// The elements y, to which is added: as many as in `x`.
    pub y: &'r mut DeviceSliceMut<'a, f32>,
}

/// A kernel that sums all elements, from the first to the last in `f64`, and rounds the sum to
/// `f32`.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::SumF32;
/// # fn f(
/// #     stream: &Stream, numbers: &Pinned<f32>, sum: &mut Pinned<f32>,
/// # ) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     // The sum is one element, however long `sum` is.
///     let mut sum = sum.slice_mut().part(..1)?;
///     work.launch(SumF32 { data: numbers.slice(), sum: &mut sum })
/// })?;
/// println!("{}", sum[0]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SumF32<'r, 'a> {
    /// The elements to sum.
    pub data: DeviceSlice<'a, f32>,
    /// The sum, which is overwritten: one element. That of no elements is 0.
    pub sum: &'r mut DeviceSliceMut<'a, f32>,
}

/// A kernel that counts how often each byte value occurs, from zero.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::HistogramU8;
/// # fn f(stream: &Stream, text: &Pinned<u8>, counts: &mut Pinned<u32>) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     work.launch(HistogramU8 { data: text.slice(), counts: &mut counts.slice_mut() })
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct HistogramU8<'r, 'a> {
    /// The bytes.
    pub data: DeviceSlice<'a, u8>,
    /// The counts, which are overwritten: 256 elements, by the value of the byte.
    pub counts: &'r mut DeviceSliceMut<'a, u32>,
}

/// A kernel that computes the CRC-32C (Castagnoli) of bytes: reflected, and inverted at the
/// beginning and at the end. That of no bytes is 0.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::Crc32c;
/// # fn f(stream: &Stream, text: &Pinned<u8>, crc: &mut Pinned<u32>) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     work.launch(Crc32c { data: text.slice(), crc: &mut crc.slice_mut() })
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Crc32c<'r, 'a> {
    /// The bytes.
    pub data: DeviceSlice<'a, u8>,
    /// The checksum, which is overwritten: one element.
    pub crc: &'r mut DeviceSliceMut<'a, u32>,
}

/// A kernel that multiplies matrices: C = A · B, stored row after row. Each element is summed in
/// `f32`, from the first product to the last; product and sum are each rounded.
///
/// ```no_run
/// use pinmap::accelerator::{Pinned, Stream};
/// use pinmap_testgpu::MatmulF32;
/// # fn f(
/// #     stream: &Stream, a: &Pinned<f32>, b: &Pinned<f32>, c: &mut Pinned<f32>,
/// # ) -> pinmap::Result<()> {
/// // 2 rows of 3, times 3 rows of 4, is 2 rows of 4.
/// stream.scope(|work| {
///     work.launch(MatmulF32 {
///         a: a.slice().part(..6)?,
///         b: b.slice().part(..12)?,
///         c: &mut c.slice_mut().part(..8)?,
///         m: 2,
///         n: 4,
///         k: 3,
///     })
/// })?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MatmulF32<'r, 'a> {
    /// Matrix A: m rows of k elements.
    pub a: DeviceSlice<'a, f32>,
    /// Matrix B: k rows of n elements.
    pub b: DeviceSlice<'a, f32>,
    /// Matrix C, which is overwritten: m rows of n elements.
    pub c: &'r mut DeviceSliceMut<'a, f32>,
    /// Rows of A and C, at most 4,096.
    pub m: usize,
    /// Columns of B and C, at most 4,096.
    pub n: usize,
    /// Columns of A and rows of B, at most 4,096.
    pub k: usize,
}

/// A kernel that does nothing for some time. A packet that runs for longer than
/// [`AcceleratorInfo::max_run`](pinmap::accelerator::AcceleratorInfo::max_run) stops its queue.
///
/// ```no_run
/// use pinmap::accelerator::Stream;
/// use pinmap_testgpu::Spin;
/// use std::time::Duration;
/// # fn f(stream: &Stream) -> pinmap::Result<()> {
/// stream.scope(|work| work.launch(Spin { time: Duration::from_millis(1) }))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Spin {
    /// How long the kernel runs.
    pub time: Duration,
}

/// A kernel that adds a value to each element several times, each time in an atomic access. The
/// sums wrap. What the device and others do to the same elements meanwhile does not get lost, as
/// far as the device's manual says so.
///
/// ```no_run
/// use pinmap::accelerator::{Managed, Stream};
/// use pinmap_testgpu::AtomicAddU64;
/// # fn f(stream: &Stream, counters: &mut Managed<u64>) -> pinmap::Result<()> {
/// stream.scope(|work| {
///     work.launch(AtomicAddU64 { data: &mut counters.slice_mut(), value: 1, times: 1000 })
/// })?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AtomicAddU64<'r, 'a> {
    /// The elements to which is added.
    pub data: &'r mut DeviceSliceMut<'a, u64>,
    /// The value.
    pub value: u64,
    /// How often it is added to each element.
    pub times: u64,
}

/// Makes the packet of a kernel. Unused arguments are 0.
fn launch<const N: usize>(kernel: u32, arguments: [u64; N]) -> Packet {
    let mut all = [0; 7];
    all[..N].copy_from_slice(&arguments);
    packet::launch(kernel, all)
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's, T: Element> Kernel<'s> for CopyElements<'_, 'a, T> {
    type Format = Format;
    const NAME: &'static str = "the kernel copy";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        operands.require_len("`to`", self.to.len(), self.from.len())?;
        let from = operands.read(&self.from)?;
        let to = operands.write(self.to)?;
        let bytes = (self.from.len() * size_of::<T>()) as u64;
        Ok(launch(number::COPY, [to, from, bytes]))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for Fill<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel fill";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        let to = operands.write(self.to)?;
        let arguments = [to, self.to.len() as u64, self.value.into()];
        Ok(launch(number::FILL, arguments))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for IncrementF32<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel increment_f32";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        let data = operands.write(self.data)?;
        let arguments = [data, self.data.len() as u64];
        Ok(launch(number::INCREMENT_F32, arguments))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for Saxpy<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel saxpy";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        operands.require_len("`y`", self.y.len(), self.x.len())?;
        let x = operands.read(&self.x)?;
        let y = operands.write(self.y)?;
        let arguments = [x, y, self.x.len() as u64, self.a.to_bits().into()];
        Ok(launch(number::SAXPY, arguments))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for SumF32<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel sum_f32";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        operands.require_len("`sum`", self.sum.len(), 1)?;
        let data = operands.read(&self.data)?;
        let sum = operands.write(self.sum)?;
        Ok(launch(number::SUM_F32, [data, self.data.len() as u64, sum]))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for HistogramU8<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel histogram_u8";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        operands.require_len("`counts`", self.counts.len(), 256)?;
        let data = operands.read(&self.data)?;
        let counts = operands.write(self.counts)?;
        let arguments = [data, self.data.len() as u64, counts];
        Ok(launch(number::HISTOGRAM_U8, arguments))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for Crc32c<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel crc32c";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        operands.require_len("`crc`", self.crc.len(), 1)?;
        let data = operands.read(&self.data)?;
        let crc = operands.write(self.crc)?;
        Ok(launch(number::CRC32C, [data, self.data.len() as u64, crc]))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for MatmulF32<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel matmul_f32";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        let Self { m, n, k, .. } = self;
        if m.max(n).max(k) > MOST_ROWS {
            let cause = format!("{m}, {n} and {k} are not all at most {MOST_ROWS}");
            return Err(operands.refuse(cause));
        }
        operands.require_len("`a`", self.a.len(), m * k)?;
        operands.require_len("`b`", self.b.len(), k * n)?;
        operands.require_len("`c`", self.c.len(), m * n)?;
        let a = operands.read(&self.a)?;
        let b = operands.read(&self.b)?;
        let c = operands.write(self.c)?;
        let arguments = [a, b, c, m as u64, n as u64, k as u64];
        Ok(launch(number::MATMUL_F32, arguments))
    }
}

// SAFETY: The kernel accesses nothing.
unsafe impl Kernel<'_> for Spin {
    type Format = Format;
    const NAME: &'static str = "the kernel spin";

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        let nanos = u64::try_from(self.time.as_nanos())
            .map_err(|_| operands.refuse("no device runs for that long"))?;
        Ok(launch(number::SPIN, [nanos]))
    }
}

// SAFETY: By the manual, the kernel accesses its operands as they are added here.
unsafe impl<'s, 'a: 's> Kernel<'s> for AtomicAddU64<'_, 'a> {
    type Format = Format;
    const NAME: &'static str = "the kernel atomic_add_u64";
    const LONGEST: u64 = LONGEST;

    fn encode(self, operands: &mut Operands<'_>) -> Result<Packet> {
        let count = self.data.len() as u64;
        if count.checked_mul(self.times).is_none() {
            return Err(operands.refuse("so many additions cannot be counted"));
        }
        let data = operands.write(self.data)?;
        let arguments = [data, count, self.value, self.times];
        Ok(launch(number::ATOMIC_ADD_U64, arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn the_numbers_are_those_of_the_manual() {
        let manual = super::super::manual();
        let section = manual.split("## 9.").nth(1).expect("section 9");
        for (number, name) in [
            (number::COPY, "KERNEL_COPY"),
            (number::FILL, "KERNEL_FILL"),
            (number::INCREMENT_F32, "KERNEL_INCREMENT_F32"),
            (number::SAXPY, "KERNEL_SAXPY"),
            (number::SUM_F32, "KERNEL_SUM_F32"),
            (number::HISTOGRAM_U8, "KERNEL_HISTOGRAM_U8"),
            (number::CRC32C, "KERNEL_CRC32C"),
            (number::MATMUL_F32, "KERNEL_MATMUL_F32"),
            (number::SPIN, "KERNEL_SPIN"),
            (number::ATOMIC_ADD_U64, "KERNEL_ATOMIC_ADD_U64"),
        ] {
            let row = format!("| `{number}` | `{name}` |");
            assert!(section.contains(&row), "{row}");
        }
    }
}
