// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several pieces of memory that are registered and released together.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nix::libc::{EFAULT, EIO, ENODEV, ENOSPC, SIGABRT};
use pinmap::accelerator::{Accelerator, Registered, StreamOptions};
use pinmap::{Access, Buffer, Error, ErrorKind, Reason, RegisterOptions, Registration};

use crate::fake::{After, Fake};

/// The variable that marks a child process of the test.
const CHILD: &str = "PINMAP_TEST_CHILD";
/// How many buffers one call takes.
const MOST: usize = crate::sys::PINMAP_MAX_BUFFERS as usize;
const PAGE: usize = 4096;

/// Buffers of a page, each of which begins with its index.
fn buffers(count: usize) -> Vec<Buffer<u32>> {
    let buffer = |index| {
        let mut buffer = Buffer::new(PAGE / 4).expect("memory");
        buffer[0] = index as u32;
        buffer
    };
    (0..count).map(buffer).collect()
}

/// Checks that all buffers are there, in their order.
fn check(buffers: &[Buffer<u32>], count: usize) {
    assert_eq!(buffers.len(), count);
    for (index, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer[0], index as u32);
    }
}

#[test]
fn buffers_take_one_call() {
    let fake = Fake::new();
    let device = fake.open();
    let buffers = buffers(100);
    let addrs: Vec<_> = buffers.iter().map(Buffer::addr).collect();
    let registered = device.register_all(buffers, Access::ReadWrite);
    let registered = registered.expect("registered");
    assert_eq!((fake.calls(), fake.registrations()), (1, (100, 100)));
    for (one, &addr) in registered.iter().zip(&addrs) {
        assert_eq!((one.addr(), one.access()), (addr, Access::ReadWrite));
        assert_eq!(one.device_addr().expect("mapped"), addr as u64);
        assert_eq!(one.query().expect("there").addr, addr);
    }
    let buffers = Registration::release_all(registered).expect("released");
    assert_eq!((fake.calls(), fake.registrations().0), (1, 0));
    check(&buffers, 100);
}

#[test]
fn nothing_takes_no_call() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let registered = gpu.device().register_all::<u8>([], Access::Read);
    let registered = registered.expect("nothing");
    let released = Registration::release_all(registered).expect("nothing");
    assert!(released.is_empty());
    let registered = gpu.register_all::<Vec<f32>>([]).expect("nothing");
    assert!(Registered::release_all(registered)
        .expect("nothing")
        .is_empty());
    // Nor do pieces without elements.
    let registered = gpu
        .register_all([vec![0u8; 0], Vec::new()])
        .expect("nothing");
    assert_eq!(registered.len(), 2);
    let released = Registered::release_all(registered).expect("nothing");
    assert_eq!((released.len(), fake.calls()), (2, 0));
}

#[test]
fn one_buffer_takes_two_calls() {
    let fake = Fake::new();
    let device = fake.open();
    let registered = device.register_all(buffers(1), Access::Read);
    let registered = registered.expect("registered");
    check(&Registration::release_all(registered).expect("released"), 1);
    assert_eq!(fake.calls(), 2);
}

/// Checks that nothing is registered when there is no room for all, and that the error is that of
/// the first for which there is none.
fn refuse(fake: &Fake, count: usize, room: usize) {
    fake.limit_registrations(room);
    let device = fake.open();
    let failed = device
        .register_all(buffers(count), Access::ReadWrite)
        .expect_err("no room");
    assert_eq!(failed.index, Some(room));
    assert_eq!(fake.registered(), []);
    check(&failed.memory, count);
    let error = &failed.error;
    assert_eq!((error.errno(), error.kind()), (ENOSPC, ErrorKind::NoSpace));
    let reason = error.failure().expect("the driver's details").reason;
    assert_eq!(reason, Reason::Objects);
    assert!(error.hint().is_some(), "{error}");
    let addr = failed.memory[room].addr();
    let text = format!("register 4096 bytes at {addr:#x}, index {room} of {count}, with ");
    assert!(failed.to_string().contains(&text), "{failed}");
    // All of it can be registered again.
    fake.limit_registrations(count);
    let again = device.register_all(failed.memory, Access::ReadWrite);
    assert_eq!(again.expect("room").len(), count);
    assert_eq!(fake.registered(), [], "dropped");
}

