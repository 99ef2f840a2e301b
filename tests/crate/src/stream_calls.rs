// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification that a stream is done: host functions, and files.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use nix::libc;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::memfd::{memfd_create, MFdFlags};
use pinmap::accelerator::{Event, Pending, StreamOptions};
use pinmap::{accelerator, Access, Buffer, Cache, Device, Error};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::{timed_out, RawMemory, PAGE};
use crate::streams::{spin, stream, SOME_TIME};

pub(crate) fn host_functions_run_in_order() -> Outcome {
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let memory = Arc::new(gpu.device().alloc::<u32>(1)?);
    let count = 50;
    for number in 0..count {
        // The function sees what the device wrote before, and nothing that comes later.
        let pending = stream.submit(Arc::clone(&memory), move |work, memory| {
            let addr = memory.device_addr();
            work.raw(&[packet::fill(addr, 4, number, 2)])
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
                (
                    "device, for some time",
                    errno(gpu.device().synchronize_timeout(Duration::MAX)),
                ),
                ("record", errno(one.record(&event))),
                ("wait_event", errno(one.wait_event(&event))),
                (
                    "submit",
                    errno(
                        one.submit((), |_, ()| Ok(()))
                            .map(drop)
                            .map_err(Error::from),
                    ),
                ),
                ("call", errno(one.call(|| ()))),
                ("reset", errno(one.reset())),
                ("scope", errno(accelerator::scope(|_| Ok(())))),
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
    // A function that is held up holds up its stream, and no other.
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

/// Host functions can call what the documentation of `pinmap::accelerator` says, and nothing else.
pub(crate) fn host_functions_ask_nothing_of_the_driver() -> Outcome {
    let gpu = gpu()?;
    let (stream, other) = (stream(&gpu)?, stream(&gpu)?);
    let device = gpu.device().clone();
    let register = || -> Result<_, Error> {
        Buffer::<u8>::new(PAGE)?
            .register(&device, Access::ReadWrite)
            .map_err(Into::into)
    };
    let registration = register()?;
    let unmapped = register()?;
    let memory = device.alloc::<u64>(16)?;
    let file = memfd_create(c"pinmap-test", MFdFlags::MFD_CLOEXEC)?;
    nix::unistd::ftruncate(&file, 4096)?;
    let file = std::fs::File::from(file);
    let registered_file = device.register_file(&file, 0, PAGE, Access::Read)?;
    let dma_buf = memory.export(Access::Read)?;
    let cache = Cache::new(&device, Access::Read, 1 << 20)?;
    let known = RawMemory::new(PAGE)?.start().expose_provenance();
    let known = move || std::ptr::with_exposed_provenance_mut::<u8>(known);
    // SAFETY: Nobody refers to it.
    drop(unsafe { cache.get(known(), PAGE)? });
    let (past, future) = (gpu.event()?, gpu.event()?);
    other.record(&past)?;
    other.synchronize()?;
    let done = other.submit(5, |_, _| Ok(()))?;
    let (sender, receiver) = mpsc::channel();
    let path = device.path().to_owned();
    let (go, begin) = mpsc::channel::<(Pending<i32>, Event)>();
    let inside = {
        let (device, gpu, stream) = (device.clone(), gpu.clone(), stream.clone());
        move || {
            let Ok((not_done, future)) = begin.recv() else {
                return;
            };
            let errno =
                |result: Result<(), Error>| result.map_or_else(|error| error.errno(), |()| 0);
            let raw = RawMemory::new(PAGE).expect("memory");
            let at_once = Duration::ZERO;
            let refused = vec![
                ("open", errno(Device::open(&path).map(drop))),
                ("info", errno(device.info().map(drop))),
                ("reserved", errno(device.reserved().map(drop))),
                ("totals", errno(device.totals().map(drop))),
                ("gpu", errno(pinmap_testgpu::accelerator(&device).map(drop))),
                ("bar", errno(device.bar(0).map(drop))),
                ("interrupt", errno(device.interrupt(0).map(drop))),
                ("reset of the device", errno(device.reset())),
                ("signal_events", errno(device.signal_events(None))),
                (
                    "next_event of the device",
                    errno(device.next_event_timeout(at_once).map(drop)),
                ),
                (
                    "query of an address",
                    errno(device.query(raw.addr()).map(drop)),
                ),
                (
                    "preflight",
                    errno(device.preflight(raw.addr(), PAGE, Access::Read).map(drop)),
                ),
                ("register", {
                    let buffer = Buffer::<u8>::new(PAGE).expect("memory");
                    errno(
                        buffer
                            .register(&device, Access::Read)
                            .map(drop)
                            .map_err(Into::into),
                    )
                }),
                ("register_raw", {
                    // SAFETY: It is refused.
                    let raw = unsafe { device.register_raw(raw.start(), PAGE, Access::Read) };
                    errno(raw.map(drop))
                }),
                (
                    "register_file",
                    errno(device.register_file(&file, 0, PAGE, Access::Read).map(drop)),
                ),
                ("alloc", errno(device.alloc::<u8>(1).map(drop))),
                ("alloc_vram", errno(gpu.alloc_vram::<u8>(1).map(drop))),
                ("export", errno(memory.export(Access::Read).map(drop))),
                ("import", errno(device.import::<u8>(&dma_buf).map(drop))),
                ("map", errno(registration.map(Access::Read).map(drop))),
                ("state", errno(registration.state().map(drop))),
                (
                    "query of a registration",
                    errno(registration.query().map(drop)),
                ),
                ("query of a file", errno(registered_file.query().map(drop))),
                (
                    "a new cache",
                    errno(Cache::new(&device, Access::Read, 1).map(drop)),
                ),
                ("what a cache lacks", {
                    // SAFETY: It is refused.
                    errno(unsafe { cache.get(raw.start(), PAGE) }.map(drop))
                }),
                ("find", errno(pinmap_testgpu::find().map(drop))),
                ("info of the gpu", errno(gpu.info().map(drop))),
                ("counters", errno(gpu.counters().map(drop))),
                ("walk", errno(gpu.walk(0).map(drop))),
                (
                    "scope of a stream",
                    errno(stream.scope(|work| work.raw(&[packet::nop()]))),
                ),
                ("stream", errno(gpu.stream(StreamOptions::new()).map(drop))),
                ("event", errno(gpu.event().map(drop))),
                ("query of a stream", errno(stream.query().map(drop))),
                ("query of an event", errno(future.query().map(drop))),
                ("time", errno(future.time().map(drop))),
                (
                    "waiting for an event",
                    errno(future.synchronize_timeout(at_once).map(drop)),
                ),
                ("query of work", errno(not_done.query().map(drop))),
                (
                    "waiting for work",
                    errno(not_done.wait().map(drop).map_err(Into::into)),
                ),
            ];
            let allowed = vec![
                ("an event", errno(past.synchronize())),
                ("the time", errno(past.time().map(drop))),
                ("another stream", errno(other.query().map(drop))),
                ("memory", errno(memory.get(0).map(drop))),
                ("registered memory", errno(registration.store(0, 1u64))),
                ("what a cache has", {
                    // SAFETY: Nobody refers to it.
                    errno(unsafe { cache.get(known(), PAGE) }.map(drop))
                }),
                ("the next event", errno(device.try_next_event().map(drop))),
                ("what is done", i32::from(done.try_into_memory().is_err())),
                (
                    "releasing",
                    errno(unmapped.release().map(drop).map_err(Into::into)),
                ),
            ];
            drop((
                registration,
                memory,
                registered_file,
                dma_buf,
                cache,
                stream,
            ));
            let _ = sender.send((refused, allowed));
        }
    };
    stream.call(inside)?;
    // Work behind the function, which is waiting for it.
    let pending = stream.submit(6, |work, _| work.raw(&[packet::nop()]))?;
    stream.record(&future)?;
    go.send((pending, future)).map_err(|_| "it has ended")?;
    let (refused, allowed) = receiver.recv_timeout(Duration::from_secs(60))?;
    for (name, errno) in refused {
        assert_eq!(errno, libc::EDEADLK, "{name}");
    }
    for (name, errno) in allowed {
        assert_eq!(errno, 0, "{name}");
    }
    stream.synchronize()?;
    // The memory of events goes with the last stream.
    drop(stream);
    // The function's captures are dropped on another thread, which may be later.
    let mut left = u32::MAX;
    for _ in 0..1000 {
        left = device.info()?.registrations;
        if left == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(format!("{left} registrations were not dropped").into())
}

/// A host function cannot wait for a full ring, also when another thread has the stream and waits
/// for this very function.
pub(crate) fn host_functions_cannot_wait_for_a_full_ring() -> Outcome {
    let gpu = gpu()?;
    let one = gpu.stream(StreamOptions::new().packets(64))?;
    let event = Arc::new(gpu.event()?);
    let (go, wait) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let inside = {
        let (one, event) = (one.clone(), Arc::clone(&event));
        let held = one.submit(Arc::new(5), |_, _| Ok(()))?;
        move || {
            let _ = wait.recv();
            let errno =
                |result: Result<(), Error>| result.map_or_else(|error| error.errno(), |()| 0);
            let calls = [
                ("synchronize", errno(one.synchronize())),
                ("record", errno(one.record(&event))),
                ("wait_event", errno(one.wait_event(&event))),
                (
                    "submit",
                    errno(
                        one.submit((), |_, ()| Ok(()))
                            .map(drop)
                            .map_err(Error::from),
                    ),
                ),
                ("call", errno(one.call(|| ()))),
                ("reset", errno(one.reset())),
                ("completion", errno(one.completion().map(drop))),
                ("event", errno(event.query().map(drop))),
                ("time", errno(event.time().map(drop))),
            ];
            // Earlier work is done; these calls do not wait.
            let given = held.try_into_memory().is_ok();
            let quiet = (one.id(), one.query().is_ok(), format!("{one:?} {event:?}"));
            let _ = sender.send((calls, given, quiet));
        }
    };
    one.call(inside)?;
    let recorded = Arc::new(AtomicU32::new(0));
    let filler = {
        let (one, event, recorded) = (one.clone(), Arc::clone(&event), Arc::clone(&recorded));
        std::thread::spawn(move || {
            (0..100).try_for_each(|_| {
                one.record(&event)?;
                recorded.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Error>(())
            })
        })
    };
    let mut before = u32::MAX;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = recorded.load(Ordering::SeqCst);
        if now == before && now > 0 {
            break;
        }
        before = now;
    }
    assert!(before < 100, "the ring is full");
    drop(go);
    let (calls, given, _) = receiver.recv_timeout(Duration::from_secs(60))?;
    for (name, errno) in calls {
        assert_eq!(errno, libc::EDEADLK, "{name}");
    }
    assert!(given);
    filler.join().map_err(|_| "it panicked")??;
    one.synchronize()?;
    Ok(())
}

/// The driver has fewer places for notices than there are functions.
pub(crate) fn thousand_host_functions_of_a_stream() -> Outcome {
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new().packets(4096))?;
    let ran = Arc::new(AtomicU32::new(0));
    spin(&stream, Duration::from_millis(100))?;
    for number in 0..1000 {
        let ran = Arc::clone(&ran);
        stream.call(move || {
            let _ = ran.compare_exchange(number, number + 1, Ordering::SeqCst, Ordering::SeqCst);
        })?;
    }
    // The functions leave room for completions.
    let completion = stream.completion()?;
    // If each function were found only by looking from time to time, this would take 250 s.
    completion.wait_timeout(Duration::from_secs(100))?;
    assert_eq!(ran.load(Ordering::SeqCst), 1000, "in order");
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
        assert!(timed_out(completion.wait_timeout(Duration::ZERO))? || completion.query()?);
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
    Ok(())
}

fn is_ready(completion: &accelerator::Completion, milliseconds: u16) -> nix::Result<bool> {
    let mut files = [PollFd::new(completion.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut files, PollTimeout::from(milliseconds))? != 0)
}

pub(crate) fn completion_of_what_is_done_is_ready() -> Outcome {
    let stream = stream(&gpu()?)?;
    spin(&stream, Duration::ZERO)?;
    stream.synchronize()?;
    assert!(is_ready(&stream.completion()?, 0)?);
    Ok(())
}

/// The driver keeps 64 notices of a queue.
pub(crate) fn completions_are_limited() -> Outcome {
    let stream = stream(&gpu()?)?;
    spin(&stream, SOME_TIME)?;
    let mut many = Vec::new();
    let error = loop {
        match stream.completion() {
            Ok(completion) => many.push(completion),
            Err(error) => break error,
        }
        assert!(many.len() <= 64);
    };
    assert_eq!((error.errno(), many.len()), (libc::ENOSPC, 64), "{error}");
    assert!(!is_ready(&many[63], 0)?);
    assert!(is_ready(&many[63], 10_000)?);
    Ok(())
}

/// A stream that fails makes its completions ready, and those of a stream that waits for it.
pub(crate) fn completions_of_a_failed_stream_are_ready() -> Outcome {
    let gpu = gpu()?;
    let (failing, waiting) = (stream(&gpu)?, stream(&gpu)?);
    failing
        .submit((), |work, ()| {
            work.launch(testgpu::Spin { time: SOME_TIME })?;
            work.raw(&[packet::copy(0x10, 0x20, 8)])
        })
        .map(drop)?;
    let (failed, event) = (failing.completion()?, gpu.event()?);
    failing.record(&event)?;
    waiting.wait_event(&event)?;
    let dependent = waiting.completion()?;
    assert!(!is_ready(&failed, 0)?);
    for completion in [failed, dependent] {
        assert!(is_ready(&completion, 10_000)?);
        let error = completion.query().expect_err("it failed");
        assert_eq!(
            error.fault().and_then(|fault| fault.device_addr),
            Some(0x10),
            "{error}"
        );
    }
    // Or it would look at the event's memory until this process ends, and for a moment longer.
    waiting.reset()?;
    Ok(())
}
