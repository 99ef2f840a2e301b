// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting without blocking: futures, on an executor that knows nothing of the crate; and rings.

use std::error::Error;
use std::future::{Future, IntoFuture};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::libc;
use pinmap::accelerator::{Event, Pending, Place, Prefetching, StreamOptions};
use pinmap::{Access, Buffer, Descriptor, DeviceEvent, ErrorKind, RegisterOptions};
use pinmap_testgpu::{packet, Spin};

use crate::edu::Edu;
use crate::gpu::gpu;
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::{device, edu, pattern, RawMemory, PAGE};
use crate::stale::while_unbound;
use crate::streams::{stream, Gate};

/// edu: raises an interrupt, and acknowledges one.
const RAISE_INTERRUPT: usize = 0x60;
const ACKNOWLEDGE: usize = 0x64;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls a future once.
fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(count));
    future.poll(&mut Context::from_waker(&waker))
}

pub(crate) fn pending_work_is_awaited() -> Outcome {
    let gpu = gpu()?;
    let streams: Vec<_> = (0..8).map(|_| stream(&gpu)).collect::<Result<_, _>>()?;
    let time = Duration::from_millis(5);
    let pending: Result<Vec<_>, pinmap::Error> = (0..40u32)
        .map(|number| {
            let memory = gpu.alloc::<u32>(100)?;
            let stream = &streams[number as usize % 8];
            Ok(stream.submit(memory, move |work, memory| {
                work.launch(Spin { time })?;
                work.fill(memory, number)
            })?)
        })
        .collect();
    let mut futures: Vec<_> = pending?.into_iter().map(IntoFuture::into_future).collect();
    // The last one first, so that others are done when they are polled first.
    let mut number = 40;
    while let Some(future) = futures.pop() {
        number -= 1;
        let memory = block_on(future)?;
        assert!(memory.iter().all(|&word| word == number), "{number}");
    }
    let event = gpu.event()?;
    block_on(event.synchronize_async())?;
    streams[0]
        .submit((), |work, ()| work.launch(Spin { time }))?
        .wait()?;
    let last = streams[1].submit((), |work, ()| work.launch(Spin { time }))?;
    streams[1].record(&event)?;
    let completion = streams[1].completion()?;
    block_on(async {
        event.synchronize_async().await?;
        completion.wait_async().await?;
        streams[1].synchronize_async().await
    })?;
    assert!(last.is_done() && event.query()?);
    Ok(())
}

