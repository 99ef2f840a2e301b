// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory that moves: what is asked of the driver, and what the crate makes of the answers.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::yield_now;
use std::time::Duration;

use nix::libc::{EEXIST, EINVAL, ENOENT, EOPNOTSUPP};
use pinmap::accelerator::{Accelerator, Advice, Managed, Place, Reach, StreamOptions};
use pinmap::inspect::Rule;
use pinmap::{accelerator, Error, Result};
use pinmap_testgpu as testgpu;

use crate::fake::Fake;

const PAGE: usize = 4096;

/// Elements of a page.
const WORDS: usize = PAGE / 8;

fn faulting() -> (Fake, Accelerator) {
    let fake = Fake::new();
    fake.let_fault();
    let gpu = fake.accelerator();
    (fake, gpu)
}

/// Memory that begins with a page.
fn pages(memory: &mut Vec<u64>, count: usize) -> &mut [u64] {
    memory.resize((count + 1) * WORDS, 7);
    let skip = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    &mut memory[skip / 8..][..count * WORDS]
}

#[test]
fn what_is_not_managed_cannot_be_moved_advised_or_asked_about() {
    let (fake, gpu) = faulting();
    let memory = vec![1u64; 1000];
    let errors = [
        gpu.prefetch(&memory[..], Place::Vram).map(drop),
        gpu.advise(&memory[..], Advice::new()),
        gpu.residency(&memory[..]).map(drop),
        gpu.residency_sums(&memory[..]).map(drop),
    ];
    for error in errors.map(|result| result.expect_err("nothing is managed")) {
        assert_eq!(error.errno(), ENOENT, "{error}");
        let text = format!("{error} {}", error.hint().expect("a hint"));
        assert!(text.contains("1000 elements"), "{text}");
        assert!(
            text.contains("not managed") && text.contains("Accelerator::manage"),
            "{text}"
        );
    }
    let _managed = gpu.manage_all().expect("managed");
    let errors = [
        gpu.prefetch(&memory[..0], Place::Vram).map(drop),
        gpu.advise(&memory[..0], Advice::new()),
        gpu.residency(&memory[..0]).map(drop),
    ];
    for error in errors.map(|result| result.expect_err("there is nothing")) {
        assert_eq!(error.errno(), EINVAL, "{error}");
    }
    assert_eq!(fake.asked(), 0);
}

#[test]
fn memory_moves_and_tells_where_it_is() {
    let (_fake, gpu) = faulting();
    let mut memory = Vec::new();
    let memory = pages(&mut memory, 8);
    let range = gpu.manage(&*memory).expect("managed");
    let moved = gpu
        .prefetch(&memory[2 * WORDS..4 * WORDS], Place::Vram)
        .expect("moved");
    assert_eq!((moved.moved, moved.there), (2 * PAGE as u64, 0));
    let moved = gpu
        .prefetch(&memory[3 * WORDS..5 * WORDS], Place::Vram)
        .expect("moved");
    assert_eq!((moved.moved, moved.there), (PAGE as u64, PAGE as u64));
    gpu.prefetch(&memory[2 * WORDS..3 * WORDS], Place::Host)
        .expect("home");
    let advice = Advice::new().prefer(Place::Host).read_mostly();
    gpu.advise(&memory[4 * WORDS..6 * WORDS], advice)
        .expect("advised");

    let residency = gpu.residency(&*memory).expect("told");
    let start = memory.as_ptr().addr();
    let none = Advice::new();
    let expected = [
        (0, 2, None, none, Rule::None),
        (2, 1, Some(Place::Host), none, Rule::Prefetched),
        (3, 1, Some(Place::Vram), none, Rule::Prefetched),
        (4, 1, Some(Place::Vram), advice, Rule::Prefetched),
        (5, 1, None, advice, Rule::None),
        (6, 2, None, none, Rule::None),
    ];
    let runs: Vec<_> = residency
        .runs
        .iter()
        .map(|run| {
            assert_eq!(run.access, None);
            let (first, count) = ((run.addr - start) / PAGE, run.len / PAGE);
            (first, count, run.place, run.advice, run.rule)
        })
        .collect();
    assert_eq!(runs, expected);
    let (sums, page) = (residency.sums, PAGE as u64);
    assert_eq!(
        (sums.absent, sums.host, sums.device),
        (5 * page, page, 2 * page)
    );
    assert_eq!(gpu.residency_sums(&*memory).expect("told"), sums);

    let statistics = range.statistics().expect("told");
    assert_eq!(statistics.in_prefetched, 3 * page);
    assert_eq!(statistics.home_prefetched, page);
    assert_eq!(statistics.device_time, Duration::from_nanos(1500));
    assert_eq!(statistics.in_touched, 0);
}

