// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of every kind as operands: pinned, registered in place, portable, of structs; and pieces
//! of work that follow each other without waiting.

use std::sync::Arc;

use nix::libc;
use pinmap::accelerator::{
    Accelerator, Direction, Packet, PacketFormat, Registered, StreamOptions,
};
use pinmap::{accelerator, Access, AllocOptions, Buffer, Device, ErrorKind};
use pinmap_testgpu::{packet, Crc32c, IncrementF32, Spin};

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::pins::Pins;
use crate::setup::{buffer, pattern, RawMemory, PAGE};
use crate::stream_devices::second;
use crate::streams::{stream, until};

/// How many pages are pinned since an earlier reading.
fn pinned(since: Pins) -> Result<u64, Box<dyn std::error::Error>> {
    let now = Pins::now().ok_or("the kernel has no counters")?;
    Ok((now.acquired - since.acquired) - (now.released - since.released))
}

fn now() -> Result<Pins, Box<dyn std::error::Error>> {
    Pins::now().ok_or_else(|| "the kernel has no counters".into())
}

pub(crate) fn pinned_memory_is_a_slice() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let mut numbers = gpu.alloc::<f32>(3000)?;
    assert!(numbers.iter().all(|&number| number == 0.0));
    for (number, i) in numbers.iter_mut().zip(0u16..) {
        *number = i.into();
    }
    let [before, after] = [numbers[17], numbers[2999]];
    stream.scope(|work| {
        let data = &mut numbers.slice_mut();
        work.launch(IncrementF32 { data })
    })?;
    assert_eq!((numbers[17], numbers[2999]), (before + 1.0, after + 1.0));
    // What the CPU writes by the slice, the device reads.
    numbers[..4].copy_from_slice(&[1.5; 4]);
    let mut copy = gpu.alloc_vram::<f32>(3000)?;
    stream.scope(|work| work.copy(&numbers, &mut copy))?;
    assert_eq!(copy.get(3)?, 1.5);
    assert_eq!(copy.get(4)?, 5.0);
    // It is the driver's memory at one address.
    assert_eq!(numbers.slice().device_addr(), numbers.addr() as u64);
    assert_eq!(numbers.as_ptr().addr(), numbers.addr());
    let numbers = numbers.into_allocation();
    assert_eq!(numbers.get(3)?, 1.5);
    let portable = gpu.alloc_with::<u8>(1, AllocOptions::new().portable());
    let error = portable.expect_err("others would reach it");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    Ok(())
}

/// Has the device work on registered memory, which pins nothing more, and takes it back.
fn work_in_place<M: pinmap::accelerator::MemoryMut<Element = f32>>(
    gpu: &Accelerator,
    memory: Registered<M>,
) -> Result<M, Box<dyn std::error::Error>>
where
    M::Error: Into<pinmap::Error>,
{
    let mut memory = memory;
    let stream = stream(gpu)?;
    let mut local = gpu.alloc_vram::<f32>(memory.len())?;
    memory.fill(1.0);
    let before = now()?;
    for _ in 0..5 {
        stream.scope(|work| {
            let (mut memory, mut local) = (memory.slice_mut(), local.slice_mut());
            work.copy(&memory, &mut local)?;
            work.launch(IncrementF32 { data: &mut local })?;
            work.copy(&local, &mut memory)
        })?;
    }
    assert_eq!(now()?.acquired, before.acquired, "work has pinned pages");
    assert!(memory.iter().all(|&number| number == 6.0));
    memory.release().map_err(|error| error.into().into())
}

pub(crate) fn registered_memory_stays_an_operand() -> Outcome {
    let gpu = gpu()?;
    let before = now()?;
    let vec = vec![0f32; 50_000];
    let addr = vec.as_ptr().addr();
    let registered = gpu.register(vec)?;
    let pages = (addr + 200_000).div_ceil(PAGE) - addr / PAGE;
    assert!(pinned(before)? >= pages as u64);
    let vec = work_in_place(&gpu, registered)?;
    assert_eq!(vec.as_ptr().addr(), addr, "it was where it is");
    let since = Pins::settled_since(before).ok_or("no counters")?;
    assert!(since.balanced(), "{since:?}");
    assert_eq!(gpu.device().own_totals()?.pinned.number, 0);

    // Borrowed, at odd places, beside one another.
    let mut vec = vec![7f32; 10_000];
    let (left, rest) = vec.split_at_mut(3333);
    let (middle, right) = rest.split_at_mut(3333);
    let (left, right) = (gpu.register(left)?, gpu.register(right)?);
    work_in_place(&gpu, left)?;
    work_in_place(&gpu, right)?;
    assert!(
        middle.iter().all(|&number| number == 7.0),
        "the device wrote beside it"
    );
    work_in_place(&gpu, gpu.register(vec![0f32; 3].into_boxed_slice())?)?;
    let buffer = Buffer::<f32>::new(5001)?;
    buffer.preflight(gpu.device(), Access::ReadWrite)?;
    work_in_place(&gpu, gpu.register(buffer)?)?;
    Ok(())
}

