// SPDX-License-Identifier: MIT OR Apache-2.0
#![no_main]

#[path = "../pagetable.rs"]
mod pagetable;

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagetable::run(data));
