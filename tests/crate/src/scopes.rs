// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes: order, waiting, back-pressure, and that a scope ends when the device is done.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use pinmap::accelerator::{self, Accelerator, Engines, Packet, Stream, StreamOptions};
use pinmap::{Access, Allocation, Buffer, Device, Error};
use pinmap_testgpu as testgpu;

use crate::gpu::{gpu, gpu_and_stream};
use crate::harness::Outcome;
use crate::raw::Raw;
use crate::setup::timed_out;

const SPIN: testgpu::Spin = testgpu::Spin {
    time: Duration::from_millis(30),
};

fn all_are(memory: &Allocation<f32>, value: f32) -> bool {
    memory.to_vec().iter().all(|&float| float == value)
}

pub(crate) fn scope_waits_whatever_happens() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let mut memory = gpu.device().alloc::<f32>(1000)?;
    // This scope ends without waiting.
    stream.scope(|work| {
        work.launch(SPIN)?;
        let data = &mut memory.slice_mut();
        work.launch(testgpu::IncrementF32 { data })
    })?;
    assert!(all_are(&memory, 1.0), "it did not wait");
    // This scope ends with an error.
    let error = stream.scope(|work| {
        work.launch(SPIN)?;
        let mut data = memory.slice_mut();
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        data.split_at(1001).map(drop)
    });
    assert_eq!(error.expect_err("no such index").errno(), libc::EINVAL);
    assert!(all_are(&memory, 2.0), "after an error it did not wait");
    // This scope ends with a panic, which is expected.
    std::panic::set_hook(Box::new(|_| {}));
    let panic = catch_unwind(AssertUnwindSafe(|| {
        stream.scope(|work| -> Result<(), Error> {
            work.launch(SPIN)?;
            let data = &mut memory.slice_mut();
            work.launch(testgpu::IncrementF32 { data })?;
            panic!("in the middle");
        })
    }));
    drop(std::panic::take_hook());
    assert!(
        panic.is_err() && all_are(&memory, 3.0),
        "after a panic it did not wait"
    );
    // This batch fails, which holds back nothing.
    let error = stream.scope(|work| {
        work.batch(|| {
            work.launch(SPIN)?;
            let mut data = memory.slice_mut();
            work.launch(testgpu::IncrementF32 { data: &mut data })?;
            data.split_at(1001).map(drop)
        })
    });
    assert_eq!(error.expect_err("no such index").errno(), libc::EINVAL);
    assert!(all_are(&memory, 4.0), "what was held back was forgotten");
    Ok(())
}

pub(crate) fn scope_leaves_memory_free() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    // Memory is released at once, again and again: were the device not done, it would fault.
    for round in 0..50u16 {
        let mut buffer = Buffer::<u8>::new(1 << 16)?;
        for bytes in buffer.chunks_exact_mut(4) {
            bytes.copy_from_slice(&f32::from(round).to_ne_bytes());
        }
        let mut memory = buffer.register(gpu.device(), Access::ReadWrite)?;
        stream.scope(|work| {
            let data = &mut memory.slice_mut()?;
            work.launch(testgpu::IncrementF32 { data })
        })?;
        let buffer = memory.release()?;
        let expected = f32::from(round + 1).to_ne_bytes();
        assert!(buffer.chunks_exact(4).all(|bytes| bytes == expected));
    }
    Ok(())
}

pub(crate) fn scope_ends_when_the_device_is_stopped() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let mut memory = gpu.device().alloc::<f32>(1000)?;
    let error = stream.scope(|work| -> Result<(), Error> {
        work.raw(&[Packet::from_words([0xff, 0, 0, 0, 0, 0, 0, 0])])?;
        let data = &mut memory.slice_mut();
        work.launch(testgpu::IncrementF32 { data })
    });
    let error = error.expect_err("no such packet");
    let fault = *error.fault().ok_or("no fault")?;
    assert_eq!((fault.packet, fault.queue), (0, stream.id()));
    // Packets behind the failure were never executed, and never will be.
    assert!(all_are(&memory, 0.0));
    // The stream has failed, and another one works.
    let again = stream.scope(|work| work.launch(SPIN)).expect_err("stopped");
    assert_eq!((again.errno(), again.fault()), (libc::EIO, Some(&fault)));
    let stream = gpu.stream(StreamOptions::new())?;
    stream.scope(|work| {
        let data = &mut memory.slice_mut();
        work.launch(testgpu::IncrementF32 { data })
    })?;
    assert!(all_are(&memory, 1.0));
    Ok(())
}

