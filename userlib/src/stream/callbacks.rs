// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions at points of streams: when a point is reached, the crate runs host functions, drops
//! memory that work needed, and wakes those who poll.
//!
//! One thread, the *waiter*, waits for all points of the process. For each queue the driver is
//! asked to signal an eventfd at the first point only, so that many points cost what one does.
//! Whoever adds a point that comes first asks the driver itself. The waiter is woken for that only
//! if it sleeps without looking at the time, because it has had nothing to do for a while. It never
//! runs anything that takes time: host functions and drops go to two thread pools, so that neither
//! holds up the other, nor anybody who waits for a fence.
//!
//! A point can also become *lost*: its queue has stopped before it, or waits for one that has. The
//! waiter looks for lost points every [`TICK`], and when it was woken although nothing was reached.
//!
//! Host functions and drops run [inside](crate::sys::inside): what they call must not wait for a
//! stream, because a stream may be waiting for them.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::EventFd;

use crate::error::{Error, Operation, Result};
use crate::queue::fence::Fence;
use crate::queue::handle::Handle;
use crate::queue::point::Point;
use crate::sys::background::Background;
use crate::sys::inside;
use crate::sys::poll::wait;
use crate::sys::sync::{AtomicBool, Instant, Mutex, MutexGuard};

use super::future::Task;
use super::pool::Pool;

/// How often the waiter looks for lost points.
const TICK: Duration = Duration::from_millis(250);
/// After so many looks without any point the waiter sleeps until it is woken.
const TICKS: u32 = 4;

/// Host functions: as many as 32 can be held up at once.
static CALLS: Pool = Pool::new(32);
/// Drops of what work needed. Those that destroy a queue take as long as the packet that runs.
static DROPS: Pool = Pool::new(8);

/// An action that is taken when a point is reached.
pub(super) enum Action {
    /// Runs a host function. The number counts the queue's functions from 1.
    Call(u64, Box<dyn FnOnce() + Send>),
    /// Drops what the work needed. If the point is lost, the device lets go of it first.
    Drop(Box<dyn Any + Send>),
    /// Wakes a task, when the point is reached or lost.
    Wake(Arc<Task>),
    /// Signals an eventfd. The driver does so itself when the point is reached; this is for a point
    /// that is lost because of a dependency, of which the driver does not know.
    Tell(Arc<EventFd>),
}

/// An action and its point.
struct Item {
    point: Point,
    /// Counts all items, in the order in which they were added.
    number: u64,
    /// Memory says that the point is reached, and the device does not: it is asked every [`TICK`].
    doubtful: bool,
    action: Action,
}

/// The items of one queue, ordered by the values of their fences and then by age.
struct Line {
    handle: Arc<Handle>,
    items: BTreeMap<(u64, u64), Item>,
    /// The value that the driver was asked to signal, until it is reached.
    asked: Option<u64>,
}

/// All items, by queue. No system call is made while this is locked, because submitting locks it.
#[derive(Default)]
struct Lines {
    lines: HashMap<usize, Line>,
    /// How many items were ever added.
    added: u64,
    /// The waiter sleeps without looking at the time.
    asleep: bool,
    /// How often an item was looked at.
    #[cfg(test)]
    looks: u64,
}

/// The next step for an item that was added.
enum Next {
    /// Nothing: the driver is to signal an item that comes before.
    Nothing,
    /// The driver is to be asked for this fence, which is noted already.
    Ask(Fence),
    /// The waiter is to be woken.
    Wake,
}

/// The state of the waiter's thread.
struct Waiter {
    eventfd: EventFd,
    /// There are items that were not looked at: the eventfd was signalled for those.
    fresh: AtomicBool,
    lines: Mutex<Lines>,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call(..) => "Call",
            Self::Drop(_) => "Drop",
            Self::Wake(_) => "Wake",
            Self::Tell(_) => "Tell",
        })
    }
}

/// The waiter, whose thread is started by the first call.
fn waiter() -> Result<&'static Waiter> {
    static WAITER: Background<Waiter> = Background::new();
    let make = |eventfd| Waiter {
        eventfd,
        fresh: AtomicBool::new(false),
        lines: Mutex::default(),
    };
    let attempt = "start a thread that waits for streams";
    WAITER
        .get("pinmap-waiter", make, Waiter::run)
        .map_err(|errno| Error::new(Operation::Stream, attempt, errno))
}

