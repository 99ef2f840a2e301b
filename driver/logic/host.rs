// SPDX-License-Identifier: GPL-2.0
//! Root of the driver's pure logic on the host, for `cargo test`. The kernel module includes
//! `mod.rs` instead.
#![cfg_attr(not(test), no_std)]

/// The constants of the ABI, which the module has from `driver/sys/uapi.rs`.
#[path = "../../userlib/src/sys/bindings.rs"]
mod uapi;

mod sys {
    pub(crate) use super::uapi;
}

#[path = "mod.rs"]
mod logic;
pub use logic::*;
