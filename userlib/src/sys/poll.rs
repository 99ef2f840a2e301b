// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling files, with a deadline.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollTimeout};

/// Waits until at least one of the files is ready. Returns false if the time was up first.
pub(crate) fn wait(files: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno> {
    // A deadline too far away to be represented is none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let (timeout, last) = match deadline {
            None => (PollTimeout::NONE, false),
            Some(deadline) => step(deadline.saturating_duration_since(Instant::now())),
        };
        match poll(files, timeout) {
            Ok(0) if last => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// How long to poll next when `left` is left, in whole milliseconds, and whether that is all.
fn step(left: Duration) -> (PollTimeout, bool) {
    // Rounded up, so as not to return early.
    let millis = left.as_nanos().div_ceil(1_000_000);
    match PollTimeout::try_from(millis) {
        Ok(timeout) => (timeout, true),
        Err(_) => (PollTimeout::MAX, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::PollFlags;
    use nix::sys::eventfd::EventFd;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_there_is_found_at_once() {
        let eventfd = EventFd::from_value(1).expect("an eventfd");
        let mut files = [PollFd::new(eventfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(wait(&mut files, None), Ok(true));
        assert_eq!(wait(&mut files, Some(Duration::ZERO)), Ok(true));
    }

    #[test]
    fn the_time_is_kept() {
        let eventfd = EventFd::new().expect("an eventfd");
        let mut files = [PollFd::new(eventfd.as_fd(), PollFlags::POLLIN)];
        let before = Instant::now();
        let timeout = Duration::from_micros(20_500);
        assert_eq!(wait(&mut files, Some(timeout)), Ok(false));
        assert!(before.elapsed() >= timeout);
    }

    #[test]
    fn long_times_are_waited_in_steps() {
        assert_eq!(step(Duration::ZERO), (PollTimeout::ZERO, true));
        assert_eq!(
            step(Duration::from_nanos(1)),
            (PollTimeout::from(1u8), true)
        );
        assert_eq!(step(Duration::MAX), (PollTimeout::MAX, false));
    }
}
