// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the tests of drivers in user space: content, registered memory with it, futures, and
//! programs that are killed.

use std::error::Error;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use pinmap::{Access, Buffer, Device, Registration};

/// Makes content that differs from any other.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte = |i: usize| {
        (i as u64 ^ (seed << 32))
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(8) as u8
    };
    (0..len).map(byte).collect()
}

/// Registered memory with some content, and zeroes up to the end of its last page.
pub(crate) fn memory(device: &Device, content: &[u8]) -> Result<Registration, Box<dyn Error>> {
    let buffer = Buffer::from_slice(content)?;
    Ok(buffer.register(device, Access::ReadWrite)?)
}

/// The first bytes of registered memory.
pub(crate) fn content(memory: &Registration, len: usize) -> pinmap::Result<Vec<u8>> {
    let mut content = vec![0; len];
    memory.read_at(0, &mut content)?;
    Ok(content)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future in this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Runs a test as a program of its own, with a variable set, and kills it when it has printed a
/// line. Returns the line.
pub(crate) fn killed(test: &str, variable: &str) -> Result<String, Box<dyn Error>> {
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["--run", test])
        .env(variable, "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let output = victim.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    victim.kill()?;
    victim.wait()?;
    Ok(line)
}
