// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slices of ordinary memory as operands, on a device that can fault and on one that cannot.

use std::fs::OpenOptions;
use std::hint::spin_loop;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::time::Duration;

use nix::libc;
use nix::sys::mman::{mmap, munmap, MapFlags, MsFlags, ProtFlags};
use pinmap::accelerator::{Accelerator, Reach, Stream, StreamOptions};
use pinmap::{accelerator, Error};
use pinmap_testgpu as testgpu;

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::PAGE;
use crate::stale::while_unbound;
use crate::streams::Gate;
use crate::syscalls::{self, Phase};

/// Opens a device on which memory can be managed, or skips the test.
pub(crate) fn faulting() -> Result<Accelerator, Box<dyn std::error::Error>> {
    let gpu = gpu()?;
    match gpu.device().info()?.managed {
        true => Ok(gpu),
        false => skip("memory cannot be managed here"),
    }
}

/// Whether the device reaches memory as it should on this machine.
fn is_right(gpu: &Accelerator, reach: Reach) -> Result<bool, Error> {
    Ok(match gpu.device().info()?.managed {
        true => reach == Reach::Managed,
        false => matches!(reach, Reach::Registered { .. }),
    })
}

/// Streams that lend memory in each way.
fn streams(gpu: &Accelerator) -> Result<[Stream; 2], Error> {
    let options = StreamOptions::new();
    Ok([gpu.stream(options)?, gpu.stream(options.register_slices())?])
}

fn pinned(gpu: &Accelerator) -> Result<u64, Error> {
    Ok(gpu.device().own_totals()?.pinned.bytes)
}

/// Has the device add 1 to each number, and returns how it reaches them.
pub(crate) fn increment(stream: &Stream, numbers: &mut [f32]) -> Result<Reach, Error> {
    stream.scope(|work| {
        let addr = numbers.as_ptr().addr();
        let mut data = work.slice_mut(numbers)?;
        assert_eq!(data.device_addr(), addr as u64);
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        Ok(data.reach())
    })
}

/// 0, 1, 2 …
pub(crate) fn numbers(count: u16) -> Vec<f32> {
    (0..count).map(f32::from).collect()
}

/// Checks that each number is so much more than its index.
pub(crate) fn check(numbers: &[f32], more: f32) {
    for (index, &number) in (0u16..).zip(numbers) {
        assert_eq!(number, f32::from(index) + more, "number {index}");
    }
}

/// Constants of the program.
static CONSTANTS: [f32; 3000] = [1.5; 3000];

pub(crate) fn lent_memory_of_all_kinds() -> Outcome {
    let gpu = gpu()?;
    for (stream, all_registered) in streams(&gpu)?.iter_mut().zip([false, true]) {
        let right = |reach| -> Outcome {
            let registered = matches!(reach, Reach::Registered { .. });
            assert!(registered == all_registered || is_right(&gpu, reach)?);
            Ok(())
        };
        // Heap, small and large; the stack; a part that neither begins nor ends with a page.
        for count in [1, 7, 1000, 60_000] {
            let mut heap = numbers(count);
            right(increment(stream, &mut heap)?)?;
            check(&heap, 1.0);
        }
        let mut stack = [0.5f32; 700];
        right(increment(stream, &mut stack)?)?;
        assert!(stack == [1.5; 700]);
        let mut heap = numbers(10_000);
        right(increment(stream, &mut heap[333..7777])?)?;
        check(&heap[..333], 0.0);
        assert!((333..7777u16).all(|i| heap[usize::from(i)] == f32::from(i) + 1.0));
        assert!((7777..10_000u16).all(|i| heap[usize::from(i)] == f32::from(i)));
        // Memory that the program has never touched.
        let mut untouched = vec![0.0f32; 1 << 20];
        right(increment(stream, &mut untouched)?)?;
        assert!(untouched.iter().all(|&number| number == 1.0));
        // Constants, which the program itself cannot write, and text.
        let mut sum = [0.0f32];
        let (mut crc, mut other) = ([0u32], [0u32]);
        let text = "any slice";
        stream.scope(|work| {
            let data = work.slice(&CONSTANTS)?;
            let mut sum = work.slice_mut(&mut sum)?;
            work.launch(testgpu::SumF32 {
                data,
                sum: &mut sum,
            })?;
            let (data, owned) = (work.slice(text.as_bytes())?, text.to_owned());
            let mut crc = work.slice_mut(&mut crc)?;
            work.launch(testgpu::Crc32c {
                data,
                crc: &mut crc,
            })?;
            assert_eq!(data.to_vec(), owned.into_bytes());
            Ok::<_, Error>(())
        })?;
        assert_eq!(sum, [4500.0]);
        let mut allocated = gpu.device().alloc::<u8>(text.len())?;
        allocated.write(0, text.as_bytes())?;
        stream.scope(|work| {
            let mut crc = work.slice_mut(&mut other)?;
            work.launch(testgpu::Crc32c {
                data: allocated.slice(),
                crc: &mut crc,
            })
        })?;
        assert_eq!(crc, other);
        // Nothing.
        stream.scope(|work| work.slice_mut::<f32>(&mut []).map(drop))?;
    }
    Ok(())
}

