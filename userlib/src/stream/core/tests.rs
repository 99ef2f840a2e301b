// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the shared part of streams.

use super::*;
use crate::queue::format::Packet;
use crate::stream::Stream;
use crate::testgpu::{packet, Spin};
use std::sync::mpsc;

const CALLBACKS: u64 = 0xfe_0008;

/// A stream whose device executes what it is told to.
fn stream() -> (Stream, Arc<Handle>) {
    let queue = Queue::fake_with_index();
    let handle = Arc::clone(queue.handle());
    (Stream::of(Core::fake(queue)), handle)
}

/// Submits a kernel. Nobody waits for it.
fn submit(stream: &Stream) {
    let time = Duration::ZERO;
    let pending = stream.submit((), |work, ()| work.launch(Spin { time }));
    drop(pending.expect("submitted"));
}

fn fence(value: u64) -> Packet {
    packet::fence_write(0xfe_0000, value)
}

impl Stream {
    fn packets(&self) -> Vec<Packet> {
        self.core.lock().queue().packets()
    }

    /// How often the device was told of packets, and of how many.
    fn told(&self) -> (u64, u64) {
        let state = self.core.lock();
        (state.queue().tellings(), state.queue().published())
    }
}

/// The device is told once of a piece of work. It interrupts only if more follows too soon, or
/// if somebody wants that.
#[test]
fn nobody_is_interrupted_in_vain() {
    let (stream, handle) = stream();
    submit(&stream);
    assert_eq!(stream.packets()[1..], [fence(2)]);
    assert_eq!(stream.told(), (1, 2));
    handle.execute(2);
    submit(&stream);
    assert_eq!(stream.packets()[3..], [fence(4)]);
    // It has not come that far when more is submitted.
    submit(&stream);
    assert_eq!(stream.packets()[4], packet::interrupt());
    assert_eq!(stream.packets()[6..], [fence(7)]);
    assert_eq!(stream.told(), (3, 7));
    // Somebody wants what comes before, or belongs to another queue.
    stream.core.interrupt_at(handle.id(), 6);
    stream.core.interrupt_at(handle.id() + 1, 7);
    assert_eq!(stream.told(), (3, 7));
    stream.core.interrupt_at(handle.id(), 7);
    assert_eq!(stream.packets()[7..], [packet::interrupt()]);
    assert_eq!(stream.told(), (4, 8));
    stream.core.interrupt_at(handle.id(), 7);
    assert_eq!(stream.told(), (4, 8));
    // What is waited for by a call that waits has its interrupt from the beginning.
    submit(&stream);
    assert_eq!(stream.core.point().expect("published").fence.value(), 10);
    assert_eq!(stream.packets()[9..], [fence(10), packet::interrupt()]);
}

/// A thread that submits cannot keep an interrupt to itself.
#[test]
fn who_wants_an_interrupt_waits_for_no_batch() {
    let (stream, handle) = stream();
    submit(&stream);
    let time = Duration::ZERO;
    let pending = stream.submit((), |work, ()| {
        work.launch(Spin { time })?;
        assert_eq!(stream.told(), (1, 2), "it is held back");
        stream.core.interrupt_at(handle.id(), 1);
        assert_eq!(stream.told(), (1, 2), "nobody waits for the first marker");
        // That somebody wants it while another thread has the lock is noted.
        let state = stream.core.lock();
        stream.core.interrupt_at(handle.id(), 2);
        assert_eq!(state.queue().published(), 2);
        drop(state);
        assert_eq!(stream.told(), (2, 4));
        Ok(())
    });
    drop(pending.expect("submitted"));
    assert_eq!(stream.packets()[2], packet::interrupt());
    assert_eq!(stream.told(), (3, 5));
}

/// The device is told of a wait with what comes behind it.
#[test]
fn a_wait_comes_with_what_follows() {
    let (stream, handle) = stream();
    let other = Fence::new(Arc::new(Handle::fake_with_index()), 5);
    let wait = |stream: &Stream| {
        let mut state = stream.core.lock();
        let kept = Kept::Fence(other.clone());
        state.wait_at((0x1000, 1), kept, std::slice::from_ref(&other))
    };
    wait(&stream).expect("put");
    wait(&stream).expect("put");
    assert_eq!((stream.packets().len(), stream.told()), (2, (0, 0)));
    submit(&stream);
    assert_eq!((stream.packets().len(), stream.told()), (4, (1, 4)));
    wait(&stream).expect("put");
    assert!(!stream.query().expect("the driver answers"));
    assert_eq!(
        stream.told(),
        (2, 8),
        "also of the interrupt of the work before"
    );
    // What is over is not kept.
    assert_eq!(stream.core.lock().waits.len(), 3);
    handle.execute(5);
    wait(&stream).expect("put");
    assert_eq!(stream.core.lock().waits.len(), 2);
}

/// A host function of an idle stream is no matter of the device, unless work follows too soon.
#[test]
fn a_host_function_of_an_idle_stream_takes_no_packet() {
    let (stream, handle) = stream();
    for count in 1..=3 {
        stream.call(|| ()).expect("submitted");
        stream.synchronize().expect("without the driver");
        assert!(handle.have_run(count));
    }
    submit(&stream);
    assert_eq!(stream.packets().len(), 2, "nothing is waited for");
    handle.execute(2);
    let (go, wait) = mpsc::channel::<()>();
    let held_up = move || {
        let _ = wait.recv();
    };
    stream.call(held_up).expect("submitted");
    assert_eq!((stream.packets().len(), stream.told()), (2, (1, 2)));
    let late = stream.synchronize_timeout(Duration::from_millis(10));
    assert!(late.is_err());
    // Now it is, by the device: the wait did not end in time.
    assert_eq!(stream.packets()[2], packet::fence_wait(CALLBACKS, 4));
    submit(&stream);
    assert_eq!(stream.packets().len(), 7);
    drop(go);
    assert!(handle.wait_for_call(4, Duration::from_secs(10)));
}

/// A host function waits for the one before it, and work for both.
#[test]
fn host_functions_wait_for_each_other() {
    let (stream, handle) = stream();
    let (go, wait) = mpsc::channel::<()>();
    let held_up = move || {
        let _ = wait.recv();
    };
    stream.call(held_up).expect("submitted");
    let (sender, ran) = mpsc::channel();
    let second = move || {
        let _ = sender.send(());
    };
    stream.call(second).expect("submitted");
    let expected = [
        packet::fence_wait(CALLBACKS, 1),
        fence(2),
        packet::interrupt(),
    ];
    assert_eq!(stream.packets(), expected);
    submit(&stream);
    assert_eq!(stream.packets()[3], packet::fence_wait(CALLBACKS, 2));
    drop(go);
    assert!(handle.wait_for_call(1, Duration::from_secs(10)));
    assert!(
        ran.recv_timeout(Duration::from_millis(50)).is_err(),
        "too early"
    );
    handle.execute(2);
    // The made-up driver signals nothing: the next look finds it.
    ran.recv_timeout(Duration::from_secs(10)).expect("it runs");
}

/// A wait for a host function that panics, or never runs, fails.
#[test]
fn a_host_function_that_fails_is_not_waited_for() {
    let (stream, handle) = stream();
    stream.call(|| panic!("on purpose")).expect("submitted");
    let error = stream.synchronize().expect_err("it panicked");
    assert!(error.to_string().contains("panicked"), "{error}");
    assert!(!handle.wait_for_call(1, Duration::from_secs(10)));
}
