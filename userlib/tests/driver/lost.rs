// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the driver cannot take back from a device (`EIO`): there is never a reference to it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nix::libc::{EIO, SIGABRT};
use pinmap::accelerator::{Stream, StreamOptions};
use pinmap::{accelerator, Access, Allocation, Buffer, Error};

use crate::fake::{After, Fake};

/// The variable that marks a child process of the test.
const CHILD: &str = "PINMAP_TEST_CHILD";

fn is_mapped(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the memory map");
    let hex = |text| usize::from_str_radix(text, 16).expect("a number");
    maps.lines()
        .filter_map(|line| line.split(' ').next()?.split_once('-'))
        .any(|(start, end)| (hex(start)..hex(end)).contains(&addr))
}

#[test]
fn is_not_given_back_at_the_second_attempt_either() {
    let fake = Fake::new();
    let device = fake.open();
    let registration = Buffer::<u8>::new(4096)
        .expect("memory")
        .register(&device, Access::ReadWrite)
        .expect("registered");
    let addr = registration.addr();
    fake.break_iommu(After::Here);
    let mut failed = registration.release().expect_err("EIO");
    for _ in 0..3 {
        assert_eq!(failed.error.errno(), EIO, "{}", failed.error);
        // The driver has forgotten the handle, and would say ESTALE.
        failed = failed.value.release().expect_err("it is lost");
    }
    assert_eq!(failed.value.load::<u64>(0).expect("atomics are allowed"), 0);
    drop(failed);
    assert!(is_mapped(addr), "the device may still write there");
}

#[test]
fn is_told_of_memory_that_is_not_the_crates() {
    let fake = Fake::new();
    let device = fake.open();
    let memory = Box::leak(vec![0u8; 8192].into_boxed_slice());
    let options = pinmap::RegisterOptions::new(Access::ReadWrite).round_outwards();
    // SAFETY: There are no other references to the memory, and no device reaches it.
    let raw = unsafe { device.register_raw(memory.as_mut_ptr(), 8192, options) };
    let raw = raw.expect("registered");
    fake.break_iommu(After::Here);
    let mapping = raw.map(Access::Read).expect("mapped");
    assert_eq!(mapping.unmap().expect_err("EIO").errno(), EIO);
    let failed = raw.release().expect_err("EIO");
    assert_eq!(failed.error.errno(), EIO);
    let text = failed.error.to_string();
    assert!(text.contains("could not take it away"), "{text}");
    assert_eq!(failed.value.release().expect_err("EIO").error.errno(), EIO);
}

/// A stream, memory of the device, and pages of the program.
fn parts(fake: &Fake) -> (Stream, Allocation<u8>, Buffer) {
    let gpu = fake.accelerator();
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let vram = gpu.alloc_vram(4096).expect("memory");
    (stream, vram, Buffer::<u8>::new(4096).expect("memory"))
}

fn copy_to(stream: &Stream, vram: &Allocation<u8>, target: &mut [u8]) -> Result<(), Error> {
    accelerator::scope(|scope| {
        let work = scope.on(stream);
        work.copy(vram.slice(), target)
    })
}

#[test]
fn ends_a_scope_with_an_error() {
    let fake = Fake::new();
    let (stream, vram, mut target) = parts(&fake);
    copy_to(&stream, &vram, &mut target).expect("nothing is wrong yet");
    assert_eq!(fake.queues(), 1);
    fake.break_iommu(After::Gone);
    let error = copy_to(&stream, &vram, &mut target).expect_err("it is not Ok");
    assert_eq!(error.errno(), EIO, "{error}");
    // The device is gone, so the memory comes back; the stream does nothing more.
    target[0] = 1;
    let error = stream.synchronize().expect_err("it was given up");
    assert_eq!(error.errno(), EIO, "{error}");
    assert!(error.to_string().contains("taken back"), "{error}");
}

#[test]
fn ends_work_that_it_was_handed_over_to_with_an_error() {
    let fake = Fake::new();
    let (stream, vram, target) = parts(&fake);
    let pending = stream.submit((vram, target), |work, (vram, target)| {
        work.copy(vram.slice(), target)
    });
    let pending = pending.expect("submitted");
    fake.break_iommu(After::Gone);
    let failed = pending.wait().expect_err("it is not Ok");
    assert_eq!(failed.error.errno(), EIO, "{}", failed.error);
    let (_, mut target) = failed.value.try_into_memory().expect("the device is gone");
    target[0] = 1;
}

/// After a scope its caller has the slice again, so the process is aborted before it returns.
#[test]
fn is_not_used_while_the_device_is_here() {
    if std::env::var_os(CHILD).is_some() {
        let fake = Fake::new();
        let (stream, vram, mut target) = parts(&fake);
        fake.break_iommu(After::Here);
        let result = copy_to(&stream, &vram, &mut target);
        println!("the scope has returned: {result:?}");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program)
        .args(["--exact", "--nocapture"])
        .arg("lost::is_not_used_while_the_device_is_here")
        .env(CHILD, "y")
        .output()
        .expect("a child");
    let (out, err) = (
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr),
    );
    assert_eq!(child.status.signal(), Some(SIGABRT), "{out}{err}");
    assert!(err.contains("aborting"), "{err}");
}
