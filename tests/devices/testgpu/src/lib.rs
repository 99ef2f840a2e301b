// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test GPU: a PCI accelerator with an MMU, for virtual machines. `MANUAL.md` is its manual.
//!
//! * [`device`] is the whole device: [`registers`], the [`state`] behind them, threads for the
//!   [`engine`]s and for [`control`].
//! * [`port`] gives an engine access to memory: through the [`mmu`], which uses [`tlb`] and
//!   [`pagetable`], and over a [`link`] at the pace of [`pacer`].
//! * [`paging`] is the engine that copies for the driver, without the MMU.
//! * [`packet`] and [`kernel`] decode packets, and [`compute`] executes them.
//! * [`program`] executes programs of RISC-V instructions.
//!
//! The crate `vfio-user-device` presents it to QEMU, as a PCI function.

#![deny(unsafe_code)]

pub mod compute;
pub mod control;
pub mod counter;
pub mod crc;
pub mod device;
pub mod engine;
pub mod fault;
mod function;
pub mod hardware;
pub mod interrupt;
pub mod invalidate;
pub mod kernel;
pub mod link;
pub mod mmu;
pub mod options;
pub mod pacer;
pub mod packet;
pub mod pagetable;
pub mod paging;
pub mod port;
pub mod posted;
pub mod program;
pub mod registers;
pub mod regs;
pub mod slot;
pub mod state;
mod sys;
pub mod tlb;
pub mod trouble;