#[test]
fn one_that_fails_leaves_nothing() {
    let fake = Fake::new();
    for room in [0, 1, 5, 9] {
        refuse(&fake, 10, room);
    }
}

#[test]
fn more_than_a_call_takes_are_all_or_none_too() {
    let fake = Fake::new();
    let count = 2 * MOST + 10;
    for room in [MOST - 1, MOST, 2 * MOST, 2 * MOST + 7] {
        refuse(&fake, count, room);
    }
    let device = fake.open();
    fake.limit_registrations(count);
    fake.calls();
    let registered = device.register_all(buffers(count), Access::Read);
    let registered = registered.expect("registered");
    assert_eq!((fake.calls(), fake.registrations().0), (3, count));
    let buffers = Registration::release_all(registered).expect("released");
    assert_eq!((fake.calls(), fake.registrations().0), (3, 0));
    check(&buffers, count);
}

#[test]
fn the_device_addresses_follow_one_another() {
    let fake = Fake::new();
    let device = fake.open();
    let options = RegisterOptions::new(Access::ReadWrite).at(0x10_0000);
    let sizes = [1, 3, 2].map(|pages| Buffer::<u8>::new(pages * PAGE).expect("memory"));
    let check = |registered: Vec<Registration>| {
        let addrs = registered.iter().map(Registration::device_addr);
        let addrs = addrs.collect::<Result<Vec<_>, Error>>().expect("mapped");
        assert_eq!(addrs, [0x10_0000, 0x10_1000, 0x10_4000]);
        Registration::release_all(registered).expect("released")
    };
    check(device.register_all(sizes, options).expect("registered"));
    let unmapped = device.register_all(buffers(2), options.unmapped());
    for one in unmapped.expect("registered") {
        one.device_addr().expect_err("it is not mapped");
    }
}

#[test]
fn registrations_of_several_devices_are_released_together() {
    let fakes = [Fake::new(), Fake::new()];
    let devices = [fakes[0].open(), fakes[1].open()];
    let each = buffers(6).into_iter().enumerate();
    let registered = each.map(|(index, buffer)| buffer.register(&devices[index % 2], Access::Read));
    let registered: Result<Vec<_>, _> = registered.collect();
    let registered = registered.expect("registered");
    for fake in &fakes {
        assert_eq!((fake.calls(), fake.registrations().0), (3, 3));
    }
    check(&Registration::release_all(registered).expect("released"), 6);
    for fake in &fakes {
        assert_eq!((fake.calls(), fake.registrations().0), (1, 0));
    }
}

#[test]
fn what_was_released_already_is_no_hindrance() {
    let fake = Fake::new();
    let device = fake.open();
    let registered = device.register_all(buffers(5), Access::Read);
    let registered = registered.expect("registered");
    fake.release_behind_the_back(3);
    check(&Registration::release_all(registered).expect("released"), 5);
    assert_eq!(fake.registered(), []);
}

#[test]
fn a_device_that_is_gone_gives_everything_back() {
    let fake = Fake::new();
    let device = fake.open();
    let mut registered = device
        .register_all(buffers(3), Access::ReadWrite)
        .expect("registered");
    fake.break_iommu(After::Gone);
    // The driver cuts the device off because of this one.
    registered.remove(2).release().expect_err("EIO");
    let buffers = Registration::release_all(registered).expect("it reaches nothing");
    check(&buffers, 2);
    let failed = device.register_all(buffers, Access::ReadWrite);
    let failed = failed.expect_err("it is gone");
    assert_eq!((failed.error.errno(), failed.index), (ENODEV, None));
    let text = failed.to_string();
    assert!(
        text.starts_with("cannot register 2 pieces of memory"),
        "{text}"
    );
    check(&failed.memory, 2);
}

