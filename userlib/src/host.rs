// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate's own threads: one that waits for streams, and those that run host functions.

use std::any::Any;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use crate::error::{Error, Operation, Result};
use crate::fence::{Fence, Progress};
use crate::wait::wait;

/// How often to look for work that will never be done.
const TICK: Duration = Duration::from_millis(250);
/// Threads that run host functions at most: as many can be held up at once.
const THREADS: usize = 32;
/// How long such a thread waits for more.
const LINGER: Duration = Duration::from_secs(1);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is called from a host function.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// An error if this is called from a host function: a stream waits for that, and perhaps for ever.
pub(crate) fn check(operation: Operation, attempt: impl FnOnce() -> String) -> Result<()> {
    if is_inside() {
        return Err(Error::new(operation, attempt(), Errno::EDEADLK));
    }
    Ok(())
}

/// What is done when a fence is reached.
pub(crate) enum Action {
    /// Runs a host function, the how manyeth of its queue.
    Call(u64, Box<dyn FnOnce() + Send>),
    /// Drops what the work needed; if the fence cannot be reached, once the device has let go. True:
    /// the fence may have been written by a packet made by hand.
    Drop(Box<dyn Any + Send>, bool),
    /// Tells that the fence cannot be reached, if so.
    Tell(Arc<EventFd>),
}

/// Something to be done. Of each queue the driver is asked to tell of one fence only, the first.
struct Item {
    fence: Fence,
    /// Fences that its queue waits for.
    needs: Vec<Fence>,
    /// Whether the driver was asked to tell.
    asked: bool,
    action: Action,
}

/// Waits for all of them.
struct Waiter {
    eventfd: EventFd,
    /// There are items that were not looked at: the eventfd says no more than that.
    fresh: AtomicBool,
    items: Mutex<Vec<Item>>,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call(..) => "Call",
            Self::Drop(..) => "Drop",
            Self::Tell(_) => "Tell",
        })
    }
}

/// The waiter, whose thread runs from the first time on.
fn waiter() -> Result<&'static Waiter> {
    static WAITER: OnceLock<Waiter> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(waiter) = WAITER.get() {
        return Ok(waiter);
    }
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(waiter) = WAITER.get() {
        return Ok(waiter);
    }
    let attempt = "start a thread that waits for streams";
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let eventfd = EventFd::from_flags(flags)
        .map_err(|errno| Error::new(Operation::Stream, attempt, errno))?;
    // It waits until there is a waiter: this is what it begins with.
    let (sender, receiver) = std::sync::mpsc::channel::<&'static Waiter>();
    thread::Builder::new()
        .name("pinmap-waiter".into())
        .spawn(move || {
            block_signals();
            if let Ok(waiter) = receiver.recv() {
                waiter.run();
            }
        })
        .map_err(|error| Error::from_io(Operation::Stream, attempt, &error))?;
    let waiter = WAITER.get_or_init(|| Waiter {
        eventfd,
        fresh: AtomicBool::new(false),
        items: Mutex::default(),
    });
    // It is there: it cannot have gone before it was told.
    let _ = sender.send(waiter);
    Ok(waiter)
}

/// Makes sure that [`when`] works from now on.
pub(crate) fn prepare() -> Result<()> {
    waiter().map(drop)
}

/// Has something done when a fence is reached.
pub(crate) fn when(fence: Fence, needs: Vec<Fence>, action: Action) -> Result<()> {
    let waiter = match waiter() {
        Ok(waiter) => waiter,
        Err(error) => {
            // What the device may still use stays.
            if let Action::Drop(what, _) = action {
                std::mem::forget(what);
            }
            return Err(error);
        }
    };
    waiter.items().push(Item {
        fence,
        needs,
        asked: false,
        action,
    });
    waiter.fresh.store(true, Ordering::Release);
    // Full, it is readable already.
    let _ = waiter.eventfd.write(1);
    Ok(())
}

/// Fences of a context at which something is still to be done.
pub(crate) fn outstanding(is_ours: impl Fn(&Fence) -> bool) -> Vec<(Fence, Vec<Fence>)> {
    let Ok(waiter) = waiter() else {
        return Vec::new();
    };
    let items = waiter.items();
    let ours = items.iter().filter(|item| is_ours(&item.fence));
    ours.map(|item| (item.fence.clone(), item.needs.clone()))
        .collect()
}

