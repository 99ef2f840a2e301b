// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cache of registrations: the cost of a hit, and what must not be one.

use std::time::Instant;

use nix::errno::Errno;
use nix::sys::mman::{madvise, MmapAdvise};
use pinmap::inspect::State;
use pinmap::{Access, Cache, Cached, Device};

use crate::harness::{skip, Outcome};
use crate::setup::{device, device_content, edu, pattern, RawMemory, PAGE};
use crate::syscalls::{self, Phase};

const MIB: usize = 1 << 20;

/// The first device of any kind.
fn any() -> Result<Device, Box<dyn std::error::Error>> {
    match Device::list()?.first() {
        Some(node) => Ok(Device::open(&node.path)?),
        None => skip("there is no device"),
    }
}

/// Looks up memory that nothing refers to and that stays mapped as long as the device uses it.
fn get(cache: &Cache, memory: &RawMemory, offset: usize, len: usize) -> pinmap::Result<Cached> {
    // SAFETY: Accessed by raw pointers only, and not unmapped by another thread meanwhile.
    unsafe { cache.get(memory.start().wrapping_add(offset), len) }
}

fn lookups(phase: &Phase) -> Outcome {
    let cache = Cache::new(&any()?, Access::ReadWrite, 64 * MIB)?;
    let memory = RawMemory::new(4 * MIB)?;
    for offset in (0..4 * MIB).step_by(MIB) {
        get(&cache, &memory, offset, MIB)?;
    }
    let mut live = true;
    phase.begin()?;
    phase.quiet(true);
    for round in 0..1000 {
        let cached = get(&cache, &memory, (round % 4) * MIB + 100, 5000)?;
        live &= cached.is_live()?;
    }
    phase.quiet(false);
    let statistics = cache.statistics();
    match (live, statistics.hits, statistics.misses, statistics.checked) {
        (true, 1000, 4, 0) => Ok(()),
        _ => Err(format!("{statistics:?}").into()),
    }
}

pub(crate) fn cache_hits_make_no_system_call() -> Outcome {
    drop(any()?);
    syscalls::check(lookups)
}

/// A hit costs little beside a first registration of 1 MiB.
pub(crate) fn cache_hit_costs_little() -> Outcome {
    const RUNS: usize = 31;
    let cache = Cache::new(&any()?, Access::ReadWrite, 256 * MIB)?;
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let memory = RawMemory::new(MIB)?;
        memory.fill(&[1]);
        let start = Instant::now();
        get(&cache, &memory, 0, MIB)?;
        first.push(start.elapsed());
        let start = Instant::now();
        for _ in 0..100 {
            get(&cache, &memory, 0, MIB)?;
        }
        again.push(start.elapsed() / 100);
        memory.unmap()?;
    }
    first.sort();
    again.sort();
    let (first, again) = (first[RUNS / 2], again[RUNS / 2]);
    println!("registering 1 MiB: {first:?}; finding it again: {again:?} (medians of {RUNS})");
    assert!(again * 100 <= first, "{again:?} against {first:?}");
    Ok(())
}

pub(crate) fn cache_sees_memory_go() -> Outcome {
    let mut edu = edu()?;
    let cache = Cache::new(edu.device(), Access::ReadWrite, 64 * MIB)?;
    let mut handles = Vec::new();
    for round in 0..20 {
        // The same address again and again, with other pages.
        let memory = RawMemory::new(4 * PAGE)?;
        memory.fill(&pattern(round, PAGE));
        let cached = get(&cache, &memory, 0, 4 * PAGE)?;
        assert!(cached.is_live()?);
        edu.fetch(cached.device_addr()?, 0, PAGE)?;
        assert_eq!(device_content(&mut edu, PAGE)?, pattern(round, PAGE));
        handles.push(cached.registration().handle());
        match round % 2 {
            0 => memory.unmap()?,
            _ => {
                // SAFETY: Nothing refers to it.
                unsafe {
                    let start = std::ptr::NonNull::new(memory.start()).ok_or("no memory")?;
                    madvise(start.cast(), PAGE, MmapAdvise::MADV_DONTNEED)?;
                }
                assert!(!cached.is_live()?);
                drop(cached);
                memory.fill(&pattern(round ^ 0x55, PAGE));
                let cached = get(&cache, &memory, 0, 4 * PAGE)?;
                edu.fetch(cached.device_addr()?, 0, PAGE)?;
                assert_eq!(device_content(&mut edu, PAGE)?, pattern(round ^ 0x55, PAGE));
                memory.unmap()?;
                assert!(!cached.is_live()?);
            }
        }
    }
    handles.dedup();
    assert_eq!(handles.len(), 20, "each is registered anew: {handles:?}");
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses), (0, 30));
    assert!(statistics.stale >= 10, "{statistics:?}");
    Ok(())
}