#[test]
fn lost_memory_is_never_given_back() {
    let fake = Fake::new();
    let device = fake.open();
    let registered = device.register_all(buffers(3), Access::ReadWrite);
    let registered = registered.expect("registered");
    fake.break_iommu(After::Here);
    let mut failed = Registration::release_all(registered).expect_err("EIO");
    for _ in 0..2 {
        assert_eq!(failed.error.errno(), EIO, "{}", failed.error);
        assert_eq!(failed.value.len(), 3);
        failed = Registration::release_all(failed.value).expect_err("it is lost");
    }
    for one in failed.value {
        one.release().expect_err("it is lost");
    }
}

/// Vectors of odd lengths, each of which begins with its index.
fn vectors(count: u16) -> Vec<Vec<f32>> {
    let vector = |index: u16| {
        let mut vector = vec![0.0; 3000 + usize::from(index)];
        vector[0] = f32::from(index);
        vector
    };
    (0..count).map(vector).collect()
}

fn check_vectors(vectors: &[Vec<f32>], count: u16) {
    assert_eq!(vectors.len(), count.into());
    for (index, vector) in (0..count).zip(vectors) {
        assert_eq!(
            (vector[0], vector.len()),
            (index.into(), 3000 + usize::from(index))
        );
    }
}

#[test]
fn memory_that_is_there_takes_one_call() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let mut registered = gpu.register_all(vectors(100)).expect("registered");
    assert_eq!(fake.calls(), 1);
    for (index, one) in (0u16..).zip(&mut registered) {
        assert_eq!(one[0], f32::from(index));
        one[1] = 7.0;
        let addr = one.as_ptr().addr() as u64;
        let last = addr + 4 * one.len() as u64 - 1;
        for byte in [addr, last] {
            let ranges = fake.registered();
            assert!(ranges
                .iter()
                .any(|&(start, len)| (start..start + len).contains(&byte)));
        }
    }
    let vectors = Registered::release_all(registered).expect("released");
    assert_eq!((fake.calls(), fake.registered()), (1, vec![]));
    check_vectors(&vectors, 100);
}

#[test]
fn pieces_share_pages() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let mut memory = Buffer::<u8>::new(10 * PAGE).expect("memory");
    let pieces: Vec<&mut [u8]> = memory.chunks_mut(PAGE / 2 + 10).collect();
    let count = pieces.len();
    let mut registered = gpu.register_all(pieces).expect("registered");
    assert_eq!(fake.registrations().0, 10);
    // One of two in a page leaves it to the other.
    drop(registered.remove(0));
    assert_eq!(fake.registrations().0, 10);
    // So does a release of several.
    let last = registered.pop().expect("a piece");
    assert_eq!(
        Registered::release_all(registered).expect("released").len(),
        count - 2
    );
    assert!((1..=2).contains(&fake.registrations().0));
    last.release().expect("released");
    assert_eq!(fake.registered(), []);
    // Whatever they share, the same memory can be read as often as one likes.
    let pieces = [
        &memory[..],
        &memory[100..],
        &memory[PAGE..2 * PAGE],
        &memory[..],
    ];
    let registered = gpu.register_all(pieces).expect("registered");
    assert!(fake.registrations().0 <= 11);
    assert_eq!(
        Registered::release_all(registered).expect("released").len(),
        4
    );
    assert_eq!(fake.registered(), []);
}

