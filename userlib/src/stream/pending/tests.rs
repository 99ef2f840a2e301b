// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of pending memory.

use super::*;
use crate::memory::slice::DeviceSliceMut;
use crate::queue::Queue;
use crate::testgpu::IncrementF32;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A stream whose device executes nothing, so that its work is lost in the end.
fn stuck() -> (Stream, Arc<Handle>) {
    let queue = Queue::fake();
    let handle = Arc::clone(queue.handle());
    (Stream::of(Core::fake(queue)), handle)
}

/// Whether somebody waits for the work, who then finds that it is lost.
fn is_waited_for(handle: &Handle) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match handle.check(Operation::Submit, "add to") {
            Err(error) => break error.to_string().contains(LOST),
            Ok(()) if Instant::now() > until => break false,
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The device can know memory that nothing is to be dropped of, by its address.
#[test]
#[allow(unsafe_code)]
fn dropped_memory_stays_until_the_work_is_done() {
    let (stream, handle) = stuck();
    let device = handle.device();
    let pending = stream.submit([0.0f32; 4096], |work, memory| {
        let (first, len) = (memory.as_mut_ptr(), memory.len());
        let addr = first.addr() as u64;
        // SAFETY: The memory is not used, and stays where it is until the work is done.
        let mut data = unsafe { DeviceSliceMut::from_raw_parts(device, first, addr, len) };
        work.launch(IncrementF32 { data: &mut data })
    });
    drop(pending.expect("submitted"));
    assert!(is_waited_for(&handle));
}

/// After a failure the future waits for the streams that had the memory before, too.
#[test]
fn a_future_waits_for_all_streams() {
    let (first, second) = (Queue::fake_with_index(), Queue::fake_with_index());
    let (busy, failed) = (Arc::clone(first.handle()), Arc::clone(second.handle()));
    let point = |handle: &Arc<Handle>| Point::new(Fence::new(Arc::clone(handle), 5), vec![]);
    let pending = Pending {
        point: Some(point(&failed)),
        before: vec![point(&busy)],
        core: Weak::new(),
        held: Some(Held {
            memory: Some(Parked::new(7)),
            loans: Arc::default(),
        }),
    };
    failed.stop_fake();
    let mut future = pending.into_future();
    let (sender, woken) = std::sync::mpsc::channel();
    struct Wakes(std::sync::Mutex<std::sync::mpsc::Sender<()>>);
    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().expect("no panic").send(());
        }
    }
    let waker = Arc::new(Wakes(sender.into())).into();
    let mut context = Context::from_waker(&waker);
    // It is woken for the second stream, which has failed, and then waits for the first.
    assert!(Pin::new(&mut future).poll(&mut context).is_pending());
    woken.recv_timeout(Duration::from_secs(10)).expect("a wake");
    assert!(Pin::new(&mut future).poll(&mut context).is_pending());
    busy.execute(5);
    let error = loop {
        match Pin::new(&mut future).poll(&mut context) {
            Poll::Ready(result) => break result.expect_err("the second stream has failed"),
            Poll::Pending => woken.recv_timeout(Duration::from_secs(10)).expect("a wake"),
        }
    };
    assert_eq!(error.error.errno(), Errno::EIO as i32);
    assert_eq!(error.value.try_into_memory().expect("nobody uses it"), 7);
}
