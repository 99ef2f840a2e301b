// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory that moves, through the crate: values that own it, advice, residency, statistics,
//! discarding, and moving in the order of a stream.

use std::alloc::{GlobalAlloc, Layout};

use nix::libc;
use nix::sys::mman::{mlock, munlock};
use pinmap::accelerator::{
    Accelerator, Advice, Managed, ManagedAlloc, ManagedRange, Place, Stream, StreamOptions,
};
use pinmap::inspect::Rule;
use pinmap::{accelerator, DeviceEvent, Error};
use pinmap_testgpu as testgpu;

use crate::command::run;
use crate::harness::Outcome;
use crate::lent::faulting;
use crate::setup::PAGE;

/// Numbers of 2 MiB, which may be one page of the device.
const BLOCK: usize = (2 << 20) / 4;

fn numbers(gpu: &Accelerator, count: usize) -> Result<Managed<f32>, Error> {
    let mut numbers = gpu.alloc_managed_apart(count)?;
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = (index % 1000) as f32;
    }
    Ok(numbers)
}

fn increment(stream: &Stream, numbers: &mut Managed<f32>) -> Result<(), Error> {
    let addr = numbers.addr() as u64;
    stream.scope(|work| {
        let mut data = numbers.slice_mut();
        assert_eq!(data.device_addr(), addr);
        work.launch(testgpu::IncrementF32 { data: &mut data })
    })
}

fn check(numbers: &[f32], more: f32) {
    for (index, &number) in numbers.iter().enumerate() {
        assert_eq!(number, (index % 1000) as f32 + more, "number {index}");
    }
}

/// The rules of all runs of a place.
fn rules(numbers: &Managed<f32>, place: Place) -> Result<Vec<Rule>, Error> {
    let runs = numbers.residency()?.runs.into_iter();
    let mut rules: Vec<_> = runs
        .filter(|run| run.place == Some(place))
        .map(|run| run.rule)
        .collect();
    rules.dedup();
    Ok(rules)
}

fn bytes(numbers: &[f32]) -> u64 {
    size_of_val(numbers) as u64
}

/// Memory goes to the device that touches it, and comes home when the CPU does; nobody asks.
pub(crate) fn managed_value_is_where_it_is_used() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, 2 * BLOCK)?;
    let all = bytes(&numbers);
    let sums = numbers.residency()?.sums;
    assert_eq!((sums.absent, sums.host, sums.device), (0, all, 0));
    for turn in 1..=2u8 {
        increment(&stream, &mut numbers)?;
        let residency = numbers.residency()?;
        assert_eq!(residency.sums.device, all, "{residency:?}");
        let runs = &residency.runs;
        assert!(runs.iter().all(|run| run.rule == Rule::Touched), "{runs:?}");
        assert_eq!(gpu.residency_sums(&numbers[..])?, residency.sums);
        check(&numbers, turn.into());
        let sums = numbers.residency()?.sums;
        assert_eq!((sums.host, sums.device), (all, 0));
        assert_eq!(rules(&numbers, Place::Host)?, [Rule::Home]);
    }
    let statistics = numbers.statistics()?;
    assert_eq!(statistics.in_touched, 2 * all, "{statistics:?}");
    assert_eq!(statistics.home_touched, 2 * all, "{statistics:?}");
    assert!(statistics.device_faults >= 2 && statistics.host_faults >= 2);
    assert!(!statistics.device_time.is_zero() && !statistics.host_time.is_zero());
    assert_eq!((statistics.in_prefetched, statistics.home_evicted), (0, 0));
    Ok(())
}

