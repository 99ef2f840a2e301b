// SPDX-License-Identifier: MIT OR Apache-2.0
//! What submitting costs: no system call, and less than one.

use std::error::Error as AnyError;
use std::hint::spin_loop;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use nix::libc;
use nix::sys::mman::{mmap_anonymous, MapFlags, ProtFlags};
use nix::sys::ptrace;
use nix::sys::signal::{raise, Signal};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, getppid, ForkResult, Pid};
use pinmap::stream::{Event, StreamOptions};
use pinmap::{kernel, Allocation, Error, Packet, Queue, QueueOptions, Stream};

use crate::gpu::gpu;
use crate::harness::Outcome;

/// What the traced child is at.
mod phase {
    /// What is not looked at.
    pub(super) const OTHER: u32 = 0;
    /// One system call, which must be seen.
    pub(super) const CALL: u32 = 1;
    /// Submitting, and looking whether it is done.
    pub(super) const SUBMIT: u32 = 2;
}

/// A number that parent and child share.
fn shared() -> Result<&'static AtomicU32, Box<dyn AnyError>> {
    let len = NonZeroUsize::MIN.saturating_add(4095);
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: A new mapping, where there is none.
    let start = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_SHARED)? };
    // SAFETY: Zeroed, aligned, and never unmapped.
    Ok(unsafe { start.cast::<AtomicU32>().as_ref() })
}

/// Has two streams take turns with memory that is handed over.
fn work_of_streams(
    one: &Stream,
    two: &Stream,
    event: &Event,
    mut floats: Allocation<f32>,
) -> Result<Allocation<f32>, Error> {
    for round in 0..100 {
        let (from, to) = if round % 2 == 0 {
            (one, two)
        } else {
            (two, one)
        };
        let pending = from.submit(floats, |work, floats| {
            let data = &mut floats.slice_mut();
            work.launch(kernel::IncrementF32 { data })
        })?;
        from.record(event)?;
        to.wait_event(event)?;
        // The device has its time; nobody sleeps.
        let mut pending = Err(pending);
        floats = loop {
            match pending {
                Ok(floats) => break floats,
                Err(early) if early.is_done() => pending = early.try_into_memory(),
                Err(early) => {
                    spin_loop();
                    pending = Err(early);
                }
            }
        };
    }
    Ok(floats)
}

/// What the child does: works with the device, and tells what it is at.
fn traced(phase: &AtomicU32) -> Result<(), Box<dyn AnyError>> {
    let gpu = gpu()?;
    let mut queue = gpu.queue(QueueOptions::new().packets(4096))?;
    let mut memory = gpu.device().alloc::<f32>(1000)?;
    let mut other = gpu.alloc_vram::<f32>(1000)?;
    let streams = [(); 2].map(|()| gpu.stream(StreamOptions::new().packets(4096)));
    let [one, two] = streams;
    let (one, two, event) = (one?, two?, gpu.event()?);
    let floats = gpu.device().alloc::<f32>(1000)?;
    // What the streams keep for themselves is there then.
    let floats = work_of_streams(&one, &two, &event, floats)?;
    ptrace::traceme()?;
    raise(Signal::SIGSTOP)?;
    phase.store(phase::CALL, Ordering::SeqCst);
    let _ = getppid();
    queue.scope(|scope| {
        let (mut data, mut other) = (memory.slice_mut(), other.slice_mut());
        phase.store(phase::SUBMIT, Ordering::SeqCst);
        for _ in 0..200 {
            scope.launch(kernel::IncrementF32 { data: &mut data })?;
            scope.copy(&data, &mut other)?;
            let batch = scope.batch();
            scope.launch(kernel::IncrementF32 { data: &mut data })?;
            scope.fill(&mut other, 0.0)?;
            drop(batch);
        }
        let fence = scope.fence()?;
        while !fence.is_done() {
            spin_loop();
        }
        phase.store(phase::OTHER, Ordering::SeqCst);
        Ok::<_, Error>(())
    })?;
    phase.store(phase::SUBMIT, Ordering::SeqCst);
    let floats = work_of_streams(&one, &two, &event, floats)?;
    phase.store(phase::OTHER, Ordering::SeqCst);
    if floats.to_vec().iter().any(|&float| float != 200.0) {
        return Err("the results of the streams are wrong".into());
    }
    match memory.to_vec().iter().all(|&float| float == 400.0) {
        true => Ok(()),
        false => Err("the results are wrong".into()),
    }
}

