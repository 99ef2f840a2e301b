// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: order, memory in flight, events, host functions, files that tell.

use std::error::Error as AnyError;
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pinmap::stream::{self, Event, StreamOptions, Unregistered};
use pinmap::{kernel, Allocation, Device, Error, Gpu, Packet, Stream};

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::setup::pattern;

/// Long enough for whoever should not wait for it to be told from who does.
const LONG: Duration = Duration::from_millis(800);
/// What takes no longer than this did not wait for that.
const AT_ONCE: Duration = Duration::from_millis(300);

pub(crate) fn stream(gpu: &Gpu) -> Result<Stream, Error> {
    gpu.stream(StreamOptions::new())
}

pub(crate) fn spin(stream: &Stream, time: Duration) -> Result<(), Error> {
    let pending = stream.submit((), |work, ()| work.launch(kernel::Spin { time }))?;
    drop(pending);
    Ok(())
}

/// Waits for something that comes, but not for ever.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        if Instant::now() > deadline {
            return Err(format!("not after 20 s: {what}").into());
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
    stream::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        let (mut one, mut two) = (one.slice_mut(), two.slice_mut());
        let mut result = result.slice_mut();
        for _ in 0..20 {
            work.copy(host.slice(), &mut one)?;
            work.launch(kernel::IncrementF32 { data: &mut one })?;
            work.copy(&one, &mut two)?;
            work.launch(kernel::IncrementF32 { data: &mut two })?;
            work.copy(&two, &mut result)?;
            work.fill(&mut one, -1.0)?;
        }
        work.packets(&[Packet::nop()])
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
    let before = Instant::now();
    let pending = stream.submit(memory, |work, memory| {
        work.launch(kernel::Spin { time: LONG })?;
        work.fill(&mut memory.slice_mut(), 7)
    })?;
    assert!(!pending.query()? && !stream.query()?);
    let pending = pending.try_into_memory().expect_err("the device has it");
    assert!(before.elapsed() < AT_ONCE, "{:?}", before.elapsed());
    let memory = pending.wait()?;
    assert!(before.elapsed() >= LONG);
    assert!(memory.to_vec().iter().all(|&number| number == 7));
    // What was done meanwhile is done: no waiting.
    let pending = stream.submit(memory, |_, _| Ok(()))?;
    assert!(pending.wait()?.get(4999)? == 7);
    Ok(())
}

pub(crate) fn memory_in_flight_outlives_its_owner() -> Outcome {
    let gpu = gpu()?;
    let (stream, len) = (stream(&gpu)?, 1 << 20);
    let tables = 64 << 10;
    let free = gpu.info()?.vram_free;
    let is_back = || gpu.info().is_ok_and(|info| info.vram_free + tables >= free);
    let slow = |work: &stream::Work<'_>, memory: &mut Allocation<u8>| {
        let _ = memory;
        work.launch(kernel::Spin { time: LONG })
    };
    // Dropped: at once, and the memory goes when the device is done.
    let before = Instant::now();
    drop(stream.submit(gpu.alloc_vram::<u8>(len)?, slow)?);
    assert!(before.elapsed() < AT_ONCE);
    assert!(!is_back(), "the device may still use it");
    until("the memory is given back", is_back)?;
    assert!(before.elapsed() >= LONG);
    // A panic, after something was submitted.
    let memory = gpu.alloc_vram::<u8>(len)?;
    let before = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        stream.submit(memory, |work, memory| {
            slow(work, memory)?;
            panic!("on purpose");
        })
    }));
    assert!(panic.is_err() && before.elapsed() < AT_ONCE);
    assert!(!is_back(), "the device may still use it");
    until("the memory is given back", is_back)?;
    // An error.
    let memory = gpu.alloc_vram::<u8>(len)?;
    let refused = stream.submit(memory, |work, memory| {
        slow(work, memory)?;
        memory.slice().part(len + 1..).map(drop)
    });
    assert_eq!(
        refused.map(drop).expect_err("no part").errno(),
        libc::EINVAL
    );
    assert!(!is_back(), "the device may still use it");
    until("the memory is given back", is_back)?;
    // Forgotten: it stays.
    std::mem::forget(stream.submit(gpu.alloc_vram::<u8>(len)?, slow)?);
    stream.synchronize()?;
    std::thread::sleep(AT_ONCE);
    assert!(!is_back(), "what is forgotten is nobody's");
    Ok(())
}

