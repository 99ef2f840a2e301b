// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver for AMD's DMA/Bridge Subsystem for PCI Express (XDMA) in user space, without a copy and
//! without unsafe code.
//!
//! The crate drives the core of PG195, version 4, in any design that is bound to pinmap. A [`Core`]
//! finds the channels by the core's own registers, and a [`Channel`] executes [`Transfer`]s between
//! memory of the program and addresses of the card, or streams. The words are those of the manual:
//! *H2C* is from the host to the card, *C2H* from the card to the host.
//!
//! ```no_run
//! use pinmap::{Access, Buffer, Device, Registration};
//! use pinmap_xdma::{Channel, ChannelOptions, Core, Direction, Transfer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open_pci("0000:01:00.0".parse()?)?;
//! let core = Core::open(&device)?;
//! let mut to: Channel<Registration> = core.channel(Direction::H2c, 0, ChannelOptions::new())?;
//! let mut from: Channel<Registration> = core.channel(Direction::C2h, 0, ChannelOptions::new())?;
//!
//! let mut buffer = Buffer::new(4096)?;
//! buffer[..5].copy_from_slice(b"hello");
//! let memory = buffer.register(&device, Access::ReadWrite)?;
//! // The transfer owns the memory until it is done.
//! let memory = to.run(Transfer::new(memory).at(0x1000))?.memory;
//! let memory = from.run(Transfer::new(memory).at(0x1000))?.memory;
//! let buffer = memory.release()?;
//! # Ok(())
//! # }
//! ```
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
mod options;
mod registers;
mod transfer;
mod user;

pub use channel::{Channel, Monitor};
pub use discovery::{ChannelInfo, Core, Direction};
pub use error::{Error, Failed, Result, Status};
pub use memory::Memory;
pub use options::ChannelOptions;
pub use transfer::{Done, Transfer};
pub use user::UserInterrupt;

/// The examples in the document, which are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/xdma.md")]
mod document {}

// Descriptors are little-endian, and are stored as they are.
const _: () = assert!(cfg!(target_endian = "little"));
