// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of handles of queues.

use super::*;

impl Handle {
    /// The handle of a queue that no driver knows.
    pub(crate) fn fake() -> Self {
        let lending = Lending::default();
        let fences = Map::anonymous(4096);
        Self::new(Device::fake(), 7, fences, 0xfe_0000, lending, None)
    }

    /// The handle of a queue whose index a made-up driver tells: see
    /// [`confirm_fake`](Self::confirm_fake).
    pub(crate) fn fake_with_index() -> Self {
        let mut fake = Self::fake();
        fake.fake_index = Some(0.into());
        fake
    }

    /// Pretends that `packets` packets are executed: in memory, and for the made-up driver.
    pub(crate) fn execute(&self, packets: u64) {
        word::store(self.fences.words(), 0, packets.to_le());
        self.confirm_fake(packets);
    }

    /// Pretends that the queue was destroyed.
    pub(crate) fn stop_fake(&self) {
        let _ = self.ending.set(State::default());
        self.destroyed.store(true, Ordering::Release);
    }

    /// Sets the index that the made-up driver tells.
    pub(crate) fn confirm_fake(&self, packets: u64) {
        if let Some(index) = &self.fake_index {
            index.store(packets, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_destroyed_queue_says_why() {
    let handle = Handle::fake();
    let fault = Fault::from_abi(&abi::pinmap_queue_query {
        queue: 7,
        out_state: abi::PINMAP_QUEUE_FAULTED,
        out_code: 1,
        out_addr: 0x5000,
        ..Default::default()
    });
    let ending = State { fault, executed: 5 };
    handle.ending.set(ending).expect("the first");
    // The driver has forgotten it already.
    for errno in [Errno::ENOENT, Errno::ESTALE, Errno::EIO] {
        let error = handle.fail(Operation::Wait, "wait for", errno);
        assert_eq!(
            (error.errno(), error.fault()),
            (Errno::EIO as i32, fault.as_ref())
        );
        assert!(error.to_string().contains("0x5000"), "{error}");
    }
    assert!(!handle.is_destroyed());
    handle.destroyed.store(true, Ordering::Release);
    let error = handle.wait(1, None).expect_err("stopped");
    assert_eq!(
        (error.errno(), error.fault()),
        (Errno::EIO as i32, fault.as_ref())
    );
    assert!(error.to_string().contains("0x5000"), "{error}");
    handle.destroy().expect("done before");
    let stopped = handle.stopped().expect("known");
    assert_eq!(stopped, fault.map(Stopped::Faulted));
}

#[test]
fn a_destroyed_queue_may_have_no_fault() {
    let handle = Handle::fake();
    handle.ending.set(State::default()).expect("the first");
    handle.destroyed.store(true, Ordering::Release);
    let stopped = handle.stopped().expect("known");
    assert_eq!(stopped, Some(Stopped::Destroyed));
}

/// Work that was done before its queue was destroyed is done, also if raw packets were part of
/// it, after which the fence proves nothing.
#[test]
fn a_destroyed_queue_confirms_what_it_executed() {
    let handle = Handle::fake();
    let ending = State {
        fault: None,
        executed: 5,
    };
    handle.ending.set(ending).expect("the first");
    // No driver answers, so another thread may be about to destroy the queue.
    assert!(handle.is_confirmed(5) && !handle.is_confirmed(6));
    handle.destroyed.store(true, Ordering::Release);
    handle.confirm(5).expect("it was executed");
    let error = handle.confirm(6).expect_err("it never will be");
    assert_eq!(error.errno(), Errno::EIO as i32);
    assert!(handle.is_confirmed(5) && !handle.is_confirmed(6));
}

#[test]
fn times_too_long_have_no_limit() {
    assert_eq!(nanos(Duration::from_nanos(5)), 5);
    assert_eq!(nanos(Duration::MAX), u64::MAX);
}
