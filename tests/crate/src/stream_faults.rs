// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams that fail: their errors, what does not notice, and resets; and streams whose process
//! ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc;
use pinmap::accelerator::{Accelerator, Packet, Stream};
use pinmap::accelerator::{Fault, FaultCode};
use pinmap::{accelerator, Access, Buffer, Error, FaultAccess, Registration};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::knobs::{Knobs, COMPUTE_SLOTS};
use crate::raw::Raw;
use crate::setup::PAGE;
use crate::streams::{spin, stream, until};

/// Submits packets that need not make sense.
fn packets(stream: &Stream, packets: &[Packet]) -> Result<(), Error> {
    drop(stream.submit((), |work, ()| work.raw(packets))?);
    Ok(())
}

/// Checks that a stream works.
fn works(stream: &Stream) -> Outcome {
    let memory = stream.device().alloc::<u32>(1000)?;
    let pending = stream.submit(memory, |work, memory| {
        let mut data = memory.slice_mut();
        work.fill(&mut data, 1)?;
        work.launch(testgpu::Fill {
            to: &mut data,
            value: 2,
        })
    })?;
    assert!(pending.wait()?.to_vec().iter().all(|&number| number == 2));
    Ok(())
}

fn is_reset(error: &Error) -> bool {
    error.errno() == libc::EIO && error.to_string().contains("the stream was reset")
}

/// Each submission waits, and the one that fails names the line that made it.
pub(crate) fn launch_blocking_names_the_line() -> Outcome {
    std::env::set_var("PINMAP_LAUNCH_BLOCKING", "1");
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let mut memory = gpu.device().alloc::<u32>(1000)?;
    let mut line = 0;
    let result = stream.scope(|work| {
        let mut data = memory.slice_mut();
        work.fill(&mut data, 7)?;
        // Inside the scope, and without a wait.
        assert!((0..1000).all(|index| data.get(index).is_ok_and(|number| number == 7)));
        work.batch(|| {
            line = line!() + 1;
            work.raw(&[packet::fill(1 << 40, 16, 7, 2)])
        })
    });
    let error = result.expect_err("nothing is there");
    assert!(error.fault().is_some(), "{error}");
    let place = format!("(submitted at {}:{line}:", file!());
    assert!(error.to_string().contains(&place), "no {place} in: {error}");
    stream.reset()?;
    works(&stream)
}

/// Work that a reset ends is not taken for done, nor is the rest of it begun.
pub(crate) fn reset_amid_work_is_told() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let memory = gpu.device().alloc::<u64>(1)?;
    let write = [packet::fence_write(memory.device_addr(), 1)];
    // Nothing of it has reached the device at the reset.
    let pending = stream.submit(memory, |work, _| {
        work.raw(&write)?;
        stream.reset()?;
        let error = work.raw(&write).expect_err("it is another one now");
        assert!(is_reset(&error), "{error}");
        Ok(())
    })?;
    let refused = pending.wait().expect_err("it was not done");
    assert!(is_reset(&refused.error), "{}", refused.error);
    let memory = refused.value.try_into_memory();
    let memory = memory.map_err(|_| "the device may still use it")?;
    works(&stream)?;
    assert_eq!(memory.to_vec(), [0]);
    Ok(())
}

/// Work before the reset stays done, and the scope can go on by asking for the stream again.
pub(crate) fn reset_amid_a_scope_is_told() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let mut memory = gpu.device().alloc::<u64>(1)?;
    let error = accelerator::scope(|scope| {
        let mut words = memory.slice_mut();
        scope.on(&stream).fill(&mut words, 5)?;
        stream.synchronize()?;
        let work = scope.on(&stream);
        stream.reset()?;
        let error = work.fill(&mut words, 6).expect_err("it is another one now");
        assert!(is_reset(&error), "{error}");
        scope.on(&stream).fill(&mut words, 7)
    })
    .expect_err("part of it was not done");
    assert!(is_reset(&error), "{error}");
    assert_eq!(memory.to_vec(), [7]);
    works(&stream)
}

/// The end of a scope waits for the device, also if another thread is ending the work.
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
                let work =
                    accelerator::scope(|scope| scope.on(&stream).launch(testgpu::Spin { time }));
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