pub(crate) fn lent_memory_is_not_pinned_where_it_is_managed() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let before = gpu.device().own_totals()?;
    let mut memory = vec![0.0f32; 1 << 20];
    stream.scope(|work| {
        let mut data = work.slice_mut(&mut memory)?;
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        work.stream().synchronize()?;
        let now = gpu.device().own_totals()?;
        assert_eq!(now.pinned, before.pinned);
        assert_eq!(now.managed.number, 1);
        assert!(now.faults.served > before.faults.served);
        assert!(now.faults.pages >= before.faults.pages + 1024);
        assert_eq!(now.faults.failed, before.faults.failed);
        Ok::<_, Error>(())
    })?;
    assert!(memory.iter().all(|&number| number == 1.0));
    // What the device has, it keeps for the next time.
    let before = gpu.device().own_totals()?.faults.served;
    increment(&stream, &mut memory)?;
    let again = gpu.device().own_totals()?.faults.served;
    assert!(again - before <= 8, "{} faults", again - before);
    assert!(memory.iter().all(|&number| number == 2.0));
    drop(stream);
    assert_eq!(gpu.device().own_totals()?.managed.number, 0);
    Ok(())
}

pub(crate) fn lent_memory_is_registered_where_it_is_not_managed() -> Outcome {
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new().register_slices())?;
    let before = pinned(&gpu)?;
    let mut memory = vec![0.0f32; 1 << 20];
    let addr = memory.as_ptr().addr();
    stream.scope(|work| {
        let mut data = work.slice_mut(&mut memory)?;
        match data.reach() {
            Reach::Registered { bytes, .. } => assert!(bytes >= 4 << 20, "{bytes}"),
            other => panic!("{other:?}"),
        }
        assert!(pinned(&gpu)? >= before + (4 << 20));
        assert!(gpu.device().query(addr)?.is_some());
        work.launch(testgpu::IncrementF32 { data: &mut data })
    })?;
    assert!(memory.iter().all(|&number| number == 1.0));
    assert_eq!(pinned(&gpu)?, before);
    assert!(gpu.device().query(addr)?.is_none());
    Ok(())
}

/// Slices that share pages with one another are lent to several queues at once.
pub(crate) fn lent_slices_share_pages() -> Outcome {
    let gpu = gpu()?;
    for options in [StreamOptions::new(), StreamOptions::new().register_slices()] {
        let streams = (0..4)
            .map(|_| gpu.stream(options))
            .collect::<Result<Vec<Stream>, _>>()?;
        let before = pinned(&gpu)?;
        let mut all = numbers(20_000);
        let x = numbers(5000);
        accelerator::scope(|scope| -> Result<(), Error> {
            for (stream, part) in streams.iter().zip(all.chunks_mut(5000)) {
                let work = scope.on(stream);
                let (x, mut y) = (work.slice(&x)?, work.slice_mut(part)?);
                for _ in 0..10 {
                    work.launch(testgpu::Saxpy {
                        a: 1.0,
                        x,
                        y: &mut y,
                    })?;
                }
            }
            Ok(())
        })?;
        for (index, &number) in (0u16..).zip(&all) {
            assert_eq!(number, f32::from(index) + 10.0 * f32::from(index % 5000));
        }
        assert_eq!(pinned(&gpu)?, before);
    }
    Ok(())
}

