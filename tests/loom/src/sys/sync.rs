// SPDX-License-Identifier: MIT OR Apache-2.0
//! loom's atomics, locks and threads, and a clock that stands still.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LockResult, OnceLock, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::fence;
pub(crate) use loom::thread;

use crate::kernel::{kernel, Timer};

pub(crate) const SPINS: u32 = 1;

pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Self {
        Self
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// Atomics of loom's. Of the accesses before a store loom looks at the last one only, also if that
/// is a load by the same thread, and then does not try the store before loads of other threads. So
/// each access comes with a change of a second atomic, which orders nothing else: loom tries all
/// orders of these.
macro_rules! atomics {
    ($($name:ident: $value:ty;)*) => { $(
        #[derive(Debug, Default)]
        pub(crate) struct $name {
            value: loom::sync::atomic::$name,
            turn: loom::sync::atomic::AtomicUsize,
        }

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                let value = loom::sync::atomic::$name::new(value);
                Self { value, turn: Default::default() }
            }

            fn turn(&self) -> &loom::sync::atomic::$name {
                self.turn.fetch_add(1, Ordering::Relaxed);
                &self.value
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.turn().load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.turn().store(value, order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.turn().swap(value, order)
            }

            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.turn().fetch_update(set, fetch, change)
            }
        }
    )* };
}
atomics! {
    AtomicBool: bool;
    AtomicU64: u64;
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.turn().fetch_add(value, order)
    }
}

/// A lock of loom's that can be made in a constant.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    lock: OnceLock<Arc<loom::sync::Mutex<()>>>,
    data: std::sync::Mutex<T>,
}

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Given up before the lock, and taken after it.
    data: Option<std::sync::MutexGuard<'a, T>>,
    locked: Option<loom::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            lock: OnceLock::new(),
            data: std::sync::Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let locked = self.lock.get_or_init(Arc::default).lock();
        Ok(self.guard(locked.unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.lock.get_or_init(Arc::default).try_lock() {
            Ok(locked) => Ok(self.guard(locked)),
            Err(TryLockError::Poisoned(error)) => Ok(self.guard(error.into_inner())),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        }
    }

    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.data.get_mut()
    }

    fn guard<'a>(&'a self, locked: loom::sync::MutexGuard<'a, ()>) -> MutexGuard<'a, T> {
        let mut guard = MutexGuard {
            mutex: self,
            data: None,
            locked: Some(locked),
        };
        guard.take();
        guard
    }
}

impl<T> MutexGuard<'_, T> {
    fn take(&mut self) {
        self.data = Some(match self.mutex.data.try_lock() {
            Ok(data) => data,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => unreachable!("the lock is held"),
        });
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("held")
    }
}

/// A condition of one lock, the waits for which end when the model lets time pass.
#[derive(Default)]
pub(crate) struct Condvar(OnceLock<Arc<Timer>>);

pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    pub(crate) fn notify_one(&self) {
        // Nobody has waited yet otherwise.
        if let Some(timer) = self.0.get() {
            timer.condvar.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if let Some(timer) = self.0.get() {
            timer.condvar.notify_all();
        }
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        _limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let timer = self.0.get_or_init(|| {
            let lock = guard.mutex.lock.get().expect("it is held");
            let timer = Arc::new(Timer {
                lock: Arc::clone(lock),
                ..Timer::default()
            });
            kernel().add_timer(&timer);
            timer
        });
        if !timer.late.load(Ordering::Relaxed) {
            guard.data = None;
            let locked = guard.locked.take().expect("held");
            guard.locked = timer.condvar.wait(locked).ok();
            guard.take();
        }
        let late = timer.late.load(Ordering::Relaxed);
        Ok((guard, WaitTimeoutResult(late)))
    }
}