/// Has the child go on until its end; how often a system call began or ended in each phase.
fn trace(child: Pid, phase: &AtomicU32) -> Result<[u32; 3], Box<dyn AnyError>> {
    let mut calls = [0; 3];
    loop {
        match waitpid(child, None)? {
            WaitStatus::PtraceSyscall(_) => {
                // It stands still, so this is what it is at.
                calls[phase.load(Ordering::SeqCst) as usize] += 1;
                ptrace::syscall(child, None)?;
            }
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                ptrace::setoptions(child, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
                ptrace::syscall(child, None)?;
            }
            WaitStatus::Stopped(_, signal) => ptrace::syscall(child, signal)?,
            WaitStatus::Exited(_, 0) => return Ok(calls),
            other => return Err(format!("the child ended: {other:?}").into()),
        }
    }
}

pub(crate) fn submission_makes_no_system_call() -> Outcome {
    drop(gpu()?);
    let phase = shared()?;
    // SAFETY: This process has one thread, so that the child can use whatever it likes.
    match unsafe { fork()? } {
        ForkResult::Child => {
            let result = traced(phase);
            if let Err(error) = &result {
                eprintln!("{error}");
            }
            // SAFETY: Ends the child without what the parent would do at its end.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        ForkResult::Parent { child } => {
            let calls = trace(child, phase)?;
            let [_, one, none] = calls;
            assert_eq!(
                one, 2,
                "the beginning and the end of one system call: {calls:?}"
            );
            assert_eq!(
                none, 0,
                "system calls while submitting 800 packets: {calls:?}"
            );
            Ok(())
        }
    }
}

/// Packets for each measurement.
const PACKETS: usize = 1024;
/// Measurements of each kind.
const RUNS: usize = 21;

/// CPU time of one packet, submitted in batches, in nanoseconds.
fn cost(queue: &mut Queue, batch: usize) -> Result<f64, Error> {
    let nops = [Packet::nop()];
    queue.scope(|scope| {
        let start = Instant::now();
        for _ in 0..PACKETS / batch {
            let held = scope.batch();
            for _ in 0..batch {
                scope.submit(&nops)?;
            }
            held.submit()?;
        }
        let time = start.elapsed();
        // Not measured, and the same for both.
        scope.wait()?;
        Ok(time.as_nanos() as f64 / PACKETS as f64)
    })
}

pub(crate) fn submission_cost() -> Outcome {
    let gpu = gpu()?;
    let options = QueueOptions::new().packets(4096);
    let mut ring = gpu.queue(options)?;
    let mut ioctl = gpu.queue(options.system_calls())?;
    for batch in [1, 16, 64] {
        let (mut by_ring, mut by_ioctl) = (Vec::new(), Vec::new());
        // In turn, and not counting the first of each.
        for run in 0..=RUNS {
            let costs = (cost(&mut ring, batch)?, cost(&mut ioctl, batch)?);
            if run > 0 {
                by_ring.push(costs.0);
                by_ioctl.push(costs.1);
            }
        }
        let [ring, ioctl] = [by_ring, by_ioctl].map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[RUNS / 2] / 1e3
        });
        println!(
            "batches of {batch}: {ring:.3} µs a packet by the ring, {ioctl:.3} µs by an ioctl \
             (medians of {RUNS}, {PACKETS} packets each)"
        );
    }
    Ok(())
}