/// Makes sure that [`when`] cannot fail from now on.
pub(super) fn prepare() -> Result<()> {
    waiter().map(drop)
}

/// Does an action when a point is reached. Returns a number by which the action can be
/// [forgotten](forget).
pub(super) fn when(point: Point, action: Action) -> Result<u64> {
    let waiter = match waiter() {
        Ok(waiter) => waiter,
        Err(error) => {
            // What the device may still use is never dropped.
            if let Action::Drop(what) = action {
                std::mem::forget(what);
            }
            return Err(error);
        }
    };
    let (number, next) = waiter.lines().add(Item {
        point,
        number: 0,
        doubtful: false,
        action,
    });
    match next {
        Next::Nothing => {}
        Next::Ask(fence) => waiter.ask(&fence),
        Next::Wake => waiter.wake(),
    }
    Ok(number)
}

/// Runs a host function, the one with this number, when a point is reached.
pub(super) fn call_at(point: Point, count: u64, function: Box<dyn FnOnce() + Send>) -> Result<()> {
    if !point.fence.is_done() {
        return when(point, Action::Call(count, function)).map(drop);
    }
    // Nothing is to be waited for, so no other thread is asked to.
    let handle = Arc::clone(point.handle());
    match CALLS.try_run(Box::new(move || call(&handle, count, function))) {
        Ok(()) => Ok(()),
        // Not here: the function may wait for this thread.
        Err(job) => when(point, Action::Call(count, job)).map(drop),
    }
}

/// Runs something that takes as long as a packet, and then wakes a task.
pub(super) fn in_background(task: &Arc<Task>, job: impl FnOnce() + Send + 'static) {
    let task = Arc::clone(task);
    DROPS.run(move || {
        job();
        run_inside(|| task.wake());
    });
}

/// Forgets an action, if it was not taken yet.
pub(super) fn forget(point: &Point, number: u64) {
    let Ok(waiter) = waiter() else { return };
    let item = waiter.lines().remove(point, number);
    // Without the lock: it may be the last to know its queue, which is then destroyed.
    drop(item);
}

/// The points at which something is still to be done, of all fences that `is_ours` chooses.
pub(super) fn outstanding(is_ours: impl Fn(&Fence) -> bool) -> Vec<Point> {
    let Ok(waiter) = waiter() else {
        return Vec::new();
    };
    let lines = waiter.lines();
    let items = lines.lines.values().flat_map(|line| line.items.values());
    let ours = items.filter(|item| is_ours(&item.point.fence));
    // Nobody's memory is given back by waiting for them.
    ours.map(|item| Point::new(item.point.fence.clone(), item.point.dependencies.clone()))
        .collect()
}

/// The key of a queue.
fn key(handle: &Arc<Handle>) -> usize {
    Arc::as_ptr(handle).addr()
}

impl Lines {
    /// Adds a new item, and returns its number and what is to be done for it.
    fn add(&mut self, item: Item) -> (u64, Next) {
        self.added += 1;
        let number = self.added;
        let fence = item.point.fence.clone();
        self.put(Item { number, ..item });
        let asleep = self.asleep;
        let next = match self.lines.get_mut(&key(fence.handle())) {
            // That signal makes the waiter look at this item, too.
            Some(line) if line.asked.is_some_and(|asked| asked <= fence.value()) => Next::Nothing,
            // A host function makes no call to the driver.
            Some(line) if !asleep && !inside::is_inside() => {
                line.asked = Some(fence.value());
                Next::Ask(fence)
            }
            _ => Next::Wake,
        };
        (number, next)
    }

    /// Puts an item in its place.
    fn put(&mut self, item: Item) {
        let handle = item.point.handle();
        let line = self.lines.entry(key(handle)).or_insert_with(|| Line {
            handle: Arc::clone(handle),
            items: BTreeMap::new(),
            asked: None,
        });
        line.items
            .insert((item.point.fence.value(), item.number), item);
    }

    /// Takes an item away, if it is there. Its line stays as long as the driver is to signal it, so
    /// that the driver is not asked again and again.
    fn remove(&mut self, point: &Point, number: u64) -> Option<Item> {
        let line = self.lines.get_mut(&key(point.handle()))?;
        line.items.remove(&(point.fence.value(), number))
    }

