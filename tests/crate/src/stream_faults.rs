// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams that fail: what they say, who does not notice, and how they are made good; and those whose process
//! ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc;
use pinmap::stream;
use pinmap::{kernel, Access, Buffer, Error, FaultAccess, FaultCode, Packet, Stream};

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::knobs::{Knobs, COMPUTE_SLOTS};
use crate::setup::PAGE;
use crate::streams::{spin, stream, until};

/// Has a stream execute packets that need not make sense.
fn packets(stream: &Stream, packets: &[Packet]) -> Result<(), Error> {
    drop(stream.submit((), |work, ()| work.packets(packets))?);
    Ok(())
}

/// Has it do something that succeeds.
fn works(stream: &Stream) -> Outcome {
    let memory = stream.device().alloc::<u32>(1000)?;
    let pending = stream.submit(memory, |work, memory| {
        let mut data = memory.slice_mut();
        work.fill(&mut data, 1)?;
        work.launch(kernel::Fill {
            to: &mut data,
            value: 2,
        })
    })?;
    assert!(pending.wait()?.to_vec().iter().all(|&number| number == 2));
    Ok(())
}

/// What a reset ends is not taken for done, nor is what is left of it begun.
pub(crate) fn reset_amid_work_is_told() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let is_told = |error: &Error| {
        error.errno() == libc::EIO && error.to_string().contains("the stream was reset")
    };
    // Nothing of it has reached the device.
    let memory = gpu.device().alloc::<u64>(1)?;
    let write = [Packet::fence_write(memory.device_addr(), 1)];
    let pending = stream.submit(memory, |work, _| {
        work.packets(&write)?;
        stream.reset()?;
        let error = work.packets(&write).expect_err("it is another one now");
        assert!(is_told(&error), "{error}");
        Ok(())
    })?;
    let refused = pending.wait().expect_err("it was not done");
    assert!(is_told(&refused.error), "{}", refused.error);
    let memory = refused.value.try_into_memory();
    let mut memory = memory.map_err(|_| "the device may still use it")?;
    works(&stream)?;
    assert_eq!(memory.to_vec(), [0]);
    // In a scope, which asks for it again.
    let error = stream::scope(|scope| {
        let mut words = memory.slice_mut();
        scope.on(&stream).fill(&mut words, 5)?;
        stream.synchronize()?;
        let work = scope.on(&stream);
        stream.reset()?;
        let error = work.fill(&mut words, 6).expect_err("another one again");
        assert!(is_told(&error), "{error}");
        scope.on(&stream).fill(&mut words, 7)
    })
    .expect_err("part of it was not done");
    assert!(is_told(&error), "{error}");
    assert_eq!(memory.to_vec(), [7]);
    works(&stream)
}

/// Who ends it waits for the device, whoever else is ending it.
pub(crate) fn scope_outlasts_a_reset() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let time = Duration::from_millis(900);
    let knobs = Knobs::of(&gpu)?;
    // The kernel may be over before the other thread comes to the reset: then once more.
    for _ in 0..20 {
        let worker = {
            let stream = stream.clone();
            std::thread::spawn(move || {
                let start = Instant::now();
                let work = stream::scope(|scope| scope.on(&stream).launch(kernel::Spin { time }));
                (start.elapsed(), work.is_err())
            })
        };
        until("it runs", || knobs.busy() & COMPUTE_SLOTS != 0)?;
        stream.reset()?;
        let (took, ended) = worker.join().map_err(|_| "it panicked")?;
        assert!(took >= time, "{took:?}");
        works(&stream)?;
        if ended {
            return Ok(());
        }
    }
    Err("the reset never came before the end".into())
}

