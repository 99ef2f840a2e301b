// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that do something for the whole process, each started when it is needed first.

use std::sync::mpsc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

/// A thread, and the state that it shares with those who give it work.
pub(crate) struct Background<T> {
    state: OnceLock<T>,
    starting: Mutex<()>,
}

impl<T: Sync> Background<T> {
    pub(crate) const fn new() -> Self {
        Self {
            state: OnceLock::new(),
            starting: Mutex::new(()),
        }
    }

    /// The state. The first call makes it, with an eventfd that tells the thread of work, and
    /// starts the thread, which runs `run` and never ends.
    pub(crate) fn get(
        &'static self,
        name: &str,
        make: impl FnOnce(EventFd) -> T,
        run: impl FnOnce(&'static T) + Send + 'static,
    ) -> Result<&'static T, Errno> {
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        let _one_at_a_time = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_flags(flags)?;
        // The thread must exist before the state does, so it receives the state later.
        let (sender, receiver) = mpsc::channel();
        thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                block_signals();
                if let Ok(state) = receiver.recv() {
                    run(state);
                }
            })
            .map_err(|error| error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw))?;
        let state = self.state.get_or_init(|| make(eventfd));
        // The thread is waiting for this.
        let _ = sender.send(state);
        Ok(state)
    }
}

/// Leaves signals to the program's own threads.
pub(crate) fn block_signals() {
    // With these arguments it does not fail.
    let _ = SigSet::all().thread_block();
}
