// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that do something for the whole process: here for one execution of a model.

use std::sync::Mutex;
use std::thread::{self, ThreadId};

use crate::kernel::{kernel, until_over};
use crate::nix::errno::Errno;

use super::eventfd::EventFd;

/// The states of the threads, each for an execution. Models run beside each other, one on each
/// thread of the system.
pub(crate) struct Background<T: 'static>(Mutex<Vec<(ThreadId, u64, &'static T)>>);

impl<T: Sync> Background<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn get(
        &'static self,
        _name: &str,
        make: impl FnOnce(EventFd) -> T,
        run: impl FnOnce(&'static T) + Send + 'static,
    ) -> Result<&'static T, Errno> {
        let (thread, execution) = (thread::current().id(), kernel().execution);
        let mut states = self.0.lock().expect("no thread panics");
        let mine = |&&(_, of, _): &&(ThreadId, u64, &'static T)| of == execution;
        if let Some((_, _, state)) = states.iter().find(mine) {
            return Ok(state);
        }
        let state: &'static T = Box::leak(Box::new(make(EventFd::new()?)));
        states.retain(|&(of, _, _)| of != thread);
        states.push((thread, execution, state));
        // Before another one of loom's threads can run.
        drop(states);
        loom::thread::spawn(move || until_over(|| run(state)));
        Ok(state)
    }
}

pub(crate) fn block_signals() {}
