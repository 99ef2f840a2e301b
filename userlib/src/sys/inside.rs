// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the current thread runs a host function.
//!
//! A stream waits for its host functions. A host function that waited for a stream could wait for
//! itself; so inside a host function every call that may wait, or that asks the driver, fails with
//! `EDEADLK`. The mark is kept for each thread. [`ioctl`](super::ioctl) looks at it before each
//! call; what waits without an ioctl asks
//! [`check_outside`](crate::error::check_outside).

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the current thread runs a host function.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs a function with the thread marked as being inside a host function. The function must not
/// panic, or the mark stays.
pub(crate) fn run<T>(function: impl FnOnce() -> T) -> T {
    INSIDE.set(true);
    let result = function();
    INSIDE.set(false);
    result
}
