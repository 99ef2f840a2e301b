// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares each kernel, and the copy engines, with the CPU: in host memory and in VRAM.

use std::time::{Duration, Instant};

use pinmap::accelerator::Number;
use pinmap::accelerator::{Accelerator, DeviceSlice};
use pinmap::{Access, Allocation, Buffer, Element};
use pinmap_testgpu as testgpu;

use crate::gpu::{gpu, gpu_and_stream};
use crate::harness::Outcome;
use crate::setup::pattern;

/// Lengths that are no multiples of a page, a word or one another.
const LENGTHS: [usize; 4] = [1, 7, 1000, 70_001];

/// Makes host memory and VRAM with the same content.
fn both<T: Element>(gpu: &Accelerator, content: &[T]) -> pinmap::Result<[Allocation<T>; 2]> {
    let mut places = [
        gpu.device().alloc(content.len())?,
        gpu.alloc_vram(content.len())?,
    ];
    for memory in &mut places {
        memory.write(0, content)?;
    }
    Ok(places)
}

/// Numbers that are neither small nor round.
fn floats(seed: u8, len: usize) -> Vec<f32> {
    let bytes = pattern(seed, 4 * len);
    let words = bytes.chunks_exact(4);
    words
        .map(|bytes| {
            let word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            (word >> 8) as f32 / 1000.0 - 5000.0
        })
        .collect()
}

/// The bits of numbers, so that roundings are compared, too.
fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

pub(crate) fn copy_engines_copy_and_fill() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    for len in LENGTHS {
        let content = pattern(1, len);
        for from in both(&gpu, &content)? {
            for mut to in both(&gpu, &vec![0; len])? {
                stream.scope(|work| work.copy(from.slice(), to.slice_mut()))?;
                assert!(to.to_vec() == content, "{from:?} to {to:?}");
            }
        }
        fill(&gpu, len, 0xa5u8)?;
        fill(&gpu, len, -2i16)?;
        fill(&gpu, len, 1.5f32)?;
        fill(&gpu, len, u64::MAX / 3)?;
    }
    // Parts of the memory, at any address.
    let content = pattern(2, 9000);
    let [from, mut to] = both(&gpu, &content)?;
    stream.scope(|work| {
        let mut to = to.slice_mut().part(4099..8000)?;
        work.copy(from.slice().part(1..3902)?, &mut to)
    })?;
    let mut expected = content;
    expected.copy_within(1..3902, 4099);
    assert!(to.to_vec() == expected, "a part is wrong");
    Ok(())
}

fn fill<T: Number + PartialEq + std::fmt::Debug>(
    gpu: &Accelerator,
    len: usize,
    value: T,
) -> pinmap::Result<()> {
    let stream = gpu.stream(Default::default())?;
    let places = [gpu.device().alloc(len)?, gpu.alloc_vram(len)?];
    for mut memory in places {
        stream.scope(|work| work.fill(memory.slice_mut(), value))?;
        let good = memory.to_vec().iter().all(|&element| element == value);
        assert!(good, "{value:?} in {memory:?}");
    }
    Ok(())
}

pub(crate) fn kernel_copy_and_fill() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    for len in LENGTHS {
        let content = floats(1, len);
        for from in both(&gpu, &content)? {
            for mut to in both(&gpu, &vec![0.0; len])? {
                stream.scope(|work| {
                    work.launch(testgpu::CopyElements {
                        from: from.slice(),
                        to: &mut to.slice_mut(),
                    })
                })?;
                assert!(bits(&to.to_vec()) == bits(&content), "{from:?} to {to:?}");
            }
        }
        for mut to in both(&gpu, &vec![0; len])? {
            let value = 0xfeed_beef;
            stream.scope(|work| {
                let to = &mut to.slice_mut();
                work.launch(testgpu::Fill { to, value })
            })?;
            assert!(to.to_vec().iter().all(|&word| word == value), "{to:?}");
        }
    }
    Ok(())
}

pub(crate) fn kernel_increment() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    for len in LENGTHS {
        let content = floats(2, len);
        let expected: Vec<f32> = content.iter().map(|float| float + 1.0).collect();
        for mut memory in both(&gpu, &content)? {
            stream.scope(|work| {
                let data = &mut memory.slice_mut();
                work.launch(testgpu::IncrementF32 { data })
            })?;
            assert!(bits(&memory.to_vec()) == bits(&expected), "{memory:?}");
        }
    }
    Ok(())
}

pub(crate) fn kernel_saxpy() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let a = -1.7;
    for len in LENGTHS {
        let (x, y) = (floats(3, len), floats(4, len));
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a * x + y).collect();
        for x in both(&gpu, &x)? {
            for mut y in both(&gpu, &y)? {
                stream.scope(|work| {
                    work.launch(testgpu::Saxpy {
                        a,
                        x: x.slice(),
                        y: &mut y.slice_mut(),
                    })
                })?;
                assert!(bits(&y.to_vec()) == bits(&expected), "{x:?}, {y:?}");
            }
        }
    }
    Ok(())
}

