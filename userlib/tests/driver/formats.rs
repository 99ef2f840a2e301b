// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices that are no test GPU.
#![allow(unsafe_code)]

use nix::errno::Errno;
use pinmap_testgpu::packet;

use crate::fake::Fake;

/// Only a device with the right ids gets packets of a format.
#[test]
fn packets_of_another_device_are_not_guessed() {
    let fake = Fake::new();
    fake.be_foreign();
    let error = pinmap_testgpu::accelerator(&fake.open()).expect_err("another device");
    assert_eq!(error.errno(), Errno::EOPNOTSUPP as i32);
    assert!(error.to_string().contains("1234:5678"), "{error}");
    // SAFETY: The device is made up, and executes nothing.
    let gpu = unsafe {
        fake.open()
            .accelerator_with(&[(0x1234, 0x5678)], &packet::Format)
    };
    gpu.expect("the program knows its packets");
}
