// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics, locks, threads and the clock, for code that `tests/loom` runs with models of them.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{fence, AtomicBool, AtomicU64};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;
pub(crate) use std::time::Instant;

/// How often a wait reads a fence before it makes a system call: about ten microseconds.
pub(crate) const SPINS: u32 = 500;