#[test]
fn memory_of_which_one_fails_comes_back() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let vectors = vectors(20);
    fake.make_read_only(vectors[13].as_ptr().addr() + PAGE);
    let failed = gpu.register_all(vectors).expect_err("it is read-only");
    assert_eq!((failed.index, failed.error.errno()), (Some(13), EFAULT));
    let failure = failed.error.failure().expect("the driver's details");
    assert_eq!(failure.reason, Reason::Permission);
    let (addr, len) = (failed.memory[13].as_ptr().addr(), 4 * 3013);
    let text = format!("cannot register {len} bytes at {addr:#x}, index 13 of 20, with ");
    assert!(failed.to_string().starts_with(&text), "{failed}");
    assert_eq!(fake.registered(), []);
    check_vectors(&failed.memory, 20);
    // Pages at the ends that can only be read are no hindrance for those who read.
    for vector in &failed.memory {
        fake.make_read_only(vector.as_ptr().addr());
    }
    let slices = failed.memory.iter().map(Vec::as_slice);
    let registered = gpu.register_all(slices).expect("registered");
    let slices = Registered::release_all(registered).expect("released");
    assert_eq!((slices.len(), fake.registered()), (20, vec![]));
}

#[test]
fn many_pieces_are_all_or_none() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let mut all = Buffer::<u8>::new(3000 * PAGE).expect("memory");
    fake.make_read_only(all.addr() + 2222 * PAGE);
    let failed = gpu
        .register_all(all.chunks_mut(PAGE))
        .expect_err("read-only");
    assert_eq!((failed.index, failed.memory.len()), (Some(2222), 3000));
    assert_eq!(fake.registered(), []);
    fake.calls();
    let registered = gpu.register_all(all.chunks(PAGE)).expect("registered");
    assert_eq!((fake.calls(), fake.registrations().0), (3, 3000));
    drop(Registered::release_all(registered).expect("released"));
    assert_eq!((fake.calls(), fake.registrations().0), (3, 0));
}

#[test]
fn work_keeps_the_pages_that_it_needs() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let stream = gpu
        .stream(StreamOptions::new().register_slices())
        .expect("a queue");
    let mut memory = vec![0u32; 4 * PAGE];
    let (ours, theirs) = memory.split_at_mut(2 * PAGE + 100);
    stream
        .scope(|work| {
            let mut theirs = work.slice_mut(theirs)?;
            work.fill(&mut theirs, 7)?;
            let (first, second) = ours.split_at_mut(300);
            let before = fake.registered();
            let registered = gpu.register_all([first, second]).expect("registered");
            assert!(fake.registered().len() > before.len());
            Registered::release_all(registered).map_err(|failed| failed.error)?;
            // The page that the work has, too, is still there.
            assert_eq!(fake.registered(), before);
            Ok::<_, Error>(())
        })
        .expect("done");
    assert_eq!(fake.registered(), []);
}

/// Registers two vectors with a device whose IOMMU has failed since, and releases them.
fn release_lost(gpu: &Accelerator, fake: &Fake, after: After) -> Vec<Vec<f32>> {
    let registered = gpu.register_all(vectors(2)).expect("registered");
    fake.break_iommu(after);
    let failed = Registered::release_all(registered).expect_err("it is not Ok");
    assert_eq!(failed.error.errno(), EIO, "{}", failed.error);
    failed.value
}

#[test]
fn memory_comes_back_when_the_device_is_cut_off() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let mut vectors = release_lost(&gpu, &fake, After::Gone);
    check_vectors(&vectors, 2);
    vectors[1][0] = 8.0;
}

/// After the release its caller has the memory again, so the process is aborted before it returns.
#[test]
fn memory_does_not_come_back_while_the_device_is_here() {
    if std::env::var_os(CHILD).is_some() {
        let fake = Fake::new();
        let gpu = fake.accelerator();
        let vectors = release_lost(&gpu, &fake, After::Here);
        println!("the release has returned: {}", vectors.len());
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program)
        .args(["--exact", "--nocapture"])
        .arg("several::memory_does_not_come_back_while_the_device_is_here")
        .env(CHILD, "y")
        .output()
        .expect("a child");
    let err = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(SIGABRT), "{err}");
    assert!(err.contains("aborting"), "{err}");
}
