// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slices of ordinary memory: what is managed or registered for them, until when, and what happens
//! if the device cannot be stopped.

use std::os::unix::process::ExitStatusExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::Command;

use nix::libc::{EACCES, EEXIST, EIO, EOPNOTSUPP, SIGABRT};
use pinmap::accelerator::{Accelerator, Reach, Stream, StreamOptions};
use pinmap::{accelerator, Buffer, Error, Result};
use pinmap_testgpu as testgpu;

use crate::fake::Fake;

/// The variable that marks a child process of the test.
const CHILD: &str = "PINMAP_TEST_CHILD";

/// Every address.
const ALL: (u64, u64) = (0, u64::MAX);

fn stream(gpu: &Accelerator) -> Stream {
    gpu.stream(StreamOptions::new()).expect("a stream")
}

/// Has the device increment numbers, and returns how it reaches them.
fn increment(stream: &Stream, numbers: &mut [f32]) -> Result<Reach> {
    stream.scope(|work| {
        let mut data = work.slice_mut(numbers)?;
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        Ok(data.reach())
    })
}

fn is_registered(reach: Reach) -> bool {
    matches!(reach, Reach::Registered { .. })
}

#[test]
fn everything_is_managed_as_long_as_a_queue_needs_it() {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    let (one, two) = (stream(&gpu), stream(&gpu));
    let mut numbers = vec![0.0; 1000];
    assert_eq!(fake.managed(), []);
    for _ in 0..3 {
        let reach = increment(&one, &mut numbers).expect("done");
        assert_eq!((reach, fake.managed()), (Reach::Managed, vec![ALL]));
    }
    increment(&two, &mut numbers).expect("done");
    drop(one);
    assert_eq!(fake.managed(), [ALL]);
    drop(two);
    assert_eq!((fake.managed(), fake.registrations().1), (vec![], 0));
}

#[test]
fn the_program_chooses_what_is_managed() {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    let stream = stream(&gpu);
    let (mut inside, mut outside) = (vec![0.0; 10_000], vec![0.0; 10_000]);
    let managed = gpu.manage(&inside[..]).expect("managed");
    let (addr, len) = managed.range().expect("a range");
    assert!(addr % 4096 == 0 && len % 4096 == 0);
    assert_eq!(fake.managed(), [(addr as u64, len as u64)]);
    let again = gpu.manage(&inside[10..20]).expect("in the other");
    assert_eq!(fake.managed().len(), 1);
    let reach = increment(&stream, &mut inside).expect("done");
    assert_eq!((reach, fake.registrations().1), (Reach::Managed, 0));
    let reach = increment(&stream, &mut outside).expect("done");
    assert!(is_registered(reach), "{reach:?}");
    let error = gpu.manage_all().expect_err("a range is managed");
    assert_eq!(error.errno(), EEXIST, "{error}");
    drop(managed);
    assert_eq!(fake.managed().len(), 1);
    drop(again);
    assert_eq!(fake.managed(), []);
    let all = gpu.manage_all().expect("managed");
    let part = gpu.manage(&inside[..]).expect("in all");
    drop(all);
    assert_eq!(fake.managed(), [ALL]);
    drop(part);
    assert_eq!((fake.managed(), fake.registrations().0), (vec![], 0));
}

#[test]
fn work_keeps_what_it_needs_managed() {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    let stream = stream(&gpu);
    let mut numbers = vec![0.0f32; 10_000];
    let managed = gpu.manage(&numbers[..]).expect("managed");
    stream
        .scope(|work| {
            let mut data = work.slice_mut(&mut numbers)?;
            drop(managed);
            assert_eq!(fake.managed().len(), 1);
            work.launch(testgpu::IncrementF32 { data: &mut data })
        })
        .expect("done");
    assert_eq!(fake.managed(), []);
}

#[test]
fn a_device_that_cannot_fault_has_slices_registered() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    assert_eq!(gpu.manage_all().expect_err("it cannot").errno(), EOPNOTSUPP);
    let stream = stream(&gpu);
    let mut numbers = vec![0.0; 10_000];
    for _ in 0..3 {
        let reach = increment(&stream, &mut numbers).expect("done");
        assert!(matches!(reach, Reach::Registered { bytes, .. } if bytes >= 40_000));
        assert_eq!(fake.registrations().0, 0);
    }
    // Also if it can, but the program wants it so.
    fake.let_fault();
    let gpu = fake.accelerator();
    let options = StreamOptions::new().register_slices();
    let stream = gpu.stream(options).expect("a stream");
    let reach = increment(&stream, &mut numbers).expect("done");
    assert!(is_registered(reach) && fake.managed().is_empty());
}