pub(crate) fn shared_memory_and_files_are_read() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let content = pattern(3, 70_001);
    let path = std::env::temp_dir().join("pinmap-operands");
    std::fs::write(&path, &content)?;
    let file = std::fs::File::open(&path)?;
    std::fs::remove_file(&path)?;
    // SAFETY: Nobody else has the file.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let shared: Arc<[u8]> = content.clone().into();
    let (by_map, by_arc) = (gpu.register(map)?, gpu.register(Arc::clone(&shared))?);
    let by_slice = gpu.register(&content[1..])?;
    let mut sums = gpu.alloc::<u32>(4)?;
    stream.scope(|work| {
        let mut sums = sums.slice_mut();
        let operands = [
            by_map.slice(),
            by_arc.slice(),
            by_slice.slice(),
            by_map.slice().part(1..)?,
        ];
        for (index, data) in operands.into_iter().enumerate() {
            let crc = &mut sums.part(index..=index)?;
            work.launch(Crc32c { data, crc })?;
        }
        Ok(())
    })?;
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[2], sums[3]);
    assert_ne!(sums[0], sums[2]);
    // The CPU goes on reading what others have.
    assert_eq!(shared[..], content[..]);
    Ok(())
}

pub(crate) fn memory_that_cannot_be_registered_comes_back() -> Outcome {
    let gpu = gpu()?;
    let mut memory = RawMemory::new(2 * PAGE)?;
    let _registered = {
        // SAFETY: It is not accessed.
        unsafe {
            gpu.device()
                .register_raw(memory.start(), PAGE, Access::ReadWrite)?
        }
    };
    // SAFETY: It is mapped and initialised, and the device is told nothing about it.
    let slice = unsafe { std::slice::from_raw_parts_mut(memory.start(), 2 * PAGE) };
    let error = gpu
        .register(slice)
        .map(drop)
        .expect_err("registered already");
    assert_eq!(error.errno(), libc::EEXIST, "{error}");
    let before = gpu.device().own_totals()?.pinned.number;
    assert_eq!(before, 1, "a part was left behind");
    drop((_registered, &mut memory));
    Ok(())
}

pub(crate) fn portable_memory_is_an_operand_of_two_gpus() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let mut shared = one
        .device()
        .alloc_with::<f32>(5000, AllocOptions::new().portable())?;
    let streams = [stream(&one)?, stream(&two)?];
    let mut local = two.alloc_vram::<f32>(5000)?;
    streams[0].scope(|work| work.fill(&mut shared, 4.0))?;
    streams[1].scope(|work| {
        let mut local = local.slice_mut();
        work.copy(shared.on(&two)?, &mut local)?;
        work.launch(IncrementF32 { data: &mut local })
    })?;
    streams[1].scope(|work| work.copy(&local, shared.on_mut(&two)?))?;
    assert_eq!(shared.to_vec(), [5.0; 5000]);
    // The device of a stream is checked.
    let error = streams[1]
        .scope(|work| work.fill(&mut shared, 1.0))
        .expect_err("the other's");
    assert!(error.to_string().contains("another context"), "{error}");
    let own = one.device().alloc::<f32>(1)?;
    let error = own.on(&two).map(drop).expect_err("not portable");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    Ok(())
}