/// More runs than one call tells of.
#[test]
fn all_runs_are_told_however_many() {
    const COUNT: usize = 1300;
    let (fake, gpu) = faulting();
    let mut memory = Vec::new();
    let memory = pages(&mut memory, COUNT);
    let _managed = gpu.manage_all().expect("managed");
    for page in memory.chunks(2 * WORDS) {
        let advice = Advice::new().read_mostly();
        gpu.advise(&page[..WORDS], advice).expect("advised");
    }
    let residency = gpu.residency(&*memory).expect("told");
    assert_eq!((residency.runs.len(), fake.asked()), (COUNT, 3));
    assert_eq!(residency.sums.absent, (COUNT * PAGE) as u64);
    let mut at = memory.as_ptr().addr();
    for run in &residency.runs {
        assert_eq!((run.addr, run.len), (at, PAGE));
        at += PAGE;
    }
    assert_eq!(gpu.residency_sums(&*memory).expect("told"), residency.sums);
    assert_eq!(fake.asked(), 4);
}

#[test]
fn memory_can_stay_on_the_host() {
    let (fake, gpu) = faulting();
    let memory = vec![0u8; 10 * PAGE];
    let range = gpu.manage_on_host(&memory[..]).expect("managed");
    assert_eq!((fake.managed().len(), fake.on_host()), (1, 1));
    // Lies in it, and wants no more than it.
    drop(gpu.manage(&memory[PAGE..2 * PAGE]).expect("in it"));
    drop(gpu.manage_on_host(&memory[PAGE..2 * PAGE]).expect("in it"));
    drop(range);
    assert_eq!((fake.managed().len(), fake.on_host()), (0, 0));
    let all = gpu.manage_all().expect("managed");
    for refused in [gpu.manage_on_host(&memory[..]), gpu.manage_all_on_host()] {
        let error = refused.expect_err("it moves");
        assert_eq!(error.errno(), EEXIST, "{error}");
        let text = error.to_string();
        assert!(text.contains("managed already, and moves"), "{text}");
    }
    drop(all);
    let _all = gpu.manage_all_on_host().expect("managed");
    assert_eq!((fake.managed().len(), fake.on_host()), (1, 1));
}

#[test]
fn a_device_that_cannot_fault_says_so() {
    let gpu = Fake::new().accelerator();
    let error = gpu.manage_all_on_host().expect_err("it cannot");
    assert_eq!(error.errno(), EOPNOTSUPP, "{error}");
    assert!(error.to_string().contains("cannot fault"), "{error}");
}

fn increment(numbers: &mut Managed<f32>) -> Result<Reach> {
    let stream = numbers.accelerator().stream(StreamOptions::new())?;
    let addr = numbers.as_ptr().addr();
    assert_eq!(numbers.addr(), addr);
    stream.scope(|work| {
        let mut data = numbers.slice_mut();
        assert_eq!(data.device_addr(), addr as u64);
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        data.set(1, 5.0)?;
        Ok(data.reach())
    })
}

