// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the device without QEMU: a driver would see what the manual says.

mod atomics;
mod faults;
mod hostile;
mod mmu;
mod packets;
mod paging;
mod queues;
mod registers;
mod resets;
mod rig;
mod trouble;
