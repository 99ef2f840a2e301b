// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of the test GPU.

use std::ffi::c_int;
use std::time::Duration;

use pinmap_testgpu::{
    AtomicAddU64, Crc32c, HistogramU8, IncrementF32, MatmulF32, Saxpy, Spin, SumF32,
};

use crate::error::{refer, status};
use crate::memory::{bytes, Memory};
use crate::stream::{part, Stream};

/// Launches a kernel that adds 1.0 to each of `count` floats, in place.
///
/// Errors of all kernels: as for pinmap_stream_copy(); EINVAL, an offset is not a multiple of the
/// element's size, or a part that is written overlaps with another.
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_increment_f32(
    stream: *const Stream,
    data: *const Memory,
    offset: usize,
    count: u64,
) -> c_int {
    status(|| {
        let length = bytes(count, 4)?;
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit([part(data, "data")], |work, [data]| {
                let data = &mut data.part_mut(offset, length)?.cast()?;
                Ok(work.launch(IncrementF32 { data })?)
            })
        }
    })
}

/// Launches a kernel that computes y = a * x + y for each of `count` floats.
///
/// Errors: as for pinmap_testgpu_increment_f32().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_saxpy(
    stream: *const Stream,
    a: f32,
    x: *const Memory,
    x_offset: usize,
    y: *const Memory,
    y_offset: usize,
    count: u64,
) -> c_int {
    status(|| {
        let length = bytes(count, 4)?;
        let parts = [part(x, "x"), part(y, "y")];
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit(parts, |work, [x, y]| {
                let x = x.part(x_offset, length)?.cast()?;
                let y = &mut y.part_mut(y_offset, length)?.cast()?;
                Ok(work.launch(Saxpy { a, x, y })?)
            })
        }
    })
}

/// Launches a kernel that sums `count` floats, and stores the sum as a float at `sum`.
///
/// Errors: as for pinmap_testgpu_increment_f32().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_sum_f32(
    stream: *const Stream,
    data: *const Memory,
    data_offset: usize,
    count: u64,
    sum: *const Memory,
    sum_offset: usize,
) -> c_int {
    status(|| {
        let length = bytes(count, 4)?;
        let parts = [part(data, "data"), part(sum, "sum")];
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit(parts, |work, [data, sum]| {
                let data = data.part(data_offset, length)?.cast()?;
                let sum = &mut sum.part_mut(sum_offset, 4)?.cast()?;
                Ok(work.launch(SumF32 { data, sum })?)
            })
        }
    })
}

/// Launches a kernel that counts how often each byte value occurs: 256 counts of 32 bits.
///
/// Errors: as for pinmap_testgpu_increment_f32().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_histogram_u8(
    stream: *const Stream,
    data: *const Memory,
    data_offset: usize,
    length: usize,
    counts: *const Memory,
    counts_offset: usize,
) -> c_int {
    status(|| {
        let parts = [part(data, "data"), part(counts, "counts")];
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit(parts, |work, [data, counts]| {
                let data = data.part(data_offset, length)?;
                let counts = &mut counts.part_mut(counts_offset, 1024)?.cast()?;
                Ok(work.launch(HistogramU8 { data, counts })?)
            })
        }
    })
}

/// Launches a kernel that computes the CRC-32C of bytes, and stores its 32 bits at `crc`.
///
/// Errors: as for pinmap_testgpu_increment_f32().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_crc32c(
    stream: *const Stream,
    data: *const Memory,
    data_offset: usize,
    length: usize,
    crc: *const Memory,
    crc_offset: usize,
) -> c_int {
    status(|| {
        let parts = [part(data, "data"), part(crc, "crc")];
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit(parts, |work, [data, crc]| {
                let data = data.part(data_offset, length)?;
                let crc = &mut crc.part_mut(crc_offset, 4)?.cast()?;
                Ok(work.launch(Crc32c { data, crc })?)
            })
        }
    })
}

/// Launches a kernel that multiplies matrices of floats, stored row after row from the beginning of
/// the memory: C = A * B. A has `m` rows of `k` elements, B has `k` rows of `n`; each number is at
/// most 4,096.
///
/// Errors: as for pinmap_testgpu_increment_f32().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_matmul_f32(
    stream: *const Stream,
    a: *const Memory,
    b: *const Memory,
    c: *const Memory,
    m: u32,
    n: u32,
    k: u32,
) -> c_int {
    status(|| {
        let length = |rows: u32, columns: u32| bytes(u64::from(rows) * u64::from(columns), 4);
        let (of_a, of_b, of_c) = (length(m, k)?, length(k, n)?, length(m, n)?);
        let (m, n, k) = (m as usize, n as usize, k as usize);
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit([part(a, "a"), part(b, "b"), part(c, "c")], |work, all| {
                let [a, b, c] = all;
                let (a, b) = (a.part(0, of_a)?.cast()?, b.part(0, of_b)?.cast()?);
                let c = &mut c.part_mut(0, of_c)?.cast()?;
                Ok(work.launch(MatmulF32 { a, b, c, m, n, k })?)
            })
        }
    })
}

/// Launches a kernel that adds `value` to each of `count` numbers of 64 bits, so many times, each
/// time in an atomic access.
///
/// Errors: as for pinmap_testgpu_increment_f32().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_atomic_add_u64(
    stream: *const Stream,
    data: *const Memory,
    offset: usize,
    count: u64,
    value: u64,
    times: u64,
) -> c_int {
    status(|| {
        let length = bytes(count, 8)?;
        // SAFETY: A stream and memory, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit([part(data, "data")], |work, [data]| {
                let data = &mut data.part_mut(offset, length)?.cast()?;
                Ok(work.launch(AtomicAddU64 { data, value, times })?)
            })
        }
    })
}

/// Launches a kernel that does nothing for so many nanoseconds.
///
/// Errors: as for pinmap_stream_record().
#[no_mangle]
pub unsafe extern "C" fn pinmap_testgpu_spin(stream: *const Stream, nanoseconds: u64) -> c_int {
    status(|| {
        let time = Duration::from_nanos(nanoseconds);
        // SAFETY: A stream, by the rules of C.
        unsafe {
            let stream = refer(stream, "stream")?;
            stream.submit([], |work, []| Ok(work.launch(Spin { time })?))
        }
    })
}
