// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: order, memory in flight, events.

use std::error::Error as AnyError;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::libc;
use pinmap::accelerator::{Accelerator, Event, Packet, Stream, StreamOptions};
use pinmap::{accelerator, Allocation, Buffer, Device, Error};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::{pattern, timed_out, PAGE};

/// The duration of a kernel that a test waits for.
pub(crate) const SOME_TIME: Duration = Duration::from_millis(300);

pub(crate) fn stream(gpu: &Accelerator) -> Result<Stream, Error> {
    gpu.stream(StreamOptions::new())
}

/// Makes a stream that has ordinary memory registered.
pub(crate) fn registering(gpu: &Accelerator) -> Result<Stream, Error> {
    gpu.stream(StreamOptions::new().register_slices())
}

pub(crate) fn spin(stream: &Stream, time: Duration) -> Result<(), Error> {
    let pending = stream.submit((), |work, ()| work.launch(testgpu::Spin { time }))?;
    drop(pending);
    Ok(())
}

/// Holds up later work of a stream until it is opened. A call that returns before that has not
/// waited, however long it took.
pub(crate) struct Gate(Allocation<u64>);

impl Gate {
    pub(crate) fn new(gpu: &Accelerator) -> Result<Self, Error> {
        Ok(Self(gpu.device().alloc(1)?))
    }

    /// The packet that waits for the gate.
    pub(crate) fn packet(&self) -> Packet {
        packet::fence_wait(self.0.device_addr(), 1)
    }

    pub(crate) fn hold(&self, stream: &Stream) -> Result<(), Error> {
        let packet = [self.packet()];
        drop(stream.submit((), |work, ()| work.raw(&packet))?);
        Ok(())
    }

    pub(crate) fn open(&mut self) -> Result<(), Error> {
        self.0.set(0, 1)
    }
}

/// Waits until something is so, but not for ever.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        if Instant::now() > deadline {
            return Err(format!("not after a minute: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

pub(crate) fn stream_stays_in_order() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    const LEN: usize = 20_000;
    let content: Vec<f32> = (0..LEN).map(|number| number as f32).collect();
    let mut host = gpu.device().alloc::<f32>(LEN)?;
    let mut result = gpu.device().alloc::<f32>(LEN)?;
    let (mut one, mut two) = (gpu.alloc_vram::<f32>(LEN)?, gpu.alloc_vram::<f32>(LEN)?);
    host.write(0, &content)?;
    // Each step needs the one before, on another engine.
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        let (mut one, mut two) = (one.slice_mut(), two.slice_mut());
        let mut result = result.slice_mut();
        for _ in 0..20 {
            work.copy(host.slice(), &mut one)?;
            work.launch(testgpu::IncrementF32 { data: &mut one })?;
            work.copy(&one, &mut two)?;
            work.launch(testgpu::IncrementF32 { data: &mut two })?;
            work.copy(&two, &mut result)?;
            work.fill(&mut one, -1.0)?;
        }
        work.raw(&[packet::nop()])
    })?;
    assert!(stream.query()?, "the scope waits");
    let expected: Vec<f32> = content.iter().map(|number| number + 2.0).collect();
    assert!(result.to_vec() == expected);
    assert!(one.to_vec().iter().all(|&number| number == -1.0));
    Ok(())
}

pub(crate) fn memory_that_is_handed_over_comes_back() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let memory = gpu.device().alloc::<u32>(5000)?;
    let mut gate = Gate::new(&gpu)?;
    let pending = stream.submit(memory, |work, memory| {
        work.raw(&[gate.packet()])?;
        work.launch(testgpu::Spin { time: SOME_TIME })?;
        work.fill(memory.slice_mut(), 7)
    })?;
    assert!(!pending.query()? && !stream.query()?);
    let pending = pending.try_into_memory().expect_err("the device has it");
    let before = Instant::now();
    gate.open()?;
    let memory = pending.wait()?;
    assert!(before.elapsed() >= SOME_TIME);
    assert!(memory.to_vec().iter().all(|&number| number == 7));
    // The work was done meanwhile: there is no waiting.
    let pending = stream.submit(memory, |_, _| Ok(()))?;
    assert!(pending.wait()?.get(4999)? == 7);
    Ok(())
}

