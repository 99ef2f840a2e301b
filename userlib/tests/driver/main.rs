// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the crate makes of answers that a real driver hardly ever gives, against a [made-up
//! one](fake).

mod fake;
#[allow(dead_code, missing_docs, unreachable_pub, clippy::all)]
#[path = "../../src/sys/bindings.rs"]
mod sys;

mod forged;
mod locks;
mod lost;
mod windows;
