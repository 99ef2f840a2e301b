// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver for AMD's DMA/Bridge Subsystem for PCI Express (XDMA) in user space, without a copy and
//! without unsafe code.
//!
//! The crate drives the core of PG195, version 4, in any design that is bound to pinmap. A [`Core`]
//! finds the channels by the core's own registers, and a [`Channel`] executes [`Transfer`]s between
//! memory of the program and addresses of the card, or streams. The words are those of the manual:
//! *H2C* is from the host to the card, *C2H* from the card to the host.
//! The document `docs/xdma.md` has programs.
//!
//! # What is guaranteed
//!
//! - A transfer owns its [`Memory`] until it is done, so that safe code can neither free nor
//!   release what the card works on. If it takes too long, the channel is stopped, and the memory
//!   comes back when the channel is idle, and not before.
//! - The card reaches nothing else: the IOMMU stops what the driver pinmap has not mapped.
//! - What is refused, such as an address that is not aligned as the core needs it, was not begun.
//!
//! Once the card is unplugged, or unbound, transfers end with [`Error::Gone`]. A program that uses
//! a channel at that moment can get `SIGBUS`, as with each register of a device that is gone.
#![forbid(unsafe_code)]

mod channel;
mod check;
mod discovery;
mod error;
mod list;
mod memory;
mod monitor;
mod options;
mod registers;
mod ring;
mod transfer;
mod user;

pub use channel::Channel;
pub use discovery::{ChannelInfo, Core, Direction};
pub use error::{Error, Failed, Result, Status};
pub use memory::Memory;
pub use monitor::Monitor;
pub use options::ChannelOptions;
pub use ring::Block;
pub use transfer::{Done, Transfer};
pub use user::UserInterrupt;

/// The examples in the document, which are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/xdma.md")]
mod document {}

// Descriptors are little-endian, and are stored as they are.
const _: () = assert!(cfg!(target_endian = "little"));
