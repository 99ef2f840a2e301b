// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several pieces of memory that are registered and released together.

use nix::libc;
use nix::sys::resource::{setrlimit, Resource};
use pinmap::accelerator::{Accelerator, Registered, StreamOptions};
use pinmap::inspect::ReservedKind;
use pinmap::{accelerator, Access, Buffer, Device, Error, Reason, RegisterOptions, Registration};
use pinmap_testgpu::IncrementF32;

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::pins::Pins;
use crate::setup::{become_user, buffer, device, edu, fill_device, pattern, PAGE};
use crate::streams::{stream, until, Gate};

/// More than one call of the driver takes.
const MANY: usize = 1030;

/// Buffers of a page, each with a content of its own.
fn buffers(count: usize) -> Result<Vec<Buffer>, Box<dyn std::error::Error>> {
    let content = |index| pattern(index as u8, PAGE);
    (0..count).map(|index| buffer(&content(index))).collect()
}

/// Checks that the buffers are there, in their order.
fn check(buffers: &[Buffer], count: usize) {
    assert_eq!(buffers.len(), count);
    for (index, buffer) in buffers.iter().enumerate() {
        assert_eq!(**buffer, pattern(index as u8, PAGE)[..], "buffer {index}");
    }
}

/// Checks that as many pages were pinned as it takes, and that none is any more.
fn all_unpinned(before: Option<Pins>, pages: u64) {
    if let Some(since) = before.and_then(Pins::settled_since) {
        let (acquired, released) = (pages, pages);
        assert_eq!(since, Pins { acquired, released });
    }
}

pub(crate) fn several_buffers_are_reached_and_released() -> Outcome {
    let mut edu = edu()?;
    let before = Pins::now();
    let device = edu.device().clone();
    let sources = device.register_all(buffers(20)?, Access::Read)?;
    let targets: pinmap::Result<Vec<_>> = (0..20).map(|_| Buffer::<u8>::new(PAGE)).collect();
    let targets = device.register_all(targets?, Access::ReadWrite)?;
    assert_eq!(device.info()?.registrations, 40);
    if let (Some(before), Some(now)) = (before, Pins::now()) {
        assert_eq!(now.acquired - before.acquired, 40);
    }
    for (source, target) in sources.iter().zip(&targets) {
        assert_eq!(source.device_addr()?, source.addr() as u64);
        edu.fetch(source.device_addr()?, 0, PAGE)?;
        edu.store(target.device_addr()?, 0, PAGE)?;
    }
    let addrs: Vec<_> = targets.iter().map(Registration::device_addr).collect();
    // One is released by itself, and the others together with those of another call.
    let mut all: Vec<_> = sources.into_iter().chain(targets).collect();
    let first = all.remove(0).release()?;
    let mut released = Registration::release_all(all)?;
    released.insert(0, first);
    assert_eq!(device.info()?.registrations, 0);
    all_unpinned(before, 40);
    // The device does not reach any of them.
    fill_device(&mut edu, &[0xee; PAGE])?;
    for addr in addrs {
        edu.store(addr?, 0, PAGE)?;
    }
    let targets = released.split_off(20);
    check(&released, 20);
    check(&targets, 20);
    Ok(())
}

pub(crate) fn several_buffers_are_at_demanded_addresses() -> Outcome {
    let mut edu = edu()?;
    let device = edu.device().clone();
    let options = RegisterOptions::new(Access::Read).at(0x10_0000);
    let registered = device.register_all(buffers(3)?, options)?;
    for (index, one) in registered.iter().enumerate() {
        let addr = one.device_addr()?;
        assert_eq!(addr, 0x10_0000 + (index * PAGE) as u64);
    }
    // A copy reads the end of one and the beginning of the next.
    edu.fetch(0x10_0000 + PAGE as u64 / 2, 0, PAGE)?;
    let target = Buffer::<u8>::new(PAGE)?.register(&device, Access::ReadWrite)?;
    edu.store(target.device_addr()?, 0, PAGE)?;
    let content = target.release()?;
    let buffers = Registration::release_all(registered)?;
    let (left, right) = content.split_at(PAGE / 2);
    assert!(left == &buffers[0][PAGE / 2..] && right == &buffers[1][..PAGE / 2]);
    check(&buffers, 3);
    Ok(())
}

