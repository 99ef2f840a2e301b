// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests against a [made-up driver](fake), for answers that a real driver hardly ever gives.

mod fake;
#[allow(dead_code, missing_docs, unreachable_pub, clippy::all)]
#[path = "../../src/sys/bindings.rs"]
mod sys;

mod forged;
mod formats;
mod in_flight;
mod lent;
mod locks;
mod lost;
mod machine;
mod moving;
mod pages;
mod printed;
mod program;
mod random;
mod reserved;
mod several;
mod synced;
mod windows;
