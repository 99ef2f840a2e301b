// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays programs of calls to the driver, and looks for what must never happen.
//!
//! A [`Program`] is a list of calls, made by up to four threads of two processes. A [`Player`]
//! plays it with a server process, which forks the program's processes, hands them their calls in
//! order, ends them, and then asks the [oracle] whether all that the program had is back.
//! What the driver's code did meanwhile is the player's [coverage](Player::coverage).

mod actor;
pub mod calls;
mod cast;
mod engine;
mod memory;
mod minimize;
pub mod oracle;
mod player;
pub mod program;
mod sys;
mod uapi;
mod world;

pub use minimize::minimize;
pub use player::{Outcome, Player};
pub use program::{Program, Step, Value};