/// Checks that nothing is left of an attempt, and that the same buffers can be registered at other
/// addresses.
fn try_again(device: &Device, buffers: Vec<Buffer>, before: Option<Pins>) -> Outcome {
    assert_eq!(device.info()?.registrations, 0);
    assert_eq!(device.own_totals()?.pinned.number, 0);
    if let Some(since) = before.and_then(Pins::settled_since) {
        assert!(since.balanced(), "{since:?}");
    }
    let count = buffers.len();
    check(&buffers, count);
    let registered = device.register_all(buffers, Access::Read)?;
    assert_eq!(device.info()?.registrations as usize, count);
    check(&Registration::release_all(registered)?, count);
    assert_eq!(device.info()?.registrations, 0);
    if let Some(since) = before.and_then(Pins::settled_since) {
        assert!(since.balanced(), "{since:?}");
    }
    Ok(())
}

/// The device addresses reach into a reserved range, at the first buffer of a call and behind it.
pub(crate) fn several_buffers_are_all_registered_or_none() -> Outcome {
    let device = device()?;
    let reserved = device.reserved()?;
    let msi = reserved
        .iter()
        .find(|reserved| reserved.kind == ReservedKind::Msi);
    let Some(msi) = msi else {
        return skip("no addresses are those of interrupts");
    };
    let start = *msi.range.start();
    for (count, failed) in [(10, 0), (10, 5), (10, 9), (MANY, 1024), (MANY, 1027)] {
        let before = Pins::now();
        let options = RegisterOptions::new(Access::Read).at(start - (failed * PAGE) as u64);
        let refused = device.register_all(buffers(count)?, options);
        let refused = refused.expect_err("it is reserved");
        assert_eq!(refused.index, Some(failed), "{refused}");
        assert_eq!(refused.error.errno(), libc::ENOSPC, "{refused}");
        let failure = refused.error.failure().expect("the driver's details");
        assert_eq!((failure.reason, failure.addr), (Reason::Reserved, start));
        let text = format!("index {failed} of {count}");
        assert!(refused.to_string().contains(&text), "{refused}");
        try_again(&device, refused.memory, before)?;
    }
    Ok(())
}

/// The limit of locked memory holds for all of them together.
pub(crate) fn several_buffers_count_against_the_limit() -> Outcome {
    const LIMIT: usize = 16;
    let bytes = (LIMIT * PAGE) as u64;
    become_user(Some(device()?.path()))?;
    setrlimit(Resource::RLIMIT_MEMLOCK, bytes, bytes)?;
    let device = device()?;
    let refused = device.register_all(buffers(LIMIT + 3)?, Access::Read);
    let refused = refused.expect_err("too many");
    assert_eq!(
        (refused.index, refused.error.errno()),
        (Some(LIMIT), libc::ENOMEM)
    );
    let failure = refused.error.failure().expect("the driver's details");
    assert_eq!((failure.reason, failure.allowed), (Reason::Memlock, bytes));
    assert_eq!(device.info()?.memlock.used, 0);
    let mut buffers = refused.memory;
    check(&buffers, LIMIT + 3);
    buffers.truncate(LIMIT);
    let registered = device.register_all(buffers, Access::Read)?;
    assert_eq!(device.info()?.memlock.used, bytes);
    check(&Registration::release_all(registered)?, LIMIT);
    assert_eq!(device.info()?.memlock.used, 0);
    Ok(())
}

/// Somebody else's device is not reached, whichever of the buffers comes first.
pub(crate) fn several_buffers_of_an_owned_device_come_back() -> Outcome {
    let owner = device()?;
    let held = owner.register_all(buffers(2)?, Access::Read)?;
    let other = Device::open(owner.path())?;
    let before = Pins::now();
    let refused = other.register_all(buffers(5)?, Access::Read);
    let refused = refused.expect_err("it is owned");
    assert_eq!(refused.error.errno(), libc::EBUSY, "{refused}");
    assert_eq!(refused.index, None, "{refused}");
    if let Some(since) = before.and_then(Pins::settled_since) {
        assert!(since.balanced(), "{since:?}");
    }
    Registration::release_all(held)?;
    drop(owner);
    try_again(&other, refused.memory, Pins::now())
}

/// Vectors, each of which is its index in each element.
fn vectors(count: u16) -> Vec<Vec<f32>> {
    let vector = |index: u16| vec![f32::from(index); 20_000 + usize::from(index)];
    (0..count).map(vector).collect()
}

