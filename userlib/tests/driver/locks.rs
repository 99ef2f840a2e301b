// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code of the user never runs under a lock of the crate.

use std::sync::mpsc;
use std::time::Duration;

use pinmap::accelerator::{DeviceSlice, Event, Source, Stream, StreamOptions, Work};
use pinmap::{accelerator, Buffer, RegisterOptions, Result};
use pinmap_testgpu::packet;

use crate::fake::Fake;

/// Runs something that would hang if a lock were held, and fails if it does.
fn in_time(what: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(30)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().expect("no panic"),
    }
}

/// An operand that uses the stream when it is lent.
struct Busy<'a>(DeviceSlice<'a, f32>, &'a Stream, &'a Event);

impl<'w, 'a: 'w> Source<'w, f32> for Busy<'a> {
    fn lend(self, _: &Work<'w>) -> Result<DeviceSlice<'w, f32>> {
        let Busy(slice, stream, event) = self;
        stream.record(event)?;
        stream.call(|| ())?;
        Ok(slice)
    }
}

#[test]
fn operands_may_use_the_stream() {
    in_time(|| {
        let fake = Fake::new();
        let gpu = fake.accelerator();
        let (stream, event) = (
            gpu.stream(StreamOptions::new()).expect("a stream"),
            gpu.event().expect("an event"),
        );
        let from = gpu.device().alloc::<f32>(8).expect("memory");
        let mut to = gpu.device().alloc::<f32>(8).expect("memory");
        accelerator::scope(|scope| {
            let busy = Busy(from.slice(), &stream, &event);
            scope.on(&stream).copy(busy, to.slice_mut())
        })
        .expect("copied");
        let mut target = Buffer::<u8>::new(4096).expect("memory");
        let (_, floats, _) = {
            // SAFETY: Any bytes are floats.
            unsafe { target.align_to_mut::<f32>() }
        };
        let from = gpu.device().alloc::<f32>(1024).expect("memory");
        accelerator::scope(|scope| {
            let busy = Busy(from.slice(), &stream, &event);
            scope.on(&stream).copy(busy, floats)
        })
        .expect("copied");
    });
}

/// An operand that uses the work for which it is.
struct Submits<'a>(DeviceSlice<'a, f32>);

impl<'w, 'a: 'w> Source<'w, f32> for Submits<'a> {
    fn lend(self, work: &Work<'w>) -> Result<DeviceSlice<'w, f32>> {
        // SAFETY: It writes nothing.
        unsafe { work.submit_packets(&[packet::nop()])? };
        Ok(self.0)
    }
}

#[test]
fn operands_may_use_their_work() {
    in_time(|| {
        let fake = Fake::new();
        let gpu = fake.accelerator();
        let stream = gpu.stream(StreamOptions::new()).expect("a stream");
        let from = gpu.device().alloc::<f32>(8).expect("memory");
        let mut to = gpu.device().alloc::<f32>(8).expect("memory");
        stream
            .scope(|work| {
                let mut to = to.slice_mut();
                work.copy(Submits(from.slice()), &mut to)?;
                work.nonblocking().copy(Submits(from.slice()), &mut to)
            })
            .expect("copied");
    });
}

/// Options whose conversion uses the device.
struct Asks<'a>(&'a pinmap::Device);

impl From<Asks<'_>> for RegisterOptions {
    fn from(Asks(device): Asks<'_>) -> Self {
        let other = Buffer::<u8>::new(4096).expect("memory");
        drop(other.register(device, pinmap::Access::Read));
        Self::new(pinmap::Access::Read)
    }
}

#[test]
fn options_may_use_the_device() {
    in_time(|| {
        let fake = Fake::new();
        let device = fake.open();
        let buffer = Buffer::<u8>::new(4096).expect("memory");
        drop(buffer.register(&device, Asks(&device)).expect("registered"));
        pinmap::Cache::new(&device, Asks(&device), 4096).expect("a cache");
    });
}

/// Memory of work whose drop uses the stream.
struct Waits(Option<Stream>, mpsc::Sender<bool>);

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            let _ = stream.query();
            let _ = self.1.send(stream.call(|| ()).is_err());
        }
    }
}

#[test]
fn what_is_dropped_may_use_the_stream() {
    in_time(|| {
        let fake = Fake::new();
        let gpu = fake.accelerator();
        let stream = gpu.stream(StreamOptions::new()).expect("a stream");
        let (dropped, wait) = mpsc::channel();
        // Dropped by a thread of the crate, when the work is done.
        let memory = Waits(Some(stream.clone()), dropped.clone());
        // SAFETY: It writes nothing.
        let pending = stream.submit(memory, |work, _| unsafe {
            work.submit_packets(&[packet::nop()])
        });
        drop(pending.expect("submitted"));
        assert!(wait.recv().expect("dropped"), "as in a host function");
        // Dropped with a host function that never runs.
        let memory = Waits(Some(stream.clone()), dropped);
        stream.reset().expect("reset");
        stream.call(move || drop(memory)).expect("called");
        drop(wait);
    });
}
