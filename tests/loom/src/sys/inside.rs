// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the current thread, one of loom's, runs a host function.

use std::cell::Cell;

loom::thread_local! {
    static INSIDE: Cell<bool> = Cell::new(false);
}

pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get)
}

pub(crate) fn run<T>(function: impl FnOnce() -> T) -> T {
    INSIDE.with(|inside| inside.set(true));
    let result = function();
    INSIDE.with(|inside| inside.set(false));
    result
}