/// Memory of the device that work in flight uses, behind a gate.
struct InFlight {
    gpu: Accelerator,
    stream: Stream,
    gate: Gate,
    /// VRAM that was free before.
    free: u64,
}

impl InFlight {
    const LEN: usize = 1 << 20;
    /// Page tables may take so much of the device's memory, and keep it.
    const TABLES: u64 = 64 << 10;

    fn new() -> Result<Self, Box<dyn AnyError>> {
        let gpu = gpu()?;
        let (stream, gate) = (stream(&gpu)?, Gate::new(&gpu)?);
        let free = gpu.info()?.vram_free;
        Ok(Self {
            gpu,
            stream,
            gate,
            free,
        })
    }

    fn memory(&self) -> Result<Allocation<u8>, Error> {
        self.gpu.alloc_vram(Self::LEN)
    }

    fn is_back(&self) -> bool {
        let info = self.gpu.info();
        info.is_ok_and(|info| info.vram_free + Self::TABLES >= self.free)
    }

    /// The memory is not given back before the gate is opened, and then it is.
    fn check(mut self) -> Outcome {
        assert!(!self.is_back(), "the device may still use it");
        self.gate.open()?;
        until("the memory is given back", || self.is_back())
    }
}

pub(crate) fn dropped_memory_in_flight_stays() -> Outcome {
    let work = InFlight::new()?;
    let packet = [work.gate.packet()];
    let memory = work.memory()?;
    drop(work.stream.submit(memory, |work, _| work.raw(&packet))?);
    work.check()
}

/// A panic after something was submitted.
pub(crate) fn memory_in_flight_stays_after_a_panic() -> Outcome {
    let work = InFlight::new()?;
    let packet = [work.gate.packet()];
    let memory = work.memory()?;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        work.stream.submit(memory, |work, _| {
            work.raw(&packet)?;
            panic!("on purpose");
        })
    }));
    assert!(panic.is_err());
    work.check()
}

/// An error after something was submitted.
pub(crate) fn memory_in_flight_stays_after_an_error() -> Outcome {
    let work = InFlight::new()?;
    let packet = [work.gate.packet()];
    let memory = work.memory()?;
    let refused = work.stream.submit(memory, |work, memory| {
        work.raw(&packet)?;
        memory.slice().part(InFlight::LEN + 1..).map(drop)
    });
    let refused = refused.expect_err("no part");
    assert_eq!(refused.error.errno(), libc::EINVAL);
    drop(refused);
    work.check()
}

/// Forgotten memory stays, also when later work has come back.
pub(crate) fn forgotten_memory_in_flight_stays() -> Outcome {
    let mut work = InFlight::new()?;
    work.gate.open()?;
    let nothing = [packet::nop()];
    let submit = |memory| work.stream.submit(memory, |work, _| work.raw(&nothing));
    std::mem::forget(submit(work.memory()?)?);
    let left = work.gpu.info()?.vram_free;
    drop(submit(work.memory()?)?);
    work.stream.synchronize()?;
    until("the later memory is given back", || {
        work.gpu.info().is_ok_and(|info| info.vram_free >= left)
    })?;
    assert!(!work.is_back(), "what is forgotten is nobody's");
    Ok(())
}

pub(crate) fn scope_of_streams_waits_whatever_happens() -> Outcome {
    let gpu = gpu()?;
    let mut memory = gpu.device().alloc::<u32>(1000)?;
    let (sender, receiver) = mpsc::channel();
    let mut gate = Gate::new(&gpu)?;
    let packet = [gate.packet()];
    // The gate is opened when the function has done all that must not wait.
    let opener = std::thread::spawn(move || {
        while receiver.recv().is_ok() {
            gate.open().expect("it is memory");
        }
    });
    let mut run = |mode: u32| {
        let before = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            accelerator::scope(|scope| -> Result<(), Error> {
                let stream = stream(&gpu)?;
                let work = scope.on(&stream);
                work.raw(&packet)?;
                // Dropping does not wait, nor does forgetting take anything away.
                match mode {
                    3 => drop(stream),
                    _ => std::mem::forget(stream),
                }
                work.launch(testgpu::Spin { time: SOME_TIME })?;
                work.fill(memory.slice_mut(), mode)?;
                std::mem::forget(work);
                sender.send(()).expect("the other thread lives");
                match mode {
                    1 => Err(gpu.device().alloc::<u32>(0).map(drop).expect_err("nothing")),
                    2 => panic!("on purpose"),
                    _ => Ok(()),
                }
            })
        }));
        assert!(before.elapsed() >= SOME_TIME, "the device was waited for");
        assert!(memory.to_vec().iter().all(|&number| number == mode));
        result
    };
    assert!(matches!(run(0), Ok(Ok(()))));
    assert!(matches!(run(1), Ok(Err(_))));
    assert!(run(2).is_err());
    assert!(matches!(run(3), Ok(Ok(()))));
    drop(sender);
    opener.join().map_err(|_| "it panicked")?;
    Ok(())
}

