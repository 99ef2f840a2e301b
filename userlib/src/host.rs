// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate's own threads: one that waits for streams, and those that run host functions.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
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
/// Those that drop what work needed, and destroy queues.
const DROPPERS: usize = 8;
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

/// Something to be done.
struct Item {
    fence: Fence,
    /// Fences that its queue waits for.
    needs: Vec<Fence>,
    /// Memory says that the fence is reached, and the device does not: it is asked from time to time.
    doubtful: bool,
    action: Action,
}

/// What is to be done at fences of one queue, by their values and then in the order in which it came: only the
/// first is looked at, and only of the first the driver is asked to tell.
struct Line {
    progress: Arc<Progress>,
    items: BTreeMap<(u64, u64), Item>,
    /// The fence that the driver was asked about, until it is reached.
    asked: Option<u64>,
}

/// All that is to be done, by where the queue is. No system call is made while it is locked: who submits
/// adds to it.
#[derive(Default)]
struct Lines {
    lines: HashMap<usize, Line>,
    added: u64,
    /// How often an item was looked at.
    #[cfg(test)]
    looks: u64,
}

/// Waits for all of them.
struct Waiter {
    eventfd: EventFd,
    /// There are items that were not looked at: the eventfd says no more than that.
    fresh: AtomicBool,
    lines: Mutex<Lines>,
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
        lines: Mutex::default(),
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
    waiter.lines().add(Item {
        fence,
        needs,
        doubtful: false,
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
    let lines = waiter.lines();
    let items = lines.lines.values().flat_map(|line| line.items.values());
    let ours = items.filter(|item| is_ours(&item.fence));
    ours.map(|item| (item.fence.clone(), item.needs.clone()))
        .collect()
}

/// Names a queue.
fn name(progress: &Arc<Progress>) -> usize {
    Arc::as_ptr(progress).addr()
}

impl Lines {
    fn add(&mut self, item: Item) {
        let progress = item.fence.progress();
        let line = self.lines.entry(name(progress)).or_insert_with(|| Line {
            progress: Arc::clone(progress),
            items: BTreeMap::new(),
            asked: None,
        });
        self.added += 1;
        line.items.insert((item.fence.value(), self.added), item);
    }

    /// Takes what is reached, by what memory says, and forgets queues at which nothing is to be done.
    fn take_reached(&mut self) -> Vec<Item> {
        let mut reached = Vec::new();
        self.lines.retain(|_, line| {
            while let Some(first) = line.items.first_entry() {
                #[cfg(test)]
                {
                    self.looks += 1;
                }
                if !first.get().fence.is_done() {
                    break;
                }
                reached.push(first.remove());
            }
            line.asked = line.asked.filter(|&asked| line.progress.executed() < asked);
            !line.items.is_empty()
        });
        reached
    }

    /// Of which fences the driver is to be asked to tell: the first of each queue, unless it was.
    fn to_ask(&self) -> Vec<Fence> {
        let firsts = self.lines.values().filter_map(|line| {
            let item = line.items.values().find(|item| !item.doubtful)?;
            let value = item.fence.value();
            let is_new = line.asked.is_none_or(|asked| value < asked);
            is_new.then(|| item.fence.clone())
        });
        firsts.collect()
    }

    /// Queues that matter to somebody.
    fn queues(&self) -> HashMap<usize, Arc<Progress>> {
        let items = self.lines.values().flat_map(|line| line.items.values());
        let fences = items.flat_map(|item| std::iter::once(&item.fence).chain(&item.needs));
        fences
            .map(|fence| (name(fence.progress()), Arc::clone(fence.progress())))
            .collect()
    }

    /// Takes what will never be reached, since one of these queues has stopped before.
    fn take_lost(&mut self, stopped: &HashMap<usize, Arc<Progress>>) -> Vec<Item> {
        // It may have come to it just before it stopped.
        let is_lost =
            |fence: &Fence| stopped.contains_key(&name(fence.progress())) && !fence.is_done();
        let mut lost = Vec::new();
        for line in self.lines.values_mut() {
            let is_hit = |item: &Item| is_lost(&item.fence) || item.needs.iter().any(is_lost);
            let keys = line.items.iter().filter(|(_, item)| is_hit(item));
            let keys: Vec<_> = keys.map(|(&key, _)| key).collect();
            lost.extend(keys.iter().filter_map(|key| line.items.remove(key)));
        }
        lost
    }
}

impl Waiter {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut looked = Instant::now();
        loop {
            let idle = self.lines().lines.is_empty();
            let mut files = [PollFd::new(self.eventfd.as_fd(), PollFlags::POLLIN)];
            // A failure of poll() is lack of memory, which passes.
            let _ = wait(&mut files, (!idle).then_some(TICK));
            let told = self.eventfd.read().is_ok();
            let fresh = self.fresh.swap(false, Ordering::Acquire);
            let busy = self.pass();
            let thorough = looked.elapsed() >= TICK;
            // If nothing was reached, something has failed.
            if thorough || (told && !fresh && !busy) {
                self.look_for_lost();
            }
            if thorough {
                looked = Instant::now();
            }
        }
    }

    /// Does what can be done; whether there was anything.
    fn pass(&self) -> bool {
        let reached = self.lines().take_reached();
        // What is not confirmed stays, and is found by looking from time to time.
        let (due, doubtful): (Vec<_>, Vec<_>) = reached.into_iter().partition(Item::is_confirmed);
        let (to_ask, mut busy) = {
            let mut lines = self.lines();
            for mut item in doubtful {
                item.doubtful = true;
                lines.add(item);
            }
            (lines.to_ask(), !due.is_empty())
        };
        end(due, true);
        let mut gone = HashMap::new();
        for fence in to_ask {
            let (progress, value) = (fence.progress(), fence.value());
            match progress.notify(value, self.eventfd.as_fd()) {
                // Signalled at once if it was reached meanwhile.
                Ok(()) => {
                    busy = true;
                    if let Some(line) = self.lines().lines.get_mut(&name(progress)) {
                        line.asked = Some(value);
                    }
                }
                // It is found by looking from time to time.
                Err(Errno::ENOSPC | Errno::ENOMEM) => {}
                Err(_) => {
                    gone.insert(name(progress), Arc::clone(progress));
                }
            }
        }
        if !gone.is_empty() {
            let lost = self.lines().take_lost(&gone);
            busy |= !lost.is_empty();
            end(lost, false);
        }
        busy
    }

    /// Ends what will never be reached.
    fn look_for_lost(&self) {
        let mut queues = self.lines().queues();
        queues.retain(|_, progress| !matches!(progress.stopped(), Ok(None)));
        let lost = self.lines().take_lost(&queues);
        end(lost, false);
    }
}

/// Ends them: what takes a thread's time, or may wait, is done by others, so that it holds up nobody who waits
/// for a fence.
fn end(items: Vec<Item>, reached: bool) {
    let mut drops = Vec::new();
    for Item {
        fence,
        needs,
        doubtful,
        action,
    } in items
    {
        match action {
            Action::Call(calls, function) if reached => CALLS.run(Job::Call {
                fence,
                calls,
                function,
            }),
            Action::Tell(eventfd) => {
                let _ = eventfd.write(1);
            }
            action => {
                // One that destroys its queue takes as long as the packet that runs.
                let is_slow = !reached && matches!(action, Action::Drop(..));
                let item = Item {
                    fence,
                    needs,
                    doubtful,
                    action,
                };
                if is_slow {
                    DROPS.run(Job::Drop(vec![item], false));
                } else {
                    drops.push(item);
                }
            }
        }
    }
    if !drops.is_empty() {
        DROPS.run(Job::Drop(drops, reached));
    }
}

impl Item {
    /// Whether what memory says is true, as far as it matters.
    fn is_confirmed(&self) -> bool {
        let by_hand = matches!(self.action, Action::Drop(_, true));
        self.fence.is_passed(by_hand)
    }

