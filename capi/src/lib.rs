// SPDX-License-Identifier: MIT OR Apache-2.0
//! libpinmap: the library for C and C++.
//!
//! Each function that is exported is declared and documented in `include/pinmap.h`, which
//! `scripts/capi-header` makes of these files. A function checks what it is given, calls the crate
//! `pinmap`, and stores an error for the thread (`error.rs`). No panic gets out of one.
//!
//! Handles of C are boxes. Memory is shared with the work in flight that names it (`memory.rs`), so
//! that releasing it can wait for that work.

// The names of C, which the header gives to these types, begin with `pinmap_`.
#![allow(clippy::missing_safety_doc)]

mod bar;
mod device;
mod error;
mod event;
mod interrupt;
mod managed;
mod map;
mod memory;
mod options;
mod program;
mod register;
mod stream;
mod stream_event;
mod submitter;
mod testgpu;
mod window;
mod xdma;

pub use bar::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use interrupt::*;
pub use managed::*;
pub use map::*;
pub use memory::*;
pub use options::*;
pub use program::*;
pub use register::*;
pub use stream::*;
pub use stream_event::*;
pub use testgpu::*;
pub use window::*;
pub use xdma::*;
