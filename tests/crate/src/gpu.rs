// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paged devices: their description, and memory that the driver allocates.

use std::error::Error;

use nix::libc;
use nix::sys::resource::{setrlimit, Resource};
use pinmap::accelerator::{Accelerator, Place, Stream, StreamOptions};
use pinmap::{Device, Kind, Operation, Reason};

use crate::harness::{skip, Outcome};
use crate::setup::{become_user, device, device_content, edu, is_slow, pattern, PAGE};

/// Opens the first device with queues, or skips the test.
pub(crate) fn gpu() -> Result<Accelerator, Box<dyn Error>> {
    match pinmap_testgpu::find() {
        Err(error) if error.operation() == Operation::Find => {
            skip("there is no device with queues bound to pinmap")
        }
        gpu => Ok(gpu?),
    }
}

/// Opens the first device with queues, and makes a stream.
pub(crate) fn gpu_and_stream() -> Result<(Accelerator, Stream), Box<dyn Error>> {
    let gpu = gpu()?;
    let stream = gpu.stream(StreamOptions::new())?;
    Ok((gpu, stream))
}

pub(crate) fn every_call_names_memlock() -> Outcome {
    let gpu = gpu()?;
    let path = gpu.device().path().to_owned();
    drop(gpu);
    become_user(Some(&path))?;
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0)?;
    let gpu = pinmap_testgpu::accelerator(&Device::open(&path)?)?;
    assert_eq!(gpu.device().info()?.memlock.limit, Some(0));
    let refused = [
        gpu.stream(StreamOptions::new())
            .map(drop)
            .expect_err("it needs a ring"),
        gpu.alloc::<u8>(1).map(drop).expect_err("it is pinned"),
    ];
    for error in refused {
        let failure = error.failure().expect("a failure");
        assert_eq!(failure.reason, Reason::Memlock, "{error}");
        assert_eq!((failure.needed, failure.allowed), (PAGE as u64, 0));
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("`ulimit -l 4`"), "{hint}");
    }
    Ok(())
}

pub(crate) fn gpu_info_is_plausible() -> Outcome {
    let gpu = gpu()?;
    assert_eq!(gpu.device().kind()?, Kind::Paged);
    let info = gpu.info()?;
    assert!(
        info.copy_engines >= 1 && info.compute_slots >= 1,
        "{info:?}"
    );
    assert!(info.queues > info.slots && info.vmids > 1, "{info:?}");
    assert!(
        info.vram_free <= info.vram_len && info.vram_free > 0,
        "{info:?}"
    );
    assert!(gpu.info()?.time > info.time, "the clock stands still");
    let counters = gpu.counters()?;
    assert_eq!(counters.copy_engines.len(), info.copy_engines as usize);
    assert_eq!(counters.compute_slots.len(), info.compute_slots as usize);
    // BARs, vectors and the reset are the driver's.
    let device = gpu.device();
    for refused in [
        device.bar(0).map(drop),
        device.interrupt(0).map(drop),
        device.reset(),
    ] {
        let error = refused.expect_err("it is the driver's");
        let errno = error.errno();
        assert!([libc::EOPNOTSUPP, libc::ENOENT].contains(&errno), "{error}");
    }
    Ok(())
}

pub(crate) fn flat_device_has_no_queues() -> Outcome {
    let device = device()?;
    assert_eq!(device.kind()?, Kind::Flat);
    let error = pinmap_testgpu::accelerator(&device).expect_err("no queues");
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
    assert_eq!(error.operation(), Operation::Accelerator);
    Ok(())
}

pub(crate) fn alloc_for_a_flat_device() -> Outcome {
    let mut edu = edu()?;
    let mut memory = edu.device().alloc::<u8>(PAGE + 5)?;
    assert_eq!((memory.len(), memory.place()), (PAGE + 5, Place::Host));
    memory.write(100, &pattern(7, 500))?;
    edu.fetch(memory.device_addr() + 100, 0, 500)?;
    assert_eq!(device_content(&mut edu, 500)?, pattern(7, 500));
    Ok(())
}