/// Memory that tells when it is dropped.
struct Tells(mpsc::Sender<()>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Whoever sleeps is woken by the device, and not only by the next look after a quarter of a
/// second: also if nobody wanted to know when the work was submitted, and if a thread is submitting
/// more.
pub(crate) fn sleepers_are_woken_in_time() -> Outcome {
    type Way = fn(Pending<Tells>, mpsc::Receiver<()>, &Event) -> Outcome;
    let ways: [(&str, Way); 4] = [
        ("a wait", |pending, _, _| {
            pending.wait()?;
            Ok(())
        }),
        ("a future", |pending, _, _| {
            block_on(pending.into_future())?;
            Ok(())
        }),
        ("an event", |_, _, event| Ok(event.synchronize()?)),
        ("memory", |pending, dropped, _| {
            drop(pending);
            Ok(dropped.recv()?)
        }),
    ];
    let (gpu, nops) = (gpu()?, [packet::nop(); 10]);
    let event = gpu.event()?;
    for (name, way) in ways {
        let mut late = Vec::new();
        for round in 0..6 {
            let stream = gpu.stream(StreamOptions::new().packets(64))?;
            let (mut gate, mut behind) = (Gate::new(&gpu)?, Gate::new(&gpu)?);
            let (sender, dropped) = mpsc::channel();
            gate.hold(&stream)?;
            let pending = stream.submit(Tells(sender), |work, _| work.raw(&nops[..1]))?;
            stream.record(&event)?;
            let is_behind = round % 2 == 1;
            if is_behind {
                behind.hold(&stream)?;
            }
            let event = &event;
            let time = thread::scope(|threads| -> Result<Duration, Box<dyn Error>> {
                let waiter = threads.spawn(move || match way(pending, dropped, event) {
                    Ok(()) => Ok(Instant::now()),
                    Err(error) => Err(error.to_string()),
                });
                let submitter = is_behind.then(|| {
                    // More than the ring has room for.
                    let submit = || stream.submit((), |work, ()| work.raw(&nops)).map(drop);
                    threads.spawn(move || (0..20).try_for_each(|_| submit()))
                });
                thread::sleep(Duration::from_millis(20));
                let opened = Instant::now();
                gate.open()?;
                let ended = waiter.join().expect("no panic");
                behind.open()?;
                submitter.map_or(Ok(()), |thread| thread.join().expect("no panic"))?;
                Ok(ended?.saturating_duration_since(opened))
            })?;
            if time > Duration::from_millis(150) {
                late.push(time);
            }
        }
        // The machine may be slow once.
        assert!(late.len() < 3, "{name}: of 6, these came late: {late:?}");
    }
    Ok(())
}

/// The work of a queue, of all streams of a device, and of a stream that moves memory. Nothing is
/// ready before the gate is open.
pub(crate) fn streams_devices_and_moves_are_awaited() -> Outcome {
    let gpu = gpu()?;
    let (one, other) = (stream(&gpu)?, stream(&gpu)?);
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = gpu.alloc::<u32>(100)?;
    let mut gate = gpu.alloc::<u64>(1)?;
    let managed = if gpu.device().info()?.managed {
        let mut managed = gpu.alloc_managed::<u32>(1024)?;
        managed.fill(1);
        Some(managed)
    } else {
        None
    };
    let count = Arc::<Count>::default();
    pinmap::accelerator::scope(|scope| {
        let (first, second) = (scope.on(&one), scope.on(&other));
        let mut gate = gate.slice_mut();
        first.wait_value(&gate, 0, 1)?;
        second.wait_value(&gate, 0, 2)?;
        let moving = managed.as_ref();
        let moving = moving
            .map(|memory| memory.prefetch_on(&one, Place::Vram))
            .transpose()?;
        let mut device = pin!(gpu.device().synchronize_async());
        assert!(poll(device.as_mut(), &count).is_pending());
        let mut moving = pin!(moving.map(Prefetching::wait_async));
        if let Some(moving) = moving.as_mut().as_pin_mut() {
            assert!(poll(moving, &count).is_pending());
        }
        // The first stream goes on, the device as a whole does not.
        gate.set(0, 1)?;
        if let Some(moving) = moving.as_mut().as_pin_mut() {
            assert_eq!(block_on(moving)?.moved, 4096);
        }
        block_on(one.synchronize_async())?;
        assert!(poll(device.as_mut(), &count).is_pending());
        gate.set(0, 2)?;
        block_on(device)
    })?;
    assert!(one.query()? && other.query()?);
    gate[0] = 0;
    stream.scope(|work| {
        let mut gate = gate.slice_mut();
        work.wait_value(&gate, 0, 1)?;
        work.fill(numbers.slice_mut(), 7)?;
        let stream = work.stream();
        {
            let mut future = pin!(stream.synchronize_async());
            assert!(poll(future.as_mut(), &count).is_pending());
        }
        let mut future = pin!(stream.synchronize_async());
        assert!(poll(future.as_mut(), &count).is_pending());
        gate.set(0, 1)?;
        block_on(future)?;
        assert!(stream.query()?);
        // Ready at once.
        block_on(stream.synchronize_async())
    })?;
    assert!(numbers.iter().all(|&number| number == 7));
    Ok(())
}

/// A scope that fails, or panics, before it has stored the value that its work waits for ends all
/// the same. One that has stored it leaves a stream that goes on.
pub(crate) fn failed_scopes_end() -> Outcome {
    let gpu = gpu()?;
    let mut gate = gpu.device().alloc::<u64>(1)?;
    let mut numbers = gpu.alloc::<u32>(100)?;
    let stream = gpu.stream(StreamOptions::new())?;
    let result = stream.try_scope(|work| -> Outcome {
        let mut gate = gate.slice_mut();
        work.wait_value(&gate, 0, 1)?;
        work.fill(numbers.slice_mut(), 7)?;
        gate.set(0, 1)?;
        Err("after the value".into())
    });
    assert_eq!(result.expect_err("failed").to_string(), "after the value");
    stream.scope(|work| work.fill(numbers.slice_mut(), 8))?;
    assert!(numbers.iter().all(|&number| number == 8));
    for panics in [false, true] {
        let stream = gpu.stream(StreamOptions::new())?;
        let result = catch_unwind(AssertUnwindSafe(|| {
            stream.try_scope(|work| -> Outcome {
                work.wait_value(gate.slice(), 0, 2)?;
                work.fill(numbers.slice_mut(), 9)?;
                assert!(!panics, "before the value");
                Err("before the value".into())
            })
        }));
        assert_eq!(result.is_err(), panics);
        let stopped = stream.scope(|work| work.fill(numbers.slice_mut(), 9));
        assert!(stopped.is_err(), "the stream goes on");
        assert!(numbers.iter().all(|&number| number == 8));
        stream.reset()?;
        stream.scope(|work| work.fill(numbers.slice_mut(), 8))?;
    }
    Ok(())
}

/// A future that is dropped gives nothing back that is in flight.
pub(crate) fn futures_can_be_dropped() -> Outcome {
    struct Told(pinmap::accelerator::Pinned<u64>, Arc<AtomicBool>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let mut gate = gpu.device().alloc::<u64>(1)?;
    let dropped = Arc::new(AtomicBool::new(false));
    let count = Arc::<Count>::default();
    let memory = Told(gpu.alloc(1000)?, Arc::clone(&dropped));
    pinmap::accelerator::scope(|scope| {
        let work = scope.on(&stream);
        let mut gate = gate.slice_mut();
        work.wait_value(&gate, 0, 1)?;
        let pending = stream.submit(memory, |work, memory| work.fill(&mut memory.0, 7))?;
        {
            let mut future = pin!(pending.into_future());
            assert!(poll(future.as_mut(), &count).is_pending());
            assert!(poll(future.as_mut(), &count).is_pending());
        }
        // Dropped, and still in flight: the memory stays.
        let mut other = pin!(stream.synchronize_async());
        assert!(poll(other.as_mut(), &count).is_pending());
        assert!(
            !dropped.load(Ordering::SeqCst),
            "memory in flight was given back"
        );
        gate.set(0, 1)
    })?;
    while !dropped.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    Ok(())
}

pub(crate) fn futures_learn_of_faults() -> Outcome {
    let gpu = gpu()?;
    let (bad, dependent) = (stream(&gpu)?, stream(&gpu)?);
    let event = gpu.event()?;
    let memory = gpu.alloc::<u64>(10)?;
    let pending = bad.submit(memory, |work, memory| {
        work.launch(Spin {
            time: Duration::from_millis(20),
        })?;
        // SAFETY: The device reaches nothing there.
        unsafe { work.submit_packets(&[pinmap_testgpu::packet::copy(0x10, 0x20, 8)])? };
        work.fill(memory, 1)
    })?;
    bad.record(&event)?;
    dependent.wait_event(&event)?;
    let after = dependent.submit((), |work, ()| {
        work.launch(Spin {
            time: Duration::ZERO,
        })
    })?;
    let failed = block_on(pending.into_future()).expect_err("it failed");
    assert_eq!(failed.error.kind(), ErrorKind::Fault, "{}", failed.error);
    assert!(failed.value.try_into_memory().is_ok());
    let failed = block_on(after.into_future()).expect_err("it waits for that");
    assert!(failed.error.fault().is_some(), "{}", failed.error);
    Ok(())
}

pub(crate) fn interrupts_are_awaited() -> Outcome {
    let device = device()?;
    let bar = device.bar(0)?;
    let interrupt = device.interrupt(0)?;
    let count = Arc::<Count>::default();
    {
        let mut future = pin!(interrupt.wait_async());
        assert!(poll(future.as_mut(), &count).is_pending());
        // Dropped, it takes nothing.
    }
    bar.write(RAISE_INTERRUPT, 2)?;
    assert_eq!(block_on(interrupt.wait_async())?, 1);
    bar.write(ACKNOWLEDGE, u32::MAX)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(interrupt.wait_async()));
        bar.write(RAISE_INTERRUPT, 4)?;
        assert_eq!(waiting.join().expect("no panic")?, 1);
        pinmap::Result::<()>::Ok(())
    })?;
    bar.write(ACKNOWLEDGE, u32::MAX)?;
    // A task that waits is woken when the device goes.
    thread::scope(|scope| {
        let count = Arc::<Count>::default();
        let mut future = Box::pin(interrupt.wait_async());
        assert!(poll(future.as_mut(), &count).is_pending());
        let waiting = scope.spawn(move || block_on(future).map_err(|error| error.errno()));
        while_unbound(&device, || Ok(()))?;
        assert_eq!(waiting.join().expect("no panic"), Err(libc::ENODEV));
        Ok(())
    })
}

