// SPDX-License-Identifier: MIT OR Apache-2.0
#![no_main]

#[path = "../packet.rs"]
mod packet;

libfuzzer_sys::fuzz_target!(|data: &[u8]| packet::run(data));
