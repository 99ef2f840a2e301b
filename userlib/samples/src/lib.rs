// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that the examples, the command, the tests and the bench of pinmap share: a driver for
//! QEMU's `edu`, a few workloads for paged devices, and ways to observe the kernel.
//!
//! [`edu`] is also a template for a driver of your own.
#![forbid(unsafe_code)]

pub mod edu;
pub mod moving;
pub mod overlap;
pub mod pagemap;
pub mod pins;
pub mod room;
pub mod work;
pub mod zero_copy;
