// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of programs on the device without QEMU's machine.

mod image;
mod launch;
#[allow(dead_code)]
#[path = "../core/rig.rs"]
mod rig;
mod speed;