pub(crate) fn lent_memory_is_handed_over_and_comes_back() -> Outcome {
    let gpu = gpu()?;
    for options in [StreamOptions::new(), StreamOptions::new().register_slices()] {
        let stream = gpu.stream(options)?;
        let mut gate = Gate::new(&gpu)?;
        gate.hold(&stream)?;
        let (memory, array) = (numbers(30_000), [1.0f32; 100]);
        let pending = stream.submit((memory, array), |work, (memory, array)| {
            let mut data = work.slice_mut(memory)?;
            work.launch(testgpu::IncrementF32 { data: &mut data })?;
            let mut data = work.slice_mut(array)?;
            work.launch(testgpu::IncrementF32 { data: &mut data })
        })?;
        assert!(!pending.is_done());
        // Dropped, it is kept until the device is done; an array has no drop that could tell.
        drop(stream.submit([0u32; 500], |work, array| {
            work.fill(&mut work.slice_mut(array)?, 7)
        })?);
        // Forgotten, it is kept for good.
        std::mem::forget(stream.submit(vec![0u32; 5000], |work, array| {
            work.fill(&mut work.slice_mut(array)?, 7)
        })?);
        gate.open()?;
        let (memory, array) = pending.wait()?;
        check(&memory, 1.0);
        assert!(array == [2.0; 100]);
        stream.synchronize()?;
    }
    Ok(())
}

/// The device is done with the memory when the scope unwinds.
pub(crate) fn lent_memory_outlasts_a_panic() -> Outcome {
    let gpu = gpu()?;
    for stream in &mut streams(&gpu)? {
        let mut memory = numbers(60_000);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            stream.scope(|work| -> Result<(), Error> {
                let mut data = work.slice_mut(&mut memory)?;
                for _ in 0..20 {
                    work.launch(testgpu::IncrementF32 { data: &mut data })?;
                }
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        check(&memory, 20.0);
        assert!(is_unregistered(&gpu, &memory)?);
    }
    Ok(())
}

fn is_unregistered(gpu: &Accelerator, memory: &[f32]) -> Result<bool, Error> {
    Ok(gpu.device().query(memory.as_ptr().addr())?.is_none())
}

/// A reset ends work amid a scope; after the scope nothing is written any more.
pub(crate) fn lent_memory_outlasts_a_reset() -> Outcome {
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut memory = numbers(60_000);
    let error = accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        let mut data = work.slice_mut(&mut memory)?;
        for _ in 0..100 {
            work.launch(testgpu::IncrementF32 { data: &mut data })?;
        }
        stream.reset()
    })
    .expect_err("part of it was not done");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    let now = memory.clone();
    increment(&gpu.stream(StreamOptions::new())?, &mut [0.0; 10])?;
    assert!(memory == now);
    Ok(())
}

/// A device that is taken away does nothing more to the memory when the scope returns.
pub(crate) fn lent_memory_outlasts_the_device() -> Outcome {
    for options in [StreamOptions::new(), StreamOptions::new().register_slices()] {
        let gpu = gpu()?;
        let (device, stream) = (gpu.device().clone(), gpu.stream(options)?);
        let mut memory = numbers(60_000);
        let result = stream.try_scope(|work| -> Outcome {
            let mut data = work.slice_mut(&mut memory)?;
            work.launch(testgpu::IncrementF32 { data: &mut data })?;
            work.stream().synchronize()?;
            let time = Duration::from_millis(1500);
            work.launch(testgpu::Spin { time })?;
            for _ in 0..20 {
                work.launch(testgpu::IncrementF32 { data: &mut data })?;
            }
            while_unbound(&device, || Ok(()))
        });
        let error = result.expect_err("most of it was not done");
        let error = error.downcast::<Error>()?;
        assert_eq!(error.errno(), libc::ENODEV, "{error}");
        check(&memory, 1.0);
        let other = pinmap_testgpu::find()?.stream(StreamOptions::new())?;
        increment(&other, &mut memory)?;
        check(&memory, 2.0);
    }
    Ok(())
}

