// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device without QEMU: what a driver would see, and whether it is what the manual says.

mod faults;
mod hostile;
mod mmu;
mod packets;
mod queues;
mod registers;
mod resets;
mod rig;
mod trouble;
