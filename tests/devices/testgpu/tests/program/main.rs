// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of programs on the device without QEMU's machine.

mod against;
mod compiled;
mod faults;
mod garbage;
mod image;
mod launch;
mod random;
#[allow(dead_code)]
#[path = "../core/rig.rs"]
mod rig;
mod speed;
mod threads;