pub(crate) fn scope_of_streams_waits_whatever_happens() -> Outcome {
    let gpu = gpu()?;
    let mut memory = gpu.device().alloc::<u32>(1000)?;
    let mut run = |mode: u32| {
        let before = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            stream::scope(|scope| -> Result<(), Error> {
                let stream = stream(&gpu)?;
                let work = scope.on(&stream);
                // Dropping does not wait, nor does forgetting take anything away.
                match mode {
                    3 => drop(stream),
                    _ => std::mem::forget(stream),
                }
                work.launch(kernel::Spin { time: AT_ONCE })?;
                work.fill(&mut memory.slice_mut(), mode)?;
                std::mem::forget(work);
                assert!(before.elapsed() < AT_ONCE, "nothing has waited");
                match mode {
                    1 => Err(gpu.device().alloc::<u32>(0).map(drop).expect_err("nothing")),
                    2 => panic!("on purpose"),
                    _ => Ok(()),
                }
            })
        }));
        assert!(before.elapsed() >= AT_ONCE, "the device was waited for");
        assert!(memory.to_vec().iter().all(|&number| number == mode));
        result
    };
    assert!(matches!(run(0), Ok(Ok(()))));
    assert!(matches!(run(1), Ok(Err(_))));
    assert!(run(2).is_err());
    assert!(matches!(run(3), Ok(Ok(()))));
    Ok(())
}

/// How many mappings of the device this process has.
fn mappings() -> Result<usize, Box<dyn AnyError>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.contains("pinmap")).count())
}

pub(crate) fn busy_stream_is_dropped_at_once() -> Outcome {
    let gpu = gpu()?;
    // What the context has for all of its streams.
    let keeper = stream(&gpu)?;
    let event = gpu.event()?;
    keeper.record(&event)?;
    keeper.synchronize()?;
    let before = mappings()?;
    let mut result = gpu.device().alloc::<u32>(1)?;
    let with = mappings()?;
    let stream = stream(&gpu)?;
    let start = Instant::now();
    let pending = stream.submit(result, |work, result| {
        work.launch(kernel::Spin { time: LONG })?;
        work.fill(&mut result.slice_mut(), 9)
    })?;
    stream.record(&event)?;
    drop(stream);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!(mappings()? > with, "the device still works for it");
    gpu.device().synchronize()?;
    assert!(start.elapsed() >= LONG, "the device is waited for");
    result = pending.wait()?;
    assert_eq!(result.get(0)?, 9);
    event.synchronize()?;
    drop((result, event));
    until("its place is given up", || {
        mappings().is_ok_and(|now| now == before)
    })
}

pub(crate) fn events_tell_order_and_time() -> Outcome {
    let gpu = gpu()?;
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let (begin, end, never) = (gpu.event()?, gpu.event()?, gpu.event()?);
    assert!(never.query()? && begin.query()?);
    never.synchronize()?;
    one.wait_event(&never)?;
    assert_eq!(never.time().expect_err("no time").errno(), libc::EINVAL);

    let time = Duration::from_millis(200);
    one.record(&begin)?;
    spin(&one, time)?;
    one.record(&end)?;
    // The other one waits on the device; the CPU does not.
    let before = Instant::now();
    two.wait_event(&end)?;
    assert!(before.elapsed() < time / 2, "{:?}", before.elapsed());
    assert!(!two.query()?, "it waits");
    assert!(!end.query()?);
    let pending = end.elapsed_since(&begin).expect_err("not yet");
    assert_eq!(pending.errno(), libc::EAGAIN);
    two.synchronize()?;
    assert!(end.query()? && one.query()?);
    let elapsed = end.elapsed_since(&begin)?;
    assert!(elapsed >= time && elapsed < 5 * time, "{elapsed:?}");
    assert_eq!(begin.elapsed_since(&end)?, Duration::ZERO);

    // Recorded anew it stands for the later point; who waited for the earlier one does not wait
    // for this.
    spin(&one, time)?;
    one.record(&end)?;
    two.wait_event(&end)?;
    spin(&one, time)?;
    one.record(&end)?;
    two.synchronize()?;
    assert!(!end.query()?, "only the first of the two has come");
    one.synchronize()?;
    assert!(end.elapsed_since(&begin)? >= 3 * time);

    // By another stream, while the first is still to come: the first must not undo it.
    spin(&one, time)?;
    one.record(&begin)?;
    two.record(&begin)?;
    two.synchronize()?;
    let first = begin.time()?;
    one.synchronize()?;
    assert_eq!(begin.time()?, first);
    Ok(())
}