impl Waiter {
    fn items(&self) -> MutexGuard<'_, Vec<Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut looked = Instant::now();
        loop {
            let idle = self.items().is_empty();
            let mut files = [PollFd::new(self.eventfd.as_fd(), PollFlags::POLLIN)];
            // A failure of poll() is lack of memory, which passes.
            let _ = wait(&mut files, (!idle).then_some(TICK));
            let told = self.eventfd.read().is_ok();
            let fresh = self.fresh.swap(false, Ordering::Acquire);
            let thorough = looked.elapsed() >= TICK;
            let busy = self.pass(thorough);
            if thorough {
                looked = Instant::now();
            } else if told && !fresh && !busy {
                // Nothing was reached, so something has failed.
                self.pass(true);
            }
        }
    }

    /// Does what can be done; whether there was anything.
    fn pass(&self, thorough: bool) -> bool {
        let mut due = Vec::new();
        let mut asked = false;
        {
            let mut items = self.items();
            let mut look = Look::new(thorough);
            // The order of those that are left does not matter: of each queue only one host function
            // can be reached.
            let mut index = 0;
            while let Some(item) = items.get(index) {
                if item.is_reached() {
                    due.push((items.swap_remove(index), true));
                } else {
                    look.see(&item.fence);
                    index += 1;
                }
            }
            index = 0;
            while let Some(item) = items.get_mut(index) {
                let was_asked = item.asked;
                if look.has_failed(item, &self.eventfd) {
                    due.push((items.swap_remove(index), false));
                } else {
                    asked |= item.asked != was_asked;
                    index += 1;
                }
            }
        }
        let busy = asked || !due.is_empty();
        for (item, reached) in due {
            item.end(reached);
        }
        busy
    }
}

/// What is known of the queues in one pass, by where they are: each is asked about once.
struct Look {
    thorough: bool,
    /// The lowest value of a fence.
    first: HashMap<*const Progress, u64>,
    stopped: HashMap<*const Progress, bool>,
}

impl Look {
    fn new(thorough: bool) -> Self {
        Self {
            thorough,
            first: HashMap::new(),
            stopped: HashMap::new(),
        }
    }

    fn see(&mut self, fence: &Fence) {
        let first = self.first.entry(Arc::as_ptr(fence.progress()));
        let first = first.or_insert(fence.value());
        *first = (*first).min(fence.value());
    }

    /// Whether it never will be reached, as far as that is known; has the driver tell of it if it is the
    /// first of its queue.
    fn has_failed(&mut self, item: &mut Item, eventfd: &EventFd) -> bool {
        let Item {
            fence,
            needs,
            asked,
            ..
        } = item;
        let progress = fence.progress();
        let first = self.first.get(&Arc::as_ptr(progress));
        if !*asked && first == Some(&fence.value()) {
            match progress.notify(fence.value(), eventfd.as_fd()) {
                // Signalled at once if it was reached meanwhile.
                Ok(()) => *asked = true,
                // It is found by looking from time to time.
                Err(Errno::ENOSPC | Errno::ENOMEM) => {}
                Err(_) => return true,
            }
        }
        self.thorough && (self.is_lost(fence) || needs.iter().any(|need| self.is_lost(need)))
    }

    /// Whether the queue has stopped before it.
    fn is_lost(&mut self, fence: &Fence) -> bool {
        let progress = fence.progress();
        let stopped = || !matches!(progress.stopped(), Ok(None));
        if fence.is_done() {
            return false;
        }
        let known = self.stopped.entry(Arc::as_ptr(progress));
        // It may have come to it just before.
        *known.or_insert_with(stopped) && !fence.is_done()
    }
}

impl Item {
    fn is_reached(&self) -> bool {
        let by_hand = matches!(self.action, Action::Drop(_, true));
        self.fence.is_passed(by_hand)
    }

    fn end(self, reached: bool) {
        let Self { fence, action, .. } = self;
        match action {
            Action::Call(calls, function) if reached => run(Job {
                fence,
                calls,
                function,
            }),
            Action::Call(_, function) => {
                quietly(|| drop(function));
            }
            Action::Drop(what, _) => {
                // A queue that has stopped does nothing any more; one that waits might.
                if !reached && !matches!(fence.progress().stopped(), Ok(Some(_))) {
                    fence
                        .progress()
                        .spoil("work that it waits for cannot be done");
                }
                quietly(|| drop(what));
            }
            Action::Tell(eventfd) => {
                let _ = eventfd.write(1);
            }
        }
    }
}

