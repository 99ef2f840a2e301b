// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of work of streams.
#![allow(unsafe_code)]

use super::*;
use crate::memory::slice::tests::Fake;
use crate::queue::operand::Operands;
use crate::queue::options::Engines;
use crate::queue::Queue;
use crate::stream::scope::scope;
use crate::stream::Stream;
use crate::testgpu::{self, packet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A stream whose fence says that everything is done, as a raw packet may have stored. The
/// device says that nothing is.
fn forged() -> (Stream, Arc<Handle>) {
    let queue = Queue::fake_with_index();
    let handle = Arc::clone(queue.handle());
    handle.execute(u64::MAX);
    handle.confirm_fake(0);
    let core = Core::fake(queue);
    (Stream { core }, handle)
}

/// Asserts that a call waits for the device itself.
fn waits(handle: &Handle, what: impl FnOnce() + Send) {
    let finished = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            what();
            finished.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!finished.load(Ordering::SeqCst));
        handle.confirm_fake(3);
    });
}

#[test]
fn raw_packets_cannot_end_a_scope_early() {
    let (stream, handle) = forged();
    waits(&handle, || {
        // SAFETY: It writes nothing.
        let nop = |work: &Work<'_>| unsafe { work.submit_packets(&[packet::nop()]) };
        let result = scope(|scope| nop(&scope.on(&stream)));
        result.expect("done");
    });
}

const IN: u64 = 0x10_0000;
const OUT: u64 = 0x30_0000;

/// A stream whose device has executed everything at any time, and two pieces of memory.
fn quick() -> (Stream, Arc<Handle>, Fake, Fake) {
    let queue = Queue::fake_with_index();
    let handle = Arc::clone(queue.handle());
    handle.execute(u64::MAX);
    let device = handle.device();
    let (input, output) = (Fake::of(device, IN), Fake::of(device, OUT));
    let core = Core::fake(queue);
    (Stream { core }, handle, input, output)
}

fn packets(stream: &Stream) -> Vec<Packet> {
    stream.core().lock().queue().packets()
}

fn published(stream: &Stream) -> u64 {
    stream.core().lock().queue().published()
}

fn nop(work: &Work<'_>) -> Result<()> {
    // SAFETY: It writes nothing.
    unsafe { work.submit_packets(&[packet::nop()]) }
}

#[test]
fn work_becomes_packets_in_order() {
    let (stream, _, input, mut output) = quick();
    let done = stream.scope(|work| {
        let mut to = output.slice_mut::<f32>();
        work.copy(input.slice(), &mut to)?;
        work.launch(testgpu::IncrementF32 { data: &mut to })?;
        work.fill(&mut to, -1.0)?;
        nop(work)
    });
    done.expect("done");
    let packets = packets(&stream);
    assert_eq!(packets[0], packet::copy(IN, OUT, 0x2000));
    assert_eq!(packets[1], packet::launch(3, [OUT, 2048, 0, 0, 0, 0, 0]));
    assert_eq!(packets[2], packet::fill(OUT, 0x2000, 0xbf80_0000, 2));
    assert_eq!(packets[3], packet::nop());
    assert_eq!(packets[5], packet::interrupt());
    assert_eq!((packets.len(), published(&stream)), (6, 6));
}

#[test]
fn the_end_waits_also_after_an_error_or_a_panic() {
    let (stream, _, input, mut output) = quick();
    let early = stream.scope(|work| {
        work.copy(input.slice::<u8>(), output.slice_mut())?;
        input.slice::<u8>().part(0x2001..).map(drop)
    });
    let error = early.expect_err("the function's").to_string();
    assert!(error.contains("part"), "{error}");
    // The copy and its marker.
    assert_eq!((packets(&stream).len(), published(&stream)), (3, 3));
    let panic = catch_unwind(AssertUnwindSafe(|| {
        stream.scope(|work| -> Result<()> {
            work.copy(input.slice::<u8>(), output.slice_mut())?;
            panic!("in the middle");
        })
    }));
    assert!(panic.is_err());
    assert_eq!(published(&stream), 6);
}

#[test]
fn a_stream_that_cannot_be_waited_for_fails_the_scope() {
    let core = Core::fake(Queue::fake());
    let error = Stream { core }.scope(|work| nop(work));
    assert_eq!(error.expect_err("no driver").errno(), Errno::ENOTTY as i32);
}

#[test]
fn a_batch_is_published_at_its_end_however_it_ends() {
    let (stream, ..) = quick();
    let done = stream.scope(|work| {
        work.batch(|| {
            nop(work)?;
            work.batch(|| nop(work))?;
            assert_eq!(published(&stream), 0);
            Ok(())
        })?;
        assert_eq!(published(&stream), 2);
        let failed: Result<()> = work.batch(|| {
            nop(work)?;
            Err(Error::new(Operation::Submit, "go on", Errno::EIO))
        });
        assert_eq!(failed.expect_err("its own").errno(), Errno::EIO as i32);
        assert_eq!(published(&stream), 3);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            work.batch(|| -> Result<()> {
                nop(work)?;
                panic!("in the middle");
            })
        }));
        assert!(panic.is_err());
        assert_eq!(published(&stream), 4);
        nop(work)
    });
    done.expect("done");
    assert_eq!(published(&stream), 7);
}

