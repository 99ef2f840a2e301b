// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tools for tests of a device: a bus that is a piece of [`Memory`], and a [`Client`] that speaks
//! with the server in QEMU's place.

mod client;
mod memory;

pub use client::Client;
pub use memory::Memory;

use std::time::{Duration, Instant};

/// How long a test waits for what must happen.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until a condition is true, which must happen.
///
/// # Panics
///
/// After twenty seconds in which it did not.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what} does not happen");
        std::thread::sleep(Duration::from_micros(50));
    }
}
