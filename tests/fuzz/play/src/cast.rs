// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a program that is played, as the server sees them.

use crate::calls::How;
use crate::player::Shared;
use crate::program::{Step, ACTORS};
use crate::sys;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The processes of a program that is played.
pub(crate) struct Cast<'a> {
    /// How long a step may take before the next one begins.
    pub(crate) step: Duration,
    /// The threads that have taken longer.
    pub(crate) late: [bool; ACTORS],
    pub(crate) shared: &'a Shared,
    pub(crate) first: libc::pid_t,
    /// Which of the two processes have ended.
    pub(crate) dead: [bool; 2],
    /// All processes that have ended.
    pub(crate) ended: Vec<libc::pid_t>,
    /// Whether no process is left.
    pub(crate) empty: bool,
}

impl Cast<'_> {
    pub(crate) fn is_idle(&self, actor: usize) -> bool {
        let post = self.shared.post[actor].load(Ordering::SeqCst);
        post == self.shared.done[actor].load(Ordering::SeqCst) || self.dead[actor / 2]
    }

    /// Hands steps in a row to their thread.
    pub(crate) fn steps(&mut self, index: usize, steps: &[Step]) {
        let actor = steps[0].actor;
        let absent = actor >= 2 && self.shared.second.load(Ordering::SeqCst) == 0;
        // One that did not end in time is not waited for again.
        let absent = absent || (self.late[actor] && !self.is_idle(actor));
        if absent || !self.wait(self.step, |cast| cast.is_idle(actor)) || self.dead[actor / 2] {
            return;
        }
        self.shared.first[actor].store(index as u32, Ordering::SeqCst);
        sys::advance(&self.shared.post[actor], (index + steps.len()) as u32);
        if !steps[steps.len() - 1].nowait {
            let time = self.step + self.step / 4 * (steps.len() as u32 - 1);
            self.late[actor] = !self.wait(time, |cast| cast.is_idle(actor));
        }
    }

    /// Waits until something is so; tells whether it is.
    pub(crate) fn wait(&mut self, most: Duration, is: impl Fn(&Self) -> bool) -> bool {
        let begun = Instant::now();
        loop {
            let seen = self.shared.ended.load(Ordering::SeqCst);
            if is(self) {
                return true;
            }
            if self.empty || begun.elapsed() > most {
                return false;
            }
            sys::wait(&self.shared.ended, seen, Duration::from_millis(5));
            while self.reap().is_some() {}
        }
    }

    /// Takes note of a process that has ended.
    pub(crate) fn reap(&mut self) -> Option<libc::pid_t> {
        // SAFETY: No status is wanted.
        let process = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        match process {
            0 => None,
            -1 => {
                self.empty = true;
                None
            }
            _ => {
                self.dead[0] |= process == self.first;
                self.dead[1] |= process == self.second();
                self.ended.push(process);
                Some(process)
            }
        }
    }

    fn second(&self) -> libc::pid_t {
        self.shared.threads[2].load(Ordering::SeqCst) as libc::pid_t
    }

    pub(crate) fn kill(&self, process: usize) {
        if !self.dead[process] {
            kill([self.first, self.second()][process], libc::SIGKILL);
        }
    }
}

/// How many steps a thread can make without an order between them: up to one that belongs to
/// somebody else, and at most one that the next does not wait for, at the end.
pub(crate) fn in_a_row(steps: &[Step]) -> usize {
    let actor = steps[0].actor;
    let others = |step: &Step| step.actor != actor || matches!(step.what().how, How::World(_));
    let end = steps.iter().position(others).unwrap_or(steps.len());
    let nowait = steps[..end].iter().position(|step| step.nowait);
    nowait.map_or(end, |last| last + 1)
}

pub(crate) fn kill(process: libc::pid_t, signal: i32) {
    if process > 1 {
        // SAFETY: The call has no pointers. The process or thread is the program's.
        unsafe { libc::syscall(libc::SYS_tkill, process, signal) };
    }
}