pub(crate) fn managed_advice_decides_where_memory_is() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, BLOCK)?;
    let all = bytes(&numbers);
    let stays = [
        Advice::new().prefer(Place::Host),
        Advice::new().accessed_by_device(),
    ];
    for (turn, advice) in (1u8..).zip(stays) {
        numbers.advise(advice)?;
        increment(&stream, &mut numbers)?;
        let residency = numbers.residency()?;
        assert_eq!(residency.sums.host, all, "{residency:?}");
        for run in &residency.runs {
            assert_eq!((run.advice, run.rule), (advice, Rule::Advised), "{run:?}");
        }
        check(&numbers, turn.into());
    }
    // The device has it mapped now, and does not fault: advice moves nothing, a call does.
    numbers.advise(Advice::new().prefer(Place::Vram))?;
    increment(&stream, &mut numbers)?;
    assert_eq!(numbers.residency()?.sums.host, all);
    assert_eq!(numbers.prefetch(Place::Vram)?.moved, all);
    check(&numbers, 3.0);
    increment(&stream, &mut numbers)?;
    assert_eq!(numbers.residency()?.sums.device, all);
    assert_eq!(rules(&numbers, Place::Vram)?, [Rule::Preferred]);
    // A part of it, and back.
    gpu.advise(&numbers[..BLOCK / 2], Advice::new())?;
    let advice: Vec<_> = numbers
        .residency()?
        .runs
        .iter()
        .map(|run| run.advice)
        .collect();
    assert_eq!(advice.first(), Some(&Advice::new()));
    assert_eq!(advice.last(), Some(&Advice::new().prefer(Place::Vram)));
    check(&numbers, 4.0);
    Ok(())
}

pub(crate) fn managed_memory_moves_in_the_order_of_a_stream() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, BLOCK)?;
    let all = bytes(&numbers);
    let there = numbers.prefetch_on(&stream, Place::Vram)?;
    let home = accelerator::scope(|scope| -> Result<_, Error> {
        let work = scope.on(&stream);
        let mut data = numbers.slice_mut();
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        work.prefetch(&data, Place::Host)
    })?;
    assert!(there.is_done() && home.is_done());
    assert_eq!((there.wait()?.moved, home.wait()?.moved), (all, all));
    assert_eq!(numbers.residency()?.sums.host, all);
    let statistics = numbers.statistics()?;
    assert_eq!(statistics.in_prefetched, all, "{statistics:?}");
    assert_eq!(statistics.home_prefetched, all, "{statistics:?}");
    // Nothing of it was moved by a touch: it was there in time.
    assert_eq!((statistics.in_touched, statistics.home_touched), (0, 0));
    check(&numbers, 1.0);
    // The value goes first.
    let free = gpu.info()?.vram_free;
    let last = numbers.prefetch_on(&stream, Place::Vram)?;
    drop(numbers);
    assert_eq!(last.wait()?.moved, all);
    stream.synchronize()?;
    gpu.device().synchronize()?;
    drop(stream);
    let gone = || Ok::<_, Error>(gpu.info()?.vram_free >= free);
    while !gone()? {
        std::thread::yield_now();
    }
    assert_eq!(gpu.device().own_totals()?.managed.number, 0);
    Ok(())
}

/// Moves all of it to the device, page by page if the kernel has one in its hands for a moment.
fn prefetch_all(numbers: &mut Managed<f32>) -> Outcome {
    let (all, mut moved) = (bytes(numbers), 0);
    while moved < all {
        moved += numbers.prefetch(Place::Vram)?.moved;
    }
    assert_eq!(moved, all);
    Ok(())
}

pub(crate) fn managed_memory_is_discarded_where_it_is() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, 2 * BLOCK)?;
    let (all, free) = (bytes(&numbers), gpu.info()?.vram_free);
    prefetch_all(&mut numbers)?;
    assert!(gpu.info()?.vram_free <= free - all);
    assert_eq!(numbers.discard() as u64, all);
    let sums = numbers.residency()?.sums;
    assert_eq!((sums.absent, sums.device), (all, 0));
    assert_eq!(gpu.info()?.vram_free, free);
    let home = numbers.statistics()?;
    assert_eq!(
        (home.home_touched, home.home_prefetched),
        (0, 0),
        "{home:?}"
    );
    assert!(numbers.iter().all(|&number| number == 0.0));
    // A part of it, and what is beside that stays.
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = (index % 1000) as f32;
    }
    prefetch_all(&mut numbers)?;
    let part = BLOCK / 2 + 3..BLOCK + 5;
    let given = gpu.discard(&mut numbers[part.clone()]);
    assert!(
        given <= part.len() * 4 && given + 2 * PAGE > part.len() * 4,
        "{given}"
    );
    let sums = gpu.residency_sums(&numbers[BLOCK / 2 + BLOCK / 8..BLOCK])?;
    assert_eq!((sums.host, sums.device), (0, 0), "{sums:?}");
    assert!(numbers[part.clone()].iter().all(|&number| number == 0.0));
    check(&numbers[..part.start], 0.0);
    let behind = part.end % 1000;
    assert_eq!(numbers[part.end], behind as f32);
    numbers.discard();
    increment(&stream, &mut numbers)?;
    assert!(numbers.iter().all(|&number| number == 1.0));
    Ok(())
}

