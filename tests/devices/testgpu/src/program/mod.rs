// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs: launches of RISC-V code on the compute engine (section 17 of the manual).
//!
//! * `decode` and `compressed` decode instructions, and `thread` executes them; `fpu` and `float`
//!   compute with floating point.
//! * `memory` is what they see of memory.
//! * `launch` runs the blocks of a launch; `descriptor` says which; `ring` takes what they print.
//! * `save` moves the state of a launch that cannot go on to memory, and back.

pub mod compressed;
pub mod decode;
pub mod descriptor;
mod float;
mod fpu;
mod launch;
mod memory;
mod ring;
mod save;
mod thread;

pub use launch::{run, Held, Units};
pub use save::{LOST, SAVED};
