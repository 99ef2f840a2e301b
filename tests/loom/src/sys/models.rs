// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watcher of files.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use loom::future::block_on;
use loom::thread;

use crate::kernel::check;
use crate::nix::errno::Errno;

use super::eventfd::EventFd;
use super::watch::{Files, Watched};

struct One(Arc<EventFd>);

impl Files for One {
    fn files(&self) -> [Option<(BorrowedFd<'_>, bool)>; 2] {
        [Some((self.0.as_fd(), true)), None]
    }
}

/// A task that waits for a file goes on each time the file becomes readable.
pub fn a_file_wakes_its_task() {
    check(|| {
        let file = Arc::new(EventFd::new().expect("an eventfd"));
        let signals = Arc::clone(&file);
        let other = thread::spawn(move || {
            let _ = signals.write(1);
            let _ = signals.write(1);
        });
        let mut watched = Watched::default();
        let mut count = 0;
        while count < 2 {
            count += block_on(poll_fn(|context| {
                let ready = || match file.read() {
                    Ok(count) => Ok(Some(count)),
                    Err(Errno::EAGAIN) => Ok(None),
                    Err(errno) => Err(errno),
                };
                watched.poll(
                    context,
                    ready,
                    || Box::new(One(Arc::clone(&file))),
                    |errno| errno,
                )
            }))
            .expect("it is watched");
        }
        other.join().expect("the other thread");
    });
}
