// SPDX-License-Identifier: MIT OR Apache-2.0
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod bus;
mod config;
mod function;
mod guest;
mod interval;
mod messenger;
mod protocol;
mod server;
mod sys;
pub mod testing;

pub use bus::{Bus, Counts, Held, Refused, Side};
pub use function::{answer, number, Bar, Function, Identity, Msix};
pub use server::{serve, serve_at, Options};
pub use sys::memory::{memory_file, zero, Mapping, Page};
