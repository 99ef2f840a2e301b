// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pools of the waiter: each job is a thread. The crate's own pool has a model for itself.

use super::crate_pool::Job;

pub(super) struct Pool;

impl Pool {
    pub(super) const fn new(_limit: usize) -> Self {
        Self
    }

    pub(super) fn run(&'static self, job: impl FnOnce() + Send + 'static) {
        loom::thread::spawn(job);
    }

    pub(super) fn try_run(&'static self, job: Job) -> Result<(), Job> {
        loom::thread::spawn(job);
        Ok(())
    }
}
