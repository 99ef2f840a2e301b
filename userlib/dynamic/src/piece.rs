// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pieces of work in flight, each shared by all of the memory that it names.
//!
//! Memory can be released when every piece of work that names it has *ended*: it is done, or the
//! device will never do it. Any number of threads wait for a piece. One of them waits for the
//! device, and the others for that one. No lock is held meanwhile, and none while work is
//! submitted, which may wait for room in the ring: a host function, for which that room may have to
//! wait, can always find out which work has ended.

use std::any::Any;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use nix::errno::Errno;
use pinmap::accelerator::Pending;
use pinmap::{ErrorKind, ErrorWith};

use crate::error::{Error, Result};

/// Work that was submitted, with what must stay until it has ended.
pub(crate) trait InFlight: Send {
    /// Whether the work is done, as far as memory tells.
    fn is_done(&self) -> bool;

    /// Returns what had to stay if the work has ended. Does not wait.
    fn try_end(self: Box<Self>) -> Result<Box<dyn Any + Send>, Box<dyn InFlight>>;

    /// Waits until the work has ended. Fails if the device does not confirm that.
    fn end(self: Box<Self>) -> Result<(), (Box<dyn InFlight>, Error)>;
}

impl<M: Send + 'static> InFlight for Pending<M> {
    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn try_end(self: Box<Self>) -> Result<Box<dyn Any + Send>, Box<dyn InFlight>> {
        match self.try_into_memory() {
            Ok(memory) => Ok(Box::new(memory)),
            Err(pending) => Err(Box::new(pending)),
        }
    }

    fn end(self: Box<Self>) -> Result<(), (Box<dyn InFlight>, Error)> {
        let Err(ErrorWith { error, value, .. }) = self.wait() else {
            return Ok(());
        };
        // After a failure the device usually does nothing with the memory any more.
        match value.try_into_memory() {
            Ok(_) => Ok(()),
            Err(pending) => Err((Box::new(pending), error.into())),
        }
    }
}

/// Locks state that a panic cannot leave half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until another thread has changed such state.
pub(crate) fn wait<'a, T>(changed: &Condvar, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(state).unwrap_or_else(PoisonError::into_inner)
}

/// A piece of work.
pub(crate) struct Piece {
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    /// A thread submits it.
    Submitting(ThreadId),
    InFlight(Box<dyn InFlight>),
    /// A thread waits for the device.
    Awaited,
    Ended,
}

impl Piece {
    /// A piece that this thread is about to submit.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Submitting(thread::current().id())),
            changed: Condvar::new(),
        })
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    /// Notes that the piece was submitted.
    pub(crate) fn submitted(&self, work: Box<dyn InFlight>) {
        self.set(State::InFlight(work));
    }

    /// Notes that nothing of the piece was submitted.
    pub(crate) fn refused(&self) {
        self.set(State::Ended);
    }

    /// Whether the piece is known to be done. Makes no system call.
    fn is_done(&self) -> bool {
        match &*lock(&self.state) {
            State::InFlight(work) => work.is_done(),
            State::Submitting(_) | State::Awaited => false,
            State::Ended => true,
        }
    }

    /// Whether the piece is known to have ended.
    fn is_over(&self) -> bool {
        matches!(&*lock(&self.state), State::Ended)
    }

    /// Whether the piece has ended. Does not wait; so if another thread waits for the device just
    /// now, it has not.
    pub(crate) fn has_ended(&self) -> bool {
        let mut state = lock(&self.state);
        let work = match mem::replace(&mut *state, State::Ended) {
            State::InFlight(work) => work,
            State::Ended => return true,
            other => {
                *state = other;
                return false;
            }
        };
        match work.try_end() {
            Ok(memory) => {
                drop(state);
                drop(memory);
                true
            }
            Err(work) => {
                *state = State::InFlight(work);
                false
            }
        }
    }

    /// Waits until the piece has ended. Not to be called in a host function.
    ///
    /// Fails if the device does not confirm that; and with `EDEADLK` while this thread itself
    /// submits the piece.
    pub(crate) fn end(&self) -> Result<()> {
        let mut state = lock(&self.state);
        let work = loop {
            match mem::replace(&mut *state, State::Awaited) {
                State::InFlight(work) => break work,
                State::Submitting(by) if by == thread::current().id() => {
                    *state = State::Submitting(by);
                    let text = "this thread is submitting work that names the memory";
                    return Err(Error::new(Errno::EDEADLK, ErrorKind::Deadlock, text));
                }
                other @ (State::Submitting(_) | State::Awaited) => {
                    *state = other;
                    state = wait(&self.changed, state);
                }
                State::Ended => {
                    *state = State::Ended;
                    return Ok(());
                }
            }
        };
        drop(state);
        match work.end() {
            Ok(()) => {
                self.set(State::Ended);
                Ok(())
            }
            Err((work, error)) => {
                self.set(State::InFlight(work));
                Err(error)
            }
        }
    }
}