/// Slices that have nothing to do with one another, in one page, for reading and for writing.
#[test]
fn slices_share_pages() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let streams = [(); 2].map(|()| gpu.stream(StreamOptions::new()).expect("a stream"));
    let mut all = vec![0.0f32; 40_000];
    let (x, rest) = all.split_at_mut(10_001);
    let (y, z) = rest.split_at_mut(10_001);
    accelerator::scope(|scope| -> Result<()> {
        let (one, two) = (scope.on(&streams[0]), scope.on(&streams[1]));
        let (x, mut z) = (one.slice(x)?, two.slice_mut(z)?);
        let mut y = one.slice_mut(y)?;
        one.launch(testgpu::Saxpy {
            a: 1.0,
            x,
            y: &mut y,
        })?;
        two.launch(testgpu::IncrementF32 { data: &mut z })
    })
    .expect("done");
    assert_eq!(fake.registrations().0, 0);
    all[0] = 1.0;
}

/// The elements of a lent slice need not begin with a word; those beside it stay as they are.
#[test]
fn the_cpu_writes_nothing_beside_a_slice() {
    let fake = Fake::new();
    fake.let_fault();
    let stream = stream(&fake.accelerator());
    let mut bytes = [9u8; 64];
    stream
        .scope(|work| {
            let (_, part) = bytes.split_at_mut(3);
            let mut slice = work.slice_mut(&mut part[..31])?;
            slice.write(0, &[1; 31])?;
            slice.set(30, 2)?;
            assert_eq!((slice.get(29)?, slice.get(30)?), (1, 2));
            assert!(slice.set(31, 0).is_err());
            Ok::<_, Error>(())
        })
        .expect("done");
    assert_eq!(bytes[..3], [9; 3]);
    assert_eq!(bytes[3..33], [1; 30]);
    assert_eq!(bytes[33], 2);
    assert_eq!(bytes[34..], [9; 30]);
}

#[test]
fn a_panic_ends_the_loans_after_the_wait() {
    let fake = Fake::new();
    let stream = stream(&fake.accelerator());
    let mut numbers = vec![0.0f32; 10];
    let panic = catch_unwind(AssertUnwindSafe(|| {
        stream.scope(|work| -> Result<()> {
            let mut data = work.slice_mut(&mut numbers)?;
            work.launch(testgpu::IncrementF32 { data: &mut data })?;
            assert_ne!(fake.registrations().0, 0);
            panic!("in the middle")
        })
    }));
    assert!(panic.is_err());
    assert_eq!(fake.registrations().0, 0);
    numbers[0] = 1.0;
}

/// Memory without a drop, such as an array, stays as long as the device works on it.
#[test]
fn an_array_that_is_handed_over_stays() {
    for faults in [false, true] {
        let fake = Fake::new();
        if faults {
            fake.let_fault();
        }
        let gpu = fake.accelerator();
        let stream = gpu.stream(StreamOptions::new()).expect("a stream");
        let submit = || {
            let pending = stream.submit([0.0f32; 100], |work, numbers| {
                let mut data = work.slice_mut(numbers)?;
                work.launch(testgpu::IncrementF32 { data: &mut data })
            });
            pending.expect("submitted")
        };
        let (_, before) = fake.registrations();
        std::mem::forget(submit());
        let forgotten = fake.registrations().0;
        assert_eq!(forgotten != 0, !faults);
        assert_eq!(submit().wait().expect("done"), [0.0; 100]);
        assert!(fake.registrations().0 == forgotten);
        assert_eq!(fake.registrations().1 > before, !faults);
        assert_eq!(fake.managed().is_empty(), !faults);
    }
}

/// A scope lends memory of the same program to two contexts, each of which manages it.
#[test]
fn contexts_manage_for_themselves() {
    let fakes = [Fake::new(), Fake::new()];
    let gpus = [&fakes[0], &fakes[1]].map(|fake| {
        fake.let_fault();
        fake.accelerator()
    });
    let numbers = vec![0.0f32; 5000];
    let ranges = [&gpus[0], &gpus[1]].map(|gpu| gpu.manage(&numbers[..]).expect("managed"));
    let streams =
        [&gpus[0], &gpus[1]].map(|gpu| gpu.stream(StreamOptions::new()).expect("a stream"));
    accelerator::scope(|scope| -> Result<()> {
        for stream in &streams {
            for part in numbers.chunks(1000) {
                let slice = scope.on(stream).slice(part)?;
                assert_eq!(slice.reach(), Reach::Managed);
            }
        }
        drop(ranges);
        assert!(fakes.iter().all(|fake| fake.managed().len() == 1));
        Ok(())
    })
    .expect("done");
    assert!(fakes.iter().all(|fake| fake.managed().is_empty()));
}

