// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults: which stream gets them, what they say, and that others do not notice.

use std::time::Duration;

use nix::libc;
use pinmap::accelerator::{Accelerator, Packet, StreamOptions};
use pinmap::accelerator::{Fault, FaultCode};
use pinmap::{Access, Buffer, Device, DeviceEvent, Error, FaultAccess};
use pinmap_testgpu as testgpu;
use pinmap_testgpu::packet;

use crate::gpu::{gpu, gpu_and_stream};
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::{buffer, pattern, PAGE};
use crate::streams::spin;

/// Submits packets that stop a new stream; returns the stream's error, after the event.
fn fault(gpu: &Accelerator, packets: &[Packet]) -> Result<Fault, Box<dyn std::error::Error>> {
    let stream = gpu.stream(StreamOptions::new())?;
    let id = stream.id();
    let mut event = None;
    let result = stream.scope(|work| -> Result<(), Error> {
        work.raw(packets)?;
        let waited = work.stream().synchronize();
        // The end gives the stream up, which withdraws the event.
        event = Some(gpu.device().next_event_timeout(Duration::from_secs(10))?);
        waited
    });
    let error = result.expect_err("the stream stopped");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    let fault = *error.fault().ok_or("no fault")?;
    assert_eq!((fault.queue, fault.packet), (id, packets.len() as u64 - 1));
    let expected = DeviceEvent::Fault {
        queue: id,
        access: fault.access.unwrap_or(FaultAccess::Read),
        device_addr: fault.device_addr.unwrap_or(0),
        packet: fault.packet,
    };
    assert_eq!(event, Some(expected));
    Ok(fault)
}

pub(crate) fn fault_names_what_was_missing() -> Outcome {
    let gpu = gpu()?;
    let memory = Buffer::<u8>::new(4 * PAGE)?.register(gpu.device(), Access::ReadWrite)?;
    let end = memory.device_addr()? + 4 * PAGE as u64;
    let before = gpu.counters()?.faults;
    // A copy that runs out of the memory's end: it faults exactly there.
    let source = memory.device_addr()?;
    let packets = [
        packet::nop(),
        packet::nop(),
        packet::fill(end - 64, 128, 7, 0),
    ];
    let write = fault(&gpu, &packets)?;
    assert_eq!(write.access, Some(FaultAccess::Write));
    assert_eq!(write.code, FaultCode::NotPresent);
    assert_eq!(write.device_addr, Some(end), "{write}");
    // The first page of the address space is never mapped.
    let read = fault(&gpu, &[packet::copy(0x10, source, 8)])?;
    assert_eq!(read.access, Some(FaultAccess::Read));
    assert_eq!(
        (read.code, read.device_addr),
        (FaultCode::NotPresent, Some(0x10))
    );
    assert_eq!(gpu.counters()?.faults, before + 2);
    Ok(())
}

pub(crate) fn fault_after_release() -> Outcome {
    let gpu = gpu()?;
    let memory = Buffer::<u8>::new(PAGE)?.register(gpu.device(), Access::ReadWrite)?;
    let addr = memory.device_addr()?;
    // The TLB has the translation.
    let stream = gpu.stream(StreamOptions::new())?;
    let write = packet::fill(addr, PAGE as u64, 1, 2);
    stream.scope(|work| work.raw(&[write]))?;
    let memory = memory.release()?;
    let fault = fault(&gpu, &[write])?;
    assert_eq!(
        (fault.code, fault.device_addr),
        (FaultCode::NotPresent, Some(addr))
    );
    let written = 1u32.to_le_bytes();
    assert!(memory.chunks_exact(4).all(|bytes| bytes == written));
    Ok(())
}

pub(crate) fn fault_on_writing_what_is_read_only() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let content = pattern(3, PAGE);
    let mut memory = buffer(&content)?.register(gpu.device(), Access::Read)?;
    // The crate does not lend read-only memory for writing, and the device does not write it.
    let refused = memory.slice_mut::<u8>().expect_err("read-only");
    assert_eq!(refused.errno(), libc::EACCES);
    let addr = memory.device_addr()?;
    let fault = fault(&gpu, &[packet::fill(addr, PAGE as u64, 0, 0)])?;
    assert_eq!(fault.code, FaultCode::Permission, "{fault}");
    assert_eq!(
        (fault.access, fault.device_addr),
        (Some(FaultAccess::Write), Some(addr))
    );
    // Reading is allowed.
    let mut copy = gpu.alloc_vram::<u8>(PAGE)?;
    stream.scope(|work| work.copy(memory.slice()?, copy.slice_mut()))?;
    assert_eq!(copy.to_vec(), content);
    assert_eq!(*memory.release()?, content[..]);
    Ok(())
}

