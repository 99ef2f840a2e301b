// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices that are no test GPU.
#![allow(unsafe_code)]

use nix::errno::Errno;
use pinmap::testgpu::packet;

use crate::fake::Fake;

/// Without a format of the program's, only a test GPU can be told what to do.
#[test]
fn packets_of_another_device_are_not_guessed() {
    let fake = Fake::new();
    fake.be_foreign();
    let error = fake.open().accelerator().expect_err("another device");
    assert_eq!(error.errno(), Errno::EOPNOTSUPP as i32);
    assert!(error.to_string().contains("1234:5678"), "{error}");
    // SAFETY: The device is made up, and executes nothing.
    let gpu = unsafe { fake.open().accelerator_with(&packet::Format) };
    gpu.expect("the program knows its packets");
}