/// Has a device add 1 to each element of each piece.
fn increment<M>(gpu: &Accelerator, registered: &mut [Registered<M>]) -> pinmap::Result<()>
where
    M: pinmap::accelerator::MemoryMut<Element = f32>,
{
    let stream = gpu.stream(StreamOptions::new())?;
    stream.scope(|work| {
        for one in registered {
            let data = &mut one.slice_mut();
            work.launch(IncrementF32 { data })?;
        }
        Ok(())
    })
}

pub(crate) fn several_vectors_are_worked_on_in_place() -> Outcome {
    let gpu = gpu()?;
    let before = Pins::now();
    let mut registered = gpu.register_all(vectors(30))?;
    let totals = gpu.device().own_totals()?;
    assert!(totals.pinned.bytes >= 30 * 80_000, "{totals:?}");
    increment(&gpu, &mut registered)?;
    registered[7][3] = 100.0;
    increment(&gpu, &mut registered)?;
    let vectors = Registered::release_all(registered)?;
    assert_eq!(vectors.len(), 30);
    for (index, vector) in (0u16..).zip(&vectors) {
        assert_eq!(vector.len(), 20_000 + usize::from(index));
        let right = |(at, &number): (usize, &f32)| match (index, at) {
            (7, 3) => number == 101.0,
            _ => number == f32::from(index) + 2.0,
        };
        assert!(vector.iter().enumerate().all(right), "vector {index}");
    }
    assert_eq!(gpu.device().own_totals()?.pinned.number, 0);
    if let Some(since) = before.and_then(Pins::settled_since) {
        assert!(since.balanced() && since.acquired >= 30 * 19, "{since:?}");
    }
    Ok(())
}

pub(crate) fn several_pieces_share_their_pages() -> Outcome {
    let gpu = gpu()?;
    let mut memory = Buffer::<f32>::new(50 * PAGE / 4)?;
    let before = Pins::now();
    // Each page but some has parts of two pieces.
    let pieces = memory.chunks_mut(1500);
    let mut registered = gpu.register_all(pieces).map_err(Error::from)?;
    assert_eq!(gpu.device().own_totals()?.pinned.bytes, 50 * PAGE as u64);
    increment(&gpu, &mut registered)?;
    let mut rest = registered.split_off(10);
    Registered::release_all(registered).map_err(Error::from)?;
    increment(&gpu, &mut rest)?;
    Registered::release_all(rest).map_err(Error::from)?;
    for (at, &number) in memory.iter().enumerate() {
        let expected = if at < 15_000 { 1.0 } else { 2.0 };
        assert_eq!(number, expected, "element {at}");
    }
    all_unpinned(before, 50);
    Ok(())
}

pub(crate) fn several_pieces_are_all_registered_or_none() -> Outcome {
    let gpu = gpu()?;
    for (count, failed) in [(6, 0), (6, 3), (MANY, 1026)] {
        let make = |index| {
            let mut buffer = Buffer::<f32>::new(PAGE / 4)?;
            buffer.fill(index as f32);
            Ok(buffer)
        };
        let buffers: pinmap::Result<Vec<_>> = (0..count).map(make).collect();
        let buffers = buffers?;
        // SAFETY: The device may read it, and so may everybody, as long as it is registered.
        let in_the_way = unsafe {
            let start = buffers[failed].as_ptr().cast_mut().cast();
            gpu.device().register_raw(start, PAGE, Access::Read)?
        };
        let before = Pins::now();
        let refused = gpu.register_all(buffers).expect_err("it is registered");
        assert_eq!(refused.index, Some(failed), "{refused}");
        assert_eq!(refused.error.errno(), libc::EEXIST, "{refused}");
        assert_eq!(gpu.device().own_totals()?.pinned.number, 1);
        if let Some(since) = before.and_then(Pins::settled_since) {
            assert!(since.balanced(), "{since:?}");
        }
        in_the_way.release()?;
        let mut registered = gpu.register_all(refused.memory)?;
        increment(&gpu, &mut registered[..6])?;
        let buffers = Registered::release_all(registered)?;
        assert_eq!(buffers.len(), count);
        for (index, buffer) in buffers.iter().enumerate() {
            let more = if index < 6 { 1.0 } else { 0.0 };
            let right = |&number: &f32| number == index as f32 + more;
            assert!(buffer.iter().all(right), "buffer {index}");
        }
    }
    assert_eq!(gpu.device().own_totals()?.pinned.number, 0);
    Ok(())
}

