// SPDX-License-Identifier: MIT OR Apache-2.0
//! VRAM of one device in the hands of another, for a machine that has two with queues.

use std::time::Duration;

use pinmap::accelerator::{self, Accelerator, Condition, Place, Reach};
use pinmap::{Access, AllocOptions, Device, ErrorKind, RegisterOptions};
use pinmap_testgpu::{IncrementF32, Spin};

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::{pattern, peers, PAGE};
use crate::stream_devices::second;
use crate::streams::stream;

/// More than two buffers, and no whole one at the end.
const COUNT: usize = (5 << 20) / 4 + 3;
const BYTES: u64 = COUNT as u64 * 4;

fn numbers(seed: usize) -> Vec<f32> {
    (0..COUNT).map(|i| ((i + seed) % 9973) as f32).collect()
}

/// Bytes that the engines of a device have read from outside of it and written there, and read from
/// its own memory and written there.
fn moved(gpu: &Accelerator) -> pinmap::Result<[u64; 4]> {
    let all = gpu.counters()?.copied();
    Ok([
        all.host_read,
        all.host_written,
        all.vram_read,
        all.vram_written,
    ])
}

/// Has a function work, and returns what each device has moved meanwhile.
fn moving(
    gpus: [&Accelerator; 2],
    work: impl FnOnce() -> pinmap::Result<()>,
) -> pinmap::Result<[[u64; 4]; 2]> {
    let before = [moved(gpus[0])?, moved(gpus[1])?];
    work()?;
    let after = [moved(gpus[0])?, moved(gpus[1])?];
    Ok([0, 1].map(|gpu| [0, 1, 2, 3].map(|way| after[gpu][way] - before[gpu][way])))
}

/// By a stream of the source, and by one of the target. Where the bus allows it, the other device
/// does nothing, and otherwise each goes to host memory with its own.
pub(crate) fn vram_of_two_gpus_is_copied() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    assert_eq!(one.is_reached_by(two.device())?, peers());
    assert!(one.is_reached_by(one.device())?);
    let (mut a, mut b) = (one.alloc_vram::<f32>(COUNT)?, two.alloc_vram::<f32>(COUNT)?);
    let (push, pull) = (stream(&one)?, stream(&two)?);
    for (round, stream) in [&push, &pull, &push].into_iter().enumerate() {
        a.write(0, &numbers(round))?;
        let by_one = stream.device().path() == one.device().path();
        let of = if by_one { &one } else { &two };
        let (begun, ended) = (of.event()?, of.event()?);
        let copied = moving([&one, &two], || {
            stream.scope(|work| {
                work.record(&begun)?;
                work.copy(&a, &mut b)?;
                work.record(&ended)
            })
        })?;
        println!(
            "# {BYTES} bytes: {:?} by the device's clock",
            ended.elapsed_since(&begun)?
        );
        assert!(b.to_vec() == numbers(round), "round {round}");
        let expected = match (peers(), by_one) {
            (true, true) => [[0, BYTES, BYTES, 0], [0; 4]],
            (true, false) => [[0; 4], [BYTES, 0, 0, BYTES]],
            (false, _) => [[0, BYTES, BYTES, 0], [BYTES, 0, 0, BYTES]],
        };
        assert_eq!(copied, expected, "round {round}");
    }
    // The other way, and parts that begin anywhere.
    b.write(0, &numbers(77))?;
    for stream in [&push, &pull] {
        a.write(0, &numbers(0))?;
        stream.scope(|work| {
            let from = b.slice().part(1001..COUNT - 7)?;
            work.copy(from, a.slice_mut().part(5..COUNT - 1003)?)
        })?;
        let (got, from, before) = (a.to_vec(), numbers(77), numbers(0));
        assert!(got[5..COUNT - 1003] == from[1001..COUNT - 7]);
        assert!(got[..5] == before[..5] && got[COUNT - 1003..] == before[COUNT - 1003..]);
    }
    Ok(())
}

/// A copy comes behind what was submitted before, and what is submitted next comes behind it, on
/// both streams. The memory comes back when both devices are done.
pub(crate) fn copies_between_two_gpus_are_in_order() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let (first, next) = (stream(&one)?, stream(&two)?);
    let late = Duration::from_millis(20);
    let (mut a, mut b) = (one.alloc_vram::<f32>(COUNT)?, two.alloc_vram::<f32>(COUNT)?);
    let there = one.event()?;
    accelerator::scope(|scope| {
        let (first, next) = (scope.on(&first), scope.on(&next));
        let (mut a, mut b) = (a.slice_mut(), b.slice_mut());
        for _ in 0..3 {
            first.launch(Spin { time: late })?;
            first.launch(IncrementF32 { data: &mut a })?;
            first.copy(&a, &mut b)?;
            first.record(&there)?;
            next.wait_event(&there)?;
            next.launch(IncrementF32 { data: &mut b })?;
            next.copy(&b, &mut a)?;
            let back = two.event()?;
            next.record(&back)?;
            first.wait_event(&back)?;
        }
        first.launch(IncrementF32 { data: &mut a })
    })?;
    assert!(
        a.to_vec().iter().all(|&number| number == 7.0),
        "{:?}",
        a.get(0)
    );
    // Streams that are dropped finish what was submitted.
    a.write(0, &numbers(3))?;
    let pending = first.submit((a, b), |work, (a, b)| {
        work.launch(Spin { time: late })?;
        work.copy(&*a, b)
    })?;
    drop((first, next));
    let (_, b) = pending.wait()?;
    assert!(b.to_vec() == numbers(3));
    Ok(())
}

