// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waiter, futures of points, and pools.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::future::block_on;
use loom::sync::Notify;
use loom::thread;

use crate::kernel::{check, check_with, kernel};
use crate::queue::{point, queue};
use crate::sys::sync::AtomicU64;

use super::callbacks::{self, Action};
use super::crate_pool::Pool;
use super::future::Reached;
use super::served::{Serve, Served};

/// A task that waits for a point goes on when the point is reached, and sees what was written.
pub fn a_task_is_woken() {
    check(|| {
        let (handle, engine) = queue();
        let memory = Arc::clone(&engine.memory);
        let device = thread::spawn(move || engine.work(42, 5));
        block_on(Reached::new(point(&handle, 5))).expect("the device works");
        assert_eq!(memory.load(Ordering::Relaxed), 42);
        device.join().expect("the device");
    });
}

/// Two points of a queue, of which the later one is waited for first.
pub fn points_of_one_queue_are_all_told() {
    check(|| {
        let (handle, engine) = queue();
        let device = thread::spawn(move || {
            engine.work(1, 5);
            engine.work(2, 9);
        });
        let mut later = Box::pin(Reached::new(point(&handle, 9)));
        let mut first = Box::pin(Reached::new(point(&handle, 5)));
        let mut first_is_over = false;
        block_on(std::future::poll_fn(|context| {
            let later = later.as_mut().poll(context);
            if !first_is_over {
                first_is_over = first.as_mut().poll(context).is_ready();
            }
            later
        }))
        .expect("the device works");
        if !first_is_over {
            block_on(first).expect("the device works");
        }
        device.join().expect("the device");
    });
}

/// A task that waits for a point is told when the queue is destroyed before it.
pub fn a_task_is_told_that_its_queue_is_gone() {
    check(|| {
        let (handle, engine) = queue();
        drop(engine);
        let other = Arc::clone(&handle);
        let other = thread::spawn(move || other.destroy().expect("the driver can"));
        block_on(Reached::new(point(&handle, 5))).expect_err("nothing is executed");
        other.join().expect("the other thread");
    });
}

/// A future that is dropped before its point is reached leaves nothing with the waiter.
pub fn a_future_that_is_dropped_leaves_nothing() {
    check(|| {
        let (handle, engine) = queue();
        let mut future = Box::pin(Reached::new(point(&handle, 5)));
        block_on(std::future::poll_fn(|context| {
            assert!(future.as_mut().poll(context).is_pending());
            Poll::Ready(())
        }));
        assert_eq!(callbacks::outstanding(|_| true).len(), 1);
        drop(future);
        assert!(callbacks::outstanding(|_| true).is_empty());
        drop(engine);
    });
}

/// Pending work drops the memory that it holds once, after the work is done.
pub fn pending_memory_is_dropped_after_the_work() {
    struct Held(Arc<AtomicU64>, Arc<Notify>);
    impl Drop for Held {
        fn drop(&mut self) {
            assert_eq!(self.0.load(Ordering::Relaxed), 42, "the work is done");
            self.1.notify();
        }
    }
    check(|| {
        let (handle, engine) = queue();
        let dropped = Arc::new(Notify::new());
        let held = Held(Arc::clone(&engine.memory), Arc::clone(&dropped));
        let device = thread::spawn(move || engine.work(42, 5));
        callbacks::when(point(&handle, 5), Action::Drop(Box::new(held))).expect("a thread");
        dropped.wait();
        device.join().expect("the device");
    });
}

/// The device goes on after a host function, and sees what the function wrote.
pub fn the_device_sees_what_a_host_function_wrote() {
    check(|| {
        let (handle, engine) = queue();
        let written = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&written);
        let device = thread::spawn(move || {
            engine.work(42, 5);
            while engine.callbacks() == 0 {
                thread::yield_now();
            }
            assert_eq!(seen.load(Ordering::Relaxed), 7);
        });
        let function = Box::new(move || written.store(7, Ordering::Relaxed));
        callbacks::when(point(&handle, 5), Action::Call(1, function)).expect("a thread");
        device.join().expect("the device");
    });
}

/// A thread that waits for a host function is woken when it has run, and sees what it wrote.
pub fn the_end_of_a_host_function_is_told() {
    check(|| {
        let (handle, engine) = queue();
        engine.executed(5);
        let written = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&written);
        let function = Box::new(move || written.store(7, Ordering::Relaxed));
        callbacks::call_at(point(&handle, 5), 1, function).expect("a thread");
        assert!(handle.wait_for_call(1, Duration::MAX), "time stands still");
        assert_eq!(seen.load(Ordering::Relaxed), 7);
    });
}

/// A thread that waits for a host function is woken when it never will run.
pub fn the_loss_of_a_host_function_is_told() {
    check(|| {
        let (handle, engine) = queue();
        drop(engine);
        let function = Box::new(|| unreachable!("nothing is executed"));
        callbacks::call_at(point(&handle, 5), 1, function).expect("a thread");
        let other = Arc::clone(&handle);
        let other = thread::spawn(move || other.destroy().expect("the driver can"));
        assert!(!handle.wait_for_call(1, Duration::MAX));
        other.join().expect("the other thread");
    });
}

/// Counts what was wanted of it.
struct Server(u64);

impl Serve for Server {
    fn serve(&mut self, wanted: u64) {
        self.0 = self.0.max(wanted);
    }
}

/// A wish is granted when all threads are done, also if one of them had the lock.
pub fn a_wish_is_not_lost() {
    check_with(3, || {
        let served = Arc::new(Served::new(Server(0)));
        let others = [1, 2].map(|turns| {
            let other = Arc::clone(&served);
            thread::spawn(move || match turns {
                1 => drop(other.lock()),
                _ => other.want(5),
            })
        });
        served.want(9);
        others
            .into_iter()
            .for_each(|other| other.join().expect("no panic"));
        assert_eq!(served.lock().0, 9);
    });
}

/// Touches what another thread touches, while it is locked: loom lets that thread go on there.
struct Touches(Arc<AtomicU64>);

impl Serve for Touches {
    fn serve(&mut self, _: u64) {
        self.0.store(1, Ordering::Relaxed);
    }
}

/// A thread that only wants something keeps nobody from the state.
pub fn a_wish_is_no_lock() {
    check_with(3, || {
        let touched = Arc::<AtomicU64>::default();
        let served = Arc::new(Served::new(Touches(Arc::clone(&touched))));
        let other = Arc::clone(&served);
        let other = thread::spawn(move || other.want(9));
        touched.store(2, Ordering::Relaxed);
        assert!(served.try_lock().is_some(), "nobody has it for long");
        other.join().expect("no panic");
    });
}

/// Runs two jobs, each after the one before.
fn two_jobs() {
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(1)));
    for _ in 0..2 {
        let done = Arc::new(Notify::new());
        let told = Arc::clone(&done);
        pool.run(move || told.notify());
        done.wait();
    }
}

/// An idle thread of a pool takes the next job.
pub fn a_pool_wakes_its_thread() {
    check_with(3, || {
        two_jobs();
        kernel().pass_time();
    });
}

/// Every job of a pool is run, also when its thread is about to end for want of work.
pub fn a_pool_runs_every_job() {
    check_with(3, || {
        let time = thread::spawn(|| kernel().pass_time());
        two_jobs();
        time.join().expect("time passes");
    });
}
