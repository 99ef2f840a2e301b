// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the driver could not take back from a device. Needs a driver that answers `EIO` when
//! three pages are released, which a mutant does; with a driver that is made up,
//! `userlib/tests/driver` has more.

use std::error::Error as AnyError;

use nix::libc::EIO;
use pinmap::{accelerator, Access, Buffer, Device, Error};

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::{device, pattern, PAGE};
use crate::stale::while_unbound;
use crate::streams::{registering, until};

const WHY: &str = "needs a driver that cannot release, which a mutant of it is";

/// Asserts that the device is gone, and binds it again for other tests.
fn bring_back(device: &Device) -> Outcome {
    until("the device is gone", || {
        device.info().is_ok_and(|info| info.gone)
    })?;
    while_unbound(device, || Ok::<(), Box<dyn AnyError>>(()))
}

pub(crate) fn lost_memory_is_not_given_back() -> Outcome {
    let device = device()?;
    let registration = Buffer::<u8>::new(3 * PAGE)?.register(&device, Access::ReadWrite)?;
    registration.store(0, 7u64)?;
    let Err(mut failed) = registration.release() else {
        return skip(WHY);
    };
    for _ in 0..3 {
        assert_eq!(failed.error.errno(), EIO, "{}", failed.error);
        failed = failed.value.release().expect_err("it is lost for good");
    }
    bring_back(&device)?;
    // The memory is not given back even now: it has nothing to do with the device that came back.
    let failed = failed.value.release().expect_err("it is lost for good");
    assert_eq!(failed.value.load::<u64>(0)?, 7);
    Ok(())
}

pub(crate) fn scope_tells_that_memory_is_lost() -> Outcome {
    let gpu = gpu()?;
    let stream = registering(&gpu)?;
    let content = pattern(9, 3 * PAGE);
    let mut vram = gpu.alloc_vram::<u8>(3 * PAGE)?;
    vram.write(0, &content)?;
    let mut target = Buffer::<u8>::new(3 * PAGE)?;
    let result = accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        work.copy(vram.slice(), &mut target)
    });
    let Err(error) = result else {
        return skip(WHY);
    };
    assert_eq!(error.errno(), EIO, "{error}");
    // The memory is ours: the device is gone, and had done its work.
    assert!(gpu.device().info()?.gone);
    assert!(target[..] == content[..]);
    target[0] ^= 1;
    let error = stream.synchronize().expect_err("it was given up");
    assert_eq!(error.errno(), EIO, "{error}");
    drop((stream, vram));
    bring_back(gpu.device())
}