/// Counts the mappings of the device in this process.
fn mappings() -> Result<usize, Box<dyn AnyError>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.contains("pinmap")).count())
}

/// Returns an event that was recorded, with its stream: the context then has the memory that all of
/// its streams share, and later mappings are those of further streams.
fn recorded_event(gpu: &Accelerator) -> Result<(Stream, Event), Error> {
    let (keeper, event) = (stream(gpu)?, gpu.event()?);
    keeper.record(&event)?;
    keeper.synchronize()?;
    Ok((keeper, event))
}

pub(crate) fn busy_stream_is_dropped_at_once() -> Outcome {
    let gpu = gpu()?;
    let (_keeper, event) = recorded_event(&gpu)?;
    let before = mappings()?;
    let mut result = gpu.device().alloc::<u32>(1)?;
    let mut gate = Gate::new(&gpu)?;
    let with = mappings()?;
    let stream = stream(&gpu)?;
    let pending = stream.submit(result, |work, result| {
        work.raw(&[gate.packet()])?;
        work.launch(testgpu::Spin { time: SOME_TIME })?;
        work.fill(result.slice_mut(), 9)
    })?;
    stream.record(&event)?;
    drop(stream);
    let short = Duration::from_millis(1);
    assert!(
        timed_out(event.synchronize_timeout(short))?,
        "it is reached later"
    );
    assert!(mappings()? > with, "the device still works for it");
    assert!(
        timed_out(gpu.device().synchronize_timeout(short))?,
        "the device is not done"
    );
    let start = Instant::now();
    gate.open()?;
    gpu.device().synchronize()?;
    assert!(start.elapsed() >= SOME_TIME, "the device is waited for");
    gpu.device().synchronize_timeout(short)?;
    result = pending.wait()?;
    assert_eq!(result.get(0)?, 9);
    event.synchronize()?;
    event.synchronize_timeout(short)?;
    drop((result, event, gate));
    until("its place is given up", || {
        mappings().is_ok_and(|now| now == before)
    })
}

/// Two streams and the CPU race on memory in flight, which the compiler does not refuse: the memory
/// then has one of the values that the order of the accesses could give it.
pub(crate) fn memory_in_flight_is_raced_for() -> Outcome {
    let gpu = gpu()?;
    let (mut host, mut local) = (gpu.alloc::<f32>(1024)?, gpu.alloc_vram::<f32>(1024)?);
    let (first, second) = (stream(&gpu)?, stream(&gpu)?);
    let seen = accelerator::scope(|scope| {
        let (first, second) = (scope.on(&first), scope.on(&second));
        let (mut host, mut local) = (host.slice_mut(), local.slice_mut());
        first.copy(&host, &mut local)?;
        first.launch(testgpu::IncrementF32 { data: &mut local })?;
        // No event is between the two.
        second.launch(testgpu::IncrementF32 { data: &mut local })?;
        second.copy(&local, &mut host)?;
        let seen = local.get(0)?;
        host.write(0, &[0.0; 1024])?;
        Ok(seen)
    })?;
    assert!([0.0, 1.0, 2.0].contains(&seen), "{seen}");
    assert!(host.iter().all(|x| [0.0, 1.0, 2.0].contains(x)));
    // Each stream has incremented last what it or the other one stored.
    assert!(local.to_vec().iter().all(|x| [1.0, 2.0].contains(x)));
    Ok(())
}

