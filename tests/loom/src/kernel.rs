// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the kernel: eventfds, `poll`, and what the driver does for queues. Every execution of
//! a model has one of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use loom::sync::{Condvar, MutexGuard};

use crate::nix::errno::Errno;
use crate::poll::PollFd;
use crate::sys::map::Map;

/// Files that exist for their numbers only: the one of the driver, and those of eventfds.
static FILES: OnceLock<Vec<File>> = OnceLock::new();

/// One of the [files](FILES).
pub(crate) fn file(index: usize) -> BorrowedFd<'static> {
    let open = |_| File::open("/dev/null").expect("it can always be opened");
    FILES.get_or_init(|| (0..16).map(open).collect())[index].as_fd()
}

/// The kernel of an execution.
pub(crate) struct Kernel {
    /// The number of the execution, among those of all models.
    pub(crate) execution: u64,
    eventfds: AtomicUsize,
    state: loom::sync::Mutex<State>,
    changed: Condvar,
    /// Waits that the passing of time ends.
    timers: Mutex<Vec<Arc<Timer>>>,
    late: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The counts of eventfds that are readable.
    readable: BTreeMap<RawFd, u64>,
    queues: BTreeMap<u64, Queue>,
    over: bool,
}

struct Queue {
    fences: Map,
    /// Eventfds, each with the number of packets at which it is signalled.
    notices: Vec<(u64, RawFd)>,
    /// The device does something for the queue.
    runs: bool,
    /// The queue is destroyed, as far as other calls know.
    forgotten: bool,
}

/// A wait that may end because of time.
#[derive(Default)]
pub(crate) struct Timer {
    pub(crate) lock: Arc<loom::sync::Mutex<()>>,
    pub(crate) condvar: Condvar,
    pub(crate) late: AtomicBool,
}

/// The panic with which a thread of the process ends, which otherwise would never end.
struct Over;

thread_local! {
    // loom's threads all run on the same one.
    static KERNEL: RefCell<Option<Arc<Kernel>>> = const { RefCell::new(None) };
}

/// The kernel of this execution.
pub(crate) fn kernel() -> Arc<Kernel> {
    KERNEL.with_borrow(|kernel| kernel.clone().expect("a model is run"))
}

/// Runs a model in every order of its steps.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    check_with(2, model);
}

/// Runs a model in every order of its steps in which no more than `preemptions` threads are stopped
/// where they could go on.
pub(crate) fn check_with(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        let kernel = Kernel {
            execution: EXECUTIONS.fetch_add(1, Ordering::Relaxed),
            eventfds: AtomicUsize::new(0),
            state: loom::sync::Mutex::default(),
            changed: Condvar::new(),
            timers: Mutex::default(),
            late: AtomicBool::new(false),
        };
        KERNEL.set(Some(Arc::new(kernel)));
        model();
        let kernel = crate::kernel::kernel();
        kernel.lock().over = true;
        kernel.changed.notify_all();
    });
}

/// Runs a thread that ends with the model.
pub(crate) fn until_over(run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        if !panic.is::<Over>() {
            resume_unwind(panic);
        }
    }
}

