// SPDX-License-Identifier: GPL-2.0
//! Memory of processes and of the system: pinned, watched, mirrored, moved, and mapped by the CPU.

#[cfg(pinmap_mirror)]
pub(crate) mod areas;
#[cfg(pinmap_mirror)]
pub(crate) mod bounce;
pub(crate) mod cache;
#[cfg(pinmap_mirror)]
pub(crate) mod device_private;
pub(crate) mod folios;
pub(crate) mod gup;
#[cfg(pinmap_mirror)]
pub(crate) mod hmm;
pub(crate) mod memfd;
#[cfg(pinmap_mirror)]
pub(crate) mod migrate;
#[cfg(pinmap_mirror)]
pub(crate) mod mirror;
pub(crate) mod mmu_notifier;
#[cfg(pinmap_mirror)]
pub(crate) mod new_page;
pub(crate) mod pages;
pub(crate) mod presence;
#[cfg(not(pinmap_flat))]
pub(crate) mod reclaim;
#[cfg(not(pinmap_flat))]
pub(crate) mod shmem;
pub(crate) mod vma;
pub(crate) mod watch;
