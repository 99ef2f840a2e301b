// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows: addresses that are reserved for the program and the device at once.

use std::mem::forget;
use std::panic::{catch_unwind, AssertUnwindSafe};

use nix::libc::{EEXIST, EINVAL, ENOMEM};
use pinmap::accelerator::{Accelerator, Managed, Place, Reach, StreamOptions, WindowOptions};
use pinmap::{Error, Reason, Result};
use pinmap_testgpu as testgpu;

use crate::fake::Fake;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

fn faulting() -> (Fake, Accelerator) {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    (fake, gpu)
}

fn refused<T: std::fmt::Debug>(result: Result<T>, errno: i32, text: &str) -> Error {
    let error = result.expect_err(text);
    assert_eq!(error.errno(), errno, "{error}");
    assert!(error.to_string().contains(text), "{error}");
    error
}

#[test]
fn a_window_is_where_the_program_wants_it() {
    let (fake, gpu) = faulting();
    let somewhere = gpu.window(WindowOptions::new(4 * HUGE)).expect("a window");
    let addr = somewhere.addr();
    assert_eq!((addr % HUGE, somewhere.len()), (0, 4 * HUGE));
    assert_eq!(fake.managed(), [(addr as u64, 4 * HUGE as u64)]);
    assert_eq!(somewhere.range().range(), Some((addr, 4 * HUGE)));
    let there = WindowOptions::new(2 * HUGE).at(addr + HUGE);
    refused(
        gpu.window(there),
        EEXIST,
        "the program has something mapped there",
    );
    drop(somewhere);
    assert_eq!(fake.managed(), []);
    // Another thread may be quicker.
    if let Ok(window) = gpu.window(there.without_huge_pages().without_core_dump()) {
        assert_eq!((window.addr(), window.len()), (addr + HUGE, 2 * HUGE));
        let again = window.clone();
        drop(window);
        assert_eq!(fake.managed(), [((addr + HUGE) as u64, 2 * HUGE as u64)]);
        assert_eq!(again.free(), 2 * HUGE);
    }
    assert_eq!(fake.managed(), []);
}

#[test]
fn windows_that_cannot_be_are_refused() {
    let (fake, gpu) = faulting();
    let window = |options| gpu.window(options);
    for len in [0, 1, HUGE + PAGE] {
        refused(
            window(WindowOptions::new(len)),
            EINVAL,
            "the length of a window",
        );
    }
    for addr in [0, PAGE, HUGE + 1] {
        let options = WindowOptions::new(HUGE).at(addr);
        refused(window(options), EINVAL, "the address of a window");
    }
    let large = WindowOptions::new(usize::MAX - (HUGE - 1));
    refused(window(large), ENOMEM, "no address space");
    refused(window(large.at(HUGE)), ENOMEM, "no address space");
    assert_eq!(fake.managed(), []);
    // What the driver says has its reason.
    fake.refuse_windows();
    let error = window(WindowOptions::new(HUGE)).expect_err("refused");
    assert_eq!(error.errno(), EEXIST, "{error}");
    let reason = error.failure().map(|failure| failure.reason);
    assert_eq!(reason, Some(Reason::Window));
    assert!(
        error.to_string().contains("make a window of 2097152 bytes"),
        "{error}"
    );
}

#[test]
fn memory_of_a_window_does_not_overlap() {
    let (fake, gpu) = faulting();
    let window = gpu.window(WindowOptions::new(4 * HUGE)).expect("a window");
    let base = window.addr();
    let mut small = window.alloc::<u8>(1).expect("memory");
    let mut large = window.alloc::<u64>(HUGE / 8 + 1).expect("memory");
    let mut fixed = window.alloc_at::<u32>(PAGE, 1024).expect("memory");
    assert_eq!(small.addr(), base);
    assert_eq!((large.addr(), large.len()), (base + HUGE, HUGE / 8 + 1));
    assert_eq!(fixed.addr(), base + PAGE);
    assert_eq!(window.free(), 3 * HUGE - 3 * PAGE);
    small[0] = 1;
    large.fill(2);
    fixed.fill(3);
    assert_eq!(small[0], 1);
    assert!(large.iter().all(|&number| number == 2) && fixed.iter().all(|&number| number == 3));

    let alloc = |offset, count| window.alloc_at::<u8>(offset, count);
    refused(alloc(0, 1), EEXIST, "allocated already");
    refused(
        alloc(2 * PAGE, 4 * HUGE - 3 * PAGE),
        EEXIST,
        "allocated already",
    );
    refused(alloc(7, 1), EINVAL, "no multiple of the page size");
    refused(alloc(4 * HUGE, 1), ENOMEM, "out of the window");
    refused(
        alloc(usize::MAX - (PAGE - 1), PAGE),
        ENOMEM,
        "out of the window",
    );
    refused(alloc(0, 0), EINVAL, "at least one element");
    refused(window.alloc::<u64>(HUGE), ENOMEM, "not that large");
    refused(window.alloc::<u64>(usize::MAX), ENOMEM, "not that large");
    refused(
        window.alloc::<u8>(3 * HUGE),
        ENOMEM,
        "no room for it in one piece",
    );

    // What comes back is zeroed, and joined with what is free beside it.
    drop(large);
    drop(small);
    let again = window.alloc::<u8>(3 * HUGE).expect("memory");
    assert_eq!(again.addr(), base + HUGE);
    assert!(again.iter().all(|&byte| byte == 0));
    drop((again, fixed));
    assert_eq!(window.free(), 4 * HUGE);
    assert_eq!(window.alloc::<u8>(4 * HUGE).expect("memory").addr(), base);
    drop(window);
    assert_eq!(fake.managed(), []);
}