    /// Takes the lines that have no items, unless the driver is to signal them.
    fn take_idle(&mut self) -> Vec<Line> {
        let idle = |line: &Line| line.items.is_empty() && line.asked.is_none();
        let lines = self.lines.iter().filter(|(_, line)| idle(line));
        let keys: Vec<_> = lines.map(|(&key, _)| key).collect();
        let lines = keys.iter().filter_map(|key| self.lines.remove(key));
        lines.collect()
    }

    /// Takes the items that memory says are reached.
    fn take_reached(&mut self) -> Vec<Item> {
        let mut reached = Vec::new();
        for line in self.lines.values_mut() {
            while let Some(first) = line.items.first_entry() {
                #[cfg(test)]
                {
                    self.looks += 1;
                }
                if !first.get().point.fence.is_done() {
                    break;
                }
                reached.push(first.remove());
            }
            line.asked = line.asked.filter(|&asked| line.handle.executed() < asked);
        }
        reached
    }

    /// The fences for which the driver is to be asked for a signal: the first one of each queue,
    /// unless it was asked already.
    fn to_ask(&self) -> Vec<Fence> {
        let firsts = self.lines.values().filter_map(|line| {
            let item = line.items.values().find(|item| !item.doubtful)?;
            let value = item.point.fence.value();
            let is_new = line.asked.is_none_or(|asked| value < asked);
            is_new.then(|| item.point.fence.clone())
        });
        firsts.collect()
    }

    /// All queues that have a line, or on which an item depends.
    fn queues(&self) -> HashMap<usize, Arc<Handle>> {
        let lines = self.lines.values().map(|line| &line.handle);
        let items = self.lines.values().flat_map(|line| line.items.values());
        let fences = items.flat_map(|Item { point, .. }| {
            std::iter::once(&point.fence).chain(&point.dependencies)
        });
        let handles = lines.chain(fences.map(Fence::handle));
        handles
            .map(|handle| (key(handle), Arc::clone(handle)))
            .collect()
    }

