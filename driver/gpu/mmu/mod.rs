// SPDX-License-Identifier: GPL-2.0
//! The device's MMU.
//!
//! * `vm.rs`: a context's address space; `tables.rs`: its page tables; `leaves.rs`: entries of
//!   managed memory in them
//! * `tlb.rs`: making the device forget
//! * `pager.rs`: what serves faults on managed memory

#[cfg(pinmap_mirror)]
pub(crate) mod leaves;
pub(crate) mod pager;
mod tables;
pub(in crate::gpu) mod tlb;
pub(crate) mod vm;
