// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal while samples replace each other: keys come at once, and are not shown.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::termios::{tcgetattr, tcsetattr, LocalFlags, SetArg, Termios};

/// Keys that end the command: q, and Ctrl-C, which comes as a key.
const END: [u8; 3] = [b'q', b'Q', 3];

/// The terminal, which is as before when this is dropped.
pub(super) struct Screen {
    /// `None` if keys do not come from a terminal.
    before: Option<Termios>,
}

impl Screen {
    pub(super) fn new() -> io::Result<Self> {
        let Ok(before) = tcgetattr(io::stdin()) else {
            return Ok(Self { before: None });
        };
        let mut now = before.clone();
        now.local_flags
            .remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &now)?;
        let before = Some(before);
        Ok(Self { before })
    }

    /// Waits for a key that ends the command. Returns false if the time was up first.
    pub(super) fn wait_for_end(&self, time: Duration) -> io::Result<bool> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.before.is_none() {
                std::thread::sleep(left);
                return Ok(false);
            }
            let stdin = io::stdin();
            let mut files = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            let millis = left.as_millis().min(u128::from(u16::MAX)) as u16;
            if poll(&mut files, PollTimeout::from(millis))? != 0 {
                let mut key = [0];
                // The end of input ends the command, too.
                if stdin.lock().read(&mut key)? == 0 || END.contains(&key[0]) {
                    return Ok(true);
                }
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If this fails, the terminal is gone.
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, before);
        }
    }
}

/// Clears the terminal, and goes to its first line. What removes colours would remove this, too.
pub(super) fn clear() -> io::Result<()> {
    io::stdout().write_all(b"\x1b[H\x1b[J")
}
