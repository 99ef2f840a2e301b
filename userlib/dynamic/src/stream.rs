// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: what work is in flight, and which memory it names.

use std::array;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use nix::errno::Errno;
use pinmap::stream::{in_host_function, Pending, Work};
use pinmap::{Accelerator, DeviceSlice, DeviceSliceMut, ErrorKind, StreamOptions};

use crate::error::{Error, Result};
use crate::memory::{Memory, Whole};

/// The memory that a piece of work names.
type Named = Vec<Arc<Memory>>;

/// A piece of work, and the addresses of the memory that it names.
type Piece = (Vec<*const Memory>, Arc<Awaited>);

/// A piece of work for which one thread waits, and all others that need it wait for that thread:
/// the lock is held meanwhile. Nothing is left when it is done.
struct Awaited(Mutex<Option<Pending<Named>>>);

impl Awaited {
    fn is_done(&self) -> bool {
        match self.0.try_lock() {
            Ok(pending) => pending.as_ref().is_none_or(Pending::is_done),
            Err(TryLockError::Poisoned(pending)) => {
                pending.get_ref().as_ref().is_none_or(Pending::is_done)
            }
            Err(TryLockError::WouldBlock) => false,
        }
    }

    fn wait(&self) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pending) = pending.take() {
            // After a failure the stream does nothing with the memory any more.
            let _ = pending.wait();
        }
    }
}

/// The work of a stream that is not known to be done. It is locked while work is submitted, so that
/// who waits for it does not miss any.
pub(crate) struct Flight {
    pending: Mutex<VecDeque<Piece>>,
}

// SAFETY: The addresses are compared, and nothing is done with what they are of.
unsafe impl Send for Flight {}
// SAFETY: As above.
unsafe impl Sync for Flight {}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Piece>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last piece of work that names the memory.
    fn last(&self, memory: &Arc<Memory>) -> Option<Arc<Awaited>> {
        let memory = Arc::as_ptr(memory);
        let pending = self.lock();
        let mut names = pending.iter().rev();
        let (_, last) = names.find(|(names, _)| names.contains(&memory))?;
        Some(Arc::clone(last))
    }

    /// Whether work that is not done names the memory.
    pub(crate) fn is_using(&self, memory: &Arc<Memory>) -> bool {
        self.last(memory).is_some_and(|last| !last.is_done())
    }

    /// Waits until no work names the memory any more, because it is done or has failed. The work
    /// stays in the list meanwhile, for others that wait for some of it.
    pub(crate) fn wait_for(&self, memory: &Arc<Memory>) {
        while let Some(last) = self.last(memory) {
            last.wait();
            let mut pending = self.lock();
            let index = pending.iter().position(|(_, one)| Arc::ptr_eq(one, &last));
            // What comes before the last one is done when that is.
            let until = index.map_or(0, |index| index + 1);
            let done = pending.drain(..until).collect::<Vec<_>>();
            drop(pending);
            drop(done);
        }
    }

    /// Forgets all work: it is done, or will never be.
    fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }
}

/// Memory that work names, for as long as the work takes.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'w> {
    memory: &'w Memory,
}

impl<'w> Operand<'w> {
    /// A part that the work reads.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory has no such bytes; `EOPNOTSUPP`: it is a file; `ESTALE`: it is
    /// released.
    pub fn part(self, offset: usize, len: usize) -> Result<DeviceSlice<'w, u8>> {
        self.memory.check(offset, len)?;
        self.memory.with(|held| {
            let whole = match &held.whole {
                Whole::Read(slice) => *slice,
                Whole::Write(slice) => slice.as_slice(),
                Whole::None => return Err(no_operand()),
            };
            Ok(whole.part(offset..offset + len)?)
        })
    }

    /// A part that the work writes.
    ///
    /// # Errors
    ///
    /// As for [`part`](Self::part); `EACCES`: the device may only read the memory.
    pub fn part_mut(self, offset: usize, len: usize) -> Result<DeviceSliceMut<'w, u8>> {
        self.memory.check(offset, len)?;
        self.memory.with(|held| match &mut held.whole {
            Whole::Write(slice) => Ok(slice.part(offset..offset + len)?),
            Whole::Read(_) => {
                let (errno, kind) = (Errno::EACCES, ErrorKind::PermissionDenied);
                let text = "the device may only read this memory";
                Err(Error::new(errno, kind, text))
            }
            Whole::None => Err(no_operand()),
        })
    }
}