pub(crate) fn events_are_awaited() -> Outcome {
    let edu = edu()?;
    let device = edu.device();
    let memory = RawMemory::new(4 * PAGE)?;
    // SAFETY: It is accessed by raw pointers only.
    let raw = unsafe { device.register_raw(memory.start(), 4 * PAGE, Access::ReadWrite)? };
    let event = thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(device.next_event_async()));
        memory.punch(PAGE, PAGE)?;
        Ok::<_, Box<dyn std::error::Error>>(waiting.join().expect("no panic")?)
    })?;
    assert!(matches!(event, DeviceEvent::Stale { .. }), "{event}");
    raw.release()?;
    Ok(())
}

pinmap::element! {
    /// A descriptor of the made-up device below.
    #[derive(Debug, Default, PartialEq)]
    struct Transfer { source: u64, target: u64, len: u32, tag: u32, pad: u32, status: u32 }
}

impl Descriptor for Transfer {
    type Status = u32;
    const STATUS: usize = std::mem::offset_of!(Transfer, status);

    fn is_done(status: u32) -> bool {
        status != 0
    }
}

/// Plays the firmware of a device with a ring, by the DMA engine of edu: fetches the descriptor
/// with a number, moves the data by way of the device's own memory, and stores the status.
fn firmware(edu: &mut Edu, ring: u64, len: u64, number: u64) -> Outcome {
    let size = size_of::<Transfer>();
    let at = ring + number % len * size as u64;
    edu.fetch(at, 0, size)?;
    let scratch = Buffer::<u8>::new(PAGE)?.register(edu.device(), Access::ReadWrite)?;
    edu.store(scratch.device_addr()?, 0, size)?;
    let word = |offset| scratch.load::<u64>(offset);
    let (source, target, len) = (word(0)?, word(8)?, scratch.load::<u32>(16)? as usize);
    edu.fetch(source, 64, len)?;
    edu.store(target, 64, len)?;
    scratch.store(0, 0x8000_0000 | scratch.load::<u32>(20)?)?;
    edu.fetch(scratch.device_addr()?, 0, 4)?;
    edu.store(at + Transfer::STATUS as u64, 0, 4)?;
    Ok(())
}

