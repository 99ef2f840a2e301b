// SPDX-License-Identifier: MIT OR Apache-2.0
#![no_main]

#[path = "../program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|data: &[u8]| program::run(data));
