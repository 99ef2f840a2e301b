// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system sleeps while a program has devices.

use std::fs;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use pinmap::DeviceEvent;
use pinmap_testgpu::packet;

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::raw::Raw;
use crate::setup::device;
use crate::streams::stream;

/// Has the system sleep, up to the devices, and wake up again.
fn sleep() -> io::Result<()> {
    fs::write("/sys/module/suspend/parameters/pm_test_delay", "0")?;
    fs::write("/sys/power/pm_test", "devices")?;
    let slept = fs::write("/sys/power/state", "freeze");
    fs::write("/sys/power/pm_test", "none")?;
    slept
}

fn need_sleep() -> Outcome {
    if std::env::var("PINMAP_SLEEP").is_ok_and(|machine| !machine.is_empty()) {
        return Ok(());
    }
    skip("the machine has 9p, which does not survive a sleep: scripts/vm --sleep")
}

fn is_busy(slept: &io::Result<()>) -> bool {
    matches!(slept, Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32))
}

pub(crate) fn sleep_is_told() -> Outcome {
    need_sleep()?;
    let device = device()?;
    let _memory = device.alloc::<u8>(4096)?;
    device.stay_awake(true)?;
    assert!(is_busy(&sleep()));
    device.stay_awake(false)?;
    sleep()?;
    assert_eq!(device.next_event()?, DeviceEvent::Resumed);
    Ok(())
}

/// Streams and their events need nothing to be done.
pub(crate) fn sleep_of_streams() -> Outcome {
    need_sleep()?;
    let gpu = gpu()?;
    let stream = stream(&gpu)?;
    let memory = Arc::new(gpu.device().alloc::<u32>(1 << 20)?);
    for round in 1..4_u32 {
        let pending = stream.submit(Arc::clone(&memory), move |work, memory| {
            work.raw(&[packet::fill(memory.device_addr(), 4 << 20, round.into(), 2)])
        })?;
        drop(pending);
        let done = gpu.event()?;
        stream.record(&done)?;
        sleep()?;
        done.synchronize()?;
        assert_eq!((memory.get(0)?, memory.get((1 << 20) - 1)?), (round, round));
    }
    Ok(())
}