pub(crate) fn ring_is_worked_off_by_dma() -> Outcome {
    const LEN: u64 = 8;
    let mut edu = edu()?;
    let device = edu.device().clone();
    let options = RegisterOptions::new(Access::ReadWrite).address_bits(28);
    let mut ring = device.ring::<Transfer>(LEN as usize, options)?;
    assert!(ring.device_addr()? < 1 << 28);
    let content = pattern(5, 3000);
    let mut buffer = Buffer::<u8>::new(PAGE)?;
    buffer[..3000].copy_from_slice(&content);
    let options = RegisterOptions::new(Access::ReadWrite).address_bits(28);
    let source = buffer.register(&device, options)?;
    let target = Buffer::<u8>::new(PAGE)?.register(&device, options)?;
    let mut popped = 0u32;
    for number in 0..20u32 {
        let at = u64::from(number) * 100;
        let place = ring.push(Transfer {
            source: source.device_addr()? + at,
            target: target.device_addr()? + at,
            len: 100,
            tag: number,
            ..Transfer::default()
        })?;
        assert_eq!(place as u64, u64::from(number) % LEN);
        // The device is behind: the ring fills up, and wraps around.
        if number >= 5 {
            assert_eq!(ring.pop()?, None, "it was not worked off");
            let address = ring.device_addr()?;
            firmware(&mut edu, address, LEN, u64::from(popped))?;
            let done = ring.pop()?.ok_or("it was worked off")?;
            assert_eq!((done.tag, done.status), (popped, 0x8000_0000 | popped));
            popped += 1;
        }
    }
    assert_eq!(ring.in_flight(), 5);
    let mut moved = vec![0; 1500];
    target.read_at(0, &mut moved)?;
    assert_eq!(moved, content[..1500]);
    target.read_at(1500, &mut moved[..100])?;
    assert_eq!(moved[..100], [0; 100], "what was not worked off was moved");
    Ok(())
}

pub(crate) fn windows_of_a_bar_are_parts_of_the_device() -> Outcome {
    pinmap::registers! {
        /// The first registers of edu.
        struct Registers: 0x10 {
            0x00 => identification: ReadOnly<u32>,
            0x04 => inverted: ReadWrite<u32>,
            0x08 => factorial: ReadWrite<u32>,
        }
    }
    let device = pinmap::Device::find(Edu::ID.0, Edu::ID.1).or_else(|_| {
        device()
            .map(drop)
            .and_then(|()| Err("it is not found".into()))
    })?;
    let bar = device.bar(0)?;
    let registers: Registers = bar.registers(0)?;
    assert_eq!(registers.identification().read() & 0xff, 0xed);
    registers.inverted().write(0x1234);
    assert_eq!(registers.inverted().read(), !0x1234);
    registers.inverted().update(|value| value & 0xff);
    assert_eq!(bar.read::<u32>(4)?, !(!0x1234 & 0xff));
    let window = bar.window(4..8)?;
    window.write(0, 7)?;
    assert_eq!(registers.inverted().read(), !7);
    let mut words = [0u32; 2];
    bar.read_slice(0, &mut words)?;
    assert_eq!(words, [registers.identification().read(), !7]);
    let error = pinmap::Device::find(0xffff, 0xfffe).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    Ok(())
}