/// The pieces of work that name some memory, but for some that have ended.
#[derive(Default)]
pub(crate) struct Pieces(Mutex<List>);

#[derive(Default)]
struct List {
    pieces: Vec<Arc<Piece>>,
    /// How many pieces there must be before all of them are looked at: twice as many as were left
    /// the last time.
    limit: usize,
}

impl Pieces {
    /// Adds a piece, which is about to be submitted.
    pub(crate) fn add(&self, piece: &Arc<Piece>) {
        let done: Vec<_> = {
            let mut list = lock(&self.0);
            list.pieces.push(Arc::clone(piece));
            if list.pieces.len() <= list.limit {
                return;
            }
            let done = list.pieces.iter().filter(|piece| piece.is_done());
            done.cloned().collect()
        };
        // Without the lock: this drops what had to stay for them.
        for piece in done {
            piece.has_ended();
        }
        let mut list = lock(&self.0);
        list.pieces.retain(|piece| !piece.is_over());
        list.limit = 2 * list.pieces.len();
    }

    fn all(&self) -> Vec<Arc<Piece>> {
        lock(&self.0).pieces.clone()
    }

    /// Whether all pieces have ended. Does not wait.
    pub(crate) fn have_ended(&self) -> bool {
        // Each is looked at, so that those that have ended keep nothing.
        let looked = self.all().into_iter().map(|piece| piece.has_ended());
        looked.fold(true, |all, one| all & one)
    }

    /// Whether all pieces are known to have ended. Drops nothing.
    pub(crate) fn are_over(&self) -> bool {
        lock(&self.0).pieces.iter().all(|piece| piece.is_over())
    }