/// Raw packets can store any fence, so the device itself is asked whether they are done. The answer
/// is the same after the queue is gone.
pub(crate) fn done_on_a_stream_that_is_gone() -> Outcome {
    let gpu = gpu()?;
    let (_keeper, event) = recorded_event(&gpu)?;
    let result = gpu.device().alloc::<u32>(1)?;
    let stream = stream(&gpu)?;
    let with = mappings()?;
    let pending = stream.submit(result, |work, result| {
        work.raw(&[packet::nop()])?;
        work.fill(result.slice_mut(), 9)
    })?;
    stream.record(&event)?;
    drop(stream);
    // The ring goes after the queue.
    until("the queue is gone", || {
        mappings().is_ok_and(|now| now < with)
    })?;
    assert!(event.query()? && pending.query()?);
    event.synchronize()?;
    assert_eq!(pending.wait()?.get(0)?, 9);
    Ok(())
}

/// An event that was never recorded is passed, and has no time.
pub(crate) fn event_never_recorded() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let never = gpu.event()?;
    assert!(never.query()?);
    never.synchronize()?;
    stream.wait_event(&never)?;
    assert_eq!(never.time().expect_err("no time").errno(), libc::EINVAL);
    Ok(())
}

/// A stream waits for an event on the device; the CPU does not.
pub(crate) fn events_tell_order() -> Outcome {
    let gpu = gpu()?;
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let end = gpu.event()?;
    let mut gate = Gate::new(&gpu)?;
    gate.hold(&one)?;
    one.record(&end)?;
    two.wait_event(&end)?;
    assert!(!two.query()?, "it waits");
    assert!(!end.query()?);
    gate.open()?;
    two.synchronize()?;
    assert!(end.query()? && one.query()?);
    Ok(())
}

pub(crate) fn events_make_streams_take_turns() -> Outcome {
    let gpu = gpu()?;
    let (first, second, event) = (stream(&gpu)?, stream(&gpu)?, gpu.event()?);
    let mut memory = gpu.device().alloc::<f32>(10_000)?;
    let mut result = gpu.alloc_vram::<f32>(10_000)?;
    accelerator::scope(|scope| -> Result<(), Error> {
        let (one, two) = (scope.on(&first), scope.on(&second));
        let (mut data, mut result) = (memory.slice_mut(), result.slice_mut());
        for _ in 0..20 {
            one.launch(testgpu::Spin {
                time: Duration::from_micros(300),
            })?;
            one.launch(testgpu::IncrementF32 { data: &mut data })?;
            one.record(&event)?;
            two.wait_event(&event)?;
            two.copy(&data, &mut result)?;
            two.launch(testgpu::IncrementF32 { data: &mut data })?;
            two.record(&event)?;
            one.wait_event(&event)?;
        }
        Ok(())
    })?;
    assert!(memory.to_vec().iter().all(|&number| number == 40.0));
    assert!(result.to_vec().iter().all(|&number| number == 39.0));
    Ok(())
}

pub(crate) fn events_tell_time() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let (begin, end) = (gpu.event()?, gpu.event()?);
    let time = Duration::from_millis(200);
    let mut gate = Gate::new(&gpu)?;
    stream.record(&begin)?;
    spin(&stream, time)?;
    gate.hold(&stream)?;
    stream.record(&end)?;
    let pending = end.elapsed_since(&begin).expect_err("not yet");
    assert_eq!(pending.errno(), libc::EAGAIN);
    gate.open()?;
    end.synchronize()?;
    let elapsed = end.elapsed_since(&begin)?;
    // The time is told in nanoseconds, however long the machine was busy with other things.
    assert!(elapsed >= time && elapsed < 500 * time, "{elapsed:?}");
    assert_eq!(begin.elapsed_since(&end)?, Duration::ZERO);
    Ok(())
}

/// An event that is recorded anew stands for the later point; a stream that waits for the earlier
/// one does not wait for the later.
pub(crate) fn event_recorded_anew() -> Outcome {
    let gpu = gpu()?;
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let (begin, end) = (gpu.event()?, gpu.event()?);
    let time = Duration::from_millis(100);
    let mut gate = Gate::new(&gpu)?;
    one.record(&begin)?;
    spin(&one, time)?;
    one.record(&end)?;
    two.wait_event(&end)?;
    gate.hold(&one)?;
    spin(&one, time)?;
    one.record(&end)?;
    two.synchronize()?;
    assert!(!end.query()?, "only the first of the two has come");
    gate.open()?;
    one.synchronize()?;
    assert!(end.elapsed_since(&begin)? >= 2 * time);
    Ok(())
}