pub(crate) fn failed_stream_tells_and_is_reset() -> Outcome {
    let gpu = gpu()?;
    let (failing, other, dependent) = (stream(&gpu)?, stream(&gpu)?, stream(&gpu)?);
    let memory = Buffer::new(PAGE)?.register(gpu.device(), Access::Read)?;
    let addr = memory.device_addr()?;
    let calls = Arc::new(AtomicU32::new(0));
    for round in 0..3 {
        let (before, after, behind) = (gpu.event()?, gpu.event()?, gpu.event()?);
        failing.record(&before)?;
        spin(&failing, Duration::from_millis(20))?;
        packets(&failing, &[Packet::fill(addr, 64, 0, 0)])?;
        failing.record(&after)?;
        failing.record(&behind)?;
        let called = Arc::clone(&calls);
        failing.call(move || {
            called.fetch_add(1, Ordering::SeqCst);
        })?;
        dependent.wait_event(&after)?;
        let held = failing.submit(vec![1u8; 10], |_, _| Ok(()))?;

        let error = failing.synchronize().expect_err("it must not write");
        let fault = *error.fault().ok_or("no fault")?;
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert_eq!(
            (fault.access, fault.addr),
            (Some(FaultAccess::Write), Some(addr))
        );
        assert_eq!(
            (fault.code, fault.queue),
            (FaultCode::Permission, failing.id())
        );
        for part in [
            &format!("{addr:#x}"),
            &format!("packet {}", fault.packet),
            "write",
        ] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        // What was before it is as good as ever; what comes after it tells the same.
        assert!(before.query()?);
        for error in [
            after.synchronize().expect_err("behind it"),
            after.query().expect_err("behind it"),
            after.time().expect_err("behind it"),
            failing.query().expect_err("it has failed"),
            dependent.synchronize().expect_err("it waits for it"),
            dependent.query().expect_err("it waits for it"),
        ] {
            assert_eq!(error.fault(), Some(&fault), "{error}");
        }
        let failed = held.wait().expect_err("behind it");
        let given = failed
            .value
            .try_into_memory()
            .map_err(|_| "it is not given back")?;
        assert_eq!(given, vec![1u8; 10]);
        // The context lives.
        works(&other)?;
        let id = failing.id();
        failing.reset()?;
        // What is recorded next is not what it waits for.
        other.record(&after)?;
        let next = gpu.event()?;
        other.record(&next)?;
        other.synchronize()?;
        let error = dependent.synchronize().expect_err("it was given up");
        assert_eq!(error.fault(), Some(&fault), "{error}");
        assert!(!dependent
            .completion()?
            .wait(Duration::from_millis(50))
            .unwrap_or(false));
        dependent.reset()?;
        assert_ne!(failing.id(), id);
        works(&failing)?;
        works(&dependent)?;
        assert_eq!(calls.load(Ordering::SeqCst), 0, "round {round}");
        // From before the reset: that never comes.
        let error = behind.query().expect_err("it was given up");
        assert_eq!(error.fault(), Some(&fault), "{error}");
        failing.record(&after)?;
        after.synchronize()?;
    }
    until("functions are dropped", || Arc::strong_count(&calls) == 1)
}

pub(crate) fn hang_fails_the_stream() -> Outcome {
    let gpu = gpu()?;
    let (failing, other) = (stream(&gpu)?, stream(&gpu)?);
    let limit = gpu.info()?.max_run;
    spin(&failing, limit * 2)?;
    let before = Instant::now();
    works(&other)?;
    let error = failing.synchronize().expect_err("it ran for too long");
    assert_eq!(
        error.fault().map(|fault| fault.code),
        Some(FaultCode::Timeout),
        "{error}"
    );
    // It was not left to end by itself, as far as the machine let this thread see it.
    println!(
        "told after {:?}, with a limit of {limit:?}",
        before.elapsed()
    );
    failing.reset()?;
    works(&failing)?;
    // An engine that does not move at all.
    let knobs = Knobs::of(&gpu)?;
    knobs.stuck(COMPUTE_SLOTS);
    spin(&failing, Duration::ZERO)?;
    until("an engine has the packet", || {
        knobs.busy() & COMPUTE_SLOTS != 0
    })?;
    knobs.stuck(knobs.busy() & COMPUTE_SLOTS);
    works(&other)?;
    let error = failing.synchronize().expect_err("its engine was reset");
    assert_eq!(
        error.fault().map(|fault| fault.code),
        Some(FaultCode::EngineLost),
        "{error}"
    );
    knobs.stuck(0);
    failing.reset()?;
    works(&failing)
}

pub(crate) fn scope_gives_failed_streams_up() -> Outcome {
    let gpu = gpu()?;
    let (failing, waiting) = (stream(&gpu)?, stream(&gpu)?);
    let event = gpu.event()?;
    let mut memory = gpu.device().alloc::<u32>(1000)?;
    let mut data = memory.slice_mut();
    let result = stream::scope(|scope| -> Result<(), Error> {
        let (bad, good) = (scope.on(&failing), scope.on(&waiting));
        bad.packets(&[Packet::copy(0x10, 0x20, 8)])?;
        failing.record(&event)?;
        waiting.wait_event(&event)?;
        // Never done, and never will be once the scope has ended.
        good.fill(&mut data, 1)
    });
    assert!(result.expect_err("it failed").fault().is_some());
    for stream in [&failing, &waiting] {
        assert!(stream.submit((), |_, ()| Ok(())).is_err(), "it is given up");
        stream.reset()?;
        works(stream)?;
    }
    assert!(memory.to_vec().iter().all(|&number| number == 0));
    Ok(())
}