fn no_operand() -> Error {
    let text = "memory of a file has no address here that a stream could name";
    Error::new(Errno::EOPNOTSUPP, ErrorKind::Unsupported, text)
        .with_hint("map the file with mmap(), and register that")
}

/// The refusal of what a host function must not do.
pub(crate) fn in_the_way(what: &str) -> Error {
    let text = format!("cannot {what}: this is a host function, for which a stream waits");
    Error::new(
        Errno::EDEADLK,
        ErrorKind::Deadlock,
        format!("{text} (EDEADLK)"),
    )
}

/// A stream that knows which memory its work names.
pub struct Stream {
    stream: pinmap::Stream,
    flight: Arc<Flight>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.stream).finish()
    }
}

impl Deref for Stream {
    type Target = pinmap::Stream;

    fn deref(&self) -> &pinmap::Stream {
        &self.stream
    }
}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    ///
    /// As for [`Accelerator::stream`].
    pub fn new(accelerator: &Accelerator, options: StreamOptions) -> Result<Self> {
        let stream = accelerator.stream(options)?;
        let pending = Mutex::default();
        let flight = Arc::new(Flight { pending });
        Ok(Self { stream, flight })
    }

    /// Submits work that names this memory, which stays until the work is done.
    ///
    /// # Errors
    ///
    /// As for [`pinmap::Stream::submit`], and those of the function.
    pub fn submit<const N: usize>(
        &self,
        memory: [&Arc<Memory>; N],
        work: impl for<'w> FnOnce(&Work<'w>, [Operand<'w>; N]) -> Result<()>,
    ) -> Result<()> {
        // Before locking: a thread that holds the lock may wait for this host function.
        if in_host_function() {
            return Err(in_the_way("submit work"));
        }
        // Dropped after the lock: that may call what the program has kept with its memory.
        let mut done = Vec::new();
        let mut pending = self.flight.lock();
        let count = pending.iter().take_while(|(_, first)| first.is_done());
        let count = count.count();
        done.extend(pending.drain(..count));
        for memory in memory {
            memory.used_by(&self.flight);
        }
        let names = memory.iter().copied().map(Arc::as_ptr).collect();
        // An error of this crate, which the other one's functions have no room for.
        let mut failure = None;
        let named = memory.map(Arc::clone).to_vec();
        let submitted = self.stream.submit(named, |scope, named| {
            let named: &Named = named;
            let operands = array::from_fn(|index| Operand {
                memory: &named[index],
            });
            failure = work(scope, operands).err();
            Ok(())
        });
        let awaited = Awaited(Mutex::new(Some(submitted?)));
        pending.push_back((names, Arc::new(awaited)));
        failure.map_or(Ok(()), Err)
    }

    /// Gives up what a stream that has failed has not done, and has it work again.
    ///
    /// # Errors
    ///
    /// As for [`pinmap::Stream::reset`].
    pub fn reset(&self) -> Result<()> {
        self.stream.reset()?;
        self.flight.clear();
        Ok(())
    }

    /// Waits until everything is done that was submitted, and forgets it.
    ///
    /// # Errors
    ///
    /// As for [`pinmap::Stream::synchronize`].
    pub fn finish(&self) -> Result<()> {
        let done = self.stream.synchronize();
        self.flight.clear();
        Ok(done?)
    }
}