pub(crate) fn alloc_is_zeroed_and_at_its_own_address() -> Outcome {
    let gpu = gpu()?;
    // Memory that was used before had other content.
    for fill in [true, false] {
        let mut places = vec![
            gpu.device().alloc::<u64>(100_003)?,
            gpu.alloc_vram::<u64>(100_003)?,
        ];
        for memory in &mut places {
            assert_eq!(memory.addr() as u64, memory.device_addr());
            assert_eq!(memory.addr() % PAGE, 0);
            assert!(memory.to_vec().iter().all(|&word| word == 0));
            let info = gpu.device().query(memory.addr() + 8)?;
            if let Some(info) = info {
                assert_eq!(info.device_addr, Some(memory.device_addr() + 8));
            }
            if fill {
                memory.write(0, &vec![u64::MAX; memory.len()])?;
                assert_eq!(memory.get(100_002)?, u64::MAX);
            }
        }
    }
    Ok(())
}

pub(crate) fn alloc_refuses_what_cannot_be() -> Outcome {
    let gpu = gpu()?;
    let device = gpu.device();
    let errno = |result: pinmap::Result<_>| result.map(drop).expect_err("refused").errno();
    assert_eq!(errno(device.alloc::<f32>(0)), libc::EINVAL);
    assert_eq!(errno(gpu.alloc_vram::<f32>(0)), libc::EINVAL);
    assert_eq!(errno(device.alloc::<f32>(usize::MAX / 2)), libc::EOVERFLOW);
    // A number of bytes that memory might have, but this machine does not.
    assert_eq!(errno(device.alloc::<f32>(1 << 44)), libc::ENOMEM);

    let info = gpu.info()?;
    let error = gpu.alloc_vram::<u8>(usize::try_from(info.vram_len)? + 1);
    let error = error.expect_err("more than there is");
    assert_eq!(error.errno(), libc::ENOSPC);
    assert_eq!(
        error.failure().map(|failure| failure.reason),
        Some(Reason::Full)
    );
    let text = error.to_string();
    let len = info.vram_len;
    assert!(
        text.contains(&format!("of the {len} bytes of the device's memory ")),
        "{text}"
    );
    assert!(text.contains(" are free (ENOSPC); allocate less"), "{text}");
    Ok(())
}

pub(crate) fn vram_is_given_back() -> Outcome {
    let gpu = gpu()?;
    let len = 1 << 20;
    // The device's page tables may lie there too, and stay for the next mapping.
    let tables = 64 << 10;
    let free = gpu.info()?.vram_free;
    let memory = gpu.alloc_vram::<u8>(len)?;
    let left = gpu.info()?.vram_free;
    assert!(
        left <= free - len as u64 && left + len as u64 + tables >= free,
        "{left} of {free}"
    );
    drop(memory);
    let left = gpu.info()?.vram_free;
    assert!(left <= free && left + tables >= free, "{left} of {free}");
    // Allocates more, over time, than there is.
    for _ in 0..10 {
        drop(gpu.alloc_vram::<u8>(usize::try_from(free)? / 4)?);
    }
    assert_eq!(gpu.info()?.vram_free, left);
    Ok(())
}

pub(crate) fn stream_options_are_checked() -> Outcome {
    let gpu = gpu()?;
    let refused = gpu.stream(StreamOptions::new().packets(100));
    assert_eq!(refused.expect_err("no power of two").errno(), libc::EINVAL);
    // Out of range is clamped, as CUDA does.
    let stream = gpu.stream(StreamOptions::new().priority(u32::MAX).packets(64))?;
    let other = gpu.stream(StreamOptions::new().packets(65536))?;
    assert!(stream.id() != 0 && other.id() != 0 && stream.id() != other.id());
    Ok(())
}

pub(crate) fn queues_run_out_and_come_back() -> Outcome {
    let gpu = gpu()?;
    if is_slow() {
        return skip("streams_of_one_program_leave_others_their_share makes as many");
    }
    let most = gpu.info()?.queues as usize;
    let mut queues = Vec::new();
    let options = StreamOptions::new().packets(64);
    let error = loop {
        assert!(queues.len() <= most, "more queues than there are");
        match gpu.stream(options) {
            Ok(stream) => queues.push(stream),
            Err(error) => break error,
        }
    };
    // Otherwise there are so many mappings that the process may not have more.
    assert!(
        [libc::ENOSPC, libc::ENOMEM].contains(&error.errno()),
        "{error}"
    );
    assert!(queues.len() > 100, "only {} queues", queues.len());
    drop(queues);
    let again = pinmap_testgpu::accelerator(&Device::open(gpu.device().path())?)?;
    again.stream(options)?;
    gpu.stream(options)?;
    Ok(())
}