    /// Waits until all pieces have ended. Not to be called in a host function.
    ///
    /// # Errors
    ///
    /// The error of the first piece for which the device does not confirm that; `EDEADLK`: this
    /// thread itself submits one of them.
    pub(crate) fn end(&self) -> Result<()> {
        self.all().iter().try_for_each(|piece| piece.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{channel, Receiver, Sender};

    /// The device that does a piece of work when it is told to.
    #[derive(Clone, Default)]
    struct Device {
        done: Arc<AtomicBool>,
        ended: Arc<AtomicBool>,
        /// The device never confirms that it has ended the work.
        stuck: Arc<AtomicBool>,
    }

    struct Work {
        device: Device,
        go: Receiver<()>,
        /// Values that must stay until the end.
        kept: Arc<()>,
    }

    impl InFlight for Work {
        fn is_done(&self) -> bool {
            self.device.done.load(Ordering::SeqCst)
        }

        fn try_end(self: Box<Self>) -> Result<Box<dyn Any + Send>, Box<dyn InFlight>> {
            match self.device.ended.load(Ordering::SeqCst) {
                true => Ok(Box::new(self.kept)),
                false => Err(self),
            }
        }

        fn end(self: Box<Self>) -> Result<(), (Box<dyn InFlight>, Error)> {
            if self.device.stuck.load(Ordering::SeqCst) {
                return Err((self, Error::new(Errno::EIO, ErrorKind::Io, "stuck")));
            }
            self.go.recv().expect("the device is told");
            self.device.ended.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    /// A piece that two pieces of memory share, which was submitted; the device; what tells it to
    /// end the work; and what stays until then.
    fn shared() -> ([Pieces; 2], Arc<Piece>, Device, Sender<()>, Arc<()>) {
        let memory = <[Pieces; 2]>::default();
        let (tell, go) = channel();
        let (device, kept, piece) = (Device::default(), Arc::new(()), Piece::new());
        for memory in &memory {
            memory.add(&piece);
        }
        piece.submitted(Box::new(Work {
            device: device.clone(),
            go,
            kept: Arc::clone(&kept),
        }));
        (memory, piece, device, tell, kept)
    }

    /// Whoever waits for work that somebody else waits for already waits as long.
    #[test]
    fn all_memory_of_a_piece_waits_for_it() {
        let ([first, second], piece, device, tell, kept) = shared();
        let (known, returned) = (Arc::strong_count(&piece), AtomicBool::new(false));
        let ended = thread::scope(|threads| {
            threads.spawn(|| first.end().expect("it ends"));
            threads.spawn(|| {
                // Both hold the piece, so both wait for it.
                while Arc::strong_count(&piece) < known + 2 && !returned.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                tell.send(()).expect("somebody waits");
            });
            second.end().expect("it ends");
            let ended = device.ended.load(Ordering::SeqCst);
            returned.store(true, Ordering::SeqCst);
            ended
        });
        assert!(ended, "it returned before the end");
        assert!(first.have_ended() && second.have_ended());
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    /// A thread that waits holds no lock that asking would need.
    #[test]
    fn asking_does_not_wait_for_who_waits() {
        let ([first, second], piece, _, tell, _kept) = shared();
        thread::scope(|threads| {
            threads.spawn(|| first.end().expect("it ends"));
            while !matches!(&*lock(&piece.state), State::Awaited) {
                thread::yield_now();
            }
            assert!(!first.have_ended() && !second.have_ended());
            tell.send(()).expect("somebody waits");
        });
        assert!(first.have_ended() && second.have_ended());
    }

    /// Memory waits for work that is being submitted, and finds that without a lock.
    #[test]
    fn a_piece_that_is_being_submitted_has_not_ended() {
        let memory = Pieces::default();
        thread::scope(|threads| {
            let (sender, added) = channel();
            let memory = &memory;
            threads.spawn(move || {
                let piece = Piece::new();
                memory.add(&piece);
                assert!(!memory.have_ended());
                // A thread that waited for itself would wait for ever.
                let refused = memory.end().expect_err("by this thread");
                assert_eq!(refused.errno(), Errno::EDEADLK as i32);
                let known = Arc::strong_count(&piece);
                sender.send(()).expect("the test");
                while Arc::strong_count(&piece) == known {
                    thread::yield_now();
                }
                piece.refused();
            });
            added.recv().expect("it was added");
            memory.end().expect("nothing was submitted");
        });
        assert!(memory.have_ended());
    }

    /// Work that the device does not confirm to have ended stays in flight.
    #[test]
    fn work_without_an_end_is_not_forgotten() {
        let ([first, second], _, device, tell, kept) = shared();
        device.stuck.store(true, Ordering::SeqCst);
        assert_eq!(first.end().expect_err("stuck").errno(), Errno::EIO as i32);
        assert!(!first.have_ended() && !second.have_ended());
        assert_eq!(Arc::strong_count(&kept), 2);
        // Memory says that it is done, and the device does not.
        device.done.store(true, Ordering::SeqCst);
        first.add(&Piece::new());
        assert!(second.all().iter().all(|piece| !piece.is_over()));
        assert_eq!(first.all().len(), 2);
        device.stuck.store(false, Ordering::SeqCst);
        tell.send(()).expect("the work");
        second.end().expect("it ends");
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    /// The list of memory that is used again and again stays short, in any order of ends.
    #[test]
    fn what_has_ended_is_forgotten() {
        let memory = Pieces::default();
        let (_, first, ..) = shared();
        memory.add(&first);
        for _ in 0..1000 {
            let (_, piece, device, _tell, kept) = shared();
            memory.add(&piece);
            device.done.store(true, Ordering::SeqCst);
            device.ended.store(true, Ordering::SeqCst);
            assert!(memory.all().len() <= 4, "{}", memory.all().len());
            drop(kept);
        }
        assert!(!memory.have_ended());
    }
}