/// Work in flight keeps the memory that was handed over to it, and the pages that it shares with
/// memory that is released.
pub(crate) fn several_pieces_are_released_beside_work() -> Outcome {
    let gpu = gpu()?;
    let held = stream(&gpu)?;
    let mut gate = Gate::new(&gpu)?;
    gate.hold(&held)?;
    let before = gpu.device().own_totals()?.pinned.number;
    let registered = gpu.register_all(vectors(5))?;
    let addrs: Vec<_> = registered.iter().map(|one| one.as_ptr().addr()).collect();
    let pinned = gpu.device().own_totals()?.pinned.number;
    let pending = held.submit(registered, |work, registered| {
        for one in registered {
            let data = &mut one.slice_mut();
            work.launch(IncrementF32 { data })?;
        }
        Ok(())
    })?;
    // It is in flight; other memory comes and goes.
    let others = gpu.register_all(vectors(4))?;
    drop(Registered::release_all(others)?);
    assert!(!pending.is_done());
    assert_eq!(gpu.device().own_totals()?.pinned.number, pinned);
    for &addr in &addrs {
        assert!(gpu.device().query(addr)?.is_some());
    }
    // Memory that is lent to work shares a page with memory that is registered and released.
    let lent = gpu.stream(StreamOptions::new().register_slices())?;
    let mut second = Gate::new(&gpu)?;
    second.hold(&lent)?;
    let mut memory = Buffer::<f32>::new(4 * PAGE / 4)?;
    let start = memory.addr();
    let (left, right) = memory.split_at_mut(1500);
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&lent);
        let mut right = work.slice_mut(right)?;
        work.launch(IncrementF32 { data: &mut right })?;
        let (first, second_part) = left.split_at_mut(100);
        let mut ours = gpu.register_all([first, second_part])?;
        increment(&gpu, &mut ours)?;
        Registered::release_all(ours)?;
        assert!(gpu.device().query(start)?.is_none(), "nobody else needs it");
        let shared = gpu.device().query(start + PAGE)?;
        assert!(shared.is_some(), "the work needs it");
        second.open()
    })?;
    assert!(memory.iter().all(|&number| number == 1.0));
    assert!(gpu.device().query(start + PAGE)?.is_none());
    gate.open()?;
    let vectors = Registered::release_all(pending.wait()?)?;
    for (index, vector) in (0u16..).zip(&vectors) {
        assert!(vector
            .iter()
            .all(|&number| number == f32::from(index) + 1.0));
    }
    assert_eq!(gpu.device().own_totals()?.pinned.number, before);
    until("the memory is unpinned", || {
        let query = |&addr| gpu.device().query(addr).is_ok_and(|info| info.is_none());
        addrs.iter().all(query)
    })
}

/// Memory that left the address space is released with the others, and so is that of a device that
/// is gone.
pub(crate) fn several_buffers_may_be_stale_or_of_a_device_that_is_gone() -> Outcome {
    let device = device()?;
    let file = nix::sys::memfd::memfd_create(c"several", nix::sys::memfd::MFdFlags::empty())?;
    let file = std::fs::File::from(file);
    file.set_len(PAGE as u64)?;
    // SAFETY: Nothing else has the file; it is shorter only while nothing refers to the memory.
    let of_file = unsafe { Buffer::<u8>::from_file(&file, 0, PAGE)? };
    let mut all = buffers(4)?;
    all.insert(2, of_file);
    let registered = device.register_all(all, Access::Read)?;
    file.set_len(0)?;
    until("it is stale", || {
        registered[2]
            .state()
            .is_ok_and(|state| state == pinmap::inspect::State::Stale)
    })?;
    file.set_len(PAGE as u64)?;
    let mut all = Registration::release_all(registered)?;
    assert_eq!(*all.remove(2), [0; PAGE]);
    check(&all, 4);
    assert_eq!(device.info()?.registrations, 0);
    let registered = device.register_all(all, Access::Read)?;
    crate::stale::while_unbound(&device, || Ok(()))?;
    check(&Registration::release_all(registered)?, 4);
    Ok(())
}