pub(crate) fn kernel_sum() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    for len in LENGTHS {
        let content = floats(5, len);
        let expected = content.iter().copied().map(f64::from).sum::<f64>() as f32;
        for data in both(&gpu, &content)? {
            let mut sum = gpu.device().alloc::<f32>(1)?;
            stream.scope(|work| {
                work.launch(testgpu::SumF32 {
                    data: data.slice(),
                    sum: &mut sum.slice_mut(),
                })
            })?;
            assert_eq!(sum.get(0)?.to_bits(), expected.to_bits(), "{data:?}");
        }
    }
    Ok(())
}

pub(crate) fn kernel_histogram() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    for len in LENGTHS {
        let content = pattern(6, len);
        let mut expected = vec![0; 256];
        content
            .iter()
            .for_each(|&byte| expected[usize::from(byte)] += 1);
        for data in both(&gpu, &content)? {
            let mut counts = gpu.alloc_vram::<u32>(256)?;
            stream.scope(|work| {
                work.launch(testgpu::HistogramU8 {
                    data: data.slice(),
                    counts: &mut counts.slice_mut(),
                })
            })?;
            assert_eq!(counts.to_vec(), expected, "{data:?}");
        }
    }
    Ok(())
}

/// Computes CRC-32C, a bit at a time.
fn crc32c(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

pub(crate) fn kernel_crc32c() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let check = |data: DeviceSlice<'_, u8>| -> pinmap::Result<u32> {
        let mut crc = gpu.device().alloc::<u32>(1)?;
        stream.scope(|work| {
            work.launch(testgpu::Crc32c {
                data,
                crc: &mut crc.slice_mut(),
            })
        })?;
        crc.get(0)
    };
    let mut known = Buffer::<u8>::new(9)?;
    known[..9].copy_from_slice(b"123456789");
    let known = known.register(gpu.device(), Access::Read)?;
    assert_eq!(check(known.slice()?.part(..9)?)?, 0xe306_9283);
    for len in LENGTHS {
        let content = pattern(7, len);
        for data in both(&gpu, &content)? {
            assert_eq!(check(data.slice())?, crc32c(&content), "{data:?}");
        }
    }
    Ok(())
}

pub(crate) fn kernel_matmul() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (64, 33, 17)] {
        let (a, b) = (floats(8, m * k), floats(9, k * n));
        let mut expected = vec![0.0; m * n];
        for (row, to) in expected.chunks_exact_mut(n).enumerate() {
            for (column, to) in to.iter_mut().enumerate() {
                for i in 0..k {
                    *to += a[row * k + i] * b[i * n + column];
                }
            }
        }
        let pairs = both(&gpu, &a)?.into_iter().zip(both(&gpu, &b)?);
        for ((a, b), mut c) in pairs.zip(both(&gpu, &vec![0.0; m * n])?) {
            stream.scope(|work| {
                work.launch(testgpu::MatmulF32 {
                    a: a.slice(),
                    b: b.slice(),
                    c: &mut c.slice_mut(),
                    m,
                    n,
                    k,
                })
            })?;
            assert!(
                bits(&c.to_vec()) == bits(&expected),
                "{m} × {n} × {k}, {c:?}"
            );
        }
    }
    Ok(())
}

pub(crate) fn kernel_spin() -> Outcome {
    let gpu = gpu()?;
    let stream = gpu.stream(Default::default())?;
    let time = Duration::from_millis(30);
    let start = Instant::now();
    stream.scope(|work| work.launch(testgpu::Spin { time }))?;
    assert!(start.elapsed() >= time, "only {:?}", start.elapsed());
    Ok(())
}

pub(crate) fn registered_memory_is_worked_on_in_place() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let mut buffer = Buffer::<u8>::new(1 << 20)?;
    let addr = buffer.addr();
    buffer.copy_from_slice(&pattern(10, 1 << 20));
    let before = gpu.counters()?.copied();
    let mut memory = buffer.register(gpu.device(), Access::ReadWrite)?;
    assert_eq!(memory.device_addr()?, addr as u64);
    stream.scope(|work| {
        let (from, mut to) = memory.slice_mut::<u8>()?.split_at(1 << 19)?;
        work.launch(testgpu::CopyElements {
            from: from.as_slice(),
            to: &mut to,
        })
    })?;
    let buffer = memory.release()?;
    assert_eq!(buffer.addr(), addr);
    let (first, second) = buffer.split_at(1 << 19);
    assert!(first == second && first == &pattern(10, 1 << 20)[..1 << 19]);
    let copied = gpu.counters()?.copied().since(&before);
    assert_eq!(copied.bytes(), 0, "{copied:?}");
    Ok(())
}