    /// Drops what it has.
    fn drop_all(self, reached: bool) {
        match self.action {
            Action::Call(_, function) => {
                quietly(|| drop(function));
            }
            Action::Drop(what, _) => {
                // A queue that has stopped does nothing any more; one that waits might.
                let progress = self.fence.progress();
                if !reached && !matches!(progress.stopped(), Ok(Some(_))) {
                    progress.spoil("work that it waits for cannot be done");
                }
                quietly(|| drop(what));
            }
            Action::Tell(_) => {}
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

/// What is due.
enum Job {
    /// A host function, the how manyeth of its queue.
    Call {
        fence: Fence,
        calls: u64,
        function: Box<dyn FnOnce() + Send>,
    },
    /// What was needed for work, and whether that was done.
    Drop(Vec<Item>, bool),
}

impl Job {
    fn run(self) {
        match self {
            Self::Call {
                fence,
                calls,
                function,
            } => {
                if quietly(function) {
                    fence.progress().called(calls);
                } else {
                    fence.progress().spoil("a host function panicked");
                }
            }
            Self::Drop(items, reached) => {
                items.into_iter().for_each(|item| item.drop_all(reached));
            }
        }
    }
}

/// Jobs, and threads for them.
struct Jobs {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// Threads for one kind of jobs, as many as there are jobs that are held up, up to a number.
struct Pool {
    jobs: Mutex<Jobs>,
    more: Condvar,
    most: usize,
}

/// Host functions, and what is dropped: neither holds up the other.
static CALLS: Pool = Pool::new(THREADS);
static DROPS: Pool = Pool::new(DROPPERS);

impl Pool {
    const fn new(most: usize) -> Self {
        Self {
            jobs: Mutex::new(Jobs {
                queue: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            more: Condvar::new(),
            most,
        }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job, on a thread of its own if another one is held up.
    fn run(&'static self, job: Job) {
        let mut jobs = self.jobs();
        jobs.queue.push_back(job);
        if jobs.queue.len() > jobs.idle && jobs.threads < self.most {
            let thread = thread::Builder::new().name("pinmap-host".into());
            match thread.spawn(|| self.work()) {
                Ok(_) => jobs.threads += 1,
                // Then here, rather than never.
                Err(_) if jobs.threads == 0 => {
                    let job = jobs.queue.pop_back();
                    drop(jobs);
                    job.into_iter().for_each(Job::run);
                    return;
                }
                Err(_) => {}
            }
        }
        drop(jobs);
        self.more.notify_one();
    }

    /// What such a thread does.
    fn work(&self) {
        block_signals();
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                drop(jobs);
                job.run();
                jobs = self.jobs();
                continue;
            }
            jobs.idle += 1;
            let (again, result) = self
                .more
                .wait_timeout(jobs, LINGER)
                .unwrap_or_else(PoisonError::into_inner);
            jobs = again;
            jobs.idle -= 1;
            if result.timed_out() && jobs.queue.is_empty() {
                jobs.threads -= 1;
                return;
            }
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
        let slow = Action::Drop(Box::new(Slow(wait)), false);
        when(fence(10), Vec::new(), slow).expect("a thread");
        let call = move || {
            let _ = sender.send(());
        };
        when(fence(10), Vec::new(), Action::Call(1, Box::new(call))).expect("a thread");
        let ran = receiver.recv_timeout(Duration::from_secs(10));
        drop(go);
        ran.expect("the function ran");
    }

    /// Of those that wait only the first of a queue is looked at, however many there are.
    #[test]
    fn many_items_cost_what_one_does() {
        const COUNT: u64 = 10_000;
        let progress = Arc::new(Progress::fake());
        let mut lines = Lines::default();
        for value in (1..=COUNT).rev() {
            lines.add(Item {
                fence: Fence::new(Arc::clone(&progress), value),
                needs: Vec::new(),
                doubtful: false,
                action: Action::Drop(Box::new(()), false),
            });
        }
        assert!(lines.take_reached().is_empty());
        assert_eq!(lines.to_ask().len(), 1);
        for value in 1..=COUNT {
            progress.execute(value);
            let reached = lines.take_reached();
            let values: Vec<_> = reached.iter().map(|item| item.fence.value()).collect();
            assert_eq!(values, [value]);
        }
        assert!(lines.lines.is_empty());
        assert!(lines.looks <= 2 * COUNT + 1, "{}", lines.looks);
    }
}
