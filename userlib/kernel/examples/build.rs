// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the kernels.

fn main() {
    pinmap_kernel_build::compile("src/kernels.rs");
}
