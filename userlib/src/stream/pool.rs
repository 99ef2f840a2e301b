// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools of threads, for jobs of which each may take long.
//!
//! A pool starts a thread when a job finds no idle one, up to a limit, and ends a thread that has
//! had nothing to do for a while. So a job that is held up holds up no other, as long as fewer than
//! the limit are.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use crate::sys::background::block_signals;
use crate::sys::sync::{thread, Condvar, Mutex, MutexGuard};

/// How long an idle thread waits for another job.
const LINGER: Duration = Duration::from_secs(1);

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads.
pub(super) struct Pool {
    jobs: Mutex<Jobs>,
    more: Condvar,
    /// How many threads there are at most.
    limit: usize,
}

struct Jobs {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Pool {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            jobs: Mutex::new(Jobs {
                queue: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            more: Condvar::new(),
            limit,
        }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job, which must not panic, on a thread of the pool. If the system gives the pool not
    /// even one thread, the job runs here.
    pub(super) fn run(&'static self, job: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.try_run(Box::new(job)) {
            // Better here than never.
            job();
        }
    }

    /// Runs a job as [`run`](Self::run) does, but gives it back if there is no thread for it.
    pub(super) fn try_run(&'static self, job: Job) -> Result<(), Job> {
        let mut jobs = self.jobs();
        jobs.queue.push_back(job);
        if jobs.queue.len() > jobs.idle && jobs.threads < self.limit {
            let thread = thread::Builder::new().name("pinmap-host".into());
            match thread.spawn(|| self.work()) {
                Ok(_) => jobs.threads += 1,
                Err(_) if jobs.threads == 0 => {
                    return jobs.queue.pop_back().map_or(Ok(()), Err);
                }
                Err(_) => {}
            }
        }
        drop(jobs);
        self.more.notify_one();
        Ok(())
    }

    /// The loop of a thread.
    fn work(&self) {
        block_signals();
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                drop(jobs);
                job();
                jobs = self.jobs();
                continue;
            }
            jobs.idle += 1;
            let (again, result) = self
                .more
                .wait_timeout(jobs, LINGER)
                .unwrap_or_else(PoisonError::into_inner);
            jobs = again;
            jobs.idle -= 1;
            if result.timed_out() && jobs.queue.is_empty() {
                jobs.threads -= 1;
                return;
            }
        }
    }
}