#[test]
fn slices_of_another_context_are_refused() {
    let (fake, other) = (Fake::new(), Fake::new());
    let (one, two) = (stream(&fake.accelerator()), stream(&other.accelerator()));
    let mut numbers = vec![0.0f32; 10];
    one.scope(|outer| {
        let mut data = outer.slice_mut(&mut numbers)?;
        let refused = two.scope(|inner| inner.launch(testgpu::IncrementF32 { data: &mut data }));
        let error = refused.expect_err("it is lent to the other");
        assert!(error.to_string().contains("another context"), "{error}");
        Ok::<_, Error>(())
    })
    .expect("nothing was submitted");
}

/// If a queue can be neither waited for nor destroyed, the process ends before there is a reference
/// to memory on which the device still works.
#[test]
fn memory_is_not_used_while_a_queue_cannot_be_stopped() {
    if let Some(case) = std::env::var_os(CHILD) {
        let fake = Fake::new();
        let gpu = fake.accelerator();
        let (mut numbers, mut vram) =
            (vec![0.0f32; 10], gpu.alloc_vram::<f32>(10).expect("memory"));
        match case.to_str() {
            Some("queue") => {
                let stream = stream(&gpu);
                let result = stream.scope(|work| {
                    let mut data = work.slice_mut(&mut numbers)?;
                    fake.get_stuck();
                    work.launch(testgpu::IncrementF32 { data: &mut data })
                });
                println!("the scope has returned: {result:?}");
            }
            Some("stream") => {
                let stream = gpu.stream(StreamOptions::new()).expect("a stream");
                let result = accelerator::scope(|scope| {
                    let work = scope.on(&stream);
                    let mut data = work.slice_mut(&mut numbers)?;
                    fake.get_stuck();
                    work.launch(testgpu::IncrementF32 { data: &mut data })
                });
                println!("the scope has returned: {result:?}");
            }
            Some("managed") => {
                fake.let_fault();
                let stream = stream(&gpu);
                let mut managed = gpu.alloc_managed::<f32>(10).expect("memory");
                let result = stream.scope(|work| {
                    fake.get_stuck();
                    work.launch(testgpu::IncrementF32 {
                        data: &mut managed.slice_mut(),
                    })
                });
                println!("the scope has returned: {result:?}");
            }
            // Memory that was registered by the program has no references anyway.
            _ => {
                let stream = stream(&gpu);
                let result = stream.scope(|work| {
                    fake.get_stuck();
                    work.launch(testgpu::IncrementF32 {
                        data: &mut vram.slice_mut(),
                    })
                });
                assert_eq!(result.expect_err("it is stuck").errno(), EIO);
                println!("the scope has returned");
            }
        }
        std::process::exit(0);
    }
    for (case, aborts) in [
        ("queue", true),
        ("stream", true),
        ("managed", true),
        ("registered", false),
    ] {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "--nocapture"])
            .arg("lent::memory_is_not_used_while_a_queue_cannot_be_stopped")
            .env(CHILD, case)
            .output()
            .expect("a child");
        let (out, err) = (
            String::from_utf8_lossy(&child.stdout),
            String::from_utf8_lossy(&child.stderr),
        );
        let signal = aborts.then_some(SIGABRT);
        assert_eq!(child.status.signal(), signal, "{case}: {out}{err}");
        assert_eq!(err.contains("aborting"), aborts, "{case}: {err}");
        assert_ne!(out.contains("has returned"), aborts, "{case}: {out}");
    }
}

#[test]
fn a_page_that_is_lent_and_can_only_be_read_is_not_lent_for_writing() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let stream = stream(&gpu);
    let mut page = Buffer::<f32>::new(1024).expect("memory");
    fake.make_read_only(page.addr());
    let (source, target) = page.split_at_mut(512);
    let copied = stream.scope(|work| {
        let source = work.slice(&*source)?;
        work.copy(source, target)
    });
    let error = copied.expect_err("the page can only be read");
    assert_eq!(error.errno(), EACCES, "{error}");
    assert!(error.to_string().contains("can only be read"), "{error}");
}