pub(crate) fn registered_memory_is_an_operand_of_two_gpus() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let pinned = |gpu: &Accelerator| gpu.device().own_totals().map(|totals| totals.pinned.bytes);
    let before = (pinned(&one)?, pinned(&two)?);
    // Neither begins nor ends with a page; the end shares one with what is lent beside it.
    let mut memory = vec![0.0f32; 5000];
    let (left, right) = memory.split_at_mut(3333);
    let mut left = one.register(left)?;
    let streams = [stream(&one)?, stream(&two)?];
    let mut local = two.alloc_vram::<f32>(3333)?;
    streams[0].scope(|work| work.fill(&mut left, 4.0))?;
    assert_eq!(pinned(&two)?, before.1, "registered before it was wanted");
    streams[1].scope(|work| {
        let mut local = local.slice_mut();
        work.copy(left.on(&two)?, &mut local)?;
        work.fill(&mut *right, 6.0)?;
        work.launch(IncrementF32 { data: &mut local })
    })?;
    let there = pinned(&two)?;
    assert!(there > before.1);
    streams[1].scope(|work| work.copy(&local, left.on_mut(&two)?))?;
    assert_eq!(pinned(&two)?, there, "once is enough");
    assert!(left.iter().all(|&number| number == 5.0));
    left[0] = 9.0;
    let left = left.release()?;
    assert_eq!((pinned(&one)?, pinned(&two)?), before);
    assert_eq!(
        (left[0], left[3332], right[0], right[1666]),
        (9.0, 5.0, 6.0, 6.0)
    );
    // The device of a stream is checked.
    let mut left = one.register(left)?;
    let error = streams[1].scope(|work| work.fill(&mut left, 1.0));
    let error = error.expect_err("the other's");
    assert!(error.to_string().contains("another context"), "{error}");
    Ok(())
}

pub(crate) fn pending_work_is_followed_by_more() -> Outcome {
    let gpu = gpu()?;
    let streams = [stream(&gpu)?, stream(&gpu)?, stream(&gpu)?];
    // The first is late, so that a stream that does not wait for it comes too early.
    let late = std::time::Duration::from_millis(20);
    let memory = (gpu.alloc::<f32>(1000)?, gpu.alloc_vram::<f32>(1000)?);
    let mut pending = streams[0].submit(memory, |work, (host, local)| {
        work.launch(Spin { time: late })?;
        let mut host = host.slice_mut();
        work.fill(&mut host, 1.0)?;
        work.copy(&host, local)
    })?;
    for step in 0..30 {
        pending = pending.then(&streams[step % 3], |work, (mut host, mut local)| {
            work.launch(IncrementF32 { data: &mut local })?;
            work.copy(&local, &mut host)
        })?;
    }
    let (host, local) = pending.wait()?;
    assert!(host.iter().all(|&number| number == 31.0), "{}", host[0]);
    assert_eq!(local.get(999)?, 31.0);

    // A function that fails leaves the memory with what was submitted.
    let pending = streams[0].submit(host, |work, host| work.fill(host, 5.0))?;
    let failed = pending.then(&streams[1], |work, mut host| {
        work.launch(IncrementF32 { data: &mut host })?;
        Err(gpu.device().bar(0).map(drop).expect_err("the driver's"))
    });
    let failed = failed.expect_err("it failed");
    assert!(failed.error.to_string().contains("BAR"), "{}", failed.error);
    let host = failed.value.wait()?;
    assert!(host.iter().all(|&number| number == 6.0));

    // Another context cannot follow.
    let other = pinmap_testgpu::accelerator(&Device::open(gpu.device().path())?)?;
    let pending = streams[0].submit(host, |work, host| work.fill(host, 7.0))?;
    let failed = pending.then(&stream(&other)?, |_, _| Ok(()));
    let failed = failed.expect_err("another context");
    assert_eq!(
        failed.error.kind(),
        ErrorKind::InvalidInput,
        "{}",
        failed.error
    );
    assert_eq!(failed.value.wait()?[0], 7.0);
    Ok(())
}

