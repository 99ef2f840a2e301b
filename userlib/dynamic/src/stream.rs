// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: work that names memory.

use std::ops::Deref;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::{array, fmt, thread};

use nix::errno::Errno;
use pinmap::accelerator::{launch_blocking, Accelerator, DeviceSlice, DeviceSliceMut};
use pinmap::accelerator::{StreamOptions, Work};
use pinmap::{Access, ErrorKind};

use crate::error::{Error, Result};
use crate::memory::{Memory, Shared, Whole};
use crate::piece::Piece;
use crate::program::Launches;

/// Memory that work names, for as long as the work takes.
#[derive(Clone, Copy)]
pub struct Operand<'w> {
    memory: &'w Shared,
}

impl fmt::Debug for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operand({} bytes)", self.memory.len)
    }
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
    let text = "a file, or all managed memory, has no address here that a stream could name";
    Error::new(Errno::EOPNOTSUPP, ErrorKind::Unsupported, text)
        .with_hint("map the file with mmap(), and register that; name a part of the memory")
}

fn lend(work: &Work<'_>, named: &[Arc<Shared>]) -> pinmap::Result<()> {
    named.iter().try_for_each(|memory| memory.lend(work))
}

/// Holds what a function that submits work returned, unless it panicked.
type Outcome = thread::Result<Result<()>>;

/// Work that was submitted.
pub struct Submitted(Arc<Piece>);

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Submitted")
    }
}

impl Submitted {
    /// Waits until the work has ended: it is done, or the device will never do it. What was kept
    /// for it is then dropped.
    ///
    /// # Errors
    ///
    /// The device does not confirm it.
    pub fn end(&self) -> Result<()> {
        self.0.end()
    }
}

/// A stream whose work names [`Memory`].
///
/// Dropping it returns at once. Work that was submitted is still done, and the memory that the work
/// names can be released after that.
pub struct Stream {
    stream: pinmap::accelerator::Stream,
    pub(crate) launches: Launches,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

impl Deref for Stream {
    type Target = pinmap::accelerator::Stream;

    fn deref(&self) -> &pinmap::accelerator::Stream {
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
        // Work is waited for where it was submitted: in the program, not in this library.
        Ok(Self {
            stream: accelerator.stream(options.blocking(false))?,
            launches: Launches::default(),
        })
    }

    /// Submits work that names this memory, which stays until the work is done. Waits for it if
    /// that is [wanted](launch_blocking).
    ///
    /// # Errors
    ///
    /// As for [`pinmap::accelerator::Stream::submit`], and those of the function.
    pub fn submit<const N: usize>(
        &self,
        memory: [&Arc<Memory>; N],
        work: impl for<'w> FnOnce(&Work<'w>, [Operand<'w>; N]) -> Result<()>,
    ) -> Result<()> {
        let named = memory.map(|memory| Arc::clone(memory.shared()));
        self.submit_piece(&memory, named, |scope, named| {
            let named: &[Arc<Shared>; N] = named;
            lend(scope, named)?;
            let operands = array::from_fn(|index| Operand {
                memory: &named[index],
            });
            // Neither an error of this crate nor a panic must lose what was submitted before it.
            Ok(catch_unwind(AssertUnwindSafe(|| work(scope, operands))))
        })?;
        match launch_blocking() {
            true => self.finish(),
            false => Ok(()),
        }
    }

    /// Submits work that names any number of operands, and keeps a value until it is done. Does
    /// not wait for it.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit).
    pub fn submit_keeping<K: Send + 'static>(
        &self,
        memory: &[&Arc<Memory>],
        kept: K,
        work: impl for<'w> FnOnce(&Work<'w>, &[Operand<'w>], &'w mut K) -> Result<()>,
    ) -> Result<Submitted> {
        let shared = memory.iter().map(|memory| Arc::clone(memory.shared()));
        let named = (shared.collect::<Vec<_>>(), kept);
        let piece = self.submit_piece(memory, named, |scope, (named, kept)| {
            let named: &[Arc<Shared>] = named;
            lend(scope, named)?;
            let operands = named.iter().map(|memory| Operand { memory });
            let operands: Vec<_> = operands.collect();
            Ok(catch_unwind(AssertUnwindSafe(|| {
                work(scope, &operands, kept)
            })))
        })?;
        Ok(Submitted(piece))
    }

    /// Submits a piece of work. The function lends what it names.
    fn submit_piece<M: Send + 'static>(
        &self,
        memory: &[&Arc<Memory>],
        named: M,
        work: impl for<'w> FnOnce(&Work<'w>, &'w mut M) -> pinmap::Result<Outcome>,
    ) -> Result<Arc<Piece>> {
        let piece = Piece::new();
        // First, so that whoever releases the memory from now on waits for the piece, or the
        // function does not find the memory any more.
        for memory in memory {
            memory.used_by(&piece);
        }
        let mut result = Ok(Ok(()));
        let submitted = self.stream.submit(named, |scope, named| {
            result = work(scope, named)?;
            Ok(())
        });
        match submitted {
            Ok(pending) => piece.submitted(Box::new(pending)),
            Err(error) => {
                piece.refused();
                return Err(error.error.into());
            }
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(piece)
    }

    /// Submits a copy of `len` bytes between memory that pointers name: see [`Memory::pointed`].
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit).
    ///
    /// # Safety
    ///
    /// As for [`Memory::pointed`], until the copy is done.
    pub unsafe fn copy_at(&self, to: *mut u8, from: *const u8, len: usize) -> Result<()> {
        let device = self.device();
        // SAFETY: As the caller promises.
        let (to, from) = unsafe {
            let from = Memory::pointed(device, from.cast_mut(), len, Access::Read)?;
            (Memory::pointed(device, to, len, Access::ReadWrite)?, from)
        };
        self.submit([&to, &from], |work, [to, from]| {
            Ok(work.copy(from.part(0, len)?, to.part_mut(0, len)?)?)
        })
    }

    /// Gives up what a stream that has failed has not done, and has it work again.
    ///
    /// # Errors
    ///
    /// As for [`pinmap::accelerator::Stream::reset`].
    pub fn reset(&self) -> Result<()> {
        self.stream.reset()?;
        // What is launched from now on has errors of its own.
        self.forget_launches();
        Ok(())
    }

    /// Waits until everything is done that was submitted.
    ///
    /// # Errors
    ///
    /// As for [`pinmap::accelerator::Stream::synchronize`].
    pub fn finish(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }
}