/// Changes of neighbouring memory are looked at, and change nothing.
pub(crate) fn cache_is_not_fooled_by_neighbours() -> Outcome {
    let device = device()?;
    let cache = Cache::new(&device, Access::ReadWrite, 64 * MIB)?;
    let memory = RawMemory::new(8 * PAGE)?;
    let cached = get(&cache, &memory, 0, 2 * PAGE)?;
    let handle = cached.registration().handle();
    memory.punch(4 * PAGE, PAGE)?;
    assert!(cached.is_live()?);
    // MADV_FREE clears the page table, and takes nothing.
    // SAFETY: Nothing refers to it.
    unsafe {
        let start = std::ptr::NonNull::new(memory.start()).ok_or("no memory")?;
        madvise(start.cast(), PAGE, MmapAdvise::MADV_FREE)?;
    }
    assert!(cached.is_live()?);
    let again = get(&cache, &memory, PAGE, 10)?;
    assert_eq!(again.registration().handle(), handle);
    assert_eq!(again.device_addr()?, cached.device_addr()? + PAGE as u64);
    Ok(())
}

pub(crate) fn cache_keeps_its_limit() -> Outcome {
    let device = any()?;
    let cache = Cache::new(&device, Access::Read, 8 * PAGE)?;
    let memory = RawMemory::new(64 * PAGE)?;
    let at = |index: usize, pages: usize| get(&cache, &memory, index * PAGE, pages * PAGE);
    let handle = |cached: &Cached| cached.registration().handle();
    let first = handle(&at(0, 4)?);
    let second = handle(&at(4, 4)?);
    // This one is used again, so that the other one is the oldest.
    assert_eq!(handle(&at(1, 2)?), first);
    at(8, 4)?;
    assert_eq!(handle(&at(0, 4)?), first);
    assert_ne!(handle(&at(4, 4)?), second);
    let statistics = cache.statistics();
    assert_eq!((statistics.bytes, statistics.registrations), (8 * PAGE, 2));
    assert_eq!((statistics.evicted, statistics.misses), (2, 4));
    // Registrations in use stay, and one that does not fit is not kept.
    let used = at(16, 8)?;
    let more = at(32, 16)?;
    // A registration in use is found, and nothing is registered over it.
    assert_eq!(handle(&at(32, 16)?), handle(&more));
    assert_eq!(handle(&at(40, 2)?), handle(&more));
    let partly = at(30, 4).expect_err("in use");
    assert_eq!(partly.errno(), Errno::EBUSY as i32);
    assert_eq!(
        device
            .query(memory.addr() + 16 * PAGE)?
            .map(|info| info.handle),
        Some(handle(&used))
    );
    let beyond = handle(&more);
    drop(more);
    assert!(device.query(memory.addr() + 32 * PAGE)?.is_none());
    assert_ne!(handle(&at(32, 16)?), beyond);
    assert_eq!(cache.statistics().bytes, 8 * PAGE);
    drop(used);
    cache.clear();
    assert_eq!(cache.statistics().bytes, 0);
    assert_eq!(device.info()?.registrations, 0);
    Ok(())
}

/// A registration in the way is given up, unless it is in use.
pub(crate) fn cache_makes_way() -> Outcome {
    let device = any()?;
    let cache = Cache::new(&device, Access::Read, 64 * MIB)?;
    let memory = RawMemory::new(8 * PAGE)?;
    let part = get(&cache, &memory, 0, 2 * PAGE)?;
    let error = get(&cache, &memory, PAGE, 2 * PAGE).expect_err("in use");
    assert_eq!(error.errno(), Errno::EBUSY as i32);
    drop(part);
    let all = get(&cache, &memory, 10, 8 * PAGE - 10)?;
    assert_eq!(all.registration().len(), 8 * PAGE);
    assert_eq!(all.registration().state()?, State::Live);
    assert_eq!(device.info()?.registrations, 1);
    assert!(get(&cache, &memory, 0, 0).is_err());
    Ok(())
}

/// When the user's limit is too low, and not the cache's, all unused registrations go.
pub(crate) fn cache_gives_back_what_the_user_may_not_lock() -> Outcome {
    let node = match Device::list()?.into_iter().next() {
        Some(node) => node,
        None => return skip("there is no device"),
    };
    let limit = (16 * PAGE) as u64;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, limit, limit)?;
    crate::setup::become_user(Some(&node.path))?;
    let device = Device::open(&node.path)?;
    let cache = Cache::new(&device, Access::Read, 64 * MIB)?;
    let memory = RawMemory::new(64 * PAGE)?;
    for index in (0..64).step_by(8) {
        get(&cache, &memory, index * PAGE, 8 * PAGE)?;
    }
    assert_eq!(cache.statistics().misses, 8);
    let error = get(&cache, &memory, 0, 64 * PAGE).expect_err("over the limit");
    assert_eq!(error.errno(), Errno::ENOMEM as i32);
    assert!(
        error.hint().is_some_and(|hint| hint.contains("ulimit -l")),
        "{error}"
    );
    Ok(())
}