/// A stream whose packet may not write where it does, and what was recorded around that packet.
struct Failed {
    gpu: Accelerator,
    stream: Stream,
    /// Waits for `after`.
    dependent: Stream,
    memory: Registration,
    before: accelerator::Event,
    after: accelerator::Event,
}

impl Failed {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let gpu = gpu()?;
        let (stream, dependent) = (stream(&gpu)?, stream(&gpu)?);
        let memory = Buffer::<u8>::new(PAGE)?.register(gpu.device(), Access::Read)?;
        let (before, after) = (gpu.event()?, gpu.event()?);
        let failed = Self {
            gpu,
            stream,
            dependent,
            memory,
            before,
            after,
        };
        failed.fail()?;
        Ok(failed)
    }

    /// Submits the packet that fails.
    fn fail(&self) -> Outcome {
        self.stream.record(&self.before)?;
        spin(&self.stream, Duration::from_millis(20))?;
        let write = packet::fill(self.memory.device_addr()?, 64, 0, 0);
        packets(&self.stream, &[write])?;
        self.stream.record(&self.after)?;
        self.dependent.wait_event(&self.after)?;
        Ok(())
    }

    /// Waits for the failure.
    fn error(&self) -> Error {
        self.stream.synchronize().expect_err("it must not write")
    }

    fn fault(&self) -> Result<Fault, Box<dyn std::error::Error>> {
        Ok(*self.error().fault().ok_or("no fault")?)
    }
}

impl Drop for Failed {
    /// Or the dependent stream would look at the event's memory until this process ends, and for a
    /// moment longer.
    fn drop(&mut self) {
        let _ = self.dependent.reset();
    }
}

pub(crate) fn failed_stream_names_the_fault() -> Outcome {
    let failed = Failed::new()?;
    let addr = failed.memory.device_addr()?;
    let error = failed.error();
    let fault = failed.fault()?;
    assert_eq!(error.errno(), libc::EIO, "{error}");
    assert_eq!(
        (fault.access, fault.device_addr),
        (Some(FaultAccess::Write), Some(addr))
    );
    assert_eq!(
        (fault.code, fault.queue),
        (FaultCode::Permission, failed.stream.id())
    );
    for part in [
        &format!("{addr:#x}"),
        &format!("packet {}", fault.packet),
        "write",
    ] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    Ok(())
}

/// Work before the failure is as good as ever; work behind it, also on other streams, tells the
/// same.
pub(crate) fn failure_is_told_by_all_that_waits_for_it() -> Outcome {
    let failed = Failed::new()?;
    let fault = failed.fault()?;
    assert!(failed.before.query()?);
    for error in [
        failed.after.synchronize().expect_err("behind it"),
        failed.after.query().expect_err("behind it"),
        failed.after.time().expect_err("behind it"),
        failed.stream.query().expect_err("it has failed"),
        failed.dependent.synchronize().expect_err("it waits for it"),
        failed.dependent.query().expect_err("it waits for it"),
    ] {
        assert_eq!(error.fault(), Some(&fault), "{error}");
    }
    Ok(())
}

pub(crate) fn failed_stream_gives_memory_back() -> Outcome {
    let failed = Failed::new()?;
    let held = failed.stream.submit(vec![1u8; 10], |_, _| Ok(()))?;
    let refused = held.wait().expect_err("behind the failure");
    let memory = refused.value.try_into_memory();
    assert_eq!(memory.map_err(|_| "it is not given back")?, vec![1u8; 10]);
    Ok(())
}

pub(crate) fn failed_stream_leaves_its_context_alone() -> Outcome {
    let failed = Failed::new()?;
    failed.fault()?;
    works(&stream(&failed.gpu)?)
}

/// A stream can be reset several times.
pub(crate) fn failed_stream_is_reset() -> Outcome {
    let failed = Failed::new()?;
    for _ in 0..3 {
        let id = failed.stream.id();
        failed.fault()?;
        failed.stream.reset()?;
        failed.dependent.reset()?;
        assert_ne!(failed.stream.id(), id);
        works(&failed.stream)?;
        works(&failed.dependent)?;
        failed.stream.record(&failed.after)?;
        failed.after.synchronize()?;
        failed.fail()?;
    }
    Ok(())
}