#[test]
fn values_and_timestamps_are_single_words() {
    let (stream, handle, _, mut output) = quick();
    let done = stream.scope(|work| {
        let mut words = output.slice_mut::<u64>();
        work.wait_value(&words, 2, 7)?;
        work.write_value(&mut words, 3, 8)?;
        work.timestamp(&mut words, 3)?;
        for index in [words.len(), usize::MAX] {
            assert!(work.wait_value(&words, index, 1).is_err());
            assert!(work.write_value(&mut words, index, 1).is_err());
            assert!(work.timestamp(&mut words, index).is_err());
        }
        Ok(())
    });
    done.expect("done");
    let expected = [
        packet::fence_wait(OUT + 16, 7),
        packet::fence_write(OUT + 24, 8),
        packet::timestamp(OUT + 24),
    ];
    assert_eq!(packets(&stream)[..3], expected);
    let mut foreign = Fake::new(IN);
    let error = stream.scope(|work| work.write_value(&mut foreign.slice_mut(), 0, 1));
    let error = error.expect_err("another context").to_string();
    assert!(error.contains("another context"), "{error}");
    drop(handle);
}

#[test]
fn operands_are_checked_before_anything_is_submitted() {
    let (stream, _, input, mut output) = quick();
    let foreign = Fake::new(IN);
    let done = stream.scope(|work| {
        let mut to = output.slice_mut::<u8>();
        for refused in [
            work.copy(foreign.slice(), &mut to),
            work.copy(input.slice::<u8>().part(1..)?, &mut to),
            work.copy(to.as_slice(), &mut to),
            work.nonblocking().copy(foreign.slice(), &mut to),
        ] {
            assert_eq!(refused.expect_err("refused").errno(), Errno::EINVAL as i32);
        }
        Ok(())
    });
    done.expect("done");
    assert_eq!(packets(&stream), []);
    let core = Core::fake(Queue::fake_with_index().with_engines(Engines::Copy));
    let time = Duration::ZERO;
    let refused = Stream { core }.scope(|work| work.launch(testgpu::Spin { time }));
    assert!(refused.is_err());
}

/// Work that must not wait for room submits nothing, and says so.
#[test]
fn a_full_ring_refuses_what_must_not_wait() {
    let queue = Queue::fake();
    let handle = Arc::clone(queue.handle());
    let (input, mut output) = (
        Fake::of(handle.device(), IN),
        Fake::of(handle.device(), OUT),
    );
    let core = Core::fake(queue);
    let stream = Stream { core };
    let ended = stream.scope(|work| {
        let work = work.nonblocking();
        while nop(&work).is_ok() {}
        let full = packets(&stream).len();
        let mut to = output.slice_mut::<u64>();
        for refused in [
            nop(&work),
            work.copy(input.slice(), &mut to),
            work.fill(&mut to, 1),
            work.launch(testgpu::Spin {
                time: Duration::ZERO,
            }),
            work.timestamp(&mut to, 0),
            work.wait_value(&to, 0, 1),
            work.write_value(&mut to, 0, 1),
        ] {
            assert_eq!(refused.expect_err("full").errno(), Errno::EAGAIN as i32);
        }
        assert_eq!(packets(&stream).len(), full);
        Ok(())
    });
    // The end waits, for which it asks a driver.
    assert_eq!(ended.expect_err("no driver").errno(), Errno::ENOTTY as i32);
}

/// Memory of work that could not be submitted comes back with the error.
#[test]
fn a_submission_that_fails_gives_its_memory_back() {
    let (stream, handle, _, _) = quick();
    let failed = stream.submit(vec![7], |work, _| {
        nop(work)?;
        Err(Error::new(Operation::Submit, "go on", Errno::EINVAL))
    });
    let failed = failed.expect_err("the function's");
    assert_eq!(failed.error.errno(), Errno::EINVAL as i32);
    assert_eq!(failed.value.wait().expect("the packet is executed"), [7]);
    handle.poison("a test");
    let failed = stream
        .submit(vec![8], |_, _| Ok(()))
        .expect_err("it has failed");
    assert_eq!(failed.error.errno(), Errno::EIO as i32);
    assert!(failed.value.is_done() && failed.value.query().expect("nothing to do"));
    assert_eq!(failed.value.wait().expect("nothing to wait for"), [8]);
}

/// A kernel of the program's own may use the stream while it is launched.
#[test]
fn a_kernel_is_encoded_without_a_lock() {
    struct Asks<'r>(&'r Stream);
    // SAFETY: The packet accesses nothing.
    unsafe impl Kernel<'_> for Asks<'_> {
        type Format = packet::Format;
        const NAME: &'static str = "the kernel asks";

        fn encode(self, _: &mut Operands<'_>) -> Result<Packet> {
            // This says no while somebody has the lock.
            assert!(self.0.query()?);
            Ok(packet::nop())
        }
    }
    let queue = Queue::fake_with_index();
    queue.handle().execute(u64::MAX);
    let core = Core::fake(queue);
    let stream = Stream { core };
    let done = stream.scope(|work| work.launch(Asks(&stream)));
    done.expect("done");
}

#[test]
fn raw_packets_cannot_give_memory_back_early() {
    let (stream, handle) = forged();
    let submit = || {
        // SAFETY: It writes nothing.
        let nop = |work: &Work<'_>| unsafe { work.submit_packets(&[packet::nop()]) };
        let pending = stream.submit(vec![1], |work, _| nop(work));
        pending.expect("submitted")
    };
    let pending = submit().try_into_memory().expect_err("the device has it");
    waits(&handle, || {
        assert_eq!(pending.wait().expect("done"), [1]);
    });
}
