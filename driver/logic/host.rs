// SPDX-License-Identifier: GPL-2.0
//! Root of the driver's pure logic on the host, for `cargo test`. The kernel module includes
//! `mod.rs` instead.
#![cfg_attr(not(test), no_std)]

/// The constants of the ABI, which the module has from `driver/uapi.rs`.
#[path = "../../userlib/src/sys/bindings.rs"]
mod uapi;

#[path = "mod.rs"]
mod logic;
pub use logic::*;

#[cfg(any(test, target_family = "wasm"))]
mod claims;
