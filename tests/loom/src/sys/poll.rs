// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling files. The time is never up.

use std::time::Duration;

use crate::kernel::kernel;
use crate::nix::errno::Errno;
use crate::poll::PollFd;

pub(crate) fn wait(files: &mut [PollFd<'_>], _timeout: Option<Duration>) -> Result<bool, Errno> {
    kernel().poll(files);
    Ok(true)
}