/// Work that follows work of another stream does not need that stream any more when that work is
/// done, even if the device has not looked yet.
pub(crate) fn pending_work_outlives_the_stream_before() -> Outcome {
    let gpu = gpu()?;
    let (first, second) = (stream(&gpu)?, stream(&gpu)?);
    let mut gate = gpu.device().alloc::<u64>(1)?;
    accelerator::scope(|scope| {
        let mut gate = gate.slice_mut();
        scope.on(&second).wait_value(&gate, 0, 1)?;
        let late = std::time::Duration::from_millis(20);
        let pending = first.submit(gpu.alloc::<f32>(100)?, |work, memory| {
            work.launch(Spin { time: late })?;
            work.fill(memory, 1.0)
        })?;
        let pending = pending.then(&second, |work, mut memory| {
            work.launch(IncrementF32 { data: &mut memory })
        })?;
        first.synchronize()?;
        first.reset()?;
        gate.set(0, 1)?;
        let memory = pending.wait()?;
        assert!(memory.iter().all(|&number| number == 2.0));
        // The same for a stream that is dropped, before or after.
        for early in [true, false] {
            scope.on(&second).wait_value(&gate, 0, 2)?;
            let mut other = Some(gpu.stream(StreamOptions::new())?);
            let memory = gpu.alloc::<f32>(100)?;
            let pending = other.as_ref().map(|other| {
                other.submit(memory, |work, memory| {
                    work.launch(Spin { time: late })?;
                    work.fill(memory, 3.0)
                })
            });
            let pending = pending.transpose()?.expect("there is a stream");
            other = other.filter(|_| !early);
            let pending = pending.then(&second, |work, mut memory| {
                work.launch(IncrementF32 { data: &mut memory })
            })?;
            drop(other);
            // Long enough for the work, after which a dropped stream ends.
            first
                .submit((), |work, ()| work.launch(Spin { time: 5 * late }))?
                .wait()?;
            gate.set(0, 2)?;
            let memory = pending.wait()?;
            assert!(memory.iter().all(|&number| number == 4.0));
            gate.set(0, 1)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Memory is in flight as long as any of the streams may work on it, also when the last one, which
/// would have waited for the others, has ended.
pub(crate) fn pending_work_is_kept_for_all_its_streams() -> Outcome {
    let gpu = gpu()?;
    let (first, second) = (stream(&gpu)?, stream(&gpu)?);
    let mut gate = gpu.device().alloc::<u64>(1)?;
    for early in [true, false] {
        accelerator::scope(|scope| {
            let mut gate = gate.slice_mut();
            gate.set(0, 0)?;
            scope.on(&first).wait_value(&gate, 0, 1)?;
            let pending = first.submit(gpu.alloc::<f32>(100)?, |work, memory| {
                work.fill(memory, 1.0)
            })?;
            let pending = pending.then(&second, |_, _| match early {
                true => second.reset(),
                false => Ok(()),
            })?;
            second.reset()?;
            let pending = pending
                .try_into_memory()
                .expect_err("the first stream works on it");
            gate.set(0, 1)?;
            let failed = pending.wait().expect_err("the second was reset");
            let memory = failed.value.try_into_memory().expect("all have ended");
            assert!(memory.iter().all(|&number| number == 1.0));
            Ok(())
        })?;
    }
    // Dropped instead, it is given back when the first stream is done.
    let mut local = Some(gpu.alloc_vram::<f32>(1 << 20)?);
    let with = gpu.info()?.vram_free;
    let is_back = || gpu.info().is_ok_and(|info| info.vram_free > with);
    accelerator::scope(|scope| {
        let mut gate = gate.slice_mut();
        gate.set(0, 0)?;
        scope.on(&first).wait_value(&gate, 0, 1)?;
        let pending = first.submit(local.take().expect("once"), |work, memory| {
            work.fill(memory, 1.0)
        })?;
        let pending = pending.then(&second, |_, _| Ok(()))?;
        second.reset()?;
        drop(pending);
        let until = std::time::Instant::now() + std::time::Duration::from_millis(700);
        while std::time::Instant::now() < until {
            assert!(!is_back(), "the first stream works on it");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        gate.set(0, 1)
    })?;
    until("the memory is given back", is_back)
}

/// Work that follows work of a stream that has failed fails, too, and gives the memory back.
pub(crate) fn pending_work_is_not_followed_after_a_fault() -> Outcome {
    let gpu = gpu()?;
    let (bad, good) = (stream(&gpu)?, stream(&gpu)?);
    let memory = gpu.alloc::<f32>(10)?;
    let pending = bad.submit(memory, |work, memory| {
        work.launch(Spin {
            time: std::time::Duration::from_millis(20),
        })?;
        // SAFETY: The device reaches nothing there.
        unsafe { work.submit_packets(&[packet::copy(0x10, 0x20, 8)])? };
        work.fill(memory, 1.0)
    })?;
    let pending = match pending.then(&good, |work, mut memory| work.fill(&mut memory, 2.0)) {
        Ok(pending) => {
            let failed = pending.wait().expect_err("the first one failed");
            assert!(failed.error.fault().is_some(), "{}", failed.error);
            failed.value
        }
        Err(failed) => failed.value,
    };
    let memory = pending
        .try_into_memory()
        .map_err(|_| "the memory is still in use")?;
    assert!(
        memory.iter().all(|&number| number == 0.0),
        "the device went on"
    );
    Ok(())
}

/// The test GPU by packets of the program's: copies by its compute engine, one byte more at a time.
#[derive(Debug)]
struct ByKernels;

// SAFETY: By the manual of the test GPU, the kernels 1 and 2 copy and fill as said, and the other
// packets do what their names say.
unsafe impl PacketFormat for ByKernels {
    fn copy(&self, _: Direction, from: u64, to: u64, bytes: u64) -> Packet {
        packet::launch(1, [to, from, bytes, 0, 0, 0, 0])
    }

    fn fill(&self, to: u64, bytes: u64, pattern: u64, log2: u8) -> Packet {
        assert_eq!(log2, 2, "the kernel fills words of 4 bytes");
        packet::launch(2, [to, bytes / 4, pattern, 0, 0, 0, 0])
    }

    fn fence_write(&self, addr: u64, value: u64) -> Packet {
        packet::fence_write(addr, value)
    }

    fn fence_wait(&self, addr: u64, value: u64) -> Packet {
        packet::fence_wait(addr, value)
    }

    fn timestamp(&self, addr: u64) -> Packet {
        packet::timestamp(addr)
    }

    fn interrupt(&self) -> Packet {
        packet::interrupt()
    }
}

/// Without stamps of the device, a trace has neither engines nor begins.
pub(crate) fn packets_have_the_format_of_the_program() -> Outcome {
    let trace = crate::traces::traced(1 << 20)?;
    let plain = gpu()?;
    // SAFETY: It is a test GPU, as said above.
    let gpu = unsafe {
        plain
            .device()
            .accelerator_with(&[pinmap_testgpu::packet::ID], &ByKernels)?
    };
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let done = gpu.event()?;
    let (mut host, mut local) = (gpu.alloc::<u32>(5000)?, gpu.alloc_vram::<u32>(5000)?);
    let mut floats = gpu.alloc::<f32>(8)?;
    let before = gpu.counters()?;
    accelerator::scope(|scope| {
        let (one, two) = (scope.on(&one), scope.on(&two));
        let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
        one.fill(&mut local, 0xabcd)?;
        one.record(&done)?;
        two.wait_event(&done)?;
        two.copy(&local, &mut host)
    })?;
    assert!(host.iter().all(|&word| word == 0xabcd));
    assert!(done.time()? > std::time::Duration::ZERO);
    // A kernel means something to the devices of its format only.
    let error = one.scope(|work| {
        work.launch(IncrementF32 {
            data: &mut floats.slice_mut(),
        })
    });
    let error = error.expect_err("another format");
    assert_eq!(error.errno(), libc::EINVAL);
    assert!(
        error.to_string().contains("another packet format"),
        "{error}"
    );
    let queues = trace.read().queues;
    let mut done = queues.iter().flat_map(|queue| &queue.activities);
    assert!(
        done.clone()
            .filter(|activity| activity.ended.is_some())
            .count()
            >= 2
    );
    assert!(done.all(|activity| activity.engine.is_none() && activity.begun.is_none()));
    // The driver's own work, such as clearing memory, is done by the copy engines alone.
    assert!(gpu.counters()?.computed().packets >= before.computed().packets + 2);
    Ok(())
}

pub(crate) fn errors_have_kinds_and_sources() -> Outcome {
    let gpu = gpu()?;
    let error = gpu.alloc::<u8>(0).expect_err("nothing");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let source = std::error::Error::source(&error).ok_or("no source")?;
    let source = source
        .downcast_ref::<std::io::Error>()
        .ok_or("another source")?;
    assert_eq!(source.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(error.to_io_error().raw_os_error(), Some(libc::EINVAL));
    // The error of `?` in a function with a boxed error does not keep the buffer.
    let fails = || -> Result<(), Box<dyn std::error::Error>> {
        let options = pinmap::RegisterOptions::new(Access::Read).at(1);
        let _registration = buffer(&[1])?.register(gpu.device(), options)?;
        Ok(())
    };
    let boxed = fails().expect_err("no device address");
    let inner = boxed
        .source()
        .and_then(|inner| inner.downcast_ref::<std::io::Error>());
    assert_eq!(inner.ok_or("no errno")?.raw_os_error(), Some(libc::EINVAL));
    let stuck = gpu.stream(StreamOptions::new())?;
    let word = gpu.device().alloc::<u64>(1)?;
    let pending = stuck.submit(word, |work, word| work.wait_value(&*word, 0, 1))?;
    let failed = pending
        .wait_timeout(std::time::Duration::from_millis(1))
        .expect_err("stuck");
    assert_eq!(failed.error.kind(), ErrorKind::TimedOut, "{}", failed.error);
    assert_eq!(failed.error.errno(), libc::ETIMEDOUT);
    stuck.reset()?;
    let failed = failed.value.wait().expect_err("it was reset");
    assert_eq!(failed.error.kind(), ErrorKind::Io, "{}", failed.error);
    Ok(())
}