/// Runs what is not ours, and is not to wait for a stream, nor to end our thread by a panic. That has told
/// the world already; what it carries stays, for dropping it might panic, too.
fn quietly(function: impl FnOnce()) -> bool {
    INSIDE.set(true);
    let result = catch_unwind(AssertUnwindSafe(function));
    INSIDE.set(false);
    result.map_err(std::mem::forget).is_ok()
}

/// Asks the driver for what it knows without waiting, also where one may not wait: in what [`quietly`] runs.
pub(crate) fn outside<T>(question: impl FnOnce() -> T) -> T {
    let inside = INSIDE.replace(false);
    let answer = question();
    INSIDE.set(inside);
    answer
}

/// Signals are for the program's own threads.
fn block_signals() {
    // It does not fail.
    let _ = SigSet::all().thread_block();
}

/// A host function that is due.
struct Job {
    fence: Fence,
    calls: u64,
    function: Box<dyn FnOnce() + Send>,
}

impl Job {
    fn run(self) {
        if quietly(self.function) {
            self.fence.progress().called(self.calls);
        } else {
            self.fence.progress().spoil("a host function panicked");
        }
    }
}

/// Jobs, and threads for them.
#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static JOBS: Mutex<Option<Jobs>> = Mutex::new(None);
static MORE: Condvar = Condvar::new();

fn jobs() -> MutexGuard<'static, Option<Jobs>> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a host function on a thread of its own if another one is held up.
fn run(job: Job) {
    let mut guard = jobs();
    let jobs = guard.get_or_insert_default();
    jobs.queue.push_back(job);
    if jobs.queue.len() > jobs.idle && jobs.threads < THREADS {
        let thread = thread::Builder::new().name("pinmap-host".into());
        match thread.spawn(work) {
            Ok(_) => jobs.threads += 1,
            // Then here, rather than never.
            Err(_) if jobs.threads == 0 => {
                let job = jobs.queue.pop_back();
                drop(guard);
                job.into_iter().for_each(Job::run);
                return;
            }
            Err(_) => {}
        }
    }
    drop(guard);
    MORE.notify_one();
}

/// What such a thread does.
fn work() {
    block_signals();
    let mut guard = jobs();
    loop {
        let jobs = guard.get_or_insert_default();
        if let Some(job) = jobs.queue.pop_front() {
            drop(guard);
            job.run();
            guard = self::jobs();
            continue;
        }
        jobs.idle += 1;
        let (again, result) = MORE
            .wait_timeout(guard, LINGER)
            .unwrap_or_else(PoisonError::into_inner);
        guard = again;
        let jobs = guard.get_or_insert_default();
        jobs.idle -= 1;
        if result.timed_out() && jobs.queue.is_empty() {
            jobs.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn fence(executed: u64) -> Fence {
        let progress = Progress::fake();
        progress.execute(executed);
        Fence::new(Arc::new(progress), 10)
    }

    #[test]
    fn functions_run_inside_and_only_when_reached() {
        let (sender, receiver) = mpsc::channel();
        let done = fence(10);
        let function = {
            let sender = sender.clone();
            move || {
                let refused = check(Operation::Wait, || "wait".into()).expect_err("inside");
                let _ = sender.send(refused.errno());
            }
        };
        assert!(!is_inside());
        when(done, Vec::new(), Action::Call(1, Box::new(function))).expect("a thread");
        assert_eq!(receiver.recv(), Ok(Errno::EDEADLK as i32));
        // Of a queue that no driver knows it is dropped.
        let never = move || sender.send(0).expect("a receiver");
        when(fence(0), Vec::new(), Action::Call(1, Box::new(never))).expect("a thread");
        assert!(receiver.recv().is_err());
    }

    #[test]
    fn a_function_that_is_held_up_holds_up_no_other() {
        let (go, wait) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let stuck = move || {
            let _ = wait.recv();
        };
        when(fence(10), Vec::new(), Action::Call(1, Box::new(stuck))).expect("a thread");
        let other = move || {
            let _ = sender.send(());
        };
        when(fence(10), Vec::new(), Action::Call(1, Box::new(other))).expect("a thread");
        let second = receiver.recv_timeout(Duration::from_secs(10));
        drop(go);
        second.expect("the other one ran");
    }

    #[test]
    fn a_panic_ends_the_queue_and_not_the_thread() {
        let fence = fence(10);
        let panics = || panic!("on purpose");
        when(fence.clone(), Vec::new(), Action::Call(1, Box::new(panics))).expect("a thread");
        let deadline = Instant::now() + Duration::from_secs(10);
        let error = loop {
            match fence.progress().check(Operation::Submit, "add to") {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < deadline),
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
