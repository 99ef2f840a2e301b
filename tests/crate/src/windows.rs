// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows through the crate: addresses that program and device have to themselves.

use std::process;

use nix::libc;
use nix::sys::mman::{mprotect, ProtFlags};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult};
use pinmap::accelerator::FaultReason;
use pinmap::accelerator::{
    Accelerator, Managed, Place, Stream, StreamOptions, Window, WindowOptions,
};
use pinmap::{Access, Device, Error, FaultAccess, Reason};
use pinmap_testgpu as testgpu;

use crate::command::run;
use crate::harness::Outcome;
use crate::lent::faulting;
use crate::setup::PAGE;

const HUGE: usize = 2 << 20;

/// An address at which a program of this kind has nothing.
const CHOSEN: usize = 1 << 44;

fn increment(stream: &Stream, numbers: &mut Managed<f32>) -> Result<(), Error> {
    stream.scope(|work| {
        let mut data = numbers.slice_mut();
        work.launch(testgpu::IncrementF32 { data: &mut data })
    })
}

/// Reads the flags and the policy of a mapping of this process, as the kernel tells them.
fn flags_of(addr: usize) -> std::io::Result<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let from = smaps.find(&format!("{addr:x}-")).expect("the mapping");
    let flags = smaps[from..]
        .lines()
        .find(|line| line.starts_with("VmFlags"));
    Ok(flags.expect("its flags").to_owned())
}

fn reason(error: &Error) -> Option<Reason> {
    error.failure().map(|failure| failure.reason)
}

fn chosen(gpu: &Accelerator) -> Result<Window, Error> {
    gpu.window(WindowOptions::new(4 * HUGE).at(CHOSEN).without_core_dump())
}

/// The addresses are the same on both sides; its memory moves, and what happens is counted.
pub(crate) fn window_is_the_same_for_both() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let window = chosen(&gpu)?;
    assert_eq!((window.addr(), window.len()), (CHOSEN, 4 * HUGE));
    let flags = flags_of(CHOSEN)?;
    assert!(flags.contains(" dd") && flags.contains(" hg"), "{flags}");
    let mut numbers = window.alloc_at::<f32>(HUGE, HUGE / 4)?;
    let mut others = window.alloc::<f32>(1000)?;
    assert_eq!((numbers.addr(), others.addr()), (CHOSEN + HUGE, CHOSEN));
    numbers.fill(1.0);
    let moved = numbers.prefetch(Place::Vram)?;
    assert_eq!(moved.moved, HUGE as u64, "{moved:?}");
    increment(&stream, &mut numbers)?;
    increment(&stream, &mut others)?;
    assert_eq!(numbers.residency()?.sums.device, HUGE as u64);
    assert!(numbers.iter().all(|&number| number == 2.0));
    assert!(others.iter().all(|&number| number == 1.0));
    let statistics = window.statistics()?;
    assert_eq!(statistics.in_prefetched, HUGE as u64, "{statistics:?}");
    assert!(statistics.device_faults >= 2 && statistics.host_faults >= 1);
    assert_eq!(statistics.last_refused, None);
    // Memory that came back is zeroed when it is given out again.
    increment(&stream, &mut numbers)?;
    drop(numbers);
    let again = window.alloc_at::<f32>(HUGE, HUGE / 4)?;
    assert!(again.iter().all(|&number| number == 0.0));
    drop((again, others));
    assert_eq!(window.free(), window.len());
    Ok(())
}

/// Neither a registration nor a window is made where there is one of the other.
pub(crate) fn window_keeps_its_addresses() -> Outcome {
    let gpu = faulting()?;
    let window = chosen(&gpu)?;
    let numbers = window.alloc::<u64>(HUGE / 8)?;
    let error = gpu.device().preflight(numbers.addr(), PAGE, Access::Read);
    let error = error.map(drop).expect_err("a window");
    assert_eq!(reason(&error), Some(Reason::Window), "{error}");
    assert!(
        error.to_string().contains(&format!("{CHOSEN:#x}")),
        "{error}"
    );
    let error = chosen(&gpu).map(drop).expect_err("taken");
    assert_eq!(error.errno(), libc::EEXIST, "{error}");
    assert!(
        error.to_string().contains("something mapped there"),
        "{error}"
    );
    drop((numbers, window));
    chosen(&gpu)?;

    let node = WindowOptions::new(HUGE).node(1000);
    let error = gpu.window(node).map(drop).expect_err("no such node");
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert!(error.to_string().contains("NUMA node"), "{error}");
    let first = gpu.window(WindowOptions::new(HUGE).node(0))?;
    let mut memory = first.alloc::<u8>(HUGE)?;
    memory.fill(1);
    let beyond = WindowOptions::new(HUGE).at(1 << 47);
    assert!(gpu.window(beyond).is_err());
    Ok(())
}