fn increment(numbers: &mut Managed<f32>) -> Result<Reach> {
    let stream = numbers.accelerator().stream(StreamOptions::new())?;
    stream.scope(|work| {
        let mut data = numbers.slice_mut();
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        Ok(data.reach())
    })
}

#[test]
fn memory_of_a_window_is_as_any_other() {
    let (fake, gpu) = faulting();
    let window = gpu.window(WindowOptions::new(2 * HUGE)).expect("a window");
    let mut numbers = window.alloc::<f32>(3000).expect("memory");
    assert_eq!(increment(&mut numbers).expect("done"), Reach::Managed);
    let moved = numbers.prefetch(Place::Vram).expect("moved");
    assert_eq!(moved.moved, 3 * PAGE as u64);
    let residency = numbers.residency().expect("told");
    assert_eq!(residency.sums.device, 3 * PAGE as u64);
    let statistics = window.statistics().expect("told");
    assert_eq!(statistics.in_prefetched, 3 * PAGE as u64);
    assert_eq!((statistics.refused, statistics.last_refused), (0, None));
    assert_eq!(numbers.range().handle(), window.range().handle());
    assert_eq!(numbers.discard(), 3 * PAGE);

    // A slice of it, as of any memory, needs no other range.
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let reach: Result<Reach> = stream.scope(|work| {
        let mut data = work.slice_mut(&mut numbers[..])?;
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        Ok(data.reach())
    });
    assert_eq!(reach.expect("done"), Reach::Managed);
    assert_eq!((fake.managed().len(), fake.registrations().1), (1, 0));
    // Other memory is managed as ever, and a window can be made then, too.
    let mut others = vec![0.0f32; 10];
    let reach: Result<Reach> = stream.scope(|work| Ok(work.slice_mut(&mut others)?.reach()));
    assert_eq!(reach.expect("done"), Reach::Managed);
    assert_eq!((fake.managed().len(), fake.registrations().1), (2, 0));
    let second = gpu.window(WindowOptions::new(HUGE)).expect("a window");
    assert_eq!(fake.managed().len(), 3);
    drop((stream, second));
    assert_eq!(fake.managed().len(), 1);
    // Memory outlives the window that it is from.
    drop(window);
    assert_eq!(fake.managed().len(), 1);
    numbers.fill(4.0);
    drop(numbers);
    assert_eq!(fake.managed(), []);
}

#[test]
fn what_is_forgotten_stays() {
    let (fake, gpu) = faulting();
    let window = gpu.window(WindowOptions::new(2 * HUGE)).expect("a window");
    let mut numbers = window.alloc::<u64>(PAGE / 8).expect("memory");
    numbers.fill(7);
    let addr = numbers.addr();
    forget(numbers);
    refused(window.alloc_at::<u64>(0, 1), EEXIST, "allocated already");
    assert_ne!(window.alloc::<u64>(1).expect("memory").addr(), addr);
    // A panic gives back what it unwinds.
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut numbers = window.alloc_at::<u64>(HUGE, 8).expect("memory");
        numbers[0] = 1;
        let stream = gpu.stream(StreamOptions::new()).expect("a stream");
        stream.scope(|work| -> Result<()> {
            work.slice(&numbers[..])?;
            panic!("in a scope");
        })
    }));
    assert!(unwound.is_err());
    assert_eq!(window.alloc_at::<u64>(HUGE, 8).expect("memory")[0], 0);
    drop(window);
    assert_eq!(fake.managed().len(), 1);
}