pub(crate) fn error_names_bad_packets() -> Outcome {
    let gpu = gpu()?;
    let memory = gpu.device().alloc::<u8>(PAGE)?;
    let addr = memory.device_addr();
    let raw = |word| Packet::from_words([word, 0, 0, 0, 0, 0, 0, 0]);
    for (packet, code) in [
        (raw(0), FaultCode::BadOpcode),
        (raw(0xff), FaultCode::BadOpcode),
        (raw(1 | (1 << 16)), FaultCode::BadField),
        (packet::timestamp(addr + 4), FaultCode::BadAlignment),
        (packet::copy(addr, addr, 1 << 30), FaultCode::BadLength),
        (packet::launch(77, [0; 7]), FaultCode::BadKernel),
    ] {
        let fault = fault(&gpu, &[packet])?;
        assert_eq!((fault.code, fault.access), (code, None), "{fault}");
    }
    Ok(())
}

pub(crate) fn error_when_it_runs_for_too_long() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let time = gpu.info()?.max_run + Duration::from_secs(5);
    let result = stream.scope(|work| work.launch(testgpu::Spin { time }));
    let error = result.expect_err("it was stopped");
    let fault = error.fault().ok_or("no fault")?;
    assert_eq!(fault.code, FaultCode::Timeout, "{error}");
    Ok(())
}

pub(crate) fn contexts_do_not_reach_each_other() -> Outcome {
    let (ours, stream) = gpu_and_stream()?;
    let theirs = pinmap_testgpu::accelerator(&Device::open(ours.device().path())?)?;
    let content = pattern(4, 4 * PAGE);
    let registered = buffer(&content)?.register(ours.device(), Access::ReadWrite)?;
    let mut host = ours.device().alloc::<u8>(PAGE)?;
    let mut vram = ours.alloc_vram::<u8>(PAGE)?;
    host.write(0, &content[..PAGE])?;
    vram.write(0, &content[..PAGE])?;
    let own = theirs.device().alloc::<u8>(PAGE)?;
    for addr in [
        registered.device_addr()?,
        host.device_addr(),
        vram.device_addr(),
    ] {
        let write = fault(&theirs, &[packet::fill(addr, 64, 0xff, 0)])?;
        assert_eq!(
            (write.code, write.device_addr),
            (FaultCode::NotPresent, Some(addr))
        );
        let read = fault(&theirs, &[packet::copy(addr, own.device_addr(), 64)])?;
        assert_eq!(
            (read.code, read.device_addr),
            (FaultCode::NotPresent, Some(addr))
        );
    }
    assert!(own.to_vec().iter().all(|&byte| byte == 0));
    assert!(host.to_vec() == content[..PAGE] && vram.to_vec() == content[..PAGE]);
    // The owner works on, and was told of no fault.
    stream.scope(|work| work.copy(host.slice(), vram.slice_mut()))?;
    assert_eq!(ours.device().try_next_event()?, None);
    assert_eq!(*registered.release()?, content[..]);
    // The crate refuses before the device has to.
    let refused = stream.scope(|work| work.copy(own.slice(), vram.slice_mut()));
    let error = refused.expect_err("of another context");
    assert!(
        error.fault().is_none() && error.errno() == libc::EINVAL,
        "{error}"
    );
    Ok(())
}

pub(crate) fn same_memory_in_two_contexts() -> Outcome {
    let (first, one) = gpu_and_stream()?;
    let second = pinmap_testgpu::accelerator(&Device::open(first.device().path())?)?;
    let two = second.stream(StreamOptions::new())?;
    let memory = crate::setup::RawMemory::new(PAGE)?;
    memory.fill(&[0; PAGE]);
    let add = |gpu: &Accelerator, stream: &pinmap::accelerator::Stream| -> Outcome {
        // SAFETY: The memory is accessed by raw pointers only, and not meanwhile.
        let raw = unsafe {
            gpu.device()
                .register_raw(memory.start(), PAGE, Access::ReadWrite)?
        };
        let arguments = [raw.device_addr()?, PAGE as u64 / 4, 0, 0, 0, 0, 0];
        stream.scope(|work| work.raw(&[packet::launch(3, arguments)]))?;
        raw.release().map_err(|with| with.error)?;
        Ok(())
    };
    add(&first, &one)?;
    add(&second, &two)?;
    let bytes = memory.content(PAGE);
    assert!(bytes
        .chunks_exact(4)
        .all(|bytes| bytes == 2.0f32.to_ne_bytes()));
    memory.unmap()
}

