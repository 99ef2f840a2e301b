// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that code makes no system call, by running it in a child that is traced.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;
use nix::sys::mman::{mmap_anonymous, MapFlags, ProtFlags};
use nix::sys::ptrace;
use nix::sys::signal::{raise, Signal};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, getppid, ForkResult, Pid};

use crate::harness::Outcome;

/// Phase in which system calls are not counted.
const OTHER: u32 = 0;
/// Phase with one system call, which must be seen.
const CALL: u32 = 1;
/// Phase in which there must be no system call.
const QUIET: u32 = 2;

/// The phase of the child, in memory that parent and child share.
pub(crate) struct Phase(&'static AtomicU32);

impl Phase {
    fn shared() -> Result<Self, Box<dyn std::error::Error>> {
        let len = NonZeroUsize::MIN.saturating_add(4095);
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping, where there is none.
        let start = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_SHARED)? };
        // SAFETY: Zeroed, aligned, and never unmapped.
        Ok(Self(unsafe { start.cast::<AtomicU32>().as_ref() }))
    }

    /// Lets the child be traced from here on; called once, before [`quiet`](Self::quiet).
    pub(crate) fn begin(&self) -> Outcome {
        ptrace::traceme()?;
        raise(Signal::SIGSTOP)?;
        self.0.store(CALL, Ordering::SeqCst);
        let _ = getppid();
        self.0.store(OTHER, Ordering::SeqCst);
        Ok(())
    }

    /// Enters or leaves the phase in which there must be no system call.
    pub(crate) fn quiet(&self, quiet: bool) {
        self.0
            .store(if quiet { QUIET } else { OTHER }, Ordering::SeqCst);
    }
}

/// Runs the child to its end; returns how often a system call began or ended in each phase.
fn trace(child: Pid, phase: &Phase) -> Result<[u32; 3], Box<dyn std::error::Error>> {
    let mut calls = [0; 3];
    loop {
        match waitpid(child, None)? {
            WaitStatus::PtraceSyscall(_) => {
                // The child stands still, so this is its phase.
                calls[phase.0.load(Ordering::SeqCst) as usize] += 1;
                ptrace::syscall(child, None)?;
            }
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                ptrace::setoptions(child, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
                ptrace::syscall(child, None)?;
            }
            WaitStatus::Stopped(_, signal) => ptrace::syscall(child, signal)?,
            WaitStatus::Exited(_, 0) => return Ok(calls),
            other => return Err(format!("the child ended: {other:?}").into()),
        }
    }
}

/// Runs `traced` in a child, and checks that it makes no system call while it is to be quiet.
pub(crate) fn check(traced: fn(&Phase) -> Outcome) -> Outcome {
    let phase = Phase::shared()?;
    // SAFETY: This process has one thread, so that the child can use whatever it likes.
    match unsafe { fork()? } {
        ForkResult::Child => {
            let result = traced(&phase);
            if let Err(error) = &result {
                eprintln!("{error}");
            }
            // SAFETY: Ends the child without what the parent would do at its end.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        ForkResult::Parent { child } => {
            let calls = trace(child, &phase)?;
            let [_, one, none] = calls;
            assert_eq!(
                one, 2,
                "the beginning and the end of one system call: {calls:?}"
            );
            assert_eq!(none, 0, "system calls while there must be none: {calls:?}");
            Ok(())
        }
    }
}
