// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that stands for the driver's file. Queues are found by their ids.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use crate::kernel::file;

#[derive(Debug, Clone)]
pub struct Device;

impl Device {
    pub(crate) fn has_lent(&self) -> bool {
        false
    }

    /// Whether DMA snoops the CPU's caches.
    pub(crate) fn is_coherent(&self) -> bool {
        true
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        file(0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device")
    }
}
