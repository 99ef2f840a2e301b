// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts instructions one by one in a child, so that the number is the same however busy the
//! machine is.

use std::error::Error;

use nix::libc;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::sys::ptrace;
use nix::sys::signal::{raise, Signal};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult, Pid};

/// How often the measured work is done, and how often once more.
const TIMES: u64 = 4;

/// Runs the child to its end, instruction by instruction.
fn steps(child: Pid) -> Result<u64, Box<dyn Error>> {
    let mut count = 0;
    loop {
        match waitpid(child, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP | Signal::SIGSTOP) => count += 1,
            WaitStatus::Stopped(_, signal) => {
                return Err(format!("the child was sent {signal}").into())
            }
            WaitStatus::Exited(_, 0) => return Ok(count),
            other => return Err(format!("the child ended: {other:?}").into()),
        }
        ptrace::step(child, None)?;
    }
}

fn count<T>(
    times: u64,
    begin: fn() -> Result<T, Box<dyn Error>>,
    once: fn(&T, u64),
) -> Result<u64, Box<dyn Error>> {
    // SAFETY: This process has one thread, so that the child can use whatever it likes.
    match unsafe { fork()? } {
        ForkResult::Child => {
            let run = || -> Result<(), Box<dyn Error>> {
                let on = begin()?;
                ptrace::traceme()?;
                raise(Signal::SIGSTOP)?;
                (0..times).for_each(|number| once(&on, number));
                Ok(())
            };
            let result = run();
            if let Err(error) = &result {
                eprintln!("{error}");
            }
            // SAFETY: Ends the child without what the parent would do at its end.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        ForkResult::Parent { child } => steps(child),
    }
}

/// Instructions that `once` takes, of what `begin` has made, with those of a loop around it.
pub(crate) fn each<T>(
    begin: fn() -> Result<T, Box<dyn Error>>,
    once: fn(&T, u64),
) -> Result<u64, Box<dyn Error>> {
    // Both run on one processor: otherwise each step would wait until another one is awake.
    let mut one = CpuSet::new();
    one.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &one)?;
    let few = count(TIMES, begin, once)?;
    let more = count(2 * TIMES, begin, once)?;
    Ok((more - few).div_ceil(TIMES))
}
