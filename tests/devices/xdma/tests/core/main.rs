// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core on a bus of its own.

mod card;
mod memory;
mod streams;
mod wire;