pub(crate) fn panicking_host_function_fails_its_stream() -> Outcome {
    let gpu = gpu()?;
    let (failing, other) = (stream(&gpu)?, stream(&gpu)?);
    failing.call(|| panic!("on purpose"))?;
    let error = failing.synchronize().expect_err("it panicked");
    assert!(
        error.to_string().contains("host function panicked"),
        "{error}"
    );
    works(&other)?;
    failing.reset()?;
    works(&failing)
}

pub(crate) fn dropped_stream_tells_why_it_failed() -> Outcome {
    let gpu = gpu()?;
    let failing = stream(&gpu)?;
    let memory = Buffer::new(PAGE)?.register(gpu.device(), Access::Read)?;
    let addr = memory.device_addr()?;
    let event = gpu.event()?;
    packets(&failing, &[Packet::fill(addr, 64, 0, 0)])?;
    failing.record(&event)?;
    drop(failing);
    let error = event.synchronize().expect_err("it must not write");
    assert_eq!(
        error.fault().and_then(|fault| fault.addr),
        Some(addr),
        "{error}"
    );
    // Also when its place in the device was given up.
    std::thread::sleep(Duration::from_secs(1));
    let error = event.query().expect_err("as before");
    assert_eq!(
        error.fault().and_then(|fault| fault.addr),
        Some(addr),
        "{error}"
    );
    Ok(())
}

pub(crate) fn dropped_streams_that_fail_leave_nothing() -> Outcome {
    let gpu = gpu()?;
    let tables = 64 << 10;
    let free = gpu.info()?.vram_free;
    for _ in 0..10 {
        let (failing, waiting) = (stream(&gpu)?, stream(&gpu)?);
        let event = gpu.event()?;
        packets(&failing, &[Packet::copy(0x10, 0x20, 8)])?;
        failing.record(&event)?;
        waiting.wait_event(&event)?;
        for stream in [&failing, &waiting] {
            let memory = gpu.alloc_vram::<u8>(1 << 20)?;
            drop(stream.submit(memory, |work, memory| work.fill(&mut memory.slice_mut(), 1))?);
        }
    }
    until("all memory is given back", || {
        gpu.info().is_ok_and(|info| info.vram_free + tables >= free)
    })
}

/// What the process that ends does: has much in flight, says so, and returns or waits for its end.
fn end_busy(how: &str) -> Outcome {
    let gpu = gpu()?;
    let streams = (0..50)
        .map(|_| stream(&gpu))
        .collect::<Result<Vec<_>, _>>()?;
    for stream in &streams {
        let memory = gpu.alloc_vram::<u8>(1 << 16)?;
        let pending = stream.submit(memory, |work, memory| {
            let mut data = memory.slice_mut();
            for _ in 0..20 {
                work.launch(kernel::Spin {
                    time: Duration::from_millis(100),
                })?;
                work.fill(&mut data, 1)?;
            }
            Ok(())
        })?;
        drop(pending);
    }
    // One that would wait for ever.
    let word = gpu.device().alloc::<u64>(1)?;
    let wait = [Packet::fence_wait(word.device_addr(), 1)];
    drop(streams[0].submit(word, |work, _| work.packets(&wait))?);
    println!("busy");
    match how {
        "exits" => std::process::exit(0),
        "returns" => Ok(()),
        _ => loop {
            std::thread::park();
        },
    }
}

pub(crate) fn process_ends_with_work_in_flight() -> Outcome {
    const HOW: &str = "PINMAP_TEST_END";
    if let Ok(how) = std::env::var(HOW) {
        return end_busy(&how);
    }
    let gpu = gpu()?;
    let before = gpu.info()?.vram_free;
    for how in ["exits", "returns", "is killed"] {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--run", "process_ends_with_work_in_flight"])
            .env(HOW, how)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        assert_eq!(line, "busy\n", "{how}");
        if how == "is killed" {
            process.kill()?;
        }
        let status = process.wait()?;
        assert_eq!(status.success(), how != "is killed", "{how}");
        // But for tables of our own context.
        until("the device's memory is given back", || {
            gpu.info()
                .is_ok_and(|info| info.vram_free + (64 << 10) >= before)
        })?;
        works(&stream(&gpu)?)?;
    }
    Ok(())
}