/// An event from before the reset never comes, for nobody that waits for it.
pub(crate) fn reset_gives_up_what_was_recorded() -> Outcome {
    let failed = Failed::new()?;
    let behind = failed.gpu.event()?;
    failed.stream.record(&behind)?;
    let fault = failed.fault()?;
    failed.stream.reset()?;
    // What is recorded next is not what the other stream waits for.
    let other = stream(&failed.gpu)?;
    other.record(&failed.after)?;
    other.synchronize()?;
    let error = failed.dependent.synchronize().expect_err("it was given up");
    assert_eq!(error.fault(), Some(&fault), "{error}");
    let completion = failed.dependent.completion()?;
    assert!(completion.wait_timeout(Duration::from_millis(50)).is_err());
    let error = behind.query().expect_err("it was given up");
    assert_eq!(error.fault(), Some(&fault), "{error}");
    Ok(())
}

/// Host functions of a failed stream are not called, and what they hold is dropped.
pub(crate) fn host_functions_of_a_failed_stream_are_dropped() -> Outcome {
    let failed = Failed::new()?;
    let calls = Arc::new(AtomicU32::new(0));
    let called = Arc::clone(&calls);
    failed.stream.call(move || {
        called.fetch_add(1, Ordering::SeqCst);
    })?;
    failed.fault()?;
    failed.stream.reset()?;
    works(&failed.stream)?;
    until("functions are dropped", || Arc::strong_count(&calls) == 1)?;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    Ok(())
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
    works(&failing)
}

/// An engine that does not move at all is reset.
pub(crate) fn stuck_engine_fails_the_stream() -> Outcome {
    let gpu = gpu()?;
    let (failing, other) = (stream(&gpu)?, stream(&gpu)?);
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
    let result = accelerator::scope(|scope| -> Result<(), Error> {
        let (bad, good) = (scope.on(&failing), scope.on(&waiting));
        bad.raw(&[packet::copy(0x10, 0x20, 8)])?;
        failing.record(&event)?;
        waiting.wait_event(&event)?;
        // This fill is never done, and never will be once the scope has ended.
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
    let memory = Buffer::<u8>::new(PAGE)?.register(gpu.device(), Access::Read)?;
    let addr = memory.device_addr()?;
    let event = gpu.event()?;
    packets(&failing, &[packet::fill(addr, 64, 0, 0)])?;
    failing.record(&event)?;
    drop(failing);
    let error = event.synchronize().expect_err("it must not write");
    assert_eq!(
        error.fault().and_then(|fault| fault.device_addr),
        Some(addr),
        "{error}"
    );
    // The error stays when the stream's place in the device was given up.
    std::thread::sleep(Duration::from_secs(1));
    let error = event.query().expect_err("as before");
    assert_eq!(
        error.fault().and_then(|fault| fault.device_addr),
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
        packets(&failing, &[packet::copy(0x10, 0x20, 8)])?;
        failing.record(&event)?;
        waiting.wait_event(&event)?;
        for stream in [&failing, &waiting] {
            let memory = gpu.alloc_vram::<u8>(1 << 20)?;
            drop(stream.submit(memory, |work, memory| work.fill(memory.slice_mut(), 1))?);
        }
    }
    until("all memory is given back", || {
        gpu.info().is_ok_and(|info| info.vram_free + tables >= free)
    })
}

/// Runs in the process that ends: has much in flight, says so, and returns or waits for its end.
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
                work.launch(testgpu::Spin {
                    time: Duration::from_millis(100),
                })?;
                work.fill(&mut data, 1)?;
            }
            Ok(())
        })?;
        drop(pending);
    }
    // A packet that would wait for ever.
    let word = gpu.device().alloc::<u64>(1)?;
    let wait = [packet::fence_wait(word.device_addr(), 1)];
    drop(streams[0].submit(word, |work, _| work.raw(&wait))?);
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
        // All but tables of our own context comes back.
        until("the device's memory is given back", || {
            gpu.info()
                .is_ok_and(|info| info.vram_free + (64 << 10) >= before)
        })?;
        works(&stream(&gpu)?)?;
    }
    Ok(())
}
