// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory, streams and channels of DMA cores for the libraries of other languages, whose programs
//! have no lifetimes that the compiler could check. The libraries for C (`capi/`) and for Python
//! (`python/`) are made of this crate.
//!
//! This crate looks after, while a program runs, what the crate `pinmap` proves when it is
//! compiled: [`Memory`] is shared with the work in flight that names it, and releasing it waits for
//! that work. Whether two pieces of work, or the CPU, write the same bytes at once is up to the
//! program.

mod error;
mod map;
mod memory;
mod piece;
mod program;
mod register;
mod stream;
mod xdma;

pub use error::{Error, Result};
pub use map::MemoryMapping;
pub use memory::Memory;
pub use program::Argument;
pub use stream::{Operand, Stream, Submitted};
pub use xdma::{Channel, Interrupt, Lent};
