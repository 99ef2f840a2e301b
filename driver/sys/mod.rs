// SPDX-License-Identifier: GPL-2.0
//! The kernel's C interfaces that the `kernel` crate does not wrap yet.
//!
//! The only place of the driver with `bindings`, `extern "C"` and `unsafe`. Each file is one C
//! interface behind safe types, as it would go upstream; nothing here knows what pinmap is for.

pub(crate) mod account;
pub(crate) mod compat;
pub(crate) mod eventfd;
pub(crate) mod gup;
pub(crate) mod iommu;
pub(crate) mod irq;
pub(crate) mod misc;
pub(crate) mod notifier;
pub(crate) mod pci;
mod raw;
pub(crate) mod uapi;
pub(crate) mod vma;
pub(crate) mod work;