/// The CPU reads and writes a slice while the device works on another part of it.
pub(crate) fn lent_memory_changes_while_the_device_uses_it() -> Outcome {
    let gpu = gpu()?;
    for stream in &mut streams(&gpu)? {
        let mut memory = vec![0u64; 10_000];
        stream.scope(|work| {
            let (mut ours, mut theirs) = work.slice_mut(&mut memory)?.split_at(5001)?;
            for round in 1..50u64 {
                work.fill(&mut theirs, round)?;
                ours.write(0, &[round; 5001])?;
                assert_eq!(ours.get(5000)?, round);
                assert!(theirs.get(0)? <= round);
            }
            work.stream().synchronize()?;
            assert!(theirs.to_vec().iter().all(|&number| number == 49));
            Ok::<_, Error>(())
        })?;
        assert!(memory.iter().all(|&number| number == 49));
    }
    Ok(())
}

/// Lends memory, and tells when.
fn traced(phase: &Phase) -> Outcome {
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new().packets(4096))?;
    let mut memory = numbers(1000);
    increment(&stream, &mut memory)?;
    let mut end = gpu.device().alloc::<u64>(1)?;
    phase.begin()?;
    stream.scope(|work| {
        phase.quiet(true);
        let (mut data, mut end) = (work.slice_mut(&mut memory)?, end.slice_mut());
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        work.write_value(&mut end, 0, 1)?;
        while end.get(0)? == 0 {
            spin_loop();
        }
        phase.quiet(false);
        Ok::<_, Error>(())
    })?;
    check(&memory, 2.0);
    Ok(())
}

pub(crate) fn lent_memory_takes_no_system_call_once_it_is_managed() -> Outcome {
    drop(faulting()?);
    syscalls::check(traced)
}

/// A mapping of a file, of whole pages.
struct FileMapping(NonNull<f32>, usize);

impl FileMapping {
    fn new(path: &str, len: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = NonZeroUsize::new(len).ok_or("no length")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping, where there is none.
        let start = unsafe {
            mmap(
                None,
                size,
                protection,
                MapFlags::MAP_SHARED,
                file.as_fd(),
                0,
            )?
        };
        Ok(Self(start.cast(), len))
    }

    fn slice(&mut self) -> &mut [f32] {
        // SAFETY: Mapped, readable and writable as long as `self`, which nothing else refers to;
        // nobody else changes the file.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.1 / 4) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours, and nothing refers to it any more.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

/// Bytes that the device writes to a shared mapping of a file are in the file.
pub(crate) fn lent_file_gets_the_results() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let path = "/tmp/lent";
    let content: Vec<u8> = (0..5000u16)
        .flat_map(|number| f32::from(number).to_ne_bytes())
        .collect();
    std::fs::write(path, &content)?;
    let mut mapping = FileMapping::new(path, content.len())?;
    assert_eq!(increment(&stream, mapping.slice())?, Reach::Managed);
    let (start, len) = (mapping.0.cast(), mapping.1);
    // SAFETY: The mapping is ours.
    unsafe { nix::sys::mman::msync(start, len.next_multiple_of(PAGE), MsFlags::MS_SYNC)? };
    drop(mapping);
    let after: Vec<f32> = std::fs::read(path)?
        .chunks_exact(4)
        .map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    assert_eq!(after.len(), 5000);
    check(&after, 1.0);
    Ok(std::fs::remove_file(path)?)
}