impl Kernel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics")
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).expect("no thread panics")
    }

    /// The file of a new eventfd.
    pub(crate) fn eventfd(&self) -> BorrowedFd<'static> {
        file(1 + self.eventfds.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn signal(&self, eventfd: RawFd) {
        self.lock().signal(eventfd);
        self.changed.notify_all();
    }

    pub(crate) fn read(&self, eventfd: RawFd) -> Result<u64, Errno> {
        self.lock().readable.remove(&eventfd).ok_or(Errno::EAGAIN)
    }

    /// Waits until one of the files is readable.
    pub(crate) fn poll(&self, files: &mut [PollFd<'_>]) {
        let mut state = self.lock();
        loop {
            let mut any = false;
            for file in &mut *files {
                let fd = file.waits_for();
                let ready = fd.is_some_and(|fd| state.readable.contains_key(&fd));
                file.set_ready(ready);
                any |= ready;
            }
            if any {
                return;
            }
            if state.over {
                drop(state);
                resume_unwind(Box::new(Over));
            }
            state = self.wait(state);
        }
    }

    /// Makes a queue, whose device runs until [`stop`](Self::stop).
    pub(crate) fn make_queue(&self, id: u64, fences: Map) {
        let queue = Queue {
            fences,
            notices: Vec::new(),
            runs: true,
            forgotten: false,
        };
        self.lock().queues.insert(id, queue);
    }

    /// The device does nothing more for a queue.
    pub(crate) fn stop(&self, id: u64) {
        self.lock().queue(id).runs = false;
        self.changed.notify_all();
    }

    /// The device interrupts: who waits for a fence looks again.
    pub(crate) fn interrupt(&self, id: u64) {
        self.lock().notify(id);
        self.changed.notify_all();
    }

    pub(crate) fn queue_executed(&self, id: u64) -> Result<u64, Errno> {
        let mut state = self.lock();
        let queue = state.queue(id);
        match queue.forgotten {
            true => Err(Errno::ENOENT),
            false => Ok(queue.executed()),
        }
    }

    pub(crate) fn queue_wait(&self, id: u64, value: u64) -> Result<(), Errno> {
        let mut state = self.lock();
        loop {
            let queue = state.queue(id);
            if queue.forgotten {
                return Err(Errno::ENOENT);
            }
            if queue.executed() >= value {
                return Ok(());
            }
            state = self.wait(state);
        }
    }

    pub(crate) fn queue_notify(&self, id: u64, value: u64, eventfd: RawFd) -> Result<(), Errno> {
        let mut state = self.lock();
        let queue = state.queue(id);
        if queue.forgotten {
            return Err(Errno::ENOENT);
        }
        queue.notices.push((value, eventfd));
        state.notify(id);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Destroys a queue: others no longer find it, then the device ends what it does.
    pub(crate) fn queue_destroy(&self, id: u64) -> Result<(), Errno> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.queue(id).forgotten, true) {
            return Err(Errno::ENOENT);
        }
        state.notify(id);
        self.changed.notify_all();
        while state.queue(id).runs {
            state = self.wait(state);
        }
        Ok(())
    }

    /// Adds a timer, for which the time may be up already.
    pub(crate) fn add_timer(&self, timer: &Arc<Timer>) {
        let late = self.late.load(Ordering::Relaxed);
        timer.late.store(late, Ordering::Relaxed);
        let mut timers = self.timers.lock().expect("no thread panics");
        timers.push(Arc::clone(timer));
    }

    /// Time passes: every wait with a limit is over.
    pub(crate) fn pass_time(&self) {
        self.late.store(true, Ordering::Relaxed);
        let timers = self.timers.lock().expect("no thread panics").clone();
        for timer in timers {
            let locked = timer.lock.lock();
            timer.late.store(true, Ordering::Relaxed);
            drop(locked);
            timer.condvar.notify_all();
        }
    }
}

impl State {
    fn queue(&mut self, id: u64) -> &mut Queue {
        self.queues.get_mut(&id).expect("a queue that was made")
    }

    fn signal(&mut self, eventfd: RawFd) {
        *self.readable.entry(eventfd).or_default() += 1;
    }

    /// Signals the eventfds whose number is reached, or never will be.
    fn notify(&mut self, id: u64) {
        let queue = self.queue(id);
        let (executed, forgotten) = (queue.executed(), queue.forgotten);
        let is_due = |&(value, _): &(u64, RawFd)| forgotten || executed >= value;
        let (due, waiting) = queue.notices.drain(..).partition(is_due);
        queue.notices = waiting;
        let due: Vec<(u64, RawFd)> = due;
        due.iter().for_each(|&(_, eventfd)| self.signal(eventfd));
    }
}

impl Queue {
    fn executed(&self) -> u64 {
        u64::from_le(self.fences.words()[0].load(Ordering::Acquire))
    }
}
