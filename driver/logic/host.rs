// SPDX-License-Identifier: GPL-2.0
//! Host root of the driver's pure logic, for `cargo test`. The kernel module includes `mod.rs` instead.
#![cfg_attr(not(test), no_std)]

#[path = "mod.rs"]
mod logic;
pub use logic::*;