pub(crate) fn packets_are_executed_in_order() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let count = 5000;
    let mut host = gpu.device().alloc::<f32>(count)?;
    let mut vram = gpu.alloc_vram::<f32>(count)?;
    stream.scope(|work| -> Result<(), Error> {
        let (mut host, mut vram) = (host.slice_mut(), vram.slice_mut());
        // More packets than the ring holds, for engines of both kinds.
        for _ in 0..100 {
            work.copy(&host, &mut vram)?;
            work.launch(testgpu::IncrementF32 { data: &mut vram })?;
            work.copy(&vram, &mut host)?;
            work.launch(testgpu::IncrementF32 { data: &mut host })?;
        }
        Ok(())
    })?;
    assert!(all_are(&host, 200.0), "{:?} …", &host.to_vec()[..4]);
    Ok(())
}

pub(crate) fn full_ring_is_back_pressure() -> Outcome {
    let gpu = gpu()?;
    for options in [StreamOptions::new(), StreamOptions::new().system_calls()] {
        let stream = gpu.stream(options.packets(64))?;
        let mut memory = gpu.device().alloc::<f32>(64)?;
        let mut launched = 0u16;
        stream.scope(|work| -> Result<(), Error> {
            let mut data = memory.slice_mut();
            // Nothing is executed during the spin, and the ring fills up. It is long, since the
            // machine may be busy: were it over before, the device would keep up for ever.
            let time = Duration::from_millis(1500);
            work.launch(testgpu::Spin { time })?;
            let refused = loop {
                let kernel = testgpu::IncrementF32 { data: &mut data };
                match work.nonblocking().launch(kernel) {
                    Ok(()) if launched < 64 => launched += 1,
                    Ok(()) => panic!("the ring does not fill up"),
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.errno(), libc::EAGAIN, "{refused}");
            let kind = std::io::Error::from(refused).kind();
            assert_eq!(kind, std::io::ErrorKind::WouldBlock);
            assert!((40..64).contains(&launched), "{launched}");
            // Threads that wait get through, in batches too.
            work.batch(|| {
                for _ in 0..1000 {
                    work.launch(testgpu::IncrementF32 { data: &mut data })?;
                    launched += 1;
                }
                Ok(())
            })
        })?;
        assert!(all_are(&memory, launched.into()), "{launched}");
    }
    Ok(())
}

pub(crate) fn waiting_has_a_deadline() -> Outcome {
    let (gpu, stream) = gpu_and_stream()?;
    let mut stamps = gpu.device().alloc::<u64>(2)?;
    stream.scope(|work| -> Result<(), Error> {
        let mut stamps = stamps.slice_mut();
        work.timestamp(&mut stamps, 0)?;
        let time = Duration::from_millis(200);
        work.launch(testgpu::Spin { time })?;
        work.timestamp(&mut stamps, 1)?;
        let start = Instant::now();
        assert!(timed_out(
            work.stream().synchronize_timeout(Duration::from_millis(20))
        )?);
        assert!(start.elapsed() >= Duration::from_millis(20));
        work.stream().synchronize_timeout(Duration::from_secs(60))?;
        let took = stamps.get(1)? - stamps.get(0)?;
        assert!(took >= 200_000_000, "{took} ns");
        // There is nothing to wait for.
        work.stream().synchronize()
    })?;
    Ok(())
}

pub(crate) fn streams_work_at_the_same_time() -> Outcome {
    let gpu = gpu()?;
    let slots = gpu.info()?.compute_slots;
    let start = Instant::now();
    // Spins of all slots overlap: device time shows it, whatever the CPU does meanwhile.
    let mut stamps = gpu.device().alloc::<u64>(2 * slots as usize)?;
    let streams = (0..slots).map(|_| gpu.stream(StreamOptions::new().engines(Engines::Compute)));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    accelerator::scope(|scope| {
        let mut stamps = stamps.slice_mut();
        for (slot, stream) in streams.iter().enumerate() {
            let (work, at) = (scope.on(stream), 2 * slot);
            work.batch(|| {
                work.timestamp(&mut stamps, at)?;
                work.launch(testgpu::Spin {
                    time: Duration::from_millis(500),
                })?;
                work.timestamp(&mut stamps, at + 1)
            })?;
        }
        Ok(())
    })?;
    let stamps = stamps.to_vec();
    let (begins, ends): (Vec<_>, Vec<_>) = stamps.chunks_exact(2).map(|s| (s[0], s[1])).unzip();
    let (last_begin, first_end) = (begins.iter().max(), ends.iter().min());
    assert!(
        last_begin < first_end,
        "{begins:?} {ends:?} in {:?}",
        start.elapsed()
    );
    Ok(())
}

/// Kernels of contexts that know nothing of each other run at the same time, by the device's clock.
pub(crate) fn contexts_work_at_the_same_time() -> Outcome {
    let node = gpu()?.device().path().to_owned();
    // A file of its own is a context of its own.
    let open = || pinmap_testgpu::accelerator(&pinmap::Device::open(&node)?);
    let contexts = [open()?, open()?];
    let start = Barrier::new(contexts.len());
    let time = Duration::from_millis(200);
    let work = |gpu: &Accelerator| -> pinmap::Result<(u64, u64)> {
        let stream = gpu.stream(StreamOptions::new())?;
        let mut stamps = gpu.device().alloc::<u64>(2)?;
        start.wait();
        stream.scope(|work| {
            let stamps = &mut stamps.slice_mut();
            work.timestamp(stamps, 0)?;
            work.launch(testgpu::Spin { time })?;
            work.timestamp(stamps, 1)
        })?;
        Ok((stamps.get(0)?, stamps.get(1)?))
    };
    let mut seen = Vec::new();
    for _ in 0..10 {
        let [one, two] = &contexts;
        let (one, two) = thread::scope(|scope| {
            let other = scope.spawn(|| work(two));
            (work(one), other.join().expect("no panic"))
        });
        let (one, two) = (one?, two?);
        if one.0 < two.1 && two.0 < one.1 {
            return Ok(());
        }
        // On a busy machine a thread may come too late.
        seen.push((one, two));
    }
    Err(format!("one after the other, each time: {seen:?}").into())
}

pub(crate) fn more_streams_and_contexts_than_the_device_holds() -> Outcome {
    let first = gpu()?;
    let info = first.info()?;
    let path = first.device().path().to_owned();
    let contexts = info.vmids as usize + 4;
    let mut all = Vec::new();
    for number in 0..contexts {
        let device = Device::open(&path)?;
        let gpu = pinmap_testgpu::accelerator(&device)?;
        let mut streams = Vec::new();
        for _ in 0..2 {
            streams.push(gpu.stream(StreamOptions::new())?);
        }
        let mut memory = device.alloc::<f32>(1000)?;
        memory.write(0, &vec![number as f32; 1000])?;
        all.push((streams, memory));
    }
    let before = first.counters()?;
    std::thread::scope(|threads| {
        let work = |(streams, memory): &mut (Vec<Stream>, Allocation<f32>)| {
            for _ in 0..25 {
                for stream in &*streams {
                    stream.scope(|work| {
                        let data = &mut memory.slice_mut();
                        work.launch(testgpu::IncrementF32 { data })
                    })?;
                }
            }
            Ok::<_, Error>(())
        };
        let threads: Vec<_> = all
            .iter_mut()
            .map(|context| threads.spawn(move || work(context)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| "a thread panicked".to_owned())?
                .map_err(|error| error.to_string())
        })
    })?;
    for (number, (_, memory)) in all.iter().enumerate() {
        assert!(all_are(memory, (number + 50) as f32), "context {number}");
    }
    let after = first.counters()?;
    println!(
        "{contexts} contexts, 2 streams each, 50 launches each: {} VMID binds, {} slot binds",
        after.vmid_binds - before.vmid_binds,
        after.binds - before.binds
    );
    Ok(())
}
