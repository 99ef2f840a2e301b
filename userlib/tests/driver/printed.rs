// SPDX-License-Identifier: MIT OR Apache-2.0
//! Printed by `{:?}`, the crate's objects say where memory is, and how long it is.

use std::fmt::{Debug, LowerHex};
use std::future::IntoFuture;

use pinmap::accelerator::{self, Place, StreamOptions, WindowOptions};
use pinmap::{Access, Buffer, Cache, Ring};

use crate::fake::Fake;

pinmap::element! {
    struct Job { addr: u64, status: u64 }
}

impl pinmap::Descriptor for Job {
    type Status = u64;
    const STATUS: usize = std::mem::offset_of!(Job, status);

    fn is_done(status: u64) -> bool {
        status == 1
    }
}

/// Asserts that what is printed begins with the name, and has the numbers.
#[track_caller]
fn check(object: &dyn Debug, name: &str, numbers: &[&dyn LowerHex]) {
    let text = format!("{object:?}");
    assert!(text.starts_with(name), "{text} does not begin with {name}");
    for number in numbers {
        let number = format!("{number:#x}");
        assert!(text.contains(&number), "{text} lacks {number}");
    }
}

#[test]
fn memory_says_where_it_is() {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    let device = gpu.device();
    let buffer = Buffer::<u64>::new(512).expect("memory");
    let addr = buffer.addr();
    check(&buffer, "Buffer { addr", &[&addr]);
    let registration = buffer.register(device, Access::Read).expect("registered");
    check(&registration, "RawRegistration", &[]);
    let ring: Ring<Job> = device.ring(64, Access::ReadWrite).expect("a ring");
    check(&ring, "Ring { len: 64, head: 0, tail: 0", &[]);
    let mut vram = gpu.alloc_vram::<u64>(512).expect("allocated");
    let (addr, there) = (vram.addr(), vram.device_addr());
    check(&vram, "Allocation { place: Vram, addr", &[&addr, &there]);
    check(&vram.slice(), "DeviceSlice { device_addr", &[&there]);
    check(&vram.slice_mut(), "DeviceSlice", &[&there]);
    let pinned = gpu.alloc::<u64>(512).expect("allocated");
    check(&pinned, "Pinned { addr", &[&pinned.addr()]);
    let registered = gpu.register(vec![7u64; 512]).expect("registered");
    check(
        &registered,
        "Registered { addr",
        &[&registered.as_ptr().addr()],
    );
    let managed = gpu.alloc_managed::<u64>(512).expect("allocated");
    check(&managed, "Managed { addr", &[&managed.addr()]);
    let window = gpu.window(WindowOptions::new(2 << 20)).expect("a window");
    check(&window, "Window(", &[&window.addr(), &window.len()]);
    check(window.range(), "ManagedRange(", &[&window.addr()]);
    let cache = Cache::new(device, Access::Read, 1 << 20).expect("a cache");
    check(&cache, "Cache { device", &[]);
}

#[test]
fn what_is_under_way_says_by_which_queue() {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    check(&stream, "Stream { device", &[]);
    let event = gpu.event().expect("an event");
    check(&event, "Event { recorded: None }", &[]);
    let numbers = gpu.alloc::<u32>(4).expect("allocated");
    let pending = stream.submit(numbers, |work, numbers| {
        check(&work, "Work(Stream { device", &[]);
        work.fill(numbers, 5)
    });
    let pending = pending.expect("submitted");
    check(&pending, "Pending(Some(Fence { queue", &[]);
    check(&pending.into_future(), "Wait", &[]);
    accelerator::scope(|scope| {
        check(&scope, "Scope(", &[]);
        Ok::<_, pinmap::Error>(())
    })
    .expect("nothing was done");
    let memory = gpu.alloc_managed::<u64>(512).expect("allocated");
    let moving = memory.prefetch_on(&stream, Place::Vram).expect("begun");
    check(&moving, "Prefetching(Fence { queue", &[]);
}
