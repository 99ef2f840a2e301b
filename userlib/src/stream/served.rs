// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock whose holder does what others want of it.
//!
//! Work is submitted under the lock of its stream, and that may wait for room in the ring. Whoever
//! is about to sleep for some of the work [wants](Served::want) the device to interrupt. That takes
//! the same lock, for which it must not wait: a host function may need that thread, and the
//! submitter that host function. So the wish is noted first, and then the lock is tried. If
//! somebody has it, that thread finds the wish when it gives up the lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use crate::sys::sync::{fence, thread, AtomicU64, Mutex, MutexGuard};

/// State that can do what others want of it.
pub(super) trait Serve {
    /// Does what is wanted. Does not wait.
    fn serve(&mut self, wanted: u64);
}

/// The lock of such state.
pub(super) struct Served<T> {
    state: Mutex<T>,
    /// The highest number that somebody wants.
    wanted: AtomicU64,
    /// How many have begun to want something, and how many are done with that. They have the lock
    /// for a moment only.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The state, locked.
pub(super) struct Serving<'a, T: Serve> {
    served: &'a Served<T>,
    /// `None` only while it is dropped.
    state: Option<MutexGuard<'a, T>>,
}

impl<T: Serve> Served<T> {
    pub(super) fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
            wanted: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> Serving<'_, T> {
        // A panic leaves the ring as it was before, or with a packet more.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.serving(state)
    }

    /// Locks the state, unless another thread has it that may keep it for long.
    pub(super) fn try_lock(&self) -> Option<Serving<'_, T>> {
        loop {
            let ended = self.ended.load(Ordering::SeqCst);
            let begun = self.begun.load(Ordering::SeqCst);
            if let Some(state) = self.try_once() {
                return Some(self.serving(state));
            }
            // If nobody has wanted anything meanwhile, it is another thread that has the lock. The
            // fence is for the case that the lock was seen before the number that was stored first.
            fence(Ordering::SeqCst);
            if begun == ended && self.begun.load(Ordering::SeqCst) == begun {
                return None;
            }
            thread::yield_now();
        }
    }

    fn try_once(&self) -> Option<MutexGuard<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn serving<'a>(&'a self, state: MutexGuard<'a, T>) -> Serving<'a, T> {
        Serving {
            served: self,
            state: Some(state),
        }
    }

    /// The state of what nobody else has any more.
    pub(super) fn get_mut(&mut self) -> &mut T {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the state do something soon: in this call, or when the thread that has the lock gives it
    /// up. Does not wait.
    pub(super) fn want(&self, value: u64) {
        // What was wanted before was done, or will be.
        let more = |before: u64| (before < value).then_some(value);
        let _ = self
            .wanted
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        self.begun.fetch_add(1, Ordering::SeqCst);
        // Either this finds the lock free, or its holder finds the wish.
        fence(Ordering::SeqCst);
        if let Some(state) = self.try_once() {
            drop(self.serving(state));
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Serves and unlocks the state. Returns what was wanted. What is wanted afterwards is to be
    /// looked at once more.
    #[inline]
    fn unlock(&self, mut state: MutexGuard<'_, T>) -> u64 {
        let wanted = self.wanted.load(Ordering::SeqCst);
        state.serve(wanted);
        drop(state);
        fence(Ordering::SeqCst);
        wanted
    }

    /// Serves the state if more is wanted than was served, unless another thread has the lock.
    #[cold]
    fn serve_again(&self, mut served: u64) {
        while self.wanted.load(Ordering::SeqCst) != served {
            // It was noted while the lock was held, perhaps by somebody who has tried in vain.
            let Some(state) = self.try_once() else { return };
            served = self.unlock(state);
        }
    }

    /// Forgets what was wanted of an earlier state, in whose place another one comes.
    pub(super) fn forget(&self) {
        self.wanted.store(0, Ordering::SeqCst);
    }
}

impl<T: Serve> Deref for Serving<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.state {
            Some(state) => state,
            None => unreachable!("nobody has it while it is dropped"),
        }
    }
}

impl<T: Serve> DerefMut for Serving<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.state {
            Some(state) => state,
            None => unreachable!("nobody has it while it is dropped"),
        }
    }
}

impl<T: Serve> Drop for Serving<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            let wanted = self.served.unlock(state);
            if self.served.wanted.load(Ordering::SeqCst) != wanted {
                self.served.serve_again(wanted);
            }
        }
    }
}
