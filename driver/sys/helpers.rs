// SPDX-License-Identifier: GPL-2.0
//! The C functions of `NAME.c`, as bindgen makes them of `sys/helpers.h` (see Kbuild).
#![allow(
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused_imports
)]
include!(env!("PINMAP_BINDINGS"));
