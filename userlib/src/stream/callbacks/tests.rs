// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of actions at points of streams.

use super::*;
use crate::error::check_outside;
use std::sync::mpsc;
use std::thread;

fn point(executed: u64) -> Point {
    let handle = Handle::fake();
    handle.execute(executed);
    Point::new(Fence::new(Arc::new(handle), 10), Vec::new())
}

#[test]
fn functions_run_inside_and_only_when_reached() {
    let (sender, receiver) = mpsc::channel();
    let done = point(10);
    let function = {
        let sender = sender.clone();
        move || {
            let refused = check_outside(Operation::Wait, || "wait".into()).expect_err("inside");
            let _ = sender.send(refused.errno());
        }
    };
    assert!(!inside::is_inside());
    when(done, Action::Call(1, Box::new(function))).expect("a thread");
    assert_eq!(receiver.recv(), Ok(Errno::EDEADLK as i32));
    // The driver does not know the queue, so the function is dropped.
    let never = move || sender.send(0).expect("a receiver");
    when(point(0), Action::Call(1, Box::new(never))).expect("a thread");
    assert!(receiver.recv().is_err());
}

#[test]
fn a_function_that_is_held_up_holds_up_no_other() {
    let (go, wait) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let stuck = move || {
        let _ = wait.recv();
    };
    when(point(10), Action::Call(1, Box::new(stuck))).expect("a thread");
    let other = move || {
        let _ = sender.send(());
    };
    when(point(10), Action::Call(1, Box::new(other))).expect("a thread");
    let second = receiver.recv_timeout(Duration::from_secs(10));
    drop(go);
    second.expect("the other one ran");
}

#[test]
fn a_panic_ends_the_queue_and_not_the_thread() {
    let point = point(10);
    let panics = || panic!("on purpose");
    when(point.clone(), Action::Call(1, Box::new(panics))).expect("a thread");
    let deadline = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match point.handle().check(Operation::Submit, "add to") {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < deadline),
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn what_takes_long_to_drop_holds_up_nothing() {
    struct Slow(mpsc::Receiver<()>);
    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    let (go, wait) = mpsc::channel();
    let (sender, receiver) = mpsc::channel();
    let slow = Action::Drop(Box::new(Slow(wait)));
    when(point(10), slow).expect("a thread");
    let call = move || {
        let _ = sender.send(());
    };
    when(point(10), Action::Call(1, Box::new(call))).expect("a thread");
    let ran = receiver.recv_timeout(Duration::from_secs(10));
    drop(go);
    ran.expect("the function ran");
}

/// Only the first item of a queue is looked at, however many there are.
#[test]
fn many_items_cost_what_one_does() {
    const COUNT: u64 = 10_000;
    let handle = Arc::new(Handle::fake());
    let mut lines = Lines::default();
    for value in (1..=COUNT).rev() {
        lines.add(Item {
            point: Point::new(Fence::new(Arc::clone(&handle), value), Vec::new()),
            number: 0,
            doubtful: false,
            action: Action::Drop(Box::new(())),
        });
    }
    assert!(lines.take_reached().is_empty());
    // The driver was asked for each, as each came before all others.
    assert!(lines.lines.values().all(|line| line.asked == Some(1)));
    for value in 1..=COUNT {
        handle.execute(value);
        let reached = lines.take_reached();
        let values: Vec<_> = reached
            .iter()
            .map(|item| item.point.fence.value())
            .collect();
        assert_eq!(values, [value]);
    }
    assert_eq!(lines.take_idle().len(), 1);
    assert!(lines.lines.is_empty());
    assert!(lines.looks <= 2 * COUNT + 1, "{}", lines.looks);
}

/// Waits that are given up again and again leave nothing, and ask the driver once.
#[test]
fn what_is_forgotten_is_asked_for_once() {
    let (point, mut lines) = (point(0), Lines::default());
    let task = Arc::<Task>::default();
    for turn in 0..3 {
        let (number, next) = lines.add(Item {
            point: point.clone(),
            number: 0,
            doubtful: false,
            action: Action::Wake(Arc::clone(&task)),
        });
        match next {
            Next::Ask(fence) => assert_eq!((turn, fence.value()), (0, 10)),
            Next::Nothing => assert_ne!(turn, 0),
            Next::Wake => panic!("the waiter is not asleep"),
        }
        assert!(lines.to_ask().is_empty());
        assert!(lines.remove(&point, number).is_some());
        assert!(lines.take_reached().is_empty() && lines.take_idle().is_empty());
    }
    assert_eq!(Arc::strong_count(&task), 1);
    point.handle().execute(10);
    assert!(lines.take_reached().is_empty());
    assert_eq!(lines.take_idle().len(), 1);
}

/// The line of a queue that has stopped goes, though the driver never signals it.
#[test]
fn a_queue_that_has_stopped_leaves_nothing() {
    let (point, mut lines) = (point(0), Lines::default());
    let (number, _) = lines.add(Item {
        point: point.clone(),
        number: 0,
        doubtful: false,
        action: Action::Wake(Arc::default()),
    });
    assert!(lines.lines.values().all(|line| line.asked == Some(10)));
    drop(lines.remove(&point, number));
    let stopped = lines.queues();
    assert_eq!(stopped.len(), 1);
    assert!(lines.take_lost(&stopped).is_empty());
    assert_eq!(lines.take_idle().len(), 1);
}