#[test]
fn a_value_owns_managed_memory() {
    let (fake, gpu) = faulting();
    let mut numbers = gpu.alloc_managed::<f32>(3000).expect("memory");
    assert_eq!(fake.managed(), [(0, u64::MAX)]);
    assert_eq!((numbers.len(), numbers.addr() % PAGE), (3000, 0));
    assert!(numbers.iter().all(|&number| number == 0.0));
    assert_eq!(increment(&mut numbers).expect("done"), Reach::Managed);
    assert_eq!((numbers[0], numbers[1]), (0.0, 5.0));
    assert_eq!(fake.registrations().1, 0);

    let moved = numbers.prefetch(Place::Vram).expect("moved");
    assert_eq!(moved.moved, 3 * PAGE as u64);
    numbers
        .advise(Advice::new().prefer(Place::Vram))
        .expect("advised");
    let residency = numbers.residency().expect("told");
    assert_eq!(
        (residency.runs.len(), residency.sums.device),
        (1, 3 * PAGE as u64)
    );
    assert_eq!(residency.runs[0].advice.preferred(), Some(Place::Vram));
    assert_eq!(
        numbers.statistics().expect("told").in_prefetched,
        3 * PAGE as u64
    );
    assert_eq!(numbers.discard(), 3 * PAGE);
    assert!(numbers.iter().all(|&number| number == 0.0));

    let other = gpu.alloc_managed::<u8>(1).expect("memory");
    drop(numbers);
    assert_eq!(fake.managed().len(), 1);
    drop(other);
    assert_eq!(fake.managed(), []);
}

#[test]
fn a_value_can_have_a_range_of_its_own() {
    let (fake, gpu) = faulting();
    let apart = gpu.alloc_managed_apart::<u64>(WORDS + 1).expect("memory");
    let own = (apart.addr() as u64, 2 * PAGE as u64);
    assert_eq!(fake.managed(), [own]);
    assert_eq!(apart.range().range(), Some((apart.addr(), 2 * PAGE)));
    // The program has chosen ranges, so this is another one.
    let second = gpu.alloc_managed::<u64>(1).expect("memory");
    assert_eq!(fake.managed().len(), 2);
    assert_ne!(apart.range().handle(), second.range().handle());
    drop((apart, second));
    assert_eq!(fake.managed(), []);
    let _all = gpu.manage_all().expect("managed");
    let error = gpu
        .alloc_managed_apart::<u64>(1)
        .expect_err("all is managed");
    assert_eq!(error.errno(), EEXIST, "{error}");
    assert_eq!(fake.managed().len(), 1);
    let huge = gpu.alloc_managed::<u64>((2 << 20) / 8 + 1).expect("memory");
    assert_eq!(huge.addr() % (2 << 20), 0);
}

#[test]
fn managed_memory_stays_borrowed_whatever_happens() {
    let (fake, gpu) = faulting();
    let mut numbers = gpu.alloc_managed::<f32>(10).expect("memory");
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let panic = catch_unwind(AssertUnwindSafe(|| {
        stream.scope(|work| -> Result<()> {
            work.launch(testgpu::IncrementF32 {
                data: &mut numbers.slice_mut(),
            })?;
            panic!("in the middle")
        })
    }));
    assert!(panic.is_err());
    numbers[0] = 1.0;
    // Handed over and forgotten, it stays for ever.
    let addr = numbers.addr();
    let pending = stream.submit(numbers, |work, numbers| {
        work.launch(testgpu::IncrementF32 {
            data: &mut numbers.slice_mut(),
        })
    });
    std::mem::forget(pending.expect("submitted"));
    drop(stream);
    assert_eq!(fake.managed().len(), 1);
    // SAFETY: It is never unmapped, and nothing writes to it.
    assert_eq!(unsafe { (addr as *const f32).read() }, 1.0);
    // Handed over, it comes back.
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let numbers = gpu.alloc_managed::<f32>(10).expect("memory");
    let pending = stream.submit(numbers, |work, numbers| work.fill(numbers.slice_mut(), 1.0));
    assert_eq!(pending.expect("submitted").wait().expect("done").len(), 10);
}

#[test]
fn memory_of_another_context_is_no_operand() {
    let ((_one, gpu), (_two, other)) = (faulting(), faulting());
    let mut numbers = other.alloc_managed::<f32>(10).expect("memory");
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let error = stream.scope(|work| {
        work.launch(testgpu::IncrementF32 {
            data: &mut numbers.slice_mut(),
        })
    });
    let error = error.expect_err("another context").to_string();
    assert!(error.contains("another context"), "{error}");
    // Lent as any slice it is one.
    stream
        .scope(|work| {
            let mut data = work.slice_mut(&mut numbers)?;
            work.launch(testgpu::IncrementF32 { data: &mut data })
        })
        .expect("done");
}

