// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that tasks wait for: a thread of the process polls them and wakes the tasks.
//!
//! So the futures of interrupts and events need no runtime. A file is watched once: what has woken
//! a task is forgotten, and the task watches again if it finds nothing.

use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::EventFd;

use super::background::Background;
use super::poll::wait;
use super::sync::{Mutex, MutexGuard};

/// Files, any of which wakes a task.
pub(crate) trait Files: Send + Sync {
    /// The files, each with whether to wait until it is readable. A hang-up always counts.
    fn files(&self) -> [Option<(BorrowedFd<'_>, bool)>; 2];
}

/// A task that waits for files.
pub(crate) struct Watch {
    files: Box<dyn Files>,
    /// `None` after it was woken.
    waker: Mutex<Option<Waker>>,
}

impl Watch {
    /// Whether the task was woken.
    pub(crate) fn is_over(&self) -> bool {
        self.waker().is_none()
    }

    /// Changes the task that is to be woken, unless one was already. Returns whether it did.
    pub(crate) fn renew(&self, waker: &Waker) -> bool {
        match &mut *self.waker() {
            Some(old) => {
                old.clone_from(waker);
                true
            }
            None => false,
        }
    }

    /// Wakes the task, if it was not woken.
    fn wake(&self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            // The waker is the program's. If it panics, its message is printed already; its payload
            // is never dropped, because that could panic, too.
            let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            woken.unwrap_or_else(std::mem::forget);
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watch of a future, which ends when the future is dropped.
#[derive(Default)]
pub(crate) struct Watched(Option<Arc<Watch>>);

impl Watched {
    /// Polls for something that files tell of: tries, and watches them if there is nothing yet.
    pub(crate) fn poll<T, E>(
        &mut self,
        context: &mut Context<'_>,
        ready: impl Fn() -> Result<Option<T>, E>,
        files: impl FnOnce() -> Box<dyn Files>,
        fail: impl FnOnce(Errno) -> E,
    ) -> Poll<Result<T, E>> {
        if let Some(found) = ready().transpose() {
            return Poll::Ready(found);
        }
        let waker = context.waker();
        if !self.0.as_ref().is_some_and(|watch| watch.renew(waker)) {
            // What comes from now on wakes the task, and what came before is readable.
            match watch(files(), waker) {
                Ok(watch) => self.0 = Some(watch),
                Err(errno) => return Poll::Ready(Err(fail(errno))),
            }
        }
        Poll::Pending
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watch) = self.0.take() {
            forget(&watch);
        }
    }
}

/// The state of the thread.
struct Watcher {
    /// Signalled when there is a new watch, or one fewer.
    eventfd: EventFd,
    watches: Mutex<Vec<Arc<Watch>>>,
}

/// Watches files for a task.
pub(crate) fn watch(files: Box<dyn Files>, waker: &Waker) -> Result<Arc<Watch>, Errno> {
    let watcher = watcher()?;
    let watch = Arc::new(Watch {
        files,
        waker: Mutex::new(Some(waker.clone())),
    });
    watcher.watches().push(Arc::clone(&watch));
    // An eventfd that is full is readable, too.
    let _ = watcher.eventfd.write(1);
    Ok(watch)
}

/// Ends a watch, whose task is dropped.
pub(crate) fn forget(watch: &Arc<Watch>) {
    let _unwoken = watch.waker().take();
    if let Ok(watcher) = watcher() {
        watcher.remove(|other| Arc::ptr_eq(other, watch));
        // The thread has the files, too, and with them perhaps a device, until it looks.
        let _ = watcher.eventfd.write(1);
    }
}

/// The watcher, whose thread is started by the first call.
fn watcher() -> Result<&'static Watcher, Errno> {
    static WATCHER: Background<Watcher> = Background::new();
    let make = |eventfd| Watcher {
        eventfd,
        watches: Mutex::default(),
    };
    WATCHER.get("pinmap-watcher", make, Watcher::run)
}

impl Watcher {
    fn watches(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let watches = self.watches().clone();
            let mut files = vec![PollFd::new(self.eventfd.as_fd(), PollFlags::POLLIN)];
            let mut owners = vec![None];
            for watch in &watches {
                for (file, readable) in watch.files.files().into_iter().flatten() {
                    let flags = match readable {
                        true => PollFlags::POLLIN,
                        false => PollFlags::empty(),
                    };
                    files.push(PollFd::new(file, flags));
                    owners.push(Some(watch));
                }
            }
            // poll() fails for lack of memory, which passes.
            let _ = wait(&mut files, None);
            let _ = self.eventfd.read();
            for (file, owner) in files.iter().zip(owners) {
                if let Some(owner) = owner.filter(|_| file.any() == Some(true)) {
                    owner.wake();
                }
            }
            self.remove(|watch| watch.is_over());
        }
    }

    /// Removes watches. They are dropped without the lock, because that may close a device.
    fn remove(&self, is_it: impl Fn(&Arc<Watch>) -> bool) {
        let mut watches = self.watches();
        let (gone, left) = std::mem::take(&mut *watches).into_iter().partition(is_it);
        *watches = left;
        drop(watches);
        drop::<Vec<_>>(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::thread;
    use std::time::{Duration, Instant};

    struct One(Arc<EventFd>);

    impl Files for One {
        fn files(&self) -> [Option<(BorrowedFd<'_>, bool)>; 2] {
            [Some((self.0.as_fd(), true)), None]
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until nobody else has a file.
    fn until_given_back(file: &Arc<EventFd>) {
        let until = Instant::now() + Duration::from_secs(60);
        while Arc::strong_count(file) > 1 {
            assert!(Instant::now() < until, "the watcher keeps a file");
            thread::yield_now();
        }
    }

    #[test]
    fn what_is_forgotten_or_woken_is_given_back() {
        let file = Arc::new(EventFd::new().expect("an eventfd"));
        let waker = Waker::from(Arc::<Count>::default());
        forget(&watch(Box::new(One(Arc::clone(&file))), &waker).expect("a thread"));
        until_given_back(&file);
        let watched = watch(Box::new(One(Arc::clone(&file))), &waker).expect("a thread");
        file.write(1).expect("a signal");
        drop(watched);
        until_given_back(&file);
    }

    #[test]
    fn a_waker_that_panics_stops_no_other() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("on purpose");
            }
        }
        let file = Arc::new(EventFd::new().expect("an eventfd"));
        file.write(1).expect("a signal");
        let panics = Waker::from(Arc::new(Panics));
        watch(Box::new(One(Arc::clone(&file))), &panics).expect("a thread");
        until_given_back(&file);
        let waker = Waker::from(Arc::<Count>::default());
        let watched = watch(Box::new(One(Arc::clone(&file))), &waker).expect("a thread");
        let until = Instant::now() + Duration::from_secs(60);
        while !watched.is_over() {
            assert!(Instant::now() < until, "the watcher does not wake");
            thread::yield_now();
        }
    }

    #[test]
    fn a_file_wakes_its_task_once() {
        let files: Vec<_> = (0..20)
            .map(|_| Arc::new(EventFd::new().expect("an eventfd")))
            .collect();
        let counts: Vec<_> = files.iter().map(|_| Arc::<Count>::default()).collect();
        let watches: Vec<_> = files
            .iter()
            .zip(&counts)
            .map(|(file, count)| {
                let waker = Waker::from(Arc::clone(count));
                watch(Box::new(One(Arc::clone(file))), &waker).expect("a thread")
            })
            .collect();
        // Forgotten, it wakes nobody.
        forget(&watches[0]);
        for file in files.iter().take(10) {
            file.write(1).expect("a signal");
        }
        let until = Instant::now() + Duration::from_secs(60);
        while watches[..10].iter().any(|watch| !watch.is_over()) {
            assert!(Instant::now() < until, "the watcher does not wake");
            thread::yield_now();
        }
        let woken: Vec<_> = counts
            .iter()
            .map(|count| count.0.load(Ordering::SeqCst))
            .collect();
        let expected: Vec<_> = (0..20).map(|i| usize::from((1..10).contains(&i))).collect();
        assert_eq!(woken, expected);
        assert!(!watches[10].is_over());
    }
}
