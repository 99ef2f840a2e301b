// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches of kernels that are compiled, whose arguments are known when the program runs.

use std::mem;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinmap::accelerator::{DeviceSlice, DeviceSliceMut};
use pinmap::ErrorKind;
use pinmap_testgpu::program::{Arguments, Grid, Launcher, Program, ProgramError, Trap};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::stream::{Stream, Submitted};

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    /// An integer, as it is in a register: all but unsigned ones of 4 bytes.
    Integer(u64),
    /// An unsigned integer of 4 bytes.
    U32(u32),
    /// A float of 4 bytes.
    F32(f32),
    /// A float of 8 bytes.
    F64(f64),
    /// So many bytes of what the threads of a block share.
    Local(usize),
    /// A part of the next operand that the kernel reads: offset and length in bytes.
    Read(usize, usize),
    /// A part of the next operand that the kernel reads and writes.
    Write(usize, usize),
}

impl Argument {
    /// How many bytes of shared memory all these arguments need.
    pub fn local_bytes(arguments: &[Self]) -> usize {
        let each = arguments.iter().map(|argument| match argument {
            Self::Local(bytes) => bytes.saturating_add(15) & !15,
            _ => 0,
        });
        each.fold(0, usize::saturating_add)
    }
}

enum Pointer<'w> {
    Read(DeviceSlice<'w, u8>),
    Write(DeviceSliceMut<'w, u8>),
}

/// A launcher that comes back when its launch is done.
struct Returned {
    launcher: Option<Launcher>,
    to: Sender<Launcher>,
}

impl Drop for Returned {
    fn drop(&mut self) {
        if let Some(launcher) = self.launcher.take() {
            // Whoever waits for it may have gone.
            let _ = self.to.send(launcher);
        }
    }
}

/// A launch for which nobody has waited.
struct Launched {
    submitted: Submitted,
    launcher: Receiver<Launcher>,
}

impl Launched {
    /// Returns what the threads printed, and where the kernel stopped, if it did. The stream has
    /// nothing to do, or has failed.
    fn end(self) -> (Vec<u8>, Option<Trap>) {
        // If the device does not confirm the end, the launcher does not come.
        let ended = self.submitted.end();
        let Some(mut launcher) = ended.ok().and_then(|()| self.launcher.recv().ok()) else {
            return (Vec::new(), None);
        };
        let messages = launcher.messages();
        let text = messages.into_iter().flat_map(|message| message.text);
        let text = text.collect();
        match launcher.finish(Ok(())) {
            Err(ProgramError::Stopped(_, trap)) => (text, Some(trap)),
            _ => (text, None),
        }
    }
}

/// The launches of a stream for which nobody has waited.
#[derive(Default)]
pub(crate) struct Launches(Mutex<Vec<Launched>>);

/// How many such launches there are at most.
const MOST: usize = 64;

impl Launches {
    fn list(&self) -> MutexGuard<'_, Vec<Launched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    /// Submits a launch of a kernel, whose pointers are parts of `memory`, in this order. The grid
    /// has [`Argument::local_bytes`] of shared memory at least.
    ///
    /// There may be 64 launches that were not [ended](Self::end_launches), and as many as there is
    /// memory for. If there are too many, `end` is called, which ends them.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit) and [`Program::kernel`], and those of `end`.
    ///
    /// # Safety
    ///
    /// As for [`Launcher::launch`].
    pub unsafe fn launch<E: From<Error>>(
        &self,
        program: &Program,
        (kernel, grid): (&str, Grid),
        memory: &[&Arc<Memory>],
        arguments: &[Argument],
        end: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        if self.launches.list().len() >= MOST {
            end()?;
        }
        let make = || program.kernel(kernel, grid).map_err(Error::from);
        let launcher = match make() {
            // Launches that are done give theirs back.
            Err(error) if is_full(&error) && !self.launches.list().is_empty() => {
                end()?;
                make()?
            }
            made => made?,
        };
        let (to, back) = mpsc::channel();
        let launcher = Some(launcher);
        let submitted =
            self.submit_keeping(memory, Returned { launcher, to }, |work, named, kept| {
                // All that are written exist before the first argument does.
                let mut named = named.iter();
                let mut pointers = Vec::new();
                let mut next = || {
                    let operand = named.next();
                    operand.ok_or_else(|| Error::invalid("a pointer has no memory"))
                };
                for argument in arguments {
                    pointers.push(match *argument {
                        Argument::Read(offset, len) => Pointer::Read(next()?.part(offset, len)?),
                        Argument::Write(offset, len) => {
                            Pointer::Write(next()?.part_mut(offset, len)?)
                        }
                        _ => continue,
                    });
                }
                let mut pointers = pointers.iter_mut();
                let all = arguments.iter();
                let all = all.fold(Arguments::new(), |all, argument| match *argument {
                    Argument::Integer(value) => all.value(value),
                    Argument::U32(value) => all.value(value),
                    Argument::F32(value) => all.value(value),
                    Argument::F64(value) => all.value(value),
                    Argument::Local(bytes) => all.shared(bytes),
                    Argument::Read(..) | Argument::Write(..) => match pointers.next() {
                        Some(Pointer::Read(slice)) => all.read(*slice),
                        Some(Pointer::Write(slice)) => all.write(slice),
                        None => all,
                    },
                });
                let Some(launcher) = &mut kept.launcher else {
                    return Ok(());
                };
                // SAFETY: As the caller promises.
                Ok(unsafe { launcher.launch(work, all) }?)
            })?;
        self.launches.list().push(Launched {
            submitted,
            launcher: back,
        });
        Ok(())
    }

    /// Ends all launches, after the stream was waited for with this result: it has done everything,
    /// or failed. Returns what their threads printed, and where a kernel stopped, if one did. If
    /// the wait has ended too early, this does nothing.
    pub fn end_launches(&self, result: &pinmap::Result<()>) -> (Vec<u8>, Option<Trap>) {
        let mut text = Vec::new();
        let mut trap = None;
        let error = result.as_ref().err();
        if error.is_some_and(|error| goes_on(error.kind())) {
            return (text, trap);
        }
        let launched = mem::take(&mut *self.launches.list());
        for launch in launched {
            let (printed, stopped) = launch.end();
            text.extend(printed);
            trap = trap.or(stopped);
        }
        (text, trap)
    }

    /// Forgets all launches: what they printed is lost.
    pub(crate) fn forget_launches(&self) {
        let launched = mem::take(&mut *self.launches.list());
        drop(launched);
    }
}

/// Whether a stream goes on after such an error of waiting for it.
fn goes_on(kind: ErrorKind) -> bool {
    use ErrorKind::{Deadlock, Interrupted, TimedOut};
    matches!(kind, Deadlock | Interrupted | TimedOut)
}

/// Whether there was not enough memory.
fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::NoSpace)
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Pinmap(error) => error.into(),
            other => Self::invalid(other.to_string()),
        }
    }
}
