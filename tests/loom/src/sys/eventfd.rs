// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eventfds, as nix has them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::kernel::kernel;
use crate::nix::errno::Errno;

#[derive(Debug)]
pub struct EventFd(BorrowedFd<'static>);

impl EventFd {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(kernel().eventfd()))
    }

    pub fn write(&self, _count: u64) -> Result<usize, Errno> {
        kernel().signal(self.0.as_raw_fd());
        Ok(8)
    }

    pub fn read(&self) -> Result<u64, Errno> {
        kernel().read(self.0.as_raw_fd())
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}