pub(crate) fn event_of_another_context() -> Outcome {
    let gpu = gpu()?;
    let other = Device::open(gpu.device().path())?.gpu()?;
    let (ours, theirs) = (stream(&gpu)?, stream(&other)?);
    let event = gpu.event()?;
    let refused = theirs.record(&event).expect_err("another context");
    assert_eq!(refused.errno(), libc::EINVAL);
    for _ in 0..20 {
        let time = Duration::from_millis(30);
        spin(&ours, time)?;
        ours.record(&event)?;
        let after = other.event()?;
        theirs.wait_event(&event)?;
        theirs.record(&after)?;
        assert!(!theirs.query()?, "it waits on the device");
        theirs.synchronize()?;
        assert!(event.query()?, "what was waited for");
        assert!(after.time()? >= event.time()?);
    }
    // The event, its stream and its context may go while the other waits.
    spin(&ours, AT_ONCE)?;
    ours.record(&event)?;
    theirs.wait_event(&event)?;
    let before = Instant::now();
    drop((event, ours, gpu));
    assert!(before.elapsed() < AT_ONCE / 2);
    theirs.synchronize()?;
    Ok(())
}

pub(crate) fn host_functions_run_in_order() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let memory = Arc::new(gpu.device().alloc::<u32>(1)?);
    let count = 50;
    for number in 0..count {
        // What the device wrote before is seen, and nothing that comes later.
        let pending = stream.submit(Arc::clone(&memory), move |work, memory| {
            let addr = memory.device_addr();
            work.packets(&[Packet::fill(addr, 4, number, 2)])
        })?;
        drop(pending);
        let (log, memory) = (Arc::clone(&log), Arc::clone(&memory));
        stream.call(move || {
            std::thread::sleep(Duration::from_micros(200));
            let seen = memory.get(0).unwrap_or(u32::MAX);
            log.lock().expect("a log").push((number, u64::from(seen)));
        })?;
    }
    stream.synchronize()?;
    let log = log.lock().expect("a log").clone();
    let expected: Vec<_> = (0..count).map(|number| (number, number)).collect();
    assert_eq!(log, expected);
    Ok(())
}

pub(crate) fn host_functions_cannot_wait() -> Outcome {
    let gpu = gpu()?;
    let (one, two) = (stream(&gpu)?, stream(&gpu)?);
    let event = Arc::new(gpu.event()?);
    one.record(&event)?;
    let (sender, receiver) = mpsc::channel();
    let inside = {
        let (gpu, one, event) = (gpu.clone(), one.clone(), Arc::clone(&event));
        move || {
            let errno =
                |result: Result<(), Error>| result.map_or_else(|error| error.errno(), |()| 0);
            let calls = [
                ("synchronize", errno(one.synchronize())),
                ("device", errno(gpu.device().synchronize())),
                ("record", errno(one.record(&event))),
                ("wait_event", errno(one.wait_event(&event))),
                ("submit", errno(one.submit((), |_, ()| Ok(())).map(drop))),
                ("call", errno(one.call(|| ()))),
                ("reset", errno(one.reset())),
                ("scope", errno(stream::scope(|_| Ok(())))),
                ("stream", errno(gpu.stream(StreamOptions::new()).map(drop))),
                ("alloc", errno(gpu.device().alloc::<u8>(1).map(drop))),
                ("completion", errno(one.completion().map(drop))),
            ];
            let _ = sender.send(calls);
        }
    };
    one.call(inside)?;
    one.synchronize()?;
    for (name, errno) in receiver.recv()? {
        assert_eq!(errno, libc::EDEADLK, "{name}");
    }
    // One that is held up holds up its stream, and no other.
    let (go, wait) = mpsc::channel::<()>();
    one.call(move || {
        let _ = wait.recv();
    })?;
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..3 {
        let ran = Arc::clone(&ran);
        two.call(move || {
            ran.fetch_add(1, Ordering::SeqCst);
        })?;
    }
    two.synchronize()?;
    assert_eq!(ran.load(Ordering::SeqCst), 3);
    assert!(!one.query()?);
    drop(go);
    one.synchronize()?;
    Ok(())
}

