// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches that are maintained for a device that does not snoop them: by the driver, for the bytes
//! that are meant, and not for a device that does.

use nix::libc::EINVAL;
use pinmap::{Access, Buffer, Device};

use crate::fake::Fake;
use crate::sys::{PINMAP_SYNC_FOR_CPU as FOR_CPU, PINMAP_SYNC_FOR_DEVICE as FOR_DEVICE};

/// Maintains caches for registered and for allocated memory.
fn sync(device: &Device) {
    let memory = Buffer::<u64>::new(1024).expect("memory");
    let memory = memory
        .register(device, Access::ReadWrite)
        .expect("registered");
    memory.sync_for_device(64..128).expect("for the device");
    memory.sync_for_cpu(4096..8192).expect("for the CPU");
    memory.sync_for_device(64..64).expect("nothing");
    let wrong = memory
        .sync_for_device(8000..8193)
        .expect_err("it is behind the end");
    assert_eq!(wrong.errno(), EINVAL, "{wrong}");
    let memory = device.alloc::<u64>(1024).expect("allocated");
    memory.sync_for_device(8..16).expect("for the device");
    memory.sync_for_cpu(512..1024).expect("for the CPU");
    memory.sync_for_cpu(7..7).expect("nothing");
    let wrong = memory
        .sync_for_cpu(0..1025)
        .expect_err("it is behind the end");
    assert_eq!(wrong.errno(), EINVAL, "{wrong}");
}

#[test]
fn the_driver_is_told_of_the_bytes() {
    let fake = Fake::new();
    fake.synced();
    sync(&fake.open());
    let all = [(FOR_DEVICE, 64, 64), (FOR_CPU, 4096, 4096)];
    assert_eq!(fake.synced(), [all, all].concat());
    let mut pinned = fake.accelerator().alloc::<u32>(16).expect("allocated");
    pinned.sync_for_device(0..16).expect("for the device");
    pinned.sync_for_cpu(1..2).expect("for the CPU");
    assert_eq!(fake.synced(), [(FOR_DEVICE, 0, 64), (FOR_CPU, 4, 4)]);
}

#[test]
fn a_device_that_snoops_costs_no_call() {
    let fake = Fake::new();
    sync(&fake.open());
    assert_eq!(fake.synced(), []);
}
