// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a `poll`, as nix has them.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub use real_nix::poll::PollFlags;

#[derive(Debug)]
pub struct PollFd<'a> {
    file: BorrowedFd<'a>,
    events: PollFlags,
    ready: bool,
}

impl<'a> PollFd<'a> {
    pub fn new(file: BorrowedFd<'a>, events: PollFlags) -> Self {
        let ready = false;
        Self {
            file,
            events,
            ready,
        }
    }

    pub fn any(&self) -> Option<bool> {
        Some(self.ready)
    }

    pub(crate) fn waits_for(&self) -> Option<RawFd> {
        let reads = self.events.contains(PollFlags::POLLIN);
        reads.then(|| self.file.as_raw_fd())
    }

    pub(crate) fn set_ready(&mut self, ready: bool) {
        self.ready = ready;
    }
}
