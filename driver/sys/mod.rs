// SPDX-License-Identifier: GPL-2.0
//! The kernel's C interfaces that the `kernel` crate does not wrap yet.
//!
//! This is the only place of the driver with `bindings` and `extern "C"`, and nearly the only one
//! with `unsafe`. Each file puts safe types on one C interface, as it would go upstream, and names
//! no type of the driver. The C functions that `NAME.rs` needs are in `NAME.c` beside it.

pub(crate) mod fs;
mod helpers;
pub(crate) mod iommu;
pub(crate) mod mm;
pub(crate) mod pci;
pub(crate) mod task;