/// A forbidden access to a window stops the queue, and the fault is told to the end.
pub(crate) fn window_tells_its_last_fault() -> Outcome {
    let gpu = faulting()?;
    let window = gpu.window(WindowOptions::new(2 * HUGE))?;
    let mut numbers = window.alloc::<f32>(2 * PAGE / 4)?;
    numbers.fill(3.0);
    let second = std::ptr::NonNull::from(&mut numbers[PAGE / 4]).cast();
    // SAFETY: The page is that of the value, which nobody accesses before it is writable again.
    unsafe { mprotect(second, PAGE, ProtFlags::PROT_READ) }?;
    let stream = gpu.stream(StreamOptions::new())?;
    let error = increment(&stream, &mut numbers).expect_err("read-only");
    let fault = error.fault().expect("a fault");
    assert_eq!(fault.reason, Some(FaultReason::Permission));
    // SAFETY: As above.
    unsafe { mprotect(second, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) }?;
    let statistics = window.statistics()?;
    let last = statistics.last_refused.expect("the fault");
    assert_eq!(statistics.refused, 1);
    assert_eq!(Some(last.addr as u64), fault.device_addr);
    assert_eq!(last.addr, numbers.addr() + PAGE);
    assert_eq!(last.access, FaultAccess::Write);
    assert_eq!(last.reason, FaultReason::Permission);
    let command = format!("pinmap explain {} {:#x}", process::id(), last.addr);
    let (status, out, err) = run(&command)?;
    assert_eq!(status, Some(0), "{out}{err}");
    let refused = format!("the last: a write at {:#x} (permission)", last.addr);
    for part in ["window of 4 MiB", "1 refused", &refused] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let stream = gpu.stream(StreamOptions::new())?;
    increment(&stream, &mut numbers)?;
    assert_eq!(numbers[PAGE / 4], 4.0);
    Ok(())
}

/// A child has the same addresses, with memory of its own, which is in the way of another window.
pub(crate) fn window_of_a_child() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let window = chosen(&gpu)?;
    let mut numbers = window.alloc::<f32>(HUGE / 4)?;
    numbers.fill(1.0);
    increment(&stream, &mut numbers)?;
    // SAFETY: The child makes no use of locks that other threads may have had.
    match unsafe { fork() }? {
        ForkResult::Child => {
            numbers.fill(9.0);
            let own = Device::open(gpu.device().path());
            let own = own.and_then(|device| pinmap_testgpu::accelerator(&device));
            let refused = own.and_then(|own| own.window(WindowOptions::new(HUGE).at(CHOSEN)));
            let refused = refused.is_err_and(|error| error.errno() == libc::EEXIST);
            let fine = refused && numbers.iter().all(|&number| number == 9.0);
            // SAFETY: Nothing of the parent is to be ended here.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        ForkResult::Parent { child } => {
            increment(&stream, &mut numbers)?;
            assert_eq!(waitpid(child, None)?, WaitStatus::Exited(child, 0));
        }
    }
    assert!(numbers.iter().all(|&number| number == 3.0));
    Ok(())
}

/// Slices elsewhere are lent as ever while there is a window, and slices of it with no more ado.
pub(crate) fn window_beside_lent_memory() -> Outcome {
    let gpu = faulting()?;
    let stream = gpu.stream(StreamOptions::new())?;
    let mut vector = vec![1.0f32; 10_000];
    stream.scope(|work| {
        let mut data = work.slice_mut(&mut vector)?;
        work.launch(testgpu::IncrementF32 { data: &mut data })
    })?;
    // All addresses are managed by now.
    let window = chosen(&gpu)?;
    let mut numbers = window.alloc::<f32>(10_000)?;
    stream.scope(|work| {
        let mut data = work.slice_mut(&mut vector)?;
        work.launch(testgpu::IncrementF32 { data: &mut data })?;
        let mut data = work.slice_mut(&mut numbers[..])?;
        work.launch(testgpu::IncrementF32 { data: &mut data })
    })?;
    assert!(vector.iter().all(|&number| number == 3.0));
    assert!(numbers.iter().all(|&number| number == 1.0));
    assert!(window.statistics()?.device_faults >= 1);
    Ok(())
}