/// The first stream does not undo what a second one recorded later, when its own point comes.
pub(crate) fn event_recorded_by_another_stream() -> Outcome {
    let gpu = gpu()?;
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let event = gpu.event()?;
    let mut gate = Gate::new(&gpu)?;
    gate.hold(&one)?;
    one.record(&event)?;
    two.record(&event)?;
    two.synchronize()?;
    let first = event.time()?;
    gate.open()?;
    one.synchronize()?;
    assert_eq!(event.time()?, first);
    Ok(())
}

pub(crate) fn event_of_another_context() -> Outcome {
    let gpu = gpu()?;
    let other = pinmap_testgpu::accelerator(&Device::open(gpu.device().path())?)?;
    let (ours, theirs) = (stream(&gpu)?, stream(&other)?);
    let event = gpu.event()?;
    let refused = theirs.record(&event).expect_err("another context");
    assert_eq!(refused.errno(), libc::EINVAL);
    let mut gate = Gate::new(&gpu)?;
    for round in 0..20 {
        // One stream is queried while it waits.
        if round == 0 {
            gate.hold(&ours)?;
        }
        spin(&ours, SOME_TIME / 20)?;
        ours.record(&event)?;
        let after = other.event()?;
        theirs.wait_event(&event)?;
        theirs.record(&after)?;
        if round == 0 {
            assert!(!theirs.query()?, "it waits on the device");
            gate.open()?;
        }
        theirs.synchronize()?;
        assert!(event.query()?, "what was waited for");
        assert!(after.time()? >= event.time()?);
    }
    // The event, its stream and its context may go while the other waits.
    // Going takes no time; if this thread was held up meanwhile, it is tried again.
    drop((event, ours, gate, gpu));
    for _ in 0..50 {
        let gpu = pinmap_testgpu::accelerator(&Device::open(other.device().path())?)?;
        let (ours, event) = (stream(&gpu)?, gpu.event()?);
        spin(&ours, SOME_TIME)?;
        ours.record(&event)?;
        theirs.wait_event(&event)?;
        drop((event, ours, gpu));
        let waits = !theirs.query()?;
        theirs.synchronize()?;
        if waits {
            return Ok(());
        }
    }
    Err("dropping them waits for the device".into())
}

pub(crate) fn unregistered_memory_is_lent() -> Outcome {
    let gpu = gpu()?;
    let stream = registering(&gpu)?;
    let content = pattern(5, 100_003);
    let mut local = gpu.alloc_vram::<u8>(content.len())?;
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        work.copy(&content, local.slice_mut())?;
        let inside = content.as_ptr().addr();
        assert!(gpu.device().query(inside)?.is_some(), "it is registered");
        Ok(())
    })?;
    assert!(local.to_vec() == content);
    assert!(
        gpu.device().query(content.as_ptr().addr())?.is_none(),
        "it is released"
    );
    // The memory is handed over.
    let pending = stream.submit((content, local), |work, (content, local)| {
        content[0] = 1;
        work.copy(&content[..], local.slice_mut())
    })?;
    let (content, local) = pending.wait()?;
    assert!(local.to_vec() == content && content[0] == 1);
    assert!(
        gpu.device().query(content.as_ptr().addr())?.is_none(),
        "it is released"
    );
    Ok(())
}

fn pinned(gpu: &Accelerator) -> Result<u64, Error> {
    Ok(gpu.device().own_totals()?.pinned.bytes)
}