/// Kernels work on the other device's memory by the bus, or the error names what is between.
pub(crate) fn vram_of_two_gpus_is_an_operand() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let stream = stream(&two)?;
    let mut a = one.alloc_vram::<f32>(1000)?;
    if !peers() {
        let error = a.on(&two).map(drop).expect_err("the bus does not let it");
        assert_eq!(error.errno(), nix::libc::EREMOTEIO, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("is only the host bridge (8086:29c0)"),
            "{text}"
        );
        let error = a.register(two.device(), Access::Read).map(drop);
        assert_eq!(error.expect_err("neither").errno(), nix::libc::EREMOTEIO);
        return Ok(());
    }
    let pinned = two.device().own_totals()?.pinned;
    stream.scope(|work| {
        let mut there = a.on_mut(&two)?;
        assert_eq!(there.reach(), Reach::Peer);
        work.fill(&mut there, 4.0)?;
        work.launch(IncrementF32 { data: &mut there })
    })?;
    assert_eq!(two.device().own_totals()?.pinned, pinned);
    assert_eq!(a.to_vec(), [5.0; 1000]);
    // Its own device has it as its own, also by a slice of the other one.
    let mut here = one.alloc_vram::<f32>(1000)?;
    let own = crate::streams::stream(&one)?;
    own.scope(|work| work.copy(a.on(&two)?, &mut here))?;
    assert_eq!(here.to_vec(), [5.0; 1000]);
    Ok(())
}

/// A registration goes when the memory does, in any order of drops; what makes no sense is refused.
pub(crate) fn vram_of_two_gpus_goes_stale() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let host = one.device().alloc::<u8>(PAGE)?;
    let refused = host.register(two.device(), Access::Read).map(drop);
    let refused = refused.expect_err("host memory");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(
        refused.to_string().contains("AllocOptions::portable"),
        "{refused}"
    );
    let vram = one.alloc_vram::<u8>(3 * PAGE)?;
    let refused = vram.register(one.device(), Access::Read).map(drop);
    assert!(refused
        .expect_err("its own")
        .to_string()
        .contains("its own memory"));
    if !peers() {
        return Ok(());
    }
    let portable = RegisterOptions::new(Access::Read).portable();
    let refused = vram.register(two.device(), portable).map(drop);
    assert_eq!(
        refused.expect_err("portable").kind(),
        ErrorKind::Unsupported
    );
    let registered = vram.register(two.device(), Access::ReadWrite)?;
    assert_eq!(registered.len(), 3 * PAGE);
    // Once more, at another address.
    let again = vram.register(two.device(), Access::Read)?;
    assert_ne!(again.device_addr()?, registered.device_addr()?);
    assert_eq!(registered.state()?, pinmap::inspect::State::Live);
    drop(vram);
    assert_eq!(registered.state()?, pinmap::inspect::State::Stale);
    assert_eq!(again.state()?, pinmap::inspect::State::Stale);
    // A store to what is gone stops the stream, and reaches nothing.
    let stream = stream(&two)?;
    let error = stream.scope(|work| work.store(&registered, 8, 1u32));
    assert_eq!(error.expect_err("it is gone").kind(), ErrorKind::Fault);
    registered.release().map_err(|failed| failed.error)?;
    Ok(())
}

/// A stream waits for each condition, until another one has met it.
pub(crate) fn streams_wait_for_conditions() -> Outcome {
    let gpu = gpu()?;
    let (waits, writes) = (stream(&gpu)?, stream(&gpu)?);
    for (condition, unmet, met) in [
        (Condition::AtLeast(7), 6, 8),
        (Condition::Equal(7), 8, 7),
        (Condition::And(1 << 48), 0xffff, 1 << 48),
        (Condition::Nor(!(1 << 48)), 1 << 48, 0),
    ] {
        let mut words = gpu.device().alloc::<u64>(2)?;
        words.set(0, unmet)?;
        accelerator::scope(|scope| {
            let mut words = words.slice_mut();
            let (waits, writes) = (scope.on(&waits), scope.on(&writes));
            waits.wait_until(&words, 0, condition)?;
            waits.write_value(&mut words, 1, 1)?;
            writes.launch(Spin {
                time: Duration::from_millis(5),
            })?;
            writes.stream().synchronize()?;
            assert_eq!(words.get(1)?, 0, "{condition:?}");
            writes.write_value(&mut words, 0, met)
        })?;
        assert_eq!(words.get(1)?, 1, "{condition:?}");
    }
    Ok(())
}