/// Locked memory stays on the host, and cannot be given up.
pub(crate) fn managed_memory_that_is_locked() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, BLOCK / 8)?;
    let all = bytes(&numbers);
    let start = std::ptr::NonNull::from(&numbers[..]).cast();
    // SAFETY: It is mapped.
    unsafe { mlock(start, all as usize)? };
    let moved = numbers.prefetch(Place::Vram)?;
    assert_eq!((moved.fixed, moved.moved), (all, 0), "{moved:?}");
    increment(&stream, &mut numbers)?;
    assert_eq!(numbers.residency()?.sums.host, all);
    assert_eq!(rules(&numbers, Place::Host)?, [Rule::Fixed]);
    check(&numbers, 1.0);
    assert_eq!(numbers.discard(), 0);
    assert!(numbers.iter().all(|&number| number == 0.0));
    // SAFETY: As above.
    unsafe { munlock(start, all as usize)? };
    assert_eq!(numbers.prefetch(Place::Vram)?.moved, all);
    increment(&stream, &mut numbers)?;
    assert!(numbers.iter().all(|&number| number == 1.0));
    Ok(())
}

pub(crate) fn managed_memory_stays_on_the_host_by_option() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let range = gpu.manage_all_on_host()?;
    let mut numbers = gpu.alloc_managed::<f32>(BLOCK)?;
    numbers.fill(1.0);
    increment(&stream, &mut numbers)?;
    let residency = numbers.residency()?;
    assert_eq!(
        (residency.sums.host, residency.sums.device),
        (bytes(&numbers), 0)
    );
    assert!(
        residency.runs.iter().all(|run| run.rule == Rule::Advised),
        "{residency:?}"
    );
    assert!(numbers.iter().all(|&number| number == 2.0));
    // Advice goes before.
    let mut other = gpu.alloc_managed::<f32>(BLOCK)?;
    other.fill(1.0);
    other.advise(Advice::new().prefer(Place::Vram))?;
    increment(&stream, &mut other)?;
    assert_eq!(other.residency()?.sums.device, bytes(&other));
    assert!(other.iter().all(|&number| number == 2.0));
    let refused = gpu
        .alloc_managed_apart::<f32>(1)
        .expect_err("all is managed");
    assert_eq!(refused.errno(), libc::EEXIST, "{refused}");
    assert_eq!(range.handle(), numbers.range().handle());
    Ok(())
}

pub(crate) fn managed_memory_keeps_its_budget() -> Outcome {
    let gpu = faulting()?;
    let error = gpu.budget().expect_err("nothing is managed");
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, 3 * BLOCK)?;
    assert_eq!(gpu.budget()?.limit, None);
    let limit = bytes(&numbers[..BLOCK]);
    let budget = gpu.set_budget(limit)?;
    assert_eq!((budget.limit, budget.used), (Some(limit), 0));
    assert!(budget.room <= limit);
    increment(&stream, &mut numbers)?;
    let sums = numbers.residency()?.sums;
    assert!(sums.device <= limit && sums.host >= 2 * limit, "{sums:?}");
    assert_eq!(gpu.budget()?.used, sums.device);
    let needs = gpu.preflight_prefetch(&numbers[..], Place::Vram)?;
    assert_eq!(
        (needs.there, needs.moved),
        (sums.device, limit - sums.device)
    );
    assert_eq!(needs.no_room, bytes(&numbers) - limit);
    check(&numbers, 1.0);
    let all = bytes(&numbers);
    gpu.set_budget(None)?;
    assert_eq!(numbers.prefetch(Place::Vram)?.moved, all);
    check(&numbers, 1.0);
    Ok(())
}