/// Neighbouring parts, which share pages and have nothing to do with one another, are copied at the
/// same time.
pub(crate) fn unregistered_memory_is_shared() -> Outcome {
    let gpu = gpu()?;
    let streams = [registering(&gpu)?, registering(&gpu)?];
    let content = pattern(7, 25 * PAGE);
    let before = pinned(&gpu)?;
    let mut local = gpu.alloc_vram::<u8>(content.len())?;
    accelerator::scope(|scope| -> Result<(), Error> {
        let (mut one, mut two) = local.slice_mut().split_at(10 * PAGE + 99)?;
        let (first, second) = content.split_at(10 * PAGE + 99);
        for (stream, from, to) in [
            (&streams[0], first, &mut one),
            (&streams[1], second, &mut two),
        ] {
            let work = scope.on(stream);
            work.launch(testgpu::Spin { time: SOME_TIME })?;
            work.copy(from, to)?;
        }
        Ok(())
    })?;
    assert!(local.to_vec() == content);
    assert_eq!(pinned(&gpu)?, before, "it is released");
    Ok(())
}

/// Makes VRAM with a pattern in it.
fn filled(gpu: &Accelerator, stream: &Stream) -> Result<(Vec<u8>, Allocation<u8>), Error> {
    let content = pattern(7, 25 * PAGE);
    let mut local = gpu.alloc_vram::<u8>(content.len())?;
    accelerator::scope(|scope| {
        let work = scope.on(stream);
        work.copy(&content, local.slice_mut())
    })?;
    Ok((content, local))
}

pub(crate) fn unregistered_memory_is_written() -> Outcome {
    let gpu = gpu()?;
    let stream = registering(&gpu)?;
    let (content, local) = filled(&gpu, &stream)?;
    let before = pinned(&gpu)?;
    let mut back = Buffer::<u8>::new(content.len())?;
    accelerator::scope(|scope| {
        let work = scope.on(&stream);
        work.copy(local.slice(), &mut back)
    })?;
    assert!(back[..] == content[..]);
    assert_eq!(pinned(&gpu)?, before, "it is released");
    Ok(())
}

/// A copy writes all of its memory, and nothing beside it in the same pages.
pub(crate) fn unregistered_parts_of_pages_are_written() -> Outcome {
    let gpu = gpu()?;
    let stream = registering(&gpu)?;
    let (content, local) = filled(&gpu, &stream)?;
    let mut shared = Buffer::<u8>::new(2 * PAGE)?;
    shared.fill(0xa5);
    let before = pinned(&gpu)?;
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        let (one, other) = shared.split_at_mut(PAGE + 8);
        let (other, _) = other.split_at_mut(PAGE - 9);
        for to in [&mut one[9..PAGE + 3], &mut other[5..]] {
            let part = local.slice().part(..to.len())?;
            work.copy(part, to)?;
        }
        Ok(())
    })?;
    let mut expected = vec![0xa5; 2 * PAGE];
    expected[9..PAGE + 3].copy_from_slice(&content[..PAGE - 6]);
    expected[PAGE + 13..2 * PAGE - 1].copy_from_slice(&content[..PAGE - 14]);
    assert!(shared[..] == expected[..]);
    assert_eq!(pinned(&gpu)?, before, "it is released");
    Ok(())
}

/// Memory that is handed over and forgotten is never used for something else.
pub(crate) fn unregistered_memory_that_is_forgotten_stays() -> Outcome {
    let gpu = gpu()?;
    let stream = registering(&gpu)?;
    let (content, local) = filled(&gpu, &stream)?;
    let before = pinned(&gpu)?;
    let back = Buffer::<u8>::new(content.len())?;
    let pending = stream.submit((back, local), |work, (back, local)| {
        work.launch(testgpu::Spin { time: SOME_TIME })?;
        work.copy(local.slice(), &mut back[..])
    })?;
    std::mem::forget(pending);
    gpu.device().synchronize()?;
    let forgotten = 25 * PAGE as u64;
    assert_eq!(pinned(&gpu)?, before + forgotten, "it stays registered");
    Ok(())
}

pub(crate) fn events_are_many() -> Outcome {
    let gpu = gpu()?;
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let events: Vec<Event> = (0..1000).map(|_| gpu.event()).collect::<Result<_, _>>()?;
    for round in 0..3 {
        for (number, event) in events.iter().enumerate() {
            let (from, to) = if (number + round) % 2 == 0 {
                (&one, &two)
            } else {
                (&two, &one)
            };
            from.record(event)?;
            to.wait_event(event)?;
        }
    }
    gpu.device().synchronize()?;
    let mut times = Vec::new();
    for event in &events {
        times.push(event.time()?);
    }
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    Ok(())
}
