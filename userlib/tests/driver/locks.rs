// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code of the user never runs under a lock of the crate.

use std::sync::mpsc;
use std::time::Duration;

use pinmap::stream::{self, Event, StreamOptions};
use pinmap::testgpu::packet;
use pinmap::{Buffer, DeviceSlice, QueueOptions, RegisterOptions, Stream};

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

/// An operand whose conversion uses the stream.
struct Busy<'a>(DeviceSlice<'a, f32>, &'a Stream, &'a Event);

impl<'a> From<Busy<'a>> for DeviceSlice<'a, f32> {
    fn from(Busy(slice, stream, event): Busy<'a>) -> Self {
        stream.record(event).expect("recorded");
        stream.call(|| ()).expect("called");
        slice
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
        stream::scope(|scope| {
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
        stream::scope(|scope| {
            let busy = Busy(from.slice(), &stream, &event);
            let register = stream::Unregistered::Register;
            scope.on(&stream).copy_to(busy, floats, register)
        })
        .expect("copied");
    });
}

/// An operand whose conversion uses the scope for which it is.
struct Submits<'a, 'scope, 'env>(DeviceSlice<'a, f32>, &'a pinmap::QueueScope<'scope, 'env>);

impl<'a> From<Submits<'a, '_, '_>> for DeviceSlice<'a, f32> {
    fn from(Submits(slice, scope): Submits<'a, '_, '_>) -> Self {
        // SAFETY: It writes nothing.
        unsafe { scope.submit_packets(&[packet::nop()]) }.expect("submitted");
        slice
    }
}

#[test]
fn operands_may_use_the_queue() {
    in_time(|| {
        let fake = Fake::new();
        let gpu = fake.accelerator();
        let mut queue = gpu.queue(QueueOptions::new()).expect("a queue");
        let from = gpu.device().alloc::<f32>(8).expect("memory");
        let mut to = gpu.device().alloc::<f32>(8).expect("memory");
        queue
            .scope(|scope| {
                let mut to = to.slice_mut();
                scope.copy(Submits(from.slice(), scope), &mut to)?;
                scope.try_copy(Submits(from.slice(), scope), &mut to)
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