pub(crate) fn gone_device_ends_a_scope() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let calls = gpu.stream(StreamOptions::new().system_calls())?;
    let device = gpu.device().clone();
    let mut memory = buffer(&pattern(5, PAGE))?.register(&device, Access::ReadWrite)?;
    let mut host = device.alloc::<u8>(PAGE)?;
    host.set(0, 7)?;
    let time = Duration::from_millis(1500);
    let result = stream.try_scope(|work| -> Outcome {
        work.launch(testgpu::Spin { time })?;
        let data = &mut memory.slice_mut::<f32>()?;
        work.launch(testgpu::IncrementF32 { data })?;
        crate::stale::while_unbound(&device, || {
            // The device was told of all work before: nothing touches its doorbell now.
            let waited = work.stream().synchronize_timeout(Duration::from_secs(20));
            let error = waited.expect_err("gone");
            assert_eq!(error.errno(), libc::ENODEV, "{error}");
            // System calls can be tried without danger.
            let nop = [packet::nop()];
            let error = calls.scope(|work| work.raw(&nop)).expect_err("gone");
            assert_eq!(error.errno(), libc::ENODEV, "{error}");
            let refused = device.alloc::<u8>(1).map(drop);
            assert_eq!(refused.expect_err("gone").errno(), libc::ENODEV);
            Ok(())
        })
    });
    // The closure had no error; the end of the scope has one.
    let error = result.expect_err("it was never done");
    let error = error.downcast::<Error>()?;
    assert_eq!(error.errno(), libc::ENODEV, "{error}");
    // The memory is ours again, and host memory of the driver stays.
    assert_eq!(memory.release()?.len(), PAGE);
    assert_eq!(host.get(0)?, 7);
    drop((stream, calls, host));
    let stream = pinmap_testgpu::find()?.stream(StreamOptions::new())?;
    stream.scope(|work| work.raw(&[packet::nop()]))?;
    Ok(())
}

/// A program learns by waiting that nobody hears its doorbells any more, also if only a destructor
/// waits.
pub(crate) fn gone_device_kills_no_program() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let idle = gpu.stream(StreamOptions::new())?;
    let device = gpu.device().clone();
    let (dropped, kept) = (crate::streams::stream(&gpu)?, crate::streams::stream(&gpu)?);
    let (never, event) = (gpu.event()?, gpu.event()?);
    let nop = [packet::nop()];
    let is_gone = |error: &Error| error.errno() == libc::ENODEV;
    // The device is not told of the work yet, or not asked to tell when it is done.
    spin(&kept, Duration::from_millis(300))?;
    kept.record(&never)?;
    dropped.wait_event(&never)?;
    let result = stream.try_scope(|work| -> Outcome {
        work.raw(&nop)?;
        let mut outcome = Ok(());
        // The batch ends when nobody hears it any more.
        work.batch(|| {
            work.raw(&nop)?;
            outcome = crate::stale::while_unbound(&device, || {
                work.raw(&nop)?;
                let error = work.stream().synchronize().expect_err("nobody executes it");
                assert!(is_gone(&error), "{error}");
                drop(dropped);
                kept.record(&event)?;
                let error = kept.synchronize().expect_err("nobody executes it");
                assert!(is_gone(&error), "{error}");
                assert!(event.synchronize().is_err_and(|error| is_gone(&error)));
                drop(kept.submit((), |work, ()| work.raw(&nop)));
                drop(kept);
                // More packets than the ring takes.
                let result = idle.scope(|work| (0..100_000).try_for_each(|_| work.raw(&nop)));
                let error = result.expect_err("nobody executes it");
                assert!(is_gone(&error), "{error}");
                Ok(())
            });
            Ok(())
        })?;
        outcome
    });
    let error = result.expect_err("it was never done").downcast::<Error>()?;
    assert!(is_gone(&error), "{error}");
    drop((stream, idle, event, gpu));
    // The program goes on.
    let stream = pinmap_testgpu::find()?.stream(StreamOptions::new())?;
    stream.scope(|work| work.raw(&nop))?;
    Ok(())
}
