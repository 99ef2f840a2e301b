// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of what threads of the crate pinmap, its driver and a device do to each other. loom runs
//! each model in every order of its steps, up to a number of preemptions.
//!
//! The driver's counts of changes are those of `driver/logic`, with loom's atomics ([`changes`]).
//!
//! The files of the crate that decide about order are here as they are, by their paths. What they
//! import from `crate::sys::sync` are loom's atomics, locks and threads. Other things below them
//! are replaced: the driver, eventfds and `poll` by [`kernel`], and mapped memory by words of
//! loom's.
//!
//! No wait ever ends because of time. So a wake-up that is lost is a deadlock, which loom finds,
//! even where the crate would look again after a while.

// Only a part of what the files have is used.
// Nor is what is public there public here, which some lints of theirs are about.
#![allow(dead_code, unused_imports, unfulfilled_lint_expectations)]

// The files import eventfds and `poll` from the crate nix.
extern crate self as nix;

pub mod changes;
mod device;
#[path = "../../../userlib/src/error/mod.rs"]
mod error;
mod kernel;
mod memory;
mod queue;
mod stream;
mod sys;
mod trace;

pub mod poll;
pub use real_nix::{errno, libc};

pub(crate) use memory::options::Access;

pub use memory::models as rings;
pub use queue::models as queues;
pub use stream::models as streams;
pub use sys::models as watches;
