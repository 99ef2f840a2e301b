// SPDX-License-Identifier: GPL-2.0
//! The kernel's C interfaces that the `kernel` crate does not wrap yet.
//!
//! This is the only place of the driver with `bindings`, `extern "C"` and `unsafe`. Each file puts
//! safe types on one C interface, as it would go upstream, and names no type of the driver. The C
//! functions that `NAME.rs` needs are in `helpers/NAME.c`.

pub(crate) mod account;
pub(crate) mod attributes;
#[cfg(pinmap_mirror)]
pub(crate) mod bounce;
pub(crate) mod cache;
#[cfg(pinmap_mirror)]
pub(crate) mod cgroup;
#[cfg(not(pinmap_flat))]
pub(crate) mod clock;
pub(crate) mod debugfs;
#[cfg(pinmap_mirror)]
pub(crate) mod device_private;
pub(crate) mod dmabuf;
pub(crate) mod eventfd;
pub(crate) mod folios;
pub(crate) mod gate;
pub(crate) mod gup;
mod helpers;
#[cfg(pinmap_mirror)]
pub(crate) mod hmm;
pub(crate) mod iommu;
pub(crate) mod irq_eventfd;
#[cfg(not(pinmap_flat))]
pub(crate) mod irq_thread;
#[cfg(not(pinmap_flat))]
pub(crate) mod killable;
pub(crate) mod memfd;
#[cfg(pinmap_mirror)]
pub(crate) mod migrate;
#[cfg(pinmap_mirror)]
pub(crate) mod mirror;
pub(crate) mod miscdevice;
#[cfg(not(pinmap_flat))]
pub(crate) mod mmio;
pub(crate) mod mmu_notifier;
pub(crate) mod pages;
#[cfg(not(pinmap_flat))]
pub(crate) mod passage;
pub(crate) mod pci;
pub(crate) mod presence;
pub(crate) mod process;
#[cfg(not(pinmap_flat))]
pub(crate) mod reclaim;
#[cfg(pinmap_mirror)]
pub(crate) mod sort;
pub(crate) mod task;
#[cfg(not(pinmap_flat))]
pub(crate) mod thread;
pub(crate) mod trace;
pub(crate) mod uapi;
pub(crate) mod user;
pub(crate) mod vma;
pub(crate) mod wait;
pub(crate) mod watch;
pub(crate) mod work;
