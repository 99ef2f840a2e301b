// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of the test GPU.

use pyo3::prelude::*;

/// The kernels of the test GPU, a device of virtual machines. Each function submits one to a
/// stream; its operands are those of Stream.copy().
#[pymodule(submodule)]
pub(crate) mod testgpu {
    use std::time::Duration;

    use pinmap_testgpu::{
        AtomicAddU64, Crc32c, HistogramU8, IncrementF32, MatmulF32, Saxpy, Spin, SumF32,
    };
    use pyo3::prelude::*;

    use crate::stream::{refuse, Stream};

    /// Adds 1.0 to each float of `data`, in place.
    ///
    /// Raises Error: EINVAL, the elements have another type; otherwise as Stream.copy() does.
    #[pyfunction]
    fn increment_f32(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stream = stream.get();
        let data = stream.write(data, "data")?.expect("float32")?;
        let (at, len) = (data.offset, data.len);
        stream.submit(py, [&data], |work, [data]| {
            let data = &mut data.part_mut(at, len)?.cast()?;
            Ok(work.launch(IncrementF32 { data })?)
        })
    }

    /// Computes y = a * x + y for each float.
    ///
    /// Raises Error: EINVAL, the elements have another type, or x has not as many as y; otherwise
    /// as Stream.copy() does.
    #[pyfunction]
    fn saxpy(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        a: f32,
        x: &Bound<'_, PyAny>,
        y: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stream = stream.get();
        let y = stream.write(y, "y")?.expect("float32")?;
        let x = stream
            .read(x, "x")?
            .expect("float32")?
            .expect_count(y.len / 4)?;
        let (of_x, of_y, len) = (x.offset, y.offset, y.len);
        stream.submit(py, [&x, &y], |work, [x, y]| {
            let x = x.part(of_x, len)?.cast()?;
            let y = &mut y.part_mut(of_y, len)?.cast()?;
            Ok(work.launch(Saxpy { a, x, y })?)
        })
    }

    /// Sums the floats of `data`, and stores the sum as the float `sum`.
    ///
    /// Raises Error: EINVAL, the elements have another type, or sum is not one; otherwise as
    /// Stream.copy() does.
    #[pyfunction]
    fn sum_f32(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        data: &Bound<'_, PyAny>,
        sum: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stream = stream.get();
        let data = stream.read(data, "data")?.expect("float32")?;
        let sum = stream
            .write(sum, "sum")?
            .expect("float32")?
            .expect_count(1)?;
        let (of_data, len, of_sum) = (data.offset, data.len, sum.offset);
        stream.submit(py, [&data, &sum], |work, [data, sum]| {
            let data = data.part(of_data, len)?.cast()?;
            let sum = &mut sum.part_mut(of_sum, 4)?.cast()?;
            Ok(work.launch(SumF32 { data, sum })?)
        })
    }

    /// Counts how often each value of a byte is in `data`, in 256 numbers uint32.
    ///
    /// Raises Error: EINVAL, counts are not 256 elements uint32; otherwise as Stream.copy() does.
    #[pyfunction]
    fn histogram_u8(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        data: &Bound<'_, PyAny>,
        counts: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stream = stream.get();
        let data = stream.read(data, "data")?;
        let counts = stream
            .write(counts, "counts")?
            .expect("uint32")?
            .expect_count(256)?;
        let (of_data, len, of_counts) = (data.offset, data.len, counts.offset);
        stream.submit(py, [&data, &counts], |work, [data, counts]| {
            let data = data.part(of_data, len)?;
            let counts = &mut counts.part_mut(of_counts, 1024)?.cast()?;
            Ok(work.launch(HistogramU8 { data, counts })?)
        })
    }

    /// Computes the CRC-32C of the bytes of `data`, and stores it as the uint32 `crc`.
    ///
    /// Raises Error: EINVAL, crc is not one element uint32; otherwise as Stream.copy() does.
    #[pyfunction]
    fn crc32c(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        data: &Bound<'_, PyAny>,
        crc: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stream = stream.get();
        let data = stream.read(data, "data")?;
        let crc = stream
            .write(crc, "crc")?
            .expect("uint32")?
            .expect_count(1)?;
        let (of_data, len, of_crc) = (data.offset, data.len, crc.offset);
        stream.submit(py, [&data, &crc], |work, [data, crc]| {
            let data = data.part(of_data, len)?;
            let crc = &mut crc.part_mut(of_crc, 4)?.cast()?;
            Ok(work.launch(Crc32c { data, crc })?)
        })
    }

    /// Multiplies matrices of floats: c = a @ b. Each dimension is at most 4,096.
    ///
    /// Raises Error: EINVAL, the elements have another type, or the shapes do not go together;
    /// otherwise as Stream.copy() does.
    #[pyfunction]
    fn matmul_f32(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        a: &Bound<'_, PyAny>,
        b: &Bound<'_, PyAny>,
        c: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stream = stream.get();
        let a = stream.read(a, "a")?.expect("float32")?;
        let b = stream.read(b, "b")?.expect("float32")?;
        let c = stream.write(c, "c")?.expect("float32")?;
        let (shape_a, shape_b, shape_c) = (a.matrix()?, b.matrix()?, c.matrix()?);
        let ((m, k), (k_of_b, n)) = (shape_a, shape_b);
        if k != k_of_b || shape_c != (m, n) {
            let text = format!("{shape_a:?} times {shape_b:?} is not {shape_c:?}");
            return Err(refuse(text));
        }
        let ((of_a, len_a), (of_b, len_b)) = ((a.offset, a.len), (b.offset, b.len));
        let (of_c, len_c) = (c.offset, c.len);
        stream.submit(py, [&a, &b, &c], |work, [a, b, c]| {
            let (a, b) = (a.part(of_a, len_a)?.cast()?, b.part(of_b, len_b)?.cast()?);
            let c = &mut c.part_mut(of_c, len_c)?.cast()?;
            Ok(work.launch(MatmulF32 { a, b, c, m, n, k })?)
        })
    }

    /// Adds `value` to each uint64 of `data`, so many times, each time in an atomic access.
    ///
    /// Raises Error: EINVAL, the elements have another type; otherwise as Stream.copy() does.
    #[pyfunction]
    #[pyo3(signature = (stream, data, value, times = 1))]
    fn atomic_add_u64(
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        data: &Bound<'_, PyAny>,
        value: u64,
        times: u64,
    ) -> PyResult<()> {
        let stream = stream.get();
        let data = stream.write(data, "data")?.expect("uint64")?;
        let (at, len) = (data.offset, data.len);
        stream.submit(py, [&data], |work, [data]| {
            let data = &mut data.part_mut(at, len)?.cast()?;
            Ok(work.launch(AtomicAddU64 { data, value, times })?)
        })
    }

    /// Does nothing for so many seconds of the device's time.
    ///
    /// Raises Error: EINVAL, the time is negative or too long; otherwise as Stream.record() does.
    #[pyfunction]
    fn spin(py: Python<'_>, stream: &Bound<'_, Stream>, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| refuse(format!("a kernel cannot take {seconds} s")))?;
        stream
            .get()
            .submit(py, [], |work, []| Ok(work.launch(Spin { time })?))
    }
}