pub(crate) fn completions_are_files() -> Outcome {
    let gpu = gpu()?;
    let count = 40;
    let streams: Vec<_> = (0..count).map(|_| stream(&gpu)).collect::<Result<_, _>>()?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut completions = Vec::new();
    for (number, stream) in (0..).zip(&streams) {
        spin(stream, Duration::from_millis(5))?;
        let completion = stream.completion()?;
        assert!(!completion.wait(Duration::ZERO)? || completion.query()?);
        epoll.add(&completion, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        completions.push(completion);
    }
    let mut done = vec![false; streams.len()];
    let mut events = [EpollEvent::empty(); 8];
    while done.iter().any(|&done| !done) {
        let found = epoll.wait(&mut events, EpollTimeout::from(10_000u16))?;
        assert_ne!(found, 0, "nothing for ten seconds: {done:?}");
        for event in &events[..found] {
            let number = usize::try_from(event.data())?;
            assert!(completions[number].query()?, "told before it was done");
            epoll.delete(&completions[number])?;
            done[number] = true;
        }
    }
    // What is done already is told at once; more than the driver keeps is refused.
    let ready = |completion: &stream::Completion, timeout| {
        let mut files = [PollFd::new(completion.as_fd(), PollFlags::POLLIN)];
        poll(&mut files, PollTimeout::from(timeout)).map(|found| found != 0)
    };
    assert!(ready(&streams[0].completion()?, 0u16)?);
    spin(&streams[0], AT_ONCE)?;
    let mut many = Vec::new();
    let error = loop {
        match streams[0].completion() {
            Ok(completion) => many.push(completion),
            Err(error) => break error,
        }
        assert!(many.len() <= 64);
    };
    assert_eq!((error.errno(), many.len()), (libc::ENOSPC, 64), "{error}");
    assert!(!ready(&many[63], 0u16)?);
    assert!(ready(&many[63], 10_000u16)?);
    // A stream that fails tells as well.
    streams[1]
        .submit((), |work, ()| {
            work.launch(kernel::Spin { time: AT_ONCE })?;
            work.packets(&[Packet::copy(0x10, 0x20, 8)])
        })
        .map(drop)?;
    let (failed, event) = (streams[1].completion()?, gpu.event()?);
    streams[1].record(&event)?;
    streams[2].wait_event(&event)?;
    let dependent = streams[2].completion()?;
    assert!(!ready(&failed, 0u16)?);
    for completion in [failed, dependent] {
        assert!(ready(&completion, 10_000u16)?);
        let error = completion.query().expect_err("it failed");
        assert_eq!(
            error.fault().and_then(|fault| fault.addr),
            Some(0x10),
            "{error}"
        );
    }
    Ok(())
}

pub(crate) fn unregistered_memory_is_refused_or_registered() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let content = pattern(5, 100_003);
    let mut local = gpu.alloc_vram::<u8>(content.len())?;
    let refused = stream::scope(|scope| {
        let work = scope.on(&stream);
        work.copy_from(&content, &mut local.slice_mut(), Unregistered::Refuse)
    });
    let error = refused.expect_err("not registered");
    assert_eq!(error.errno(), libc::EPERM);
    assert!(
        error.hint().is_some_and(|hint| hint.contains("Register")),
        "{error}"
    );
    stream::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        work.copy_from(&content, &mut local.slice_mut(), Unregistered::Register)?;
        let inside = content.as_ptr().addr();
        assert!(gpu.device().query(inside)?.is_some(), "it is registered");
        Ok(())
    })?;
    assert!(local.to_vec() == content);
    assert!(
        gpu.device().query(content.as_ptr().addr())?.is_none(),
        "it is released"
    );
    // Handed over.
    let pending = stream.submit((content, local), |work, (content, local)| {
        content[0] = 1;
        work.copy_from(&content[..], &mut local.slice_mut(), Unregistered::Register)
    })?;
    let (content, local) = pending.wait()?;
    assert!(local.to_vec() == content && content[0] == 1);
    assert!(
        gpu.device().query(content.as_ptr().addr())?.is_none(),
        "it is released"
    );
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
