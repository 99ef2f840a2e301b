// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the build scripts of programs where the sources are, which they compile for the device.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=SOURCE={}/src", env!("CARGO_MANIFEST_DIR"));
}