/// VRAM that another context exported is VRAM here, until its owner frees it.
pub(crate) fn vram_of_another_context_is_imported() -> Outcome {
    let own = gpu()?;
    let other = pinmap_testgpu::accelerator(&Device::open(own.device().path())?)?;
    let stream = stream(&other)?;
    let mut given = own.alloc_vram::<f32>(COUNT)?;
    given.write(0, &numbers(5))?;
    let dma_buf = given.export(Access::ReadWrite)?;
    let mut taken = other.device().import::<f32>(&dma_buf)?;
    assert_eq!(taken.place(), Place::Vram);
    assert!(taken.len() >= COUNT && taken.slice().part(..COUNT)?.to_vec() == numbers(5));
    let mut mine = other.alloc_vram::<f32>(COUNT)?;
    let before = moved(&other)?;
    stream.scope(|work| {
        let mut all = taken.slice_mut().part(..COUNT)?;
        work.launch(IncrementF32 { data: &mut all })?;
        work.copy(&all, &mut mine)
    })?;
    let [read, written, ..] = moved(&other)?;
    assert_eq!([read, written], before[..2], "something went by the bus");
    let expected: Vec<f32> = numbers(5).iter().map(|number| number + 1.0).collect();
    assert!(given.to_vec() == expected && mine.to_vec() == expected);
    // Released by its owner, it is no operand any more.
    drop(given);
    let copied = stream.scope(|work| work.copy(taken.slice().part(..COUNT)?, &mut mine));
    assert_eq!(copied.expect_err("it is gone").kind(), ErrorKind::Fault);
    // For reading only it is refused, because an allocation can be written.
    let given = own.alloc_vram::<f32>(COUNT)?;
    let readable = given.export(Access::Read)?;
    let refused = other.device().import::<f32>(&readable).map(drop);
    assert_eq!(refused.expect_err("read-only").errno(), nix::libc::EACCES);
    Ok(())
}

/// Prints how long copies between two accelerators take by the devices' clocks: by the bus where it
/// lets them, or through the crate's buffers in host memory, beside two copies of the whole by way
/// of host memory.
pub(crate) fn copies_between_two_gpus_are_timed() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    let (push, pull) = (stream(&one)?, stream(&two)?);
    let portable = AllocOptions::new().portable();
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let (mut a, mut b) = (one.alloc_vram::<u8>(bytes)?, two.alloc_vram::<u8>(bytes)?);
        let mut host = one.device().alloc_with::<u8>(bytes, portable)?;
        a.write(0, &pattern(3, bytes))?;
        let [begun, ended] = [one.event()?, one.event()?];
        let [late_begun, late_ended] = [two.event()?, two.event()?];
        let mut times = [Duration::ZERO; 2];
        // The first round has the device learn addresses.
        for _ in 0..2 {
            b.write(0, &vec![0; bytes])?;
            push.scope(|work| {
                work.record(&begun)?;
                work.copy(&a, &mut b)?;
                work.record(&ended)
            })?;
            times[0] = ended.elapsed_since(&begun)?;
            assert!(b.to_vec() == pattern(3, bytes));
            b.write(0, &vec![0; bytes])?;
            push.scope(|work| {
                work.record(&begun)?;
                work.copy(&a, &mut host)?;
                work.record(&ended)
            })?;
            pull.scope(|work| {
                work.record(&late_begun)?;
                work.copy(host.on(&two)?, &mut b)?;
                work.record(&late_ended)
            })?;
            times[1] = ended.elapsed_since(&begun)? + late_ended.elapsed_since(&late_begun)?;
            assert!(b.to_vec() == pattern(3, bytes));
        }
        let by = if peers() {
            "by the bus"
        } else {
            "by the crate"
        };
        println!(
            "# {bytes} bytes: {:?} {by}, {:?} by host memory",
            times[0], times[1]
        );
    }
    Ok(())
}

/// Work on VRAM that is gone fails, also if the program has other memory since: nobody gets the
/// addresses, neither the program's nor the device's, before the registration is released.
pub(crate) fn stale_registration_of_two_gpus_keeps_addresses() -> Outcome {
    let one = gpu()?;
    let two = second(&one)?;
    if !peers() {
        return skip("the bus does not let devices reach each other");
    }
    let stream = stream(&two)?;
    let vram = one.alloc_vram::<u32>(PAGE)?;
    let stale = vram.register(two.device(), Access::ReadWrite)?;
    let at = stale.device_addr()?;
    drop(vram);
    let mut others = Vec::new();
    for _ in 0..20 {
        others.push(two.alloc::<u32>(PAGE)?);
    }
    for other in &mut others {
        other.fill(5);
        assert_ne!(other.slice().device_addr(), at);
    }
    let error = stream.scope(|work| work.store(&stale, 0, 7u32));
    assert_eq!(error.expect_err("it is gone").kind(), ErrorKind::Fault);
    assert!(others
        .iter()
        .all(|other| other.iter().all(|&number| number == 5)));
    stream.reset()?;
    stale.release().map_err(|failed| failed.error)?;
    // Then they can be used again.
    let mut again = two.alloc::<u32>(PAGE)?;
    stream.scope(|work| work.fill(&mut again, 9))?;
    assert!(again.iter().all(|&number| number == 9));
    Ok(())
}