    /// Takes the items that are lost because one of these queues has stopped.
    fn take_lost(&mut self, stopped: &HashMap<usize, Arc<Handle>>) -> Vec<Item> {
        // The queue may have reached the fence just before it stopped.
        let is_lost =
            |fence: &Fence| stopped.contains_key(&key(fence.handle())) && !fence.is_done();
        let mut lost = Vec::new();
        for (key, line) in &mut self.lines {
            if stopped.contains_key(key) {
                // The driver signals nothing any more.
                line.asked = None;
            }
            let is_hit = |Item { point, .. }: &Item| {
                is_lost(&point.fence) || point.dependencies.iter().any(is_lost)
            };
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

    /// Has the thread look at items that were added.
    fn wake(&self) {
        // Unless it is about to.
        if !self.fresh.swap(true, Ordering::AcqRel) {
            // An eventfd that is full is readable, too.
            let _ = self.eventfd.write(1);
        }
    }

    /// Asks the driver to signal a fence, as was noted.
    fn ask(&self, fence: &Fence) {
        let (handle, value) = (fence.handle(), fence.value());
        // If the fence was reached in the meantime, the signal comes at once.
        if handle.notify(value, self.eventfd.as_fd()).is_err() {
            if let Some(line) = self.lines().lines.get_mut(&key(handle)) {
                line.asked = line.asked.filter(|&asked| asked != value);
            }
            // It finds out what that means.
            self.wake();
        }
    }

    fn run(&self) {
        let (mut looked, mut idle) = (Instant::now(), 0);
        loop {
            let asleep = {
                let mut lines = self.lines();
                idle = if lines.lines.is_empty() { idle + 1 } else { 0 };
                lines.asleep = idle > TICKS;
                lines.asleep
            };
            let mut files = [PollFd::new(self.eventfd.as_fd(), PollFlags::POLLIN)];
            // poll() fails for lack of memory, which passes.
            let _ = wait(&mut files, (!asleep).then_some(TICK));
            let told = self.eventfd.read().is_ok();
            let fresh = self.fresh.swap(false, Ordering::AcqRel);
            let busy = self.pass();
            let thorough = looked.elapsed() >= TICK;
            // A signal without anything reached means that something has failed.
            if thorough || (told && !fresh && !busy) {
                self.look_for_lost();
            }
            if thorough {
                looked = Instant::now();
            }
        }
    }

    /// Does what can be done now. Returns whether there was anything.
    fn pass(&self) -> bool {
        let (reached, idle) = {
            let mut lines = self.lines();
            (lines.take_reached(), lines.take_idle())
        };
        // Without the lock: this may be the last to know a queue, which is then destroyed.
        drop(idle);
        let (due, doubtful): (Vec<_>, Vec<_>) =
            reached.into_iter().partition(|item| item.point.is_passed());
        let mut forgotten = Vec::new();
        let (to_ask, mut busy) = {
            let mut lines = self.lines();
            for mut item in doubtful {
                item.doubtful = true;
                match item.is_forgotten() {
                    true => forgotten.push(item),
                    false => lines.put(item),
                }
            }
            (lines.to_ask(), !due.is_empty())
        };
        drop(forgotten);
        end(due, true);
        let mut gone = HashMap::new();
        for fence in to_ask {
            let (handle, value) = (fence.handle(), fence.value());
            match handle.notify(value, self.eventfd.as_fd()) {
                // If the fence was reached in the meantime, the signal comes at once.
                Ok(()) => {
                    busy = true;
                    if let Some(line) = self.lines().lines.get_mut(&key(handle)) {
                        line.asked = Some(value);
                    }
                }
                // The next tick finds it without a signal.
                Err(Errno::ENOSPC | Errno::ENOMEM) => {}
                Err(_) => {
                    gone.insert(key(handle), Arc::clone(handle));
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

    /// Ends the items that are lost.
    fn look_for_lost(&self) {
        let mut queues = self.lines().queues();
        queues.retain(|_, handle| !matches!(handle.stopped(), Ok(None)));
        let lost = self.lines().take_lost(&queues);
        end(lost, false);
    }
}

/// Ends items, of which all are reached or all are lost.
fn end(items: Vec<Item>, reached: bool) {
    let mut drops = Vec::new();
    for item in items {
        match item.action {
            Action::Call(count, function) if reached => {
                let handle = Arc::clone(item.point.handle());
                CALLS.run(move || call(&handle, count, function));
            }
            Action::Tell(eventfd) => {
                let _ = eventfd.write(1);
            }
            // A waker of an executor only queues the task.
            Action::Wake(task) => {
                run_inside(|| task.wake());
            }
            // Each of these may destroy its queue, which takes time.
            Action::Drop(_) if !reached => DROPS.run(move || item.drop_all(reached)),
            _ => drops.push(item),
        }
    }
    if !drops.is_empty() {
        DROPS.run(move || drops.into_iter().for_each(|item| item.drop_all(reached)));
    }
}

/// Runs a host function, and lets the queue go on.
fn call(handle: &Handle, count: u64, function: Box<dyn FnOnce() + Send>) {
    if run_inside(function) {
        handle.store_callbacks(count);
    } else {
        handle.poison("a host function panicked");
        handle.lose_call();
    }
}

impl Item {
    /// Whether nobody is left to be woken, who could not [`forget`] the item while it was with the
    /// waiter.
    fn is_forgotten(&self) -> bool {
        matches!(&self.action, Action::Wake(task) if Arc::strong_count(task) == 1)
    }

    /// Drops what the item holds.
    fn drop_all(self, reached: bool) {
        match self.action {
            Action::Call(_, function) => {
                run_inside(|| drop(function));
                self.point.handle().lose_call();
            }
            Action::Drop(what) => {
                // A queue that has stopped does nothing any more; one that waits still might.
                let handle = self.point.handle();
                if !reached && !matches!(handle.stopped(), Ok(Some(_))) {
                    handle.poison("work that it waits for cannot be done");
                }
                run_inside(|| drop(what));
            }
            Action::Tell(_) | Action::Wake(_) => {}
        }
    }
}

/// Runs code of the program, marked as inside a host function. Returns false if it panicked.
fn run_inside(function: impl FnOnce()) -> bool {
    let result = inside::run(|| catch_unwind(AssertUnwindSafe(function)));
    // The panic's message is printed already. Its payload is never dropped: that could panic, too.
    result.map_err(std::mem::forget).is_ok()
}

// By its path, because tests/loom has this file by its path.
#[cfg(test)]
#[path = "callbacks/tests.rs"]
mod tests;
