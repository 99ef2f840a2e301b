// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver for NVMe controllers in user space, without a copy and without unsafe code.
//!
//! The crate drives any controller of NVM Express 1.3 to 2.0 that is bound to pinmap. A
//! [`Controller`] is brought up and identified, a [`Namespace`] makes [`Command`]s, and a [`Queue`]
//! executes them, one queue for each thread, without a lock between them. The words are those of
//! the specification, but a *logical block* is called a block.
//!
//! `docs/nvme.md` has programs, and [`Queue`] a short one.
//!
//! # What is guaranteed
//!
//! - A command owns its [`Memory`] until it is done, so that safe code can neither free nor release
//!   what the controller works on. Memory comes back with each error, too. If a command takes too
//!   long, its memory comes back when it was aborted, or the controller has been reset, and not
//!   before.
//! - The controller reaches nothing else: the IOMMU stops what the driver pinmap has not mapped.
//! - What is refused, such as blocks beyond the end, was not begun.
//!
//! Once the controller is unplugged, or unbound, commands end with [`Error::Gone`]. A program that
//! uses a queue at that moment can get `SIGBUS`, as with each register of a device that is gone.
#![forbid(unsafe_code)]

mod admin;
mod cmb;
mod command;
mod controller;
mod entry;
mod error;
mod identify;
mod log;
mod memory;
mod options;
mod pair;
mod queue;
mod registers;
#[cfg(feature = "accelerator")]
mod stream_queue;

pub use command::Command;
pub use controller::Controller;
pub use error::{Error, Failed, Result, Status};
pub use identify::{Identity, Namespace, Optional};
pub use log::{Event, Health, Logged};
pub use memory::Memory;
pub use options::QueueOptions;
pub use queue::{Done, Queue};
#[cfg(feature = "accelerator")]
pub use stream_queue::StreamQueue;

/// The examples in the document, which are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/nvme.md")]
mod document {}

// Entries of queues and lists are little-endian, and are stored as they are.
const _: () = assert!(cfg!(target_endian = "little"));

/// Bytes of a page, for the controller.
const PAGE: usize = 4096;
