// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who hears that a stream is done: host functions, and files.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use nix::libc;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pinmap::stream::{self, StreamOptions};
use pinmap::{kernel, Error, Packet};

use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::streams::{spin, stream, SOME_TIME};

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

/// Also when another thread has the stream, and waits for the very function.
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
                ("submit", errno(one.submit((), |_, ()| Ok(())).map(drop))),
                ("call", errno(one.call(|| ()))),
                ("reset", errno(one.reset())),
                ("completion", errno(one.completion().map(drop))),
                ("event", errno(event.query().map(drop))),
                ("time", errno(event.time().map(drop))),
            ];
            // What was submitted before is done; these do not wait.
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
    // They leave room for these.
    let completion = stream.completion()?;
    // If each function were only found by looking from time to time, it would take 250 s.
    assert!(completion.wait(Duration::from_secs(100))?);
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
    spin(&streams[0], SOME_TIME)?;
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
            work.launch(kernel::Spin { time: SOME_TIME })?;
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
    // It would look at the event's memory until this process ends, and for a moment longer.
    streams[2].reset()?;
    Ok(())
}