/// Waits until memory has moved: the fence of the made-up device says so at once.
fn wait_until(done: impl Fn() -> bool) {
    while !done() {
        yield_now();
    }
}

#[test]
fn memory_moves_in_the_order_of_a_stream() {
    let (fake, gpu) = faulting();
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let mut numbers = gpu.alloc_managed::<f32>(1000).expect("memory");
    let device = |numbers: &Managed<f32>| numbers.residency().expect("told").sums.device;
    let moving = numbers
        .prefetch_on(&stream, Place::Vram)
        .expect("submitted");
    wait_until(|| device(&numbers) == PAGE as u64);
    stream.synchronize().expect("done");
    assert!(moving.is_done());
    let moving = accelerator::scope(|scope| {
        let work = scope.on(&stream);
        let mut data = numbers.slice_mut();
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        let error = work
            .prefetch(data.as_slice().part(..0)?, Place::Host)
            .expect_err("nothing");
        assert_eq!(error.errno(), EINVAL, "{error}");
        let moving = work.prefetch(&data, Place::Host)?;
        Ok::<_, Error>(moving)
    })
    .expect("done");
    wait_until(|| device(&numbers) == 0);
    drop(moving);
    // The value goes first; its memory stays until it has moved.
    let moving = numbers
        .prefetch_on(&stream, Place::Vram)
        .expect("submitted");
    drop(numbers);
    wait_until(|| fake.managed().is_empty());
    let moved = moving.wait_timeout(Duration::MAX).expect("moved");
    assert_eq!(moved.moved, PAGE as u64);
}

#[test]
fn memory_of_another_context_does_not_move_in_a_stream() {
    let ((_fake, gpu), (_other, other)) = (faulting(), faulting());
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let numbers = other.alloc_managed::<f32>(1000).expect("memory");
    let moving = stream.scope(|work| work.prefetch(numbers.slice(), Place::Vram));
    let error = moving.expect_err("it is another's");
    assert_eq!(error.errno(), EINVAL, "{error}");
    assert!(error.to_string().contains("another context"), "{error}");
}

/// Memory that is not managed is told by the result, not by the call.
#[test]
fn failures_of_moving_come_with_the_result() {
    let (_fake, gpu) = faulting();
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let memory = gpu.device().alloc::<f32>(10).expect("memory");
    let moving =
        accelerator::scope(|scope| scope.on(&stream).prefetch(memory.slice(), Place::Vram));
    let moving = moving.expect("submitted");
    stream.synchronize().expect("done");
    let errno = loop {
        let again =
            accelerator::scope(|scope| scope.on(&stream).prefetch(memory.slice(), Place::Vram));
        // The made-up fence does not wait for the host function, whose result may be missing.
        match again
            .expect("submitted")
            .wait()
            .expect_err("not managed")
            .errno()
        {
            errno if errno == ENOENT => break errno,
            _ => yield_now(),
        }
    };
    assert_eq!(errno, ENOENT);
    drop(moving);
}

#[test]
fn the_budget_is_told_and_set() {
    let (_fake, gpu) = faulting();
    let error = gpu.budget().expect_err("nothing is managed");
    assert_eq!(error.errno(), ENOENT, "{error}");
    assert!(error.to_string().contains("nothing is managed"), "{error}");
    let numbers = gpu.alloc_managed::<u8>(3 * PAGE).expect("memory");
    let at_first = gpu.budget().expect("told");
    assert_eq!((at_first.limit, at_first.used), (None, 0));
    numbers.prefetch(Place::Vram).expect("moved");
    let page = PAGE as u64;
    let set = gpu.set_budget(5 * page).expect("set");
    assert_eq!(
        (set.limit, set.used, set.room),
        (Some(5 * page), 3 * page, 2 * page)
    );
    assert_eq!(gpu.budget().expect("told"), set);
    assert_eq!(gpu.set_budget(None).expect("set").limit, None);
}