/// CPU and device take memory from each other until it stays, which is told once.
pub(crate) fn managed_thrashing_is_told() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut numbers = numbers(&gpu, 1024)?;
    let range: &ManagedRange = numbers.range();
    let (handle, addr) = (range.handle(), numbers.addr());
    let turns = 20u8;
    for _ in 0..turns {
        increment(&stream, &mut numbers)?;
        assert!(numbers[0] > 0.0);
    }
    check(&numbers, turns.into());
    assert_eq!(rules(&numbers, Place::Host)?, [Rule::Thrashing]);
    assert!(numbers.statistics()?.thrashing >= 1);
    let mut told = Vec::new();
    while let Some(event) = gpu.device().try_next_event()? {
        told.push(event);
    }
    let [event @ DeviceEvent::Thrashing {
        range,
        addr: first,
        len,
    }] = told[..]
    else {
        return Err(format!("{told:?}").into());
    };
    assert_eq!(range, handle);
    assert!((first..first + len).contains(&addr), "{event}");
    let text = event.to_string();
    assert!(text.contains("from each other again and again"), "{text}");
    Ok(())
}

/// An allocation grows by new addresses for its pages, which stay on the device.
pub(crate) fn allocator_grows_what_is_on_the_device() -> Outcome {
    let gpu = faulting()?;
    let _all = gpu.manage_all()?;
    let layout = Layout::array::<u64>(BLOCK)?;
    // SAFETY: Only what was allocated is accessed, by the layout with which it was.
    unsafe {
        let start = ManagedAlloc.alloc(layout);
        let memory = std::slice::from_raw_parts_mut(start.cast::<u64>(), BLOCK);
        for (index, word) in memory.iter_mut().enumerate() {
            *word = index as u64;
        }
        let all = layout.size() as u64;
        assert_eq!(gpu.prefetch(&*memory, Place::Vram)?.moved, all);
        let start = ManagedAlloc.realloc(start, layout, 3 * layout.size());
        let words = std::ptr::slice_from_raw_parts(start.cast::<u64>(), 3 * BLOCK);
        let sums = gpu.residency_sums(words)?;
        assert_eq!((sums.device, sums.absent), (all, 2 * all));
        let memory = std::slice::from_raw_parts(start.cast::<u64>(), BLOCK);
        assert!((0..).zip(memory).all(|(index, &word)| word == index));
        ManagedAlloc.dealloc(start, Layout::array::<u64>(3 * BLOCK)?);
    }
    Ok(())
}

/// The command tells what the crate tells, of another process.
pub(crate) fn command_explains_where_a_page_is() -> Outcome {
    let gpu = faulting()?;
    let numbers = numbers(&gpu, BLOCK)?;
    let (pid, addr) = (std::process::id(), numbers.addr() + 8);
    numbers.prefetch(Place::Vram)?;
    let (status, out, err) = run(&format!("pinmap explain {pid} {addr:#x}"))?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    for part in [
        "in the device's memory",
        "rw-p",
        "advice  none",
        "prefetched: ",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    numbers.prefetch(Place::Host)?;
    numbers.advise(Advice::new().prefer(Place::Host).read_mostly())?;
    let (status, out, _) = run(&format!("pinmap explain --json {pid} {addr}"))?;
    assert_eq!(status, Some(0), "{out}");
    assert!(out.starts_with('['), "{out}");
    for part in [
        "\"place\": \"host\"",
        "prefer-host",
        "read-mostly",
        "\"prefetched\"",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, _, err) = run(&format!("pinmap explain {pid} 0x1000"))?;
    assert!(
        status == Some(1) && err.contains("nothing is mapped there"),
        "{err}"
    );
    let (status, _, err) = run("pinmap explain 1 0x1000")?;
    assert!(
        status == Some(1) && err.contains("no managed memory"),
        "{err}"
    );
    Ok(())
}
